"""Start a rank, as a module of topsmon or by the path of this folder."""

from __future__ import annotations

import sys

BY_PATH = "topsmon_by_path"
"""The parent package's name when this runs by path, so that no `topsmon` is needed or met."""


def _load_by_path() -> str:
    """Make the folder above a package under `BY_PATH`, without running its `__init__`.

    Python puts a folder that it runs first on `sys.path`, where our modules could shadow those of
    the standard library; it is taken off before anything else is imported.
    """
    here = __file__.rpartition("/")[0]
    sys.path[:] = [entry for entry in sys.path if entry != here]
    from types import ModuleType

    package = ModuleType(BY_PATH)
    package.__path__ = [here.rpartition("/")[0]]
    sys.modules[BY_PATH] = package
    return f"{BY_PATH}.distributed"


if __name__ == "__main__":
    package_name = __package__ or _load_by_path()
    from importlib import import_module

    sys.exit(import_module(f"{package_name}.rank").main(sys.argv[1:]))
