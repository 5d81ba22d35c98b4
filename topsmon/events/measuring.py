"""What is measured: probers, rates, laboratory probes."""

from __future__ import annotations

from topsmon.events.base import Event


class ProberReady(Event, frozen=True, kw_only=True, tag="prober-ready"):
    """What a prober's torch knows of its device.

    `threads` is how many it measures with, `default_threads` how many torch would take by itself.
    """

    device: str
    torch_version: str
    python: str
    name: str | None = None
    threads: int | None = None
    default_threads: int | None = None
    usable_cpus: int | None = None
    sm_count: int | None = None
    clock_rate_mhz: float | None = None
    l2_bytes: int | None = None
    memory_total_bytes: int | None = None
    notes: tuple[str, ...] = ()


class ProbeStarted(Event, frozen=True, kw_only=True, tag="probe-started"):
    """A burst begins on a device."""

    device: str
    precision: str


class RateMeasured(Event, frozen=True, kw_only=True, tag="rate"):
    """Result of one GEMM burst.

    `rate_ops_per_second` is 2*M*N*K / median call time; `rate_low`/`rate_high` are the quartiles
    of the same. `relative_error` is the Frobenius norm of (result - FP64 reference) over that of
    the reference, on sampled rows. `valid` False keeps the number but says in `invalid_reason` why
    it must not be trusted; a wrong result has `correct` False and is a failure, not a rate.
    `held_clock_mhz` is the median clock read during the burst, `clock_event_mask` the OR of the
    NVML reasons. `cpu_share` is CPU time received / (wall time * threads), CPU only.
    `earlier_session`: not measured now, but remembered.
    """

    device: str
    precision: str
    rate_ops_per_second: float | None
    rate_low_ops_per_second: float | None = None
    rate_high_ops_per_second: float | None = None
    calls: int = 0
    shape: tuple[int, int, int] | None = None
    burst_seconds: float | None = None
    correct: bool | None = None
    relative_error: float | None = None
    error_limit: float | None = None
    valid: bool = True
    invalid_reason: str = ""
    emulated: bool = False
    held_clock_mhz: float | None = None
    held_clock_source: str = ""
    clock_event_mask: int | None = None
    power_watts: float | None = None
    cpu_share: float | None = None
    threads: int | None = None
    method: str = ""
    torch_version: str = ""
    note: str = ""
    earlier_session: bool = False


class ProbeResult(Event, frozen=True, kw_only=True, tag="probe"):
    """Result of one laboratory probe other than a plain GEMM rate.

    `values` are named with their units ("copy_bytes_per_second", "launch_seconds",
    "speedup_ratio"); `series` are curves of (x, y) points, named "y_unit_over_x_unit". A value that
    could not be measured is None and `unavailable` says why. `correct`, `valid` and the conditions
    mean the same as in `RateMeasured`.
    """

    device: str
    probe: str
    values: dict[str, float | None] = {}
    series: dict[str, tuple[tuple[float, float], ...]] = {}
    labels: dict[str, str] = {}
    unavailable: dict[str, str] = {}
    correct: bool | None = None
    relative_error: float | None = None
    error_limit: float | None = None
    valid: bool = True
    invalid_reason: str = ""
    emulated: bool = False
    seconds: float | None = None
    held_clock_mhz: float | None = None
    held_clock_source: str = ""
    clock_event_mask: int | None = None
    power_watts: float | None = None
    cpu_share: float | None = None
    threads: int | None = None
    method: str = ""
    torch_version: str = ""
    note: str = ""


class ProbeUnsupported(Event, frozen=True, kw_only=True, tag="unsupported"):
    """A precision that this device or this library cannot run, and why."""

    device: str
    precision: str
    reason: str


class ProberIdle(Event, frozen=True, kw_only=True, tag="prober-idle"):
    """A prober that waits: `reason` in words ("paused", "python train.py (PID 12) uses GPU 0")."""

    device: str
    reason: str
