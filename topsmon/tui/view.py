"""What a panel needs to draw itself: the state, the diagnosis, the user's choices, the time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from topsmon import events
from topsmon.ceilings.measured import at_top_clock
from topsmon.device_state import DeviceState
from topsmon.diagnosis import device_word
from topsmon.recording.progress import Progress
from topsmon.state import State
from topsmon.tui.benchmarks import obstacle
from topsmon.tui.glyphs import UTF8, Glyphs
from topsmon.tui.training.watched import NO_RUNS, Training
from topsmon.units import PRECISIONS, plain

if TYPE_CHECKING:
    from topsmon.tui.fleet.watched import Hosts

GPU_DEFAULT = ("bf16", "fp16", "fp32", "fp64")
CPU_DEFAULT = ("fp32", "fp64")
"""Precisions to show first, the first of which the device has a ceiling."""

CONDITION_WORDS: dict[events.DeviceCondition, tuple[str, str]] = {
    "ok": ("ok", "ok"),
    "lost": ("LOST", "fail"),
    "stalled": ("STALE", "fail"),
    "asleep": ("asleep", "muted"),
    "error": ("N/A", "warn"),
}
SEVERITY_ROLES: dict[events.Severity, str] = {"info": "info", "warn": "warn", "fail": "fail"}


@dataclass(frozen=True)
class View:
    """Everything that is drawn in one tick. `now` is this process's monotonic clock, in s.

    `wall` is the epoch time, `interval` the sampling period in s. `selected` and `precision` are
    what the user (or the worst finding) points at; `precisions` are those that are measured;
    `tab` is the name of the tab on top, `checks` the verdicts that its last one shows and `check`
    the row of the selected one. `torch_problem` says why nothing can be measured. `training` are
    the runs that are watched. `recording` says how the recording goes, "" where none is made;
    `replay` where a recording that is shown stands, `hosts` what is known of many hosts.
    """

    state: State
    findings: tuple[events.Finding, ...]
    now: float
    wall: float
    interval: float
    selected: str | None = None
    precision: str = "bf16"
    precisions: tuple[str, ...] = tuple(PRECISIONS)
    glyphs: Glyphs = UTF8
    paused: bool = False
    benchmarking: frozenset[str] = frozenset()
    tab: str = "live"
    torch_problem: str | None = None
    checks: tuple[events.CheckResult, ...] = ()
    check: int = 0
    training: Training = NO_RUNS
    recording: str = ""
    replay: Progress | None = None
    hosts: Hosts | None = None

    @property
    def device(self) -> DeviceState | None:
        """The selected device."""
        return self.state.devices.get(self.selected) if self.selected is not None else None

    @property
    def prevented(self) -> str | None:
        """Why the selected device cannot be measured, None where it can."""
        return obstacle(self.state, self.device, self.torch_problem) if self.device else None

    def findings_of(self, device: DeviceState) -> tuple[events.Finding, ...]:
        """Findings of one device, worst first."""
        return tuple(finding for finding in self.findings if finding.device == device.key)


def shown_devices(state: State) -> list[DeviceState]:
    """Devices that get a row: the GPUs; the CPU where there is none or where it is measured."""
    ordered = state.ordered()
    gpus = [device for device in ordered if device.identity.kind == "gpu"]
    if not gpus:
        return ordered
    return [
        device for device in ordered if device.identity.kind == "gpu" or has_measurement(device)
    ]


def has_measurement(device: DeviceState) -> bool:
    """True when this session measures or measured the device, or shows results of an earlier."""
    return device.prober.ready is not None or any(
        precision.best is not None for precision in device.rates.values()
    )


def default_precision(device: DeviceState | None) -> str:
    """The precision that says most about a device: the first of its kind that has a ceiling."""
    if device is None:
        return GPU_DEFAULT[0]
    candidates = CPU_DEFAULT if device.identity.kind == "cpu" else GPU_DEFAULT
    known = [key for key in candidates if device.ceiling(key) is not None]
    return known[0] if known else candidates[0]


def state_word(view: View, device: DeviceState) -> tuple[str, str]:
    """Word and role of a device's state: that of its worst finding, else of its condition."""
    word = device_word(device, view.findings)
    for finding in view.findings:
        if finding.device == device.key and finding.word == word:
            return plain(word, 6), SEVERITY_ROLES[finding.severity]
    if word == "ok" and device.condition != "ok":
        return CONDITION_WORDS[device.condition]
    return word, "ok" if word == "ok" else "muted"


def at_measured_clock(device: DeviceState) -> bool:
    """True where the ceilings stand for the highest clock measured, since the rated is unknown."""
    return device.identity.kind == "cpu" and at_top_clock(device.ceilings)


def ceiling_words(device: DeviceState) -> str:
    """What a share is a share of: "rated", or "ceiling" where no clock is rated."""
    return "ceiling" if at_measured_clock(device) else "rated"


def short_name(device: DeviceState) -> str:
    """The board's name without the maker's."""
    return plain(device.identity.name, 60).removeprefix("NVIDIA ").strip()


def ratio_mark(device: DeviceState, precision: str) -> str:
    """One sign for what a ratio needs to be read with: see `MARKS`. Blank for a plain result."""
    state = device.rates[precision]
    best = state.best
    if best is None:
        return " "
    if best.correct is False or not best.valid:
        return "!"
    if state.is_remembered:
        return "~"
    return "e" if best.emulated else " "


MARKS = (
    ("!", "must not be trusted: wrong result, or disturbed while it was measured"),
    ("~", "measured in an earlier session"),
    ("e", "emulated: the hardware has no unit for this precision"),
)
