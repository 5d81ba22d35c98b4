"""Checks: what `topsmon check` judges, its verdicts, and the run that measures for them."""

from __future__ import annotations

from topsmon.checks.context import Moment
from topsmon.checks.model import Check, UnknownCheckError, names, select
from topsmon.checks.verdict import judge

__all__ = ["Check", "Moment", "UnknownCheckError", "judge", "names", "select"]
