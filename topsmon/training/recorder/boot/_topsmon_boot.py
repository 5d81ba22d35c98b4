"""Wait for the run to import torch, then load the recorder under its own name and let it in.

Started by `sitecustomize` (`topsmon run`), by `topsmon.watch()`, or by the script of `topsmon
attach`. The recorder is loaded by path under one name whichever the way, so that a run which is
entered twice is hooked once. Nothing here may cost a program time that never imports torch.
"""

# ruff: noqa: INP001  a folder on the search path, not a package

from __future__ import annotations

import os
import sys

RECORDER = "_topsmon_recorder"
LEAVES = ("torch.amp.grad_scaler", "torch.optim.optimizer")
"""Modules to wait for: those that define what is hooked, not `torch`, which is then half done."""

failure = ""
way = ""
"""How the recorder came in, where the environment does not say it."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


class LeafFinder:
    """A finder that finds nothing itself: it lets the others look and sees the leaves executed."""

    def __init__(self, done: Callable[[], None]) -> None:
        self.waiting = set(LEAVES)
        self._done = done

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a leaf, prepared to tell when it has been executed."""
        if name not in self.waiting:
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(name, path, target)
            if spec is not None:
                self._prepare(name, spec.loader)
                return spec
        return None

    def _prepare(self, name: str, loader: Any) -> None:
        """Shadow the loader's `exec_module` on this one instance until it was called."""
        if isinstance(loader, type) or not hasattr(loader, "__dict__"):
            return
        if "exec_module" in vars(loader):
            return
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)
            execute(module)
            self.executed(name)

        loader.exec_module = exec_module

    def executed(self, name: str) -> None:
        """Let the recorder hook what is there now; leave `sys.meta_path` after the last leaf."""
        self.waiting.discard(name)
        if not self.waiting and self in sys.meta_path:
            sys.meta_path.remove(self)
        self._done()


def wait_for_torch() -> None:
    """Let the recorder in once torch's leaves have been executed; at once where they are there."""
    finder = LeafFinder(let_in)
    for name in LEAVES:
        if name in sys.modules:
            finder.executed(name)
    if finder.waiting:
        sys.meta_path.insert(0, finder)


def let_in() -> None:
    """Install the hooks. Never raises: `failure` and TOPSMON_DEBUG=1 tell what went wrong."""
    global failure  # noqa: PLW0603  one interpreter, one entry
    try:
        installed = recorder("install").install()
        if installed is not None and way:
            installed.identify(entry=way)
    except Exception as error:  # noqa: BLE001  the run must not notice
        failure = f"{type(error).__name__}: {error}"
        if os.environ.get("TOPSMON_DEBUG", "") not in ("", "0"):
            import traceback

            traceback.print_exc()


def enter(how: str) -> str:
    """Enter a program that runs already; return what went wrong, "" for nothing.

    `how` the recorder came in is for its run's identity.
    """
    global way  # noqa: PLW0603  as above
    way = how
    wait_for_torch()
    return failure


def recorder(module: str) -> Any:
    """Import a module of the recorder's package, which is loaded by path once."""
    import importlib
    import importlib.util

    if RECORDER not in sys.modules:
        folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120  no pathlib: 3 ms
        spec = importlib.util.spec_from_file_location(
            RECORDER, f"{folder}/__init__.py", submodule_search_locations=[folder]
        )
        if spec is None or spec.loader is None:
            raise ImportError(f"{folder} is no Python package")
        package = importlib.util.module_from_spec(spec)
        sys.modules[RECORDER] = package
        spec.loader.exec_module(package)
    return importlib.import_module(f"{RECORDER}.{module}")
