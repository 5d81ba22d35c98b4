"""Rules about heat before it slows anything: little margin, hot memory, fans that stand or race."""

from __future__ import annotations

from collections.abc import Iterator

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.diagnosis import throttle
from topsmon.diagnosis.observe import LOAD_SAMPLES, live_gpus, mean, recent
from topsmon.diagnosis.words import finding, nvidia_smi
from topsmon.state import State
from topsmon.units import percent

MARGIN = 3.0
"""Degrees; boards that hold a target temperature by design keep further away from the slowdown."""
HOT_BELOW_SLOWDOWN = 15.0
"""Within so many degrees of the slowdown a GPU is hot: a fan has to turn."""
HBM_MOST, GDDR_MOST = 95.0, 105.0
"""Degrees: maximum operating temperature of HBM as nvidia-smi -q shows it for A100 and H100; GDDR6X
of GeForce boards is specified to 105 at the case (Micron)."""
STANDS, FULL = 0.0, 0.99


def margin(device: DeviceState, sample: events.DeviceSample) -> float | None:
    """How many degrees hotter it may get: as the driver says, else up to its slowdown."""
    if sample.temperature_margin_celsius is not None:
        return sample.temperature_margin_celsius
    limit = device.identity.temperature_slowdown_celsius
    if limit is None or sample.temperature_celsius is None:
        return None
    return limit - sample.temperature_celsius


def little_margin(state: State, now: float) -> Iterator[events.Finding]:
    """Close to the slowdown in several samples; once clocks go down another rule tells it."""
    for device in live_gpus(state, now):
        sample, samples = device.sample, recent(device)
        margins = [left for one in samples if (left := margin(device, one)) is not None]
        if sample is None or len(margins) < LOAD_SAMPLES or max(margins) > MARGIN:
            continue
        if _is_slowed(state, device):
            continue
        left = margins[-1]
        yield finding(
            sample,
            device,
            code="thermal-margin-low",
            severity="info",
            word="note",
            title=f"{_celsius(sample.temperature_celsius)}, {left:.0f} C below the slowdown"
            if left > 0
            else f"{_celsius(sample.temperature_celsius)}, at the slowdown",
            cause="a little more heat, and the clocks go down",
            remedy="Check fans, airflow and inlet temperature.",
            command=nvidia_smi(state, device, "-q -d TEMPERATURE", changes=False),
            basis=f"at most {MARGIN:.0f} C left in {LOAD_SAMPLES} samples in a row",
        )


def memory_hot(state: State, now: float) -> Iterator[events.Finding]:
    """Memory at its maximum in several samples; once clocks go down another rule tells it."""
    for device in live_gpus(state, now):
        sample = device.sample
        temperatures = [one.memory_temperature_celsius for one in recent(device)]
        known = [value for value in temperatures if value is not None]
        most = GDDR_MOST if "GeForce" in device.identity.name else HBM_MOST
        if sample is None or len(known) < LOAD_SAMPLES or min(known) < most:
            continue
        if _is_slowed(state, device):
            continue
        yield finding(
            sample,
            device,
            code="memory-hot",
            severity="warn",
            word="HOT",
            title=f"memory at {known[-1]:.0f} C (maximum about {most:.0f} C)",
            cause="the driver slows the GPU down to protect its memory",
            evidence=(f"GPU {_celsius(sample.temperature_celsius)}",),
            remedy="Check airflow and inlet temperature; the memory's thermal pads on old boards.",
            command=nvidia_smi(state, device, "-q -d TEMPERATURE", changes=False),
            basis=f"{LOAD_SAMPLES} samples in a row; NVIDIA's maximum for such memory",
        )


def fan(state: State, now: float) -> Iterator[events.Finding]:
    """A fan that stands while the GPU is hot, or turns as fast as it can and does not help.

    A standing fan at rest is by design, and a board without fans reports none.
    """
    for device in live_gpus(state, now):
        sample, samples = device.sample, recent(device)
        fans = [one.fan_ratio for one in samples if one.fan_ratio is not None]
        if sample is None or len(fans) < LOAD_SAMPLES or not _hot(device, samples):
            continue
        stands, races = max(fans) <= STANDS, min(fans) >= FULL
        if not stands and not races:
            continue
        heat = _celsius(sample.temperature_celsius)
        yield finding(
            sample,
            device,
            code="fan-stands" if stands else "fan-at-full-speed",
            severity="warn" if stands else "info",
            word="HOT" if stands else "note",
            title=f"fan at {percent(fans[-1], 0)} and the GPU at {heat}",
            cause="the fan is not told to turn" if stands else "the cooling is at its end",
            evidence=("the driver tells the speed that it asks for, not the one that is turned",),
            remedy="Check fan curve, cable and fan."
            if stands
            else "Clean it; check airflow and inlet temperature.",
            command=nvidia_smi(state, device, "-q -d TEMPERATURE", changes=False),
            basis=f"hot: within {HOT_BELOW_SLOWDOWN:.0f} C of the slowdown (NVIDIA nvml.h, "
            "nvmlDeviceGetFanSpeed: the intended speed)",
        )


def _is_slowed(state: State, device: DeviceState) -> bool:
    return any(fault.code == "thermal-slowdown" for fault in throttle.of_device(state, device))


def _hot(device: DeviceState, samples: list[events.DeviceSample]) -> bool:
    left = mean(margin(device, one) for one in samples)
    return left is not None and left <= HOT_BELOW_SLOWDOWN


def _celsius(value: float | None) -> str:
    return "N/A" if value is None else f"{value:.0f} C"
