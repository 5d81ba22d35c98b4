"""What can go wrong, each with a message of one line for the user."""

from __future__ import annotations


class UsageError(ValueError):
    """What the user typed is wrong; the message names it and says what to type."""


class CountError(RuntimeError):
    """The module could not be built or run, or there is no torch; the message says why."""
