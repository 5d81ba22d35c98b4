"""The check of the driver alone: two readings in this process, no torch, under two seconds."""

from __future__ import annotations

import time

from topsmon import events
from topsmon.checks.context import HOST
from topsmon.devices import poller
from topsmon.laboratory.observed import Observed
from topsmon.state import State

DEADLINE_SECONDS = 1.6
"""For both readings. A driver that needs longer is no failure here: without persistence mode some
take seconds to wake a board."""
FAST_ENOUGH_SECONDS = 0.6
BETWEEN_SECONDS = 0.25
"""Apart enough that a slowdown seen in both is no change of the performance state."""


def run(devices: tuple[str, ...], *, only_visible: bool) -> tuple[State, dict[str, Observed]]:
    """Read every device, twice where time allows. ValueError: one is asked for that is not here."""
    state = State()
    samples: dict[str, list[events.DeviceSample]] = {}
    started = time.monotonic()
    _read(state, samples, DEADLINE_SECONDS, devices, only_visible=only_visible)
    if time.monotonic() - started < FAST_ENOUGH_SECONDS and any(state.gpus()):
        time.sleep(BETWEEN_SECONDS)
        left = DEADLINE_SECONDS - (time.monotonic() - started)
        _read(state, samples, left, devices, only_visible=only_visible)
    seen = {
        key: Observed(samples=tuple(samples.get(key, ())), quick=True)
        for key in (HOST, *state.devices)
    }
    return state, seen


def _read(
    state: State,
    samples: dict[str, list[events.DeviceSample]],
    deadline_seconds: float,
    devices: tuple[str, ...],
    *,
    only_visible: bool,
) -> None:
    for event in poller.snapshot(deadline_seconds, devices, only_visible):
        state.apply(event, time.monotonic())
        if isinstance(event, events.DeviceSample):
            samples.setdefault(event.device, []).append(event)
