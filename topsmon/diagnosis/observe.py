"""What the rules share: how fresh a device's samples are, whether it is under load, who uses it."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.state import State

POLLER = "poller"
"""Name of the poller among the workers, and the subject of its problems."""
STALE_INTERVALS = 2.0
STALE_FLOOR_SECONDS = 1.0
"""Short intervals must not turn scheduling delays of the monitor into findings."""
LOAD_SAMPLES = 4
"""A judgement "under load" averages over this many samples, never over the last one alone."""
LOAD_RATIO = 0.5


def unread_since(state: State, device: DeviceState) -> events.Problem | events.Worker | None:
    """The event that ended the reading of a GPU for good, None while it is read.

    After the driver library crashed the poller again and again, one without the driver goes on.
    """
    if device.identity.kind != "gpu":
        return None
    poller = state.workers.get(POLLER)
    if poller is not None and poller.condition == "failed":
        return state.problems.get(POLLER, poller)
    crashed = state.problems.get(POLLER)
    return crashed if crashed is not None and crashed.code == "crashed" else None


def sampling_interval(state: State, device: DeviceState) -> float | None:
    """Seconds between samples: as asked of the poller, else the median of what arrived."""
    if state.interval is not None:
        return state.interval
    times = list(device.times)[-9:]
    if len(times) < 2:
        return None
    return statistics.median(later - earlier for earlier, later in itertools.pairwise(times))


def overdue(state: State, device: DeviceState, now: float) -> float | None:
    """Seconds since the last sample, or since samples were due if that is less; None if unknown."""
    if device.sample_seen is None or state.sampling_since is None:
        return None
    return now - max(device.sample_seen, state.sampling_since)


def is_stale(state: State, device: DeviceState, now: float) -> bool:
    """True when a device has missed two samples."""
    age, interval = overdue(state, device, now), sampling_interval(state, device)
    if age is None or interval is None:
        return False
    return age > max(STALE_INTERVALS * interval, STALE_FLOOR_SECONDS)


def is_live(state: State, device: DeviceState, now: float) -> bool:
    """True when the last sample may be judged: the device answers and the sample is fresh."""
    return (
        device.sample is not None and device.condition == "ok" and not is_stale(state, device, now)
    )


def live_gpus(state: State, now: float) -> Iterable[DeviceState]:
    """The GPUs whose last sample may be judged, in order."""
    return (device for device in state.gpus() if is_live(state, device, now))


def mean(values: Iterable[float | None]) -> float | None:
    """Mean of what was measured, None where nothing was."""
    measured = [value for value in values if value is not None]
    return sum(measured) / len(measured) if measured else None


def recent(device: DeviceState, count: int = LOAD_SAMPLES) -> list[events.DeviceSample]:
    """The latest samples, oldest first."""
    return list(device.recent)[-count:]


def power_share(sample: events.DeviceSample) -> float | None:
    """Power / enforced limit, None where either was not measured."""
    if sample.power_watts is None or not sample.power_limit_watts:
        return None
    return sample.power_watts / sample.power_limit_watts


def load(sample: events.DeviceSample) -> float | None:
    """Share of time busy, else power / limit: busy time is not available on every device."""
    return sample.busy_ratio if sample.busy_ratio is not None else power_share(sample)


def under_load(device: DeviceState) -> bool:
    """True when a device worked through the latest samples: by busy time, else by power.

    Busy time is not available on every device (MIG, WSL 2), so power / limit stands in for it.
    """
    samples = recent(device)
    busy = mean(sample.busy_ratio for sample in samples)
    if busy is None:
        busy = mean(power_share(sample) for sample in samples)
    return busy is not None and busy >= LOAD_RATIO


def other_processes(device: DeviceState) -> tuple[events.ProcessEntry, ...]:
    """Compute processes on a device that are not topsmon's own; a desktop's are left out.

    In a container the driver reports PIDs of the host, so while a prober runs one such entry is
    taken as the prober's.
    """
    entries = device.processes.entries if device.processes is not None else None
    others = [entry for entry in entries or () if not entry.own and entry.kind != "graphics"]
    if device.identity.kind == "gpu" and device.prober.ready is not None:
        foreign = next((entry for entry in others if not entry.local), None)
        others = [entry for entry in others if entry is not foreign]
    return tuple(others)
