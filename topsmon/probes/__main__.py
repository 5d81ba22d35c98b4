"""Start a prober, as a module of topsmon or by the path of this folder."""

from __future__ import annotations

import sys

BY_PATH = "topsmon_probes"
"""The package's name when it runs by path, so that no `topsmon` is needed or met."""


def _load_by_path() -> str:
    """Make this folder a package under `BY_PATH`; returns the package's name.

    Python puts a folder that it runs first on `sys.path`, where our modules could shadow those of
    the standard library; it is taken off before anything else is imported.
    """
    folder = sys.path.pop(0)
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location(
        BY_PATH, f"{folder}/__init__.py", submodule_search_locations=[folder]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{folder} is no Python package")
    package = module_from_spec(spec)
    sys.modules[BY_PATH] = package
    spec.loader.exec_module(package)
    return BY_PATH


if __name__ == "__main__":
    package_name = __package__ or _load_by_path()
    from importlib import import_module

    sys.exit(import_module(f"{package_name}.prober").main(sys.argv[1:]))
