"""What is read from a GPU while it runs: which call, how often, and which answers make sense.

Drivers have answered SUCCESS with sentinels and garbage. What cannot be is not shown: the bounds
here are wide enough for any board there is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from topsmon.devices.nvml import Call, Unavailable

FAST_SECONDS = 0.2
"""The driver itself refreshes utilisation every 1/6 s to 1 s (nvml.h): faster gains nothing."""
MIDDLE_SECONDS = 1.0
LINK_SECONDS = 2.0
ENGINES_SECONDS = 2.0
ERRORS_SECONDS = 5.0
LINKS_SECONDS = 10.0
MAXIMA_SECONDS = 30.0

MEMORY_V2 = 0x02000028
"""nvmlMemory_v2: version 2 in the top byte, the size of its struct (40) below."""
SENSOR_GPU = 0
CLOCK_SM, CLOCK_MEMORY = 1, 2
ECC_CORRECTED, ECC_UNCORRECTED = 0, 1
ECC_VOLATILE, ECC_AGGREGATE = 0, 1
PERFORMANCE_STATE_UNKNOWN = 32
COMPUTE_MODES = ("default", "exclusive-thread", "prohibited", "exclusive-process")
"""nvmlComputeMode_t, as nvidia-smi writes them."""
_BLANKS = frozenset(
    {0xFFFFFFFF, (1 << 64) - 1}
    | {blank + offset for blank in (0x7FFFFFF0, 0x7FFFFFFFFFFFFFF0) for offset in range(4)}
)
"""Values that stand for "no value" in NVIDIA's libraries (DCGM_INT32_BLANK and its like)."""

Reading = float | int | Unavailable


class Metric(NamedTuple):
    """One call, newest form first, and the fields of `DeviceSample` that its answer fills."""

    name: str
    period_seconds: float
    calls: tuple[Call, ...]
    convert: Callable[[Any], dict[str, Any]]
    fields: tuple[str, ...]


def implausible(value: object) -> Unavailable:
    """The reading for a value that cannot be."""
    return Unavailable(f"implausible value {value!r:.40} from the driver", None, "implausible")


def bounded(value: object, low: float, high: float) -> Reading:
    """Return a number within its physical bounds, else why it is not shown."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        return implausible(value)
    return value


def count(value: object) -> Reading:
    """Return a count of events, else why it is not shown; what is unavailable stays so."""
    if isinstance(value, Unavailable):
        return value
    return implausible(value) if value in _BLANKS else bounded(value, 0, (1 << 63) - 1)


def divided(reading: Reading, divisor: int) -> Reading:
    """Return a reading in a larger unit: mW in W, percent as a ratio."""
    return reading if isinstance(reading, Unavailable) else reading / divisor


def _one(
    field: str, low: float, high: float, divisor: int = 1
) -> Callable[[Any], dict[str, Reading]]:
    def convert(answer: Any) -> dict[str, Reading]:
        reading = bounded(answer, low, high)
        return {field: reading if divisor == 1 else divided(reading, divisor)}

    return convert


def _utilisation(answer: Any) -> dict[str, Reading]:
    return {
        "busy_ratio": divided(bounded(answer.gpu, 0, 100), 100),
        "memory_busy_ratio": divided(bounded(answer.memory, 0, 100), 100),
    }


def memory(answer: Any) -> dict[str, Reading]:
    """Convert version 1 or 2 of the memory struct; version 1 counts reserved memory as used."""
    total = bounded(answer.total, 1, 1 << 50)
    if isinstance(total, Unavailable):
        used: Reading = Unavailable("the driver tells no memory size", None, "implausible")
        return {
            "memory_used_bytes": used,
            "memory_total_bytes": total,
            "memory_reserved_bytes": used,
        }
    reserved: Reading = Unavailable("the driver does not tell reserved memory apart")
    if hasattr(answer, "reserved"):
        reserved = bounded(answer.reserved, 0, total)
    return {
        "memory_used_bytes": bounded(answer.used, 0, total),
        "memory_total_bytes": total,
        "memory_reserved_bytes": reserved,
    }


def celsius(answer: Any) -> Reading:
    """Convert degC. A sensor that is not read answers 0; a chip that runs is warmer than that."""
    reading = bounded(answer, -60, 200)
    return implausible(answer) if reading == 0 else reading


def _temperature(answer: Any) -> dict[str, Reading]:
    return {"temperature_celsius": celsius(answer)}


def _performance_state(answer: Any) -> dict[str, Reading]:
    if answer == PERFORMANCE_STATE_UNKNOWN:
        return {"performance_state": Unavailable("unknown to the driver")}
    return {"performance_state": bounded(answer, 0, 15)}


def _ecc_mode(answer: Any) -> dict[str, Reading]:
    return {"ecc_enabled": flag(answer[0])}


def _row_remapping(answer: Any) -> dict[str, Reading]:
    corrected, uncorrected, pending, failed = answer
    return {
        "rows_remapped_corrected": count(corrected),
        "rows_remapped_uncorrected": count(uncorrected),
        "row_remap_pending": flag(pending),
        "row_remap_failed": flag(failed),
    }


def _compute_mode(answer: Any) -> dict[str, Any]:
    known = isinstance(answer, int) and 0 <= answer < len(COMPUTE_MODES)
    return {"compute_mode": COMPUTE_MODES[answer] if known else implausible(answer)}


def _count(field: str) -> Callable[[Any], dict[str, Reading]]:
    return lambda answer: {field: count(answer)}


def _engine(field: str) -> Callable[[Any], dict[str, Reading]]:
    """Convert percent and the period over which it was taken."""
    return lambda answer: {field: divided(bounded(answer[0], 0, 100), 100)}


def flag(value: object) -> Reading:
    """Return a driver's 0 or 1 as a truth value."""
    return implausible(value) if value not in {0, 1} else value == 1


def _metric(
    field: str,
    period: float,
    calls: tuple[Call, ...],
    low: float,
    high: float,
    divisor: int = 1,
) -> Metric:
    return Metric(field, period, calls, _one(field, low, high, divisor), (field,))


MEMORY_FIELDS = ("memory_used_bytes", "memory_total_bytes", "memory_reserved_bytes")
PCIE_FIELDS = ("pcie_generation", "pcie_generation_max", "pcie_width", "pcie_width_max")
MEMORY = Metric(
    "memory",
    MIDDLE_SECONDS,
    (Call("nvmlDeviceGetMemoryInfo", (MEMORY_V2,)), Call("nvmlDeviceGetMemoryInfo")),
    memory,
    MEMORY_FIELDS,
)

LIVE: tuple[Metric, ...] = (
    Metric(
        "utilisation",
        FAST_SECONDS,
        (Call("nvmlDeviceGetUtilizationRates"),),
        _utilisation,
        ("busy_ratio", "memory_busy_ratio"),
    ),
    _metric("power_watts", FAST_SECONDS, (Call("nvmlDeviceGetPowerUsage"),), 1, 1e7, 1000),
    _metric(
        "sm_clock_mhz", FAST_SECONDS, (Call("nvmlDeviceGetClockInfo", (CLOCK_SM,)),), 1, 20_000
    ),
    _metric(
        "memory_clock_mhz",
        FAST_SECONDS,
        (Call("nvmlDeviceGetClockInfo", (CLOCK_MEMORY,)),),
        1,
        50_000,
    ),
    _metric(
        "clock_event_mask",
        FAST_SECONDS,
        (
            Call("nvmlDeviceGetCurrentClocksEventReasons"),
            Call("nvmlDeviceGetCurrentClocksThrottleReasons"),
        ),
        0,
        (1 << 63) - 1,
    ),
    MEMORY,
    _metric(
        "power_limit_watts",
        MIDDLE_SECONDS,
        (
            Call("nvmlDeviceGetEnforcedPowerLimit"),
            Call("nvmlDeviceGetPowerManagementLimit"),
        ),
        1,
        1e7,
        1000,
    ),
    _metric(
        "energy_joules",
        MIDDLE_SECONDS,
        (Call("nvmlDeviceGetTotalEnergyConsumption"),),
        0,
        1 << 62,
        1000,
    ),
    Metric(
        "temperature_celsius",
        MIDDLE_SECONDS,
        (
            Call("nvmlDeviceGetTemperatureV", (SENSOR_GPU,)),
            Call("nvmlDeviceGetTemperature", (SENSOR_GPU,)),
        ),
        _temperature,
        ("temperature_celsius",),
    ),
    Metric(
        "performance_state",
        MIDDLE_SECONDS,
        (Call("nvmlDeviceGetPerformanceState"),),
        _performance_state,
        ("performance_state",),
    ),
    Metric(
        "temperature margin",
        MIDDLE_SECONDS,
        (Call("nvmlDeviceGetMarginTemperature"),),
        _one("temperature_margin_celsius", -200, 200),
        ("temperature_margin_celsius",),
    ),
    # Fans that are told to may turn faster than their rated speed.
    _metric("fan_ratio", ENGINES_SECONDS, (Call("nvmlDeviceGetFanSpeed"),), 0, 200, 100),
    *(
        Metric(field, ENGINES_SECONDS, (Call(function),), _engine(field), (field,))
        for field, function in (
            ("encoder_busy_ratio", "nvmlDeviceGetEncoderUtilization"),
            ("decoder_busy_ratio", "nvmlDeviceGetDecoderUtilization"),
        )
    ),
    _metric("pcie_generation", LINK_SECONDS, (Call("nvmlDeviceGetCurrPcieLinkGeneration"),), 1, 9),
    _metric("pcie_width", LINK_SECONDS, (Call("nvmlDeviceGetCurrPcieLinkWidth"),), 1, 32),
    _metric(
        "pcie_generation_max", MAXIMA_SECONDS, (Call("nvmlDeviceGetMaxPcieLinkGeneration"),), 1, 9
    ),
    _metric("pcie_width_max", MAXIMA_SECONDS, (Call("nvmlDeviceGetMaxPcieLinkWidth"),), 1, 32),
)


HEALTH: tuple[Metric, ...] = (
    Metric(
        "ecc_enabled", ERRORS_SECONDS, (Call("nvmlDeviceGetEccMode"),), _ecc_mode, ("ecc_enabled",)
    ),
    *(
        Metric(
            field,
            ERRORS_SECONDS,
            (Call("nvmlDeviceGetTotalEccErrors", (kind, counter)),),
            _count(field),
            (field,),
        )
        for field, kind, counter in (
            ("ecc_uncorrected_volatile", ECC_UNCORRECTED, ECC_VOLATILE),
            ("ecc_uncorrected_aggregate", ECC_UNCORRECTED, ECC_AGGREGATE),
            ("ecc_corrected_volatile", ECC_CORRECTED, ECC_VOLATILE),
            ("ecc_corrected_aggregate", ECC_CORRECTED, ECC_AGGREGATE),
        )
    ),
    Metric(
        "row remapping",
        MAXIMA_SECONDS,
        (Call("nvmlDeviceGetRemappedRows"),),
        _row_remapping,
        (
            "rows_remapped_corrected",
            "rows_remapped_uncorrected",
            "row_remap_pending",
            "row_remap_failed",
        ),
    ),
    _metric(
        "power_limit_default_watts",
        MAXIMA_SECONDS,
        (Call("nvmlDeviceGetPowerManagementDefaultLimit"),),
        1,
        1e7,
        1000,
    ),
    Metric(
        "compute_mode",
        MAXIMA_SECONDS,
        (Call("nvmlDeviceGetComputeMode"),),
        _compute_mode,
        ("compute_mode",),
    ),
    Metric(
        "persistence_mode",
        MAXIMA_SECONDS,
        (Call("nvmlDeviceGetPersistenceMode"),),
        lambda answer: {"persistence_mode": flag(answer)},
        ("persistence_mode",),
    ),
)
