"""Findings: rules over the state, one small function each, and the word of a device.

Add a rule: write a function `(state, now) -> Iterator[Finding]` and put it into `RULES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.diagnosis import (
    availability,
    ceiling,
    cooling,
    cpu,
    driver,
    health,
    link,
    memory,
    memory_wear,
    nvlink,
    permissions,
    power,
    settings,
    sharing,
    slow,
    throttle,
    wrong,
    xid,
)
from topsmon.diagnosis.observe import unread_since
from topsmon.state import State

__all__ = ["RULES", "SEVERITIES", "WORDS", "device_word", "diagnose", "of_run"]

Rule = Callable[[State, float], Iterable[events.Finding]]


def training_runs(state: State, now: float) -> Iterable[events.Finding]:
    """What the machine's list holds about training runs; their rules are loaded with the first."""
    if not state.runs:
        return ()
    from topsmon.diagnosis.training import training

    return training(state, now)


RULES: tuple[Rule, ...] = (
    driver.driver_problem,
    driver.worker_trouble,
    availability.lost,
    availability.not_read,
    availability.not_answering,
    availability.stale,
    availability.in_error,
    wrong.wrong_result,
    xid.xid_errors,
    health.memory_errors,
    memory_wear.errors_rising,
    memory_wear.pages_retired,
    health.nothing_computed,
    health.readings_impossible,
    health.row_remap_pending,
    slow.slow,
    throttle.throttled,
    cooling.memory_hot,
    cooling.fan,
    power.power_limit_low,
    link.reduced_link,
    link.replays_rising,
    nvlink.links_down,
    nvlink.link_errors,
    permissions.permission_lost,
    settings.compute_mode,
    memory.memory_full,
    cpu.cpu_time_missing,
    cpu.threads_misfit,
    cpu.narrow_vectors,
    sharing.shared,
    sharing.busy_not_working,
    sharing.starved,
    ceiling.above_rated,
    ceiling.no_ceiling,
    cooling.little_margin,
    memory_wear.rows_remapped,
    permissions.counters_lost,
    settings.persistence_off,
    throttle.unknown_reason,
    training_runs,
)
"""All rules. Of two findings with one code about one device the earlier rule's counts."""

SEVERITIES: tuple[events.Severity, ...] = ("fail", "warn", "info")
WORDS = (
    "LOST",
    "FAIL",
    "RESET",
    "NAN",
    "STALE",
    "N/A",
    "HOT",
    "SLOW",
    "FULL",
    "SKIP",
    "SCALE",
    "GRAD",
    "AMP",
    "WAIT",
    "SHARED",
    "note",
)
"""Worst first among equally severe findings."""
STILL_TRUE = frozenset({"device-not-read", "device-lost", "wrong-result", "nothing-computed"})
"""What may be said of a GPU that is not read any more: failures do not go away unseen."""

TELLING = ("busy_ratio", "power_watts", "sm_clock_mhz", "memory_used_bytes", "counters")
"""What tells of a GPU's work: where all of it is missing nothing is known to be ok."""


def diagnose(state: State, now: float) -> tuple[events.Finding, ...]:
    """Return all findings, worst first. `now` is this process's monotonic clock, in seconds.

    Nothing off: nothing returned.
    """
    found: dict[tuple[str | None, str | None, str, str], events.Finding] = {}
    unread = {device.key for device in state.gpus() if unread_since(state, device) is not None}
    for rule in RULES:
        for finding in rule(state, now):
            if finding.device in unread and not _still_true(finding):
                continue
            about = finding.title if finding.device is None else ""
            found.setdefault((finding.device, finding.run, finding.code, about), finding)
    order = {device.key: place for place, device in enumerate(state.ordered())}
    past = {run.key for run in state.runs.values() if run.ended}
    return tuple(
        sorted(
            found.values(),
            key=lambda finding: (
                SEVERITIES.index(finding.severity),
                finding.code == driver.NO_DEVICE_CODE,
                finding.run in past,
                WORDS.index(finding.word) if finding.word in WORDS else len(WORDS),
                order.get(finding.device or "", -1),
            ),
        )
    )


def _still_true(finding: events.Finding) -> bool:
    return finding.code in STILL_TRUE or finding.code.startswith(xid.PREFIX)


def of_run(state: State, key: str, now: float) -> tuple[events.Finding, ...]:
    """All findings about one run, worst first; their titles do not name the run.

    `key` is the run's in the state; of one that the state does not hold nothing is found.
    """
    if key not in state.runs:
        return ()
    from topsmon.diagnosis import training

    return training.of_run(state, key, now)


def device_word(device: DeviceState, findings: Iterable[events.Finding]) -> str:
    """The state word of a device's row: that of its worst finding, "ok" where nothing is off.

    `findings` are those of `diagnose`; a note changes no word. N/A: nothing was read yet, the
    device sleeps and must not be woken, or it tells next to nothing, which is no "ok".
    """
    for finding in findings:
        if finding.device == device.key and finding.word != "note":
            return finding.word
    if device.sample is None or device.condition == "asleep" or tells_nothing(device):
        return "N/A"
    return "ok"


def tells_nothing(device: DeviceState) -> bool:
    """True for a GPU of whose work nothing is read: no busy time, power, clock, memory, counter."""
    sample = device.sample
    if sample is None or device.identity.kind != "gpu" or device.identity.mig:
        return False
    return all(getattr(sample, field) is None for field in TELLING)
