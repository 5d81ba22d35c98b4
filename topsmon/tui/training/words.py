"""A run in a few words: its name, its state, its last words, its counts."""

from __future__ import annotations

from collections.abc import Sequence

from topsmon import events
from topsmon.diagnosis.training import words as training_words
from topsmon.run_state import RunState, started_as
from topsmon.tui.view import SEVERITY_ROLES
from topsmon.units import command_words, plain, si, significant

CONDITIONS: dict[events.RunCondition, tuple[str, str]] = {
    "running": ("ok", "ok"),
    "silent": ("SILENT", "warn"),
    "finished": ("done", "muted"),
    "failed": ("FAILED", "fail"),
    "killed": ("KILLED", "fail"),
    "gone": ("GONE", "warn"),
}
"""Word and role of a run's condition."""
INTERRUPTED = "ended"
"""The word where someone ended it."""
WITHOUT_WORDS: dict[events.RunCondition, str] = {
    "running": "",
    "silent": "no step for long",
    "finished": "ended",
    "failed": "ended with an error",
    "killed": "killed by a signal",
    "gone": "ended without a word, or not to be seen from here",
}
"""What is said of a condition that came without details."""


def state_word(run: RunState, findings: Sequence[events.Finding]) -> tuple[str, str]:
    """Word and role of a run's state: that of its worst finding, else of its condition.

    `findings` are those of the run, worst first. How a run has ended outranks a warning.
    """
    word, role = CONDITIONS[run.condition]
    if run.interrupted:
        word, role = INTERRUPTED, "muted"
    for finding in findings[:1]:
        grave = finding.severity == "fail" or not run.ended
        if role in {"ok", "muted"} and finding.severity != "info" and grave:
            return plain(finding.word, 7), SEVERITY_ROLES[finding.severity]
    return word, role


def command_name(identity: events.Run, limit: int) -> str:
    """What was started, without the interpreter: "train.py --epochs 3"; safe to draw."""
    words = started_as(identity.command)
    return command_words(" ".join(words), limit) if words else f"PID {identity.pid}"


def rank_name(identity: events.Run) -> str:
    """Which of several processes it is: "rank 3", else its PID."""
    return f"rank {identity.rank}" if identity.rank is not None else f"PID {identity.pid}"


def full_name(identity: events.Run, limit: int = 200) -> str:
    """Command, PID and rank."""
    parts = [command_name(identity, limit), f"PID {identity.pid}"]
    if identity.rank is not None:
        of = f" of {identity.world_size}" if identity.world_size else ""
        parts.append(f"rank {identity.rank}{of}")
    return "  ".join(parts)


def last_words(run: RunState) -> str:
    """How a run ended, or why nothing is heard of it; "" for one that runs."""
    detail = plain(run.status.detail, 400) if run.status is not None else ""
    if run.interrupted:
        return f"interrupted: {detail}" if detail else "interrupted"
    return detail or WITHOUT_WORDS[run.condition]


def count(value: float) -> str:
    """A count with its thousands apart: 18442 -> "18,442"."""
    return f"{value:,.0f}"


def number(value: float | None, missing: str = "") -> str:
    """A loss or a norm: four digits, as a power of ten where it is very large or small."""
    if value is None:
        return missing
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.2e}"
    return significant(value, 4)


def seconds_text(seconds: float | None) -> str:
    """A step's time: "215 ms", "1.24 s"; "" where it is not known."""
    return "" if seconds is None else training_words.seconds_text(seconds)


def speed_text(window: events.RunWindow) -> str:
    """Tokens per second, else samples per second, else ""."""
    if window.tokens_per_second is not None:
        return f"{_prefixed(window.tokens_per_second)} tokens/s"
    if window.samples_per_second is not None:
        return f"{_prefixed(window.samples_per_second)} samples/s"
    return ""


def _prefixed(value: float) -> str:
    return si(value, digits=3).replace(" ", "") if value >= 1000 else significant(value)


def skipped_ratio(run: RunState) -> float | None:
    """Share of the window's steps that were skipped."""
    if run.sample is None or not run.sample.window.steps:
        return None
    return run.sample.window.skipped / run.sample.window.steps


def has_scaler(run: RunState) -> bool:
    """True where a loss scale is known, now or in the past."""
    return (run.sample is not None and run.sample.scale is not None) or any(
        bucket.scale_highest is not None for bucket in run.buckets.values()
    )


def age_of_step(run: RunState, wall: float) -> float | None:
    """Seconds since the newest step."""
    return None if run.sample is None else max(0.0, wall - run.sample.stepped_at)
