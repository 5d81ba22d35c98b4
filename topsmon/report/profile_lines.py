"""What has come of the step that a run was told to profile, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from topsmon.run_state import RunState
from topsmon.units import percent, plain

SHOWN = 5
_NOT_PROFILED = "was not profiled"
"""In the recorder's own words of a profile that went wrong."""


def facts(run: RunState) -> Iterator[tuple[str, str]]:
    """Yield heads and texts: where the profile lies and its hottest operators, or what went wrong.

    Shares are of the time of all operators, on the device where there is any.
    """
    for event in run.happened:
        if event.kind == "profile":
            yield "profile", f"step {event.step:,} in {event.message}"
            hot = [_operator(name, event.values.get(name)) for name in event.names[:SHOWN]]
            if hot:
                yield "hottest", ", ".join(hot)
        elif event.kind == "recorder" and _NOT_PROFILED in event.message:
            yield "profile", event.message


def _operator(name: str, share: float | None) -> str:
    return name if share is None else f"{name} {percent(share)}"


def never_reached(runs: Sequence[RunState], step: int | None) -> str:
    """One line if no run has come as far as the step to be profiled, else nothing."""
    if step is None or not runs:
        return ""
    last = max(run.sample.step if run.sample is not None else 0 for run in runs)
    if last >= step:
        return ""
    return plain(f"step {step:,} was not profiled: the run ended at step {last:,}") + "\n"
