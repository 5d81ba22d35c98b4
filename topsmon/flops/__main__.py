"""Entry point, as `python -m topsmon.flops` and by path under another environment's Python."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path


def _import_by_path() -> str:
    """Import this folder as a package under a name of its own; return the name.

    Python puts the folder of a program run by path first on the search path, where its files would
    shadow modules of the same names.
    """
    folder = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != folder]
    name = "topsmon_flops"
    spec = importlib.util.spec_from_file_location(
        name, str(folder / "__init__.py"), submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[name] = package
    spec.loader.exec_module(package)
    return name


def run() -> int:
    """Count with the arguments of the command line and return the exit code."""
    # A compiled module counts as what it was compiled from; torch reads this when imported.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    package = __package__ or _import_by_path()
    command = importlib.import_module(package + ".command")
    # Whatever the model prints, from C too, must not get into the document.
    with os.fdopen(os.dup(1), "wb") as document:
        os.dup2(2, 1)
        return int(command.main(sys.argv[1:], document))


if __name__ == "__main__":
    sys.exit(run())
