"""What a benchmark found, as it is saved: units are in the names, None is "not measured".

`unavailable` says why a number is None. New fields do not raise `SCHEMA_VERSION`.
"""

from __future__ import annotations

import math

import msgspec

SCHEMA = "topsmon.bench/1"
SCHEMA_VERSION = 1
"""Raised when a field changes its meaning or goes."""

Shape = tuple[int, int, int]
"""M, N, K of (M x K) @ (K x N)."""


class Burst(msgspec.Struct, frozen=True, kw_only=True):
    """One shape of one precision: its median rate, the quartiles, and what held meanwhile.

    `rate_low_ops_per_second` and `rate_high_ops_per_second` are the quartiles over `calls` calls.
    `clock_events` names the bits of `clock_event_mask`.
    """

    rate_ops_per_second: float | None
    shape: Shape | None = None
    rate_low_ops_per_second: float | None = None
    rate_high_ops_per_second: float | None = None
    calls: int = 0
    burst_seconds: float | None = None
    time_unix_seconds: float = 0.0
    correct: bool | None = None
    relative_error: float | None = None
    error_limit: float | None = None
    valid: bool = True
    invalid_reason: str = ""
    emulated: bool = False
    held_clock_mhz: float | None = None
    held_clock_source: str = ""
    clock_event_mask: int | None = None
    clock_events: str = ""
    power_watts: float | None = None
    cpu_share: float | None = None
    threads: int | None = None
    method: str = ""
    torch_version: str = ""
    note: str = ""

    @property
    def trusted(self) -> bool:
        """True for a rate that was measured, undisturbed and right."""
        rate = self.rate_ops_per_second
        known = rate is not None and math.isfinite(rate) and rate > 0
        return known and self.valid and self.correct is not False

    @property
    def nothing_computed(self) -> bool:
        """True for a measured 0: a failure and no slow device."""
        return self.rate_ops_per_second == 0

    @property
    def iqr_ratio(self) -> float | None:
        """Distance of the quartiles over the median."""
        return iqr_ratio(
            self.rate_ops_per_second, self.rate_low_ops_per_second, self.rate_high_ops_per_second
        )


def iqr_ratio(median: float | None, low: float | None, high: float | None) -> float | None:
    """Distance of the quartiles over the median; None where they are unknown or no quartiles."""
    if median is None or low is None or high is None:
        return None
    if not (0 < low <= median <= high < math.inf):
        return None
    return (high - low) / median


class PrecisionResult(msgspec.Struct, frozen=True, kw_only=True):
    """One precision: the best of its shapes beside what the device should do.

    `ratio` is rate / rated ceiling and never clamped, `ratio_at_held_clock` rate / ceiling at the
    clock held in that burst. `rated_speedup_over_fp32_ratio` is the ceilings' ratio.
    `expected_ops_per_second` is what is expected at least, where figures of the board or its class
    are published. `ops_per_joule` says in `ops_per_joule_source` what it rests on. `remembered`: a
    rate of an earlier session.
    """

    precision: str
    label: str
    unit: str
    best: Burst
    bursts: tuple[Burst, ...] = ()
    remembered: bool = False
    iqr_ratio: float | None = None
    ceiling_key: str | None = None
    ceiling_ops_per_second: float | None = None
    ceiling_low_ops_per_second: float | None = None
    ceiling_origin: str = ""
    ceiling_source: str = ""
    rated_clock_mhz: float | None = None
    ratio: float | None = None
    ceiling_at_held_clock_ops_per_second: float | None = None
    ratio_at_held_clock: float | None = None
    speedup_over_fp32_ratio: float | None = None
    rated_speedup_over_fp32_ratio: float | None = None
    expected_ops_per_second: float | None = None
    expected_words: str = ""
    expected_basis: str = ""
    ops_per_joule: float | None = None
    ops_per_joule_source: str = ""
    remarks: tuple[str, ...] = ()
    unavailable: dict[str, str] = {}

    @property
    def trusted(self) -> bool:
        """True for a rate of this session that may be compared."""
        return self.best.trusted and not self.remembered

    @property
    def nothing_computed(self) -> bool:
        """True if a shape has a rate of 0 now: a failure, whatever the other shapes show."""
        found = (self.best, *self.bursts)
        return not self.remembered and any(one.nothing_computed for one in found)


class ProbeValue(msgspec.Struct, frozen=True, kw_only=True):
    """What every value of a probe has; `name` is for people ("DRAM copy").

    `calls` is how many calls the median and the quartiles are from, None where that was not kept.
    """

    name: str
    probe: str
    calls: int | None = None
    valid: bool = True
    invalid_reason: str = ""
    correct: bool | None = None
    unavailable: str = ""

    @property
    def median(self) -> float | None:
        """The value, whatever its unit."""
        raise NotImplementedError

    @property
    def quartiles(self) -> tuple[float | None, float | None]:
        """The lower and the upper one, in the unit of the median."""
        raise NotImplementedError

    @property
    def trusted(self) -> bool:
        """True for a value that was measured, undisturbed and right."""
        value = self.median
        known = value is not None and math.isfinite(value) and value > 0
        return known and self.valid and self.correct is not False

    @property
    def iqr_ratio(self) -> float | None:
        """Distance of the quartiles over the median."""
        return iqr_ratio(self.median, *self.quartiles)


class Bandwidth(ProbeValue, frozen=True, kw_only=True):
    """A bandwidth of memory, a cache or the link to the host."""

    bytes_per_second: float | None
    low_bytes_per_second: float | None = None
    high_bytes_per_second: float | None = None
    ceiling_bytes_per_second: float | None = None
    ceiling_source: str = ""
    ratio: float | None = None

    @property
    def median(self) -> float | None:
        """In bytes per second."""
        return self.bytes_per_second

    @property
    def nothing_moved(self) -> bool:
        """True for a measured 0: a failure and no slow device."""
        return self.bytes_per_second == 0

    @property
    def quartiles(self) -> tuple[float | None, float | None]:
        """In bytes per second."""
        return self.low_bytes_per_second, self.high_bytes_per_second


class Latency(ProbeValue, frozen=True, kw_only=True):
    """What starting some work costs, whatever its amount."""

    seconds: float | None
    low_seconds: float | None = None
    high_seconds: float | None = None

    @property
    def median(self) -> float | None:
        """In seconds."""
        return self.seconds

    @property
    def quartiles(self) -> tuple[float | None, float | None]:
        """In seconds."""
        return self.low_seconds, self.high_seconds


class Energy(msgspec.Struct, frozen=True, kw_only=True):
    """Energy of a second of products, idle power included; `source` is the meter."""

    precision: str
    source: str
    ops_per_joule: float | None
    mean_watts: float | None = None
    sampled_watts: float | None = None
    idle_watts: float | None = None
    shape: str = ""
    valid: bool = True
    invalid_reason: str = ""
    note: str = ""


class Sustained(msgspec.Struct, frozen=True, kw_only=True):
    """A short burst against the end of a long stretch of work."""

    precision: str
    burst_rate_ops_per_second: float | None
    sustained_rate_ops_per_second: float | None
    sustained_ratio: float | None
    burst_clock_mhz: float | None = None
    sustained_clock_mhz: float | None = None
    work_seconds: float | None = None
    valid: bool = True
    invalid_reason: str = ""
    note: str = ""


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """Under what the device was measured. `clocks_set`: someone had set its clocks."""

    torch_version: str | None = None
    threads: int | None = None
    power_limit_watts: float | None = None
    power_limit_default_watts: float | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    clocks_set: bool | None = None
    ecc_enabled: bool | None = None
    temperature_celsius: float | None = None
    pcie: str = ""


class BenchDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device. `not_measured` has the reason for each precision and probe without a number.

    `at_top_clock`: its compute ceilings are at the highest clock measured, no rated one is known.
    """

    device: str
    kind: str
    index: int
    label: str
    name: str
    uuid: str | None = None
    pci_bus_id: str | None = None
    board: str | None = None
    mig: bool = False
    no_ceiling: str | None = None
    at_top_clock: bool = False
    conditions: Conditions = Conditions()
    precisions: tuple[PrecisionResult, ...] = ()
    bandwidths: tuple[Bandwidth, ...] = ()
    latencies: tuple[Latency, ...] = ()
    energy: Energy | None = None
    sustained: Sustained | None = None
    not_measured: dict[str, str] = {}
    notes: tuple[str, ...] = ()


class BenchDocument(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="document",
    tag="topsmon bench",
    rename={"format": "schema"},
):
    """A whole benchmark of one machine. `simulated` names the scenario if nothing is real."""

    schema_version: int
    topsmon_version: str
    time_unix_seconds: float
    devices: tuple[BenchDevice, ...]
    hostname: str | None = None
    driver_version: str | None = None
    cuda_version: str | None = None
    simulated: str | None = None
    format: str = SCHEMA
    version: str = ""
