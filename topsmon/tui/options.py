"""What the screen is given: its options, and the session that it shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from topsmon import events
from topsmon.state import State


@dataclass(frozen=True)
class ScreenOptions:
    """Options of the screen alone.

    `theme` None picks the default. `readonly`: no signals to processes. `debug` shows tracebacks.
    """

    theme: str | None = None
    ascii_only: bool = False
    color: bool = True
    mouse: bool = True
    readonly: bool = False
    debug: bool = False


class SessionLike(Protocol):
    """What the screen needs of a session. No method blocks."""

    interval: float
    precisions: tuple[str, ...]
    paused: bool
    listeners: list[Callable[[events.AnyEvent], None]]
    torch_problem: str | None
    """Why nothing can be measured, with the remedy; None while nothing is wrong."""

    @property
    def state(self) -> State:
        """Everything that is known now."""

    async def start(self) -> None:
        """Start the children."""

    async def stop(self) -> None:
        """End the children within about 100 ms."""

    def findings(self) -> tuple[events.Finding, ...]:
        """Return the diagnosis, worst first."""

    def set_interval(self, seconds: float) -> None:
        """Change the sampling interval."""

    def pause(self, paused: bool) -> None:
        """Stop or resume sampling and measuring."""

    def set_counters(self, on: bool) -> None:
        """Have the performance counters of the GPUs read, or not."""

    def benchmark(self, device_key: str | None, on: bool) -> None:
        """Measure more on a device (None: on all), also where others compute; or stop that."""

    def benchmarking(self, device_key: str) -> bool:
        """Tell whether the user has asked for measurements on this device."""

    def choose_precisions(self, keys: tuple[str, ...]) -> None:
        """Measure only these precisions from now on."""
