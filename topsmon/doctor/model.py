"""What the doctor looks at and what it answers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from topsmon.state import State

Outcome = Literal["ok", "warn", "fail", "n/a"]
"""n/a: there is nothing of that kind here, which is no fault."""
SEVERITY: tuple[Outcome, ...] = ("fail", "warn", "ok", "n/a")


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of one check: `finding` in words and numbers, `remedy` where one is needed."""

    id: str
    state: Outcome
    finding: str
    remedy: str = ""


@dataclass(frozen=True)
class Patient:
    """The machine as it was read once, and what may differ in tests: environment, root, tools.

    `read_seconds` is how long the reading took.
    """

    state: State
    read_seconds: float
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    root: Path = Path("/")
    python: str | None = None


def worst(results: list[Result]) -> Outcome:
    """The worst outcome, "ok" where nothing was found."""
    return min(
        (result.state for result in results if result.state != "n/a"),
        key=SEVERITY.index,
        default="ok",
    )
