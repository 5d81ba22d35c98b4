"""Several devices measured together: torchrun started and watched, or our place in a launcher that
runs already; what the ranks have told.
"""

from __future__ import annotations

from topsmon.launcher.document import Ranks, read
from topsmon.launcher.launch import ALONE, Job, LaunchError, Outcome, measure

__all__ = ["ALONE", "Job", "LaunchError", "Outcome", "Ranks", "measure", "read"]
