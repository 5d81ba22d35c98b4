"""Devices as metrics: identity, readings, throttling, ceilings and measured rates, MIG instances.

Readings of a device that no longer answers, or whose last sample is old, are not repeated: their
series end, and `topsmon_device_sample_age_seconds` goes on.
"""

from __future__ import annotations

from collections.abc import Iterable

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.diagnosis.clock_events import CLOCK_EVENTS, ClockEvent, decode
from topsmon.exporters.device_readings import (
    ACTIVITY,
    COUNTERS,
    CPU_GAUGES,
    ECC_ERRORS,
    GAUGES,
    ROWS_REMAPPED,
    Labelled,
    Reading,
)
from topsmon.exporters.families import Families
from topsmon.exporters.tally import Tally
from topsmon.state import State
from topsmon.units import PRECISIONS

STALE_INTERVALS = 5.0
STALE_SECONDS = 10.0
"""A sample is repeated for this long at least: less than Prometheus's usual pause of 15 s."""
CONDITIONS: tuple[events.DeviceCondition, ...] = ("ok", "lost", "stalled", "asleep", "error")


def device_labels(device: DeviceState) -> dict[str, object]:
    """The labels of every series of a device: its UUID ("cpu" for the CPU) and NVML's index."""
    identity = device.identity
    return {"uuid": device.key, "gpu": identity.index if identity.kind == "gpu" else None}


def add_devices(families: Families, state: State, tally: Tally, now: float) -> None:
    """Add all devices. `now` is this process's monotonic clock."""
    for device in state.ordered():
        labels = device_labels(device)
        _add_identity(families, state, device, labels)
        _add_life(families, device, labels, now)
        _add_ceilings(families, device, labels)
        _add_rates(families, device, labels)
        _add_xids(families, device, labels, tally)
        if is_fresh(state, device, now):
            _add_sample(families, device, labels)
            _add_slices(families, device)
        if device.identity.kind == "gpu":
            _add_throttled_time(families, device, labels, tally)


def is_fresh(state: State, device: DeviceState, now: float) -> bool:
    """True while the last sample tells of now: the device answers and the sample is young."""
    age = device.age(now)
    if age is None or device.condition != "ok":
        return False
    return age <= max(STALE_INTERVALS * (state.interval or 0.0), STALE_SECONDS)


def _add_identity(
    families: Families, state: State, device: DeviceState, labels: dict[str, object]
) -> None:
    identity, host = device.identity, state.host
    if identity.kind != "gpu":
        return
    families.info(
        "gpu",
        "Identity of a GPU.",
        {
            **labels,
            "name": identity.name,
            "architecture": identity.architecture,
            "compute_capability": identity.compute_capability,
            "pci_bus_id": identity.pci_bus_id,
            "board": device.ceilings.board if device.ceilings is not None else None,
            "driver_version": host.driver_version if host is not None else None,
            "mig": "true" if identity.mig else "false",
        },
    )
    clock = identity.sm_clock_max_mhz
    families.gauge(
        "gpu_sm_clock_max_hertz",
        "Highest clock of the SMs.",
        labels,
        None if clock is None else clock * 1e6,
    )
    families.gauge(
        "gpu_temperature_slowdown_celsius",
        "Temperature at which clocks go down.",
        labels,
        identity.temperature_slowdown_celsius,
    )


def _add_life(
    families: Families, device: DeviceState, labels: dict[str, object], now: float
) -> None:
    families.gauge(
        "device_sample_age_seconds",
        "Time since the last reading of a device; its readings end when this grows.",
        labels,
        device.age(now),
    )
    for condition in CONDITIONS:
        families.gauge(
            "device_condition",
            "1 for the condition that a device is in, 0 for the others.",
            {**labels, "condition": condition},
            condition == device.condition,
        )
    families.gauge(
        "bench_running",
        "1 while topsmon itself computes on the device.",
        labels,
        device.prober.measuring is not None,
    )


def _add_readings(
    families: Families,
    prefix: str,
    readings: Iterable[Reading],
    source: object,
    labels: dict[str, object],
) -> None:
    for reading in readings:
        value = getattr(source, reading.field)
        scaled = None if value is None else value * reading.factor
        families.gauge(prefix + reading.name, reading.text, labels, scaled)


def _add_sample(families: Families, device: DeviceState, labels: dict[str, object]) -> None:
    sample = device.sample
    if sample is None:
        return
    if device.identity.kind == "cpu":
        _add_readings(families, "cpu_", CPU_GAUGES, sample, {})
        return
    _add_readings(families, "gpu_", GAUGES, sample, labels)
    if sample.counters is not None:
        _add_readings(families, "gpu_", ACTIVITY, sample.counters, labels)
    for reading in COUNTERS:
        value = getattr(sample, reading.field)
        families.counter(f"gpu_{reading.name}", reading.text, labels, value)
    _add_counts(families, "gpu_ecc_errors", "Memory errors (ECC).", ECC_ERRORS, sample, labels)
    text = "Memory rows remapped over the board's life."
    _add_counts(families, "gpu_rows_remapped", text, ROWS_REMAPPED, sample, labels)
    _add_throttling(families, sample, labels)


def _add_counts(
    families: Families,
    name: str,
    text: str,
    fields: Iterable[Labelled],
    sample: events.DeviceSample,
    labels: dict[str, object],
) -> None:
    for one in fields:
        families.counter(name, text, {**labels, **one.labels}, getattr(sample, one.field))


def _add_throttling(
    families: Families, sample: events.DeviceSample, labels: dict[str, object]
) -> None:
    mask = sample.clock_event_mask
    if mask is not None:
        active = {_reason(event) for event in decode(mask)}
        known = [_reason(event) for event in CLOCK_EVENTS if event.treatment != "quiet"]
        for reason in (*known, "unknown"):
            families.gauge(
                "gpu_throttle_active",
                "1 while clocks are held down for this reason (NVML clocks event reasons).",
                {**labels, "reason": reason},
                reason in active,
            )
    for reason, share in sample.throttle_ratios.items():
        families.gauge(
            "gpu_throttle_time_ratio",
            "Share of the last sampling period in which clocks were held down.",
            {**labels, "reason": reason},
            share,
        )


def _reason(event: ClockEvent) -> str:
    """The name of a clock event as a label: "SW power cap" -> "sw_power_cap"."""
    return "unknown" if event.treatment == "unknown" else event.name.lower().replace(" ", "_")


def _add_throttled_time(
    families: Families, device: DeviceState, labels: dict[str, object], tally: Tally
) -> None:
    for reason, seconds in tally.throttled(device.key).items():
        families.counter(
            "gpu_throttle_seconds",
            "Time in which clocks were held down, since the exporter started.",
            {**labels, "reason": reason},
            seconds,
        )


def _add_xids(
    families: Families, device: DeviceState, labels: dict[str, object], tally: Tally
) -> None:
    for code, seen in tally.xids(device.key).items():
        named = {**labels, "xid": code}
        families.counter(
            "gpu_xid_errors",
            "Errors reported by the driver (Xid), since the exporter started.",
            named,
            seen.times,
        )
        families.gauge(
            "gpu_xid_last_timestamp_seconds", "When the last such Xid came.", named, seen.time
        )


def _add_ceilings(families: Families, device: DeviceState, labels: dict[str, object]) -> None:
    for key in PRECISIONS:
        ceiling = device.ceiling(key)
        if ceiling is None:
            continue
        named = {**labels, "precision": key}
        families.gauge(
            "bench_ceiling_operations_per_second",
            "Rated dense ceiling: FLOPS of floating point, integer operations of int8.",
            named,
            ceiling.ops_per_second,
        )
        families.gauge(
            "bench_ceiling_low_operations_per_second",
            "Lower end of a ceiling that is only known as a range.",
            named,
            ceiling.ops_per_second_low,
        )
    known = device.ceilings
    if known is None:
        return
    families.gauge(
        "memory_bandwidth_ceiling_bytes_per_second",
        "Theoretical bandwidth of the device's memory.",
        labels,
        known.memory_bandwidth_bytes_per_second,
    )
    families.gauge(
        "pcie_ceiling_bytes_per_second",
        "Theoretical rate of the PCIe link, one way.",
        labels,
        known.pcie_bytes_per_second,
    )
    families.gauge(
        "nvlink_ceiling_bytes_per_second",
        "Theoretical rate of all NVLinks.",
        labels,
        known.nvlink_bytes_per_second,
    )


def _add_rates(families: Families, device: DeviceState, labels: dict[str, object]) -> None:
    for key, rate in device.rates.items():
        result = rate.best
        if result is None or not _is_sound(result):
            continue
        named = {**labels, "precision": key}
        families.gauge(
            "bench_achieved_operations_per_second",
            "Rate of matrix products last measured, right and undisturbed results alone.",
            named,
            result.rate_ops_per_second,
        )
        families.gauge(
            "bench_ceiling_at_held_clock_operations_per_second",
            "The ceiling at the clock that was held during the measurement.",
            named,
            device.held_ceiling(key),
        )
        families.gauge(
            "bench_last_run_timestamp_seconds", "When the rate was measured.", named, result.time
        )


def _is_sound(result: events.RateMeasured) -> bool:
    """True for a rate that may stand for the device: valid, not wrong, not emulated."""
    return result.valid and result.correct is not False and not result.emulated


def _add_slices(families: Families, device: DeviceState) -> None:
    """Add the MIG instances, each under its own UUID."""
    if device.slices is None or not device.identity.mig:
        return
    for one in device.slices.slices:
        if one.uuid is None:
            continue
        labels: dict[str, object] = {"uuid": one.uuid, "gpu": device.identity.index}
        families.info(
            "mig",
            "Identity of a MIG instance.",
            {
                **labels,
                "gpu_uuid": device.key,
                "profile": one.profile,
                "gpu_instance": one.gpu_instance,
                "compute_instance": one.compute_instance,
            },
        )
        text = "Memory of a MIG instance"
        families.gauge("mig_memory_used_bytes", f"{text} in use.", labels, one.memory_used_bytes)
        families.gauge("mig_memory_total_bytes", f"{text}.", labels, one.memory_total_bytes)
        if one.counters is not None:
            _add_readings(families, "mig_", ACTIVITY, one.counters, labels)
