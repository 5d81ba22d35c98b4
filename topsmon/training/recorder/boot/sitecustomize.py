"""Python imports this at start because `topsmon run` puts its folder first on PYTHONPATH.

It starts the watch for torch (`_topsmon_boot`), takes its folder off `sys.path` (not out of the
environment: grandchildren need it), and hands over to the sitecustomize that it has shadowed.
Any Python may come by here, so the syntax is that of all of them, from 2.7 on.
"""

# ruff: noqa: INP001  a folder on the search path, not a package

import os
import sys

if sys.version_info >= (3, 9) and os.environ.get("TOPSMON_OFF", "") in ("", "0"):
    try:
        import _topsmon_boot  # type: ignore[import-not-found]  # beside this file

        _topsmon_boot.wait_for_torch()
    except Exception:  # noqa: BLE001, S110  the run must not notice
        pass

_folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  any Python, quickly
sys.path[:] = [entry for entry in sys.path if not entry or os.path.abspath(entry) != _folder]  # noqa: PTH100

# The shadowed one takes our place; whatever it raises is for `site` to report, as without us.
_self = sys.modules.pop("sitecustomize", None)
try:
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401  the next on the path
except ImportError as error:
    if getattr(error, "name", "sitecustomize") != "sitecustomize":
        raise
    if _self is not None:
        sys.modules["sitecustomize"] = _self
