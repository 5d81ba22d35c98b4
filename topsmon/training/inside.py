"""From a program that imports topsmon to the recorder, under the one name that it has everywhere.

`topsmon run` and `topsmon attach` load the recorder by path as a package of its own. A second copy
under the name topsmon.training.recorder would hook torch twice.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

BOOT = "_topsmon_boot"


def recorder(module: str) -> Any:
    """Import a module of the recorder under its private name."""
    if BOOT not in sys.modules:
        path = Path(__file__).parent / "recorder" / "boot" / f"{BOOT}.py"
        spec = importlib.util.spec_from_file_location(BOOT, path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path} is no Python module")
        boot = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(boot)
        sys.modules[BOOT] = boot
    return sys.modules[BOOT].recorder(module)
