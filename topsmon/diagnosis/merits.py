"""What a device's own numbers say for and against a precision: gain, error, and why not at all.

Two precisions are compared by measured rates, else by the quantisation probe, else by rated
ceilings; a measured rate is never held against a rated one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.diagnosis.trust import trusted
from topsmon.diagnosis.words import label
from topsmon.units import plain, rate, significant

Basis = Literal["measured", "rated"]

NATIVE_FROM: dict[str, tuple[int, int]] = {
    "tf32": (8, 0),
    "bf16": (8, 0),
    "fp8": (8, 9),
    "fp4": (10, 0),
}
"""CUDA compute capability from which a type is native (CUDA C++ Programming Guide, "Arithmetic
Instructions" and "Compute Capabilities")."""
NOT_FOR_TENSOR_CORES = ("fp16_vec", "int8_dp4a")
"""Ceilings of vector instructions: on a GPU no library multiplies matrices with them."""


@dataclass(frozen=True)
class Gain:
    """`ratio` of a precision's rate over another's.

    `words`: "76.5 TFLOPS, 3.1x FP32 (24.6 TFLOPS): measured".
    """

    ratio: float
    basis: Basis
    words: str


def measured(device: DeviceState, key: str) -> float | None:
    """This session's trusted rate in ops/s: valid, right, native."""
    result = trusted(device, key)
    return result.rate_ops_per_second if result is not None else None


def rated(device: DeviceState, key: str) -> float | None:
    """The ceiling in ops/s of the instructions that libraries use, None where there is none."""
    ceiling = device.ceiling(key)
    if ceiling is None:
        return None
    if device.identity.kind == "gpu" and ceiling.precision in NOT_FOR_TENSOR_CORES:
        return None
    return ceiling.ops_per_second


def gain(device: DeviceState, key: str, base: str) -> Gain | None:
    """How many times the rate of `base` a precision has; None where nobody can say."""
    own, other = measured(device, key), measured(device, base)
    if own is not None and other is not None:
        return Gain(own / other, "measured", _compared(key, own, base, other, "measured"))
    own_speed, other_speed = _speed_up(device, key), _speed_up(device, base)
    if own_speed is not None and other_speed is not None:
        ratio = own_speed / other_speed
        words = f"{times(ratio)} {label(base)}: measured, same matrices"
        return Gain(ratio, "measured", words)
    own, other = rated(device, key), rated(device, base)
    if own is not None and other is not None:
        return Gain(own / other, "rated", _compared(key, own, base, other, "rated, not measured"))
    return None


def rated_gain(device: DeviceState, key: str, base: str) -> float | None:
    """Ratio of the ceilings alone: what the hardware can gain, whatever the library does."""
    own, other = rated(device, key), rated(device, base)
    return own / other if own is not None and other is not None else None


def _compared(key: str, own: float, base: str, other: float, basis: str) -> str:
    return f"{rate(own, key)}, {times(own / other)} {label(base)} ({rate(other, base)}): {basis}"


def times(ratio: float) -> str:
    """A ratio as people say it: "3.1x", "13x", "0.22x"."""
    return f"{significant(ratio, 2)}x"


def objection(device: DeviceState, key: str) -> str | None:
    """Why a precision must not be used on this device; None where nothing speaks against it."""
    state = device.rates[key]
    if state.wrong is not None:
        return f"gave a wrong result here{_error_of(state.wrong)}"
    reason = _not_native(device, key)
    best = state.best
    if best is not None and best.emulated:
        why = reason or plain(best.note, 120) or "emulated"
        if best.rate_ops_per_second:
            why += f"; measured {rate(best.rate_ops_per_second, key)}"
        return why
    if state.unsupported is not None:
        return plain(state.unsupported, 160)
    return reason


def _not_native(device: DeviceState, key: str) -> str | None:
    ceilings = device.ceilings
    if ceilings is not None and ceilings.unknown is None:
        ceiling = device.ceiling(key)
        if ceiling is not None and ceiling.precision == "int8_dp4a":
            reason = ceilings.absent.get("int8", "no INT8 matrix units")
            return plain(reason, 120) if measured(device, key) is None else None
        absence = device.absence(key)
        if absence is not None:
            return plain(absence, 120)
    needed, capability = NATIVE_FROM.get(key), _capability(device)
    if needed is not None and capability is not None and capability < needed:
        return f"no native {label(key)} before compute capability {needed[0]}.{needed[1]}"
    return None


def _capability(device: DeviceState) -> tuple[int, int] | None:
    major, _, minor = (device.identity.compute_capability or "").partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def _error_of(result: events.RateMeasured) -> str:
    return f" (relative error {result.relative_error:.1e})" if result.relative_error else ""


def _quantisation(device: DeviceState) -> events.ProbeResult | None:
    probe = device.probes.get("quantisation")
    return probe if probe is not None and probe.correct is not False else None


def _speed_up(device: DeviceState, key: str) -> float | None:
    """Speed-up over FP32 by the quantisation probe."""
    probe = _quantisation(device)
    if probe is None or not probe.valid or f"emulated_{key}" in probe.labels:
        return None
    return 1.0 if key == "fp32" else probe.values.get(f"speedup_{key}_ratio") or None


def error(device: DeviceState, key: str, scaling: str = "") -> float | None:
    """Relative error of a product against FP64, rounding of the inputs included.

    `scaling` "per_row" or "outliers" as the quantisation probe calls them. Other programs that run
    make a probe slow, not less exact: an error counts even where times do not.
    """
    probe = _quantisation(device)
    suffix = f"_{scaling}" if scaling else ""
    return probe.values.get(f"error_{key}{suffix}_ratio") if probe is not None else None


def errors(device: DeviceState, keys: tuple[str, ...]) -> str:
    """The errors of some precisions in words; "" where none was measured."""
    known = [(key, value) for key in keys if (value := error(device, key)) is not None]
    if not known:
        return ""
    parts = ", ".join(f"{label(key)} {value:.1e}" for key, value in known)
    return f"relative error of a product: {parts} (measured, inputs rounded)"


def probe_value(device: DeviceState, probe: str, key: str) -> float | None:
    """A value of a laboratory probe that may be trusted."""
    result = device.probes.get(probe)
    if result is None or not result.valid or result.correct is False:
        return None
    return result.values.get(key)


def bandwidth(device: DeviceState) -> tuple[float, Basis] | None:
    """Memory bandwidth in bytes/s, measured by reading if that was done, else rated."""
    found = probe_value(device, "memory", "read_bytes_per_second")
    if found:
        return found, "measured"
    ceilings = device.ceilings
    known = ceilings.memory_bandwidth_bytes_per_second if ceilings is not None else None
    return (known, "rated") if known else None
