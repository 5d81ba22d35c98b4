"""Why a precision was not measured, apart from what the parent wants."""

from __future__ import annotations


class UnsupportedError(Exception):
    """This device or this torch cannot run a precision, and why. Final."""


class NoMemoryError(Exception):
    """Not even the smallest shape fits into the memory budget. May pass."""
