"""What bounds the work on a GPU now, in words with its evidence, or why that cannot be told.

With GPM (Hopper and newer): `verdict.judge` over the averaged counters. Without: busy time under
its true name, power, clock and throttled time, and only what those allow to say.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.diagnosis import activity, power
from topsmon.diagnosis.observe import is_live, mean, power_share, recent
from topsmon.diagnosis.sharing import (
    BUSY_RATIO,
    BUSY_SAMPLES,
    LOW_POWER_SHARE,
    MEMORY_BOUND_RATIO,
    STARVED_SAMPLES,
    is_sawtooth,
)
from topsmon.diagnosis.trust import trusted
from topsmon.diagnosis.verdict import (
    FEW_SMS,
    IDLE,
    MEMORY_NEAR,
    NEAR,
    PIPES,
    THROTTLED,
    Activity,
    Kind,
    Reach,
    judge,
)
from topsmon.state import State
from topsmon.units import bandwidth, percent, plain, rate

CANNOT_TELL: Kind = "cannot tell"
NAMES = {
    "throttled": "throttled time",
    "engine": "busy time",
    "sm": "SMs",
    "dram": "DRAM",
    "tensor": "Tensor Cores",
    "fp32": "FP32",
    "fp64": "FP64",
    "fp16": "FP16",
    "integer": "integer",
}
NO_READINGS = "the GPM counters are not read"


@dataclass(frozen=True)
class Bound:
    """A verdict: `words` is one line, `evidence` has the numbers and where limits come from.

    `missing`: what was not there and would have been needed, with the reason where one is known.
    """

    kind: Kind
    words: str
    evidence: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def of_device(state: State, device: DeviceState, now: float) -> Bound:
    """The verdict for one GPU. `now`: this process's monotonic clock in seconds."""
    sample = device.sample
    if device.identity.kind != "gpu":
        return Bound(CANNOT_TELL, "cannot tell: only GPUs have such counters")
    if sample is None or not is_live(state, device, now):
        return Bound(CANNOT_TELL, "cannot tell: the device is not read now")
    if device.identity.mig:
        return Bound(
            CANNOT_TELL,
            "cannot tell for a GPU in MIG mode as a whole: see its instances",
            missing=("counters of the whole GPU",),
        )
    if sample.counters is None:
        return _without_counters(device, sample)
    found = activity.readings(one.counters for one in device.recent)
    busy = mean(one.busy_ratio for one in device.recent)
    return _with_counters(device, found, busy)


def of_slice(state: State, device: DeviceState, part: events.Slice, now: float) -> Bound:
    """The verdict for one MIG instance of a GPU; clocks and power are those of the whole GPU."""
    if not is_live(state, device, now):
        return Bound(CANNOT_TELL, "cannot tell: the device is not read now")
    if part.counters is None:
        reason = plain(part.unavailable.get("counters", NO_READINGS), 120)
        return Bound(CANNOT_TELL, f"cannot tell: {reason}", missing=(f"counters: {reason}",))
    same = [
        one.counters
        for past in device.recent_slices
        for one in past.slices
        if (one.uuid, one.gpu_instance, one.compute_instance)
        == (part.uuid, part.gpu_instance, part.compute_instance)
    ]
    return _with_counters(device, activity.readings(same), None, whole=False)


def _with_counters(
    device: DeviceState, found: activity.Readings, busy: float | None, *, whole: bool = True
) -> Bound:
    if len(found.others) < activity.SEVERAL:
        if found.own:
            words = "cannot tell: topsmon itself has computed in this time"
        else:
            words = f"cannot tell yet: {len(found.others)} of {activity.SEVERAL} readings"
        return Bound(CANNOT_TELL, words, missing=("several readings of the counters",))
    throttling = activity.throttling(device)
    shares = activity.of_counters(found, throttled=throttling.ratio, busy=busy)
    limits = activity.reach(device)
    verdict = judge(shares, limits)
    lines = [_numbers(shares, found)]
    if verdict.kind == CANNOT_TELL:
        missing = tuple(_missing(name, found) for name in verdict.missing)
        return Bound(
            CANNOT_TELL, f"cannot tell: no {_listed(verdict.missing)}", tuple(lines), missing
        )
    lines += _basis(verdict.kind, shares, limits)
    if whole:
        lines += _measured(device, verdict.kind, shares)
    cap = activity.power_cap(device)
    if cap is not None and verdict.kind not in {"throttled", "idle"}:
        lines.append(cap)
    return Bound(verdict.kind, _words(verdict.kind, shares, throttling, device), tuple(lines))


def _words(
    kind: Kind, shares: Activity, throttling: activity.Throttling, device: DeviceState
) -> str:
    few = shares.sm is not None and shares.sm < FEW_SMS
    words = {
        "idle": "idle: nothing runs",
        "throttled": f"throttled: {_held_down(throttling)}",
        "stalled": f"stalled: {_rest(device, shares.engine)}",
        "memory": f"memory-bound: DRAM {percent(shares.dram, 0)} of its bandwidth",
        "tensor": f"Tensor Core-bound: {percent(shares.tensor, 0)} of their peak",
        "latency": f"latency-bound: only {percent(shares.sm, 0)} of the SMs have work"
        if few
        else "latency-bound: the SMs hold work that waits",
        "mixed": "mixed: several units work, none is near its limit",
    }
    if kind in words:
        return words[kind]
    return f"{NAMES[kind]}-bound: {percent(getattr(shares, kind), 0)} of the units' peak"


def _held_down(throttling: activity.Throttling) -> str:
    reasons = ", ".join(throttling.reasons)
    if throttling.ratio is not None and throttling.ratio < 1.0:
        return f"{reasons}, {percent(throttling.ratio, 0)} of the time"
    return reasons


def _rest(device: DeviceState, engine: float | None) -> str:
    rest = "" if engine is None else f"rests for {percent(1.0 - engine, 0)} of the time"
    busy = [value for value in list(device.busy)[-STARVED_SAMPLES:] if value is not None]
    return f"works in bursts, {rest}" if is_sawtooth(busy) else rest


def _numbers(shares: Activity, found: activity.Readings) -> str:
    known = [
        f"{NAMES[name]} {percent(value, 0)}"
        for name in activity.COUNTERS
        if (value := getattr(shares, name)) is not None
    ]
    count = len(found.others)
    return f"{', '.join(known) or 'no counter'} (mean of {count} readings, {found.seconds:.0f} s)"


def _basis(kind: Kind, shares: Activity, limits: Reach) -> list[str]:
    """Where the limit of this verdict comes from, or what may be behind it."""
    reached = limits.tensor if kind == "tensor" else limits.pipe
    few = shares.sm is not None and shares.sm < FEW_SMS
    words = {
        "memory": f"from {percent(MEMORY_NEAR * limits.dram, 0)} on, and busier than the Tensor "
        f"Cores: {percent(limits.dram, 0)} is about the most that is achieved",
        "latency": "small kernels, few blocks, or launches that take longer than the kernels"
        if few
        else "every unit waits: dependent accesses, L2, few warps, or other ranks (NCCL)",
        "stalled": "between kernels it waits for input, the host, a synchronisation or other ranks",
        **dict.fromkeys(
            ("tensor", *PIPES),
            f"from {percent(NEAR * reached, 0)} on: good matrix products reach about "
            f"{percent(reached, 0)} of the peak",
        ),
    }
    return [words[kind]] if kind in words else []


def _measured(device: DeviceState, kind: Kind, shares: Activity) -> list[str]:
    """The verdict held against the rates that topsmon measured on this device."""
    ceilings = device.ceilings
    if kind == "memory" and ceilings is not None and shares.dram is not None:
        peak, reached = (
            ceilings.memory_bandwidth_bytes_per_second,
            activity.measured_bandwidth_ratio(device),
        )
        if peak is None:
            return []
        line = f"about {bandwidth(shares.dram * peak)} of {bandwidth(peak)}"
        return [line + (f"; {bandwidth(reached * peak)} measured here" if reached else "")]
    ceiling = device.ceiling("bf16")
    clock = device.sample.sm_clock_mhz if device.sample is not None else None
    if kind != "tensor" or ceiling is None or not ceiling.ops_per_clock or clock is None:
        return []
    most = (shares.tensor or 0.0) * ceiling.ops_per_clock * clock * 1e6
    best = trusted(device, "bf16")
    line = f"if FP16 or BF16, at most {rate(most, 'bf16')}: active units are not yet results"
    if best is not None:
        line += f"; best product here {rate(best.rate_ops_per_second, 'bf16')}"
    return [line]


def _missing(name: str, found: activity.Readings) -> str:
    field = activity.COUNTERS.get(name, "")
    reason = found.others[-1].unavailable.get(field, "") if found.others else ""
    return f"{NAMES[name]}: {plain(reason, 120)}" if reason else NAMES[name]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(NAMES[name] for name in names)


# Without counters ---------------------------------------------------------------------------------


def _without_counters(device: DeviceState, sample: events.DeviceSample) -> Bound:
    """What busy time, power, clock and throttled time allow to say."""
    reason = plain(sample.unavailable.get("counters", NO_READINGS), 120)
    missing = (f"counters: {reason}",)
    samples = recent(device, BUSY_SAMPLES)
    busy = [one.busy_ratio for one in samples if one.busy_ratio is not None]
    throttling = activity.throttling(device)
    lines = tuple(_without_evidence(device, samples, throttling))

    def bound(kind: Kind, words: str) -> Bound:
        return Bound(kind, words, lines, missing)

    if len(busy) >= activity.SEVERAL and max(busy) < IDLE:
        return bound("idle", "idle: no kernel runs")
    if throttling.ratio is not None and throttling.ratio >= THROTTLED:
        return bound("throttled", f"throttled: {_held_down(throttling)}")
    window = [value for value in list(device.busy)[-STARVED_SAMPLES:] if value is not None]
    if is_sawtooth(window) and not _measured_lately(device):
        return bound("stalled", f"stalled: {_rest(device, mean(window))}")
    if len(busy) == BUSY_SAMPLES and min(busy) >= BUSY_RATIO and _idles_inside(samples):
        power_used = percent(mean(power_share(one) for one in samples), 0)
        words = f"busy but not working: {percent(mean(busy), 0)} busy at {power_used} power"
        return bound(CANNOT_TELL, words)
    return bound(CANNOT_TELL, f"cannot tell: {reason}")


def _idles_inside(samples: list[events.DeviceSample]) -> bool:
    """Little power, and the memory rests: what runs does not do much."""
    share = mean(power_share(one) for one in samples)
    memory = mean(one.memory_busy_ratio for one in samples)
    if share is None or share >= LOW_POWER_SHARE:
        return False
    return memory is None or memory < MEMORY_BOUND_RATIO


def _without_evidence(
    device: DeviceState, samples: list[events.DeviceSample], throttling: activity.Throttling
) -> Iterable[str]:
    busy = mean(one.busy_ratio for one in samples)
    if busy is not None:
        yield f"busy {percent(busy, 0)} of the time: some kernel ran, however small"
    share = mean(power_share(one) for one in samples)
    if share is not None:
        yield f"{percent(share, 0)} of the power limit"
    clock, most = mean(one.sm_clock_mhz for one in samples), device.identity.sm_clock_max_mhz
    if clock is not None and most:
        yield f"SM clock {percent(clock / most, 0)} of its maximum"
    if throttling.ratio is not None:
        held = f"clocks held down {percent(throttling.ratio, 0)} of the time"
        yield held + (f": {', '.join(throttling.reasons)}" if throttling.reasons else "")
    limit = power.lowered_limit(device)
    if limit is not None:
        yield f"power limit {limit.limit:.0f} W of {limit.reference:.0f} W"


def _measured_lately(device: DeviceState) -> bool:
    """True when topsmon's own bursts may be what busy time shows."""
    if device.prober.measuring is not None:
        return True
    since = device.times[-min(STARVED_SAMPLES, len(device.times))] if device.times else 0.0
    done = [one.latest for one in device.rates.values()]
    return any(one is not None and one.monotonic >= since for one in done) or any(
        one.monotonic >= since for one in device.probes.values()
    )
