"""What the rules about runs share: one run as it is judged, and how a finding about it is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.run_state import RunState
from topsmon.state import State

CALIBRATION_STEPS = 25
"""Within the first steps a scaler searches its scale: skips are its way to do so. A high first
scale takes one more for each power of two, hence log2(init_scale) + 5."""


@dataclass(frozen=True)
class Watched:
    """A run to judge; `now` is this process's monotonic clock, in seconds."""

    state: State
    run: RunState
    now: float

    @property
    def identity(self) -> events.Run:
        """Who the run is."""
        return self.run.identity

    @property
    def sample(self) -> events.RunSample | None:
        """Its newest step, None before the first."""
        return self.run.sample

    @property
    def ended(self) -> bool:
        """True once its process has ended: then the worst of its life counts."""
        return self.run.ended

    @property
    def device(self) -> DeviceState | None:
        """Where it trains, None where that is not known."""
        return self.state.device_of(self.run)

    @property
    def scaler(self) -> events.Scaler | None:
        """Its loss scaler where it has one that works."""
        scaler = self.identity.scaler
        return scaler if scaler is not None and scaler.enabled else None

    @property
    def calibration_steps(self) -> float:
        """The number of first steps in which skips are a search for the scale."""
        first = self.scaler.init_scale if self.scaler is not None else None
        if first is None or not math.isfinite(first) or first <= 0:
            return CALIBRATION_STEPS
        return max(CALIBRATION_STEPS, math.log2(first) + 5)

    @property
    def calibrates(self) -> bool:
        """True while the scaler may search its scale: the losses were finite all the time."""
        sample = self.sample
        return (
            sample is not None
            and sample.step <= self.calibration_steps
            and not sample.totals.nonfinite_losses
        )

    def happened(self, kind: str) -> list[events.RunEvent]:
        """All kept events of a kind, oldest first."""
        return [event for event in self.run.happened if event.kind == kind]

    def in_window(self, step: int | None) -> bool:
        """True when a step is among those of the window."""
        if self.sample is None or step is None:
            return False
        return step > self.sample.step - self.sample.window.steps

    def severity(self, severity: events.Severity, *, over: bool) -> events.Severity:
        """A trouble that is over is a note; of a run that has ended the worst counts."""
        return "info" if over and not self.ended else severity


RunRule = Callable[[Watched], Iterator[events.Finding]]


def found(
    watched: Watched,
    *,
    code: str,
    severity: events.Severity,
    word: str,
    title: str,
    rests_on: events.Event | None = None,
    **more: object,
) -> events.Finding:
    """Return a finding about the run, dated as the event it rests on (its newest step if None)."""
    basis = rests_on or watched.sample or watched.identity
    return events.Finding(
        time=basis.time,
        monotonic=basis.monotonic,
        source=basis.source,
        run=watched.run.key,
        code=code,
        severity=severity,
        word="note" if severity == "info" else word,
        title=title,
        **more,  # type: ignore[arg-type]
    )


def known(value: float | None) -> float | None:
    """A number that can be reckoned with, None for one that is not known or not finite."""
    return value if value is not None and math.isfinite(value) else None
