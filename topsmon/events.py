"""The vocabulary of the stream: one typed event a JSON line.

`topsmon stream` prints these lines, a prober writes them to its parent, a recording holds them.
Every event has a wall-clock `time` (s since the epoch), a `monotonic` time (s, comparable only
within one source host) and a `source`: a host name, or `host/device`.

`None` always means "not measured" and never 0; `unavailable` maps a field's name to the reason.
"""

from __future__ import annotations

from typing import Literal

import msgspec

SCHEMA_VERSION = 1
"""Raised when a field changes its meaning; new fields and new tags do not raise it."""

Kind = Literal["gpu", "cpu"]
Severity = Literal["info", "warn", "fail"]
DeviceCondition = Literal["ok", "lost", "stalled", "asleep", "error"]
CheckState = Literal["PASS", "WARN", "FAIL", "NO-VERDICT", "INVALID", "EMULATED", "UNSUPPORTED"]
WorkerCondition = Literal["starting", "running", "paused", "restarted", "failed", "stopped"]


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """What every event has."""

    time: float
    monotonic: float
    source: str


class Hello(Event, frozen=True, kw_only=True, tag="hello"):
    """First line of every source: who speaks, which version, and whether it is a simulation."""

    version: str
    schema: int
    role: str
    pid: int
    simulated: str | None = None


class Host(Event, frozen=True, kw_only=True, tag="host"):
    """What does not change about a machine and its driver."""

    hostname: str
    system: str
    cpu_name: str | None = None
    memory_total_bytes: int | None = None
    driver_version: str | None = None
    cuda_version: str | None = None
    container: bool = False
    wsl: bool = False


class HostSample(Event, frozen=True, kw_only=True, tag="host-sample"):
    """Load of the whole machine. `cpu_busy_ratio` is 0..1 over all logical CPUs."""

    cpu_busy_ratio: float | None = None
    memory_used_bytes: int | None = None
    load_1_minute: float | None = None


class Problem(Event, frozen=True, kw_only=True, tag="problem"):
    """A source that cannot work, in words: the NVML library, the driver, permissions.

    `subject` names the source ("nvml"). `code` None says that the problem is over.
    """

    subject: str
    code: str | None
    message: str
    remedy: str = ""


class Device(Event, frozen=True, kw_only=True, tag="device"):
    """Identity of a device: what is read once. `device` is its key in all other events.

    The key is the UUID of a GPU and "cpu" for the processor. `index` is NVML's order, which may
    differ from CUDA's.
    """

    device: str
    kind: Kind
    index: int
    name: str
    uuid: str | None = None
    pci_bus_id: str | None = None
    pci_device_id: str | None = None
    pci_subsystem_id: str | None = None
    compute_capability: str | None = None
    architecture: str | None = None
    sm_count: int | None = None
    memory_total_bytes: int | None = None
    memory_bus_bits: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    power_limit_default_watts: float | None = None
    power_limit_max_watts: float | None = None
    temperature_slowdown_celsius: int | None = None
    mig: bool = False
    unavailable: dict[str, str] = {}


class Ceiling(msgspec.Struct, frozen=True, kw_only=True):
    """Dense theoretical rate of one precision (a key of the rates table, e.g. "fp16_acc32").

    `ops_per_second` is the rated ceiling. `ops_per_clock` is that of the whole device, so that the
    ceiling at a held clock is `ops_per_clock * clock_mhz * 1e6`. `rated_clock_mhz` is the clock the
    rated figure belongs to. `origin` is "published", "computed" or "range"; a range has its lower
    end in `ops_per_second_low`. `published_ops_per_second` is the figure as the vendor prints it.
    """

    precision: str
    ops_per_second: float
    origin: str
    source: str
    ops_per_second_low: float | None = None
    sparse_ops_per_second: float | None = None
    published_ops_per_second: float | None = None
    ops_per_clock: float | None = None
    rated_clock_mhz: float | None = None
    verified: bool | None = None
    note: str = ""


class Ceilings(Event, frozen=True, kw_only=True, tag="ceilings"):
    """All ceilings of a device, each with its source.

    `board` is the matched board's key or None, `matched_by` how it was found ("PCI id", "exact
    name", "SM count and clock", "computed from architecture"). `unknown` says in words why there is
    none at all. `absent` maps a precision to the reason that it has no ceiling.
    """

    device: str
    board: str | None = None
    matched_by: str | None = None
    unknown: str | None = None
    rates: tuple[Ceiling, ...] = ()
    absent: dict[str, str] = {}
    memory_bandwidth_bytes_per_second: float | None = None
    memory_bandwidth_source: str = ""
    l2_bytes: int | None = None
    pcie_bytes_per_second: float | None = None
    pcie_source: str = ""
    nvlink_bytes_per_second: float | None = None
    nvlink_source: str = ""
    clock_source: str = ""
    notes: tuple[str, ...] = ()


class DeviceSample(Event, frozen=True, kw_only=True, tag="sample"):
    """The latest reading of a device. Ratios are 0..1.

    `busy_ratio` is the share of time in which any kernel ran ("GPU-Util"), no share of SMs or
    FLOPs; for a CPU the share of busy time over usable logical CPUs. `memory_busy_ratio` is the
    share of time in which memory was read or written. `memory_used_bytes` excludes
    `memory_reserved_bytes` where the driver tells them apart. ECC errors are counts, "volatile"
    since the driver was loaded, "aggregate" over the board's life.
    """

    device: str
    busy_ratio: float | None = None
    memory_busy_ratio: float | None = None
    memory_used_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    memory_total_bytes: int | None = None
    memory_note: str = ""
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None
    temperature_celsius: float | None = None
    performance_state: int | None = None
    clock_event_mask: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    ecc_enabled: bool | None = None
    ecc_uncorrected_volatile: int | None = None
    ecc_uncorrected_aggregate: int | None = None
    ecc_corrected_volatile: int | None = None
    row_remap_pending: bool | None = None
    row_remap_failed: bool | None = None
    unavailable: dict[str, str] = {}


class DeviceStatus(Event, frozen=True, kw_only=True, tag="status"):
    """A change in how a device answers. `since` is the monotonic time at which it began."""

    device: str
    condition: DeviceCondition
    detail: str = ""
    since: float


class ProcessEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One process that uses a device.

    `local` False: the PID is that of another PID namespace, not ours to touch. `own` True: a
    process of topsmon. `cpu_cores` is CPU time per wall time (1.0 = one core fully used). `state`
    is the kernel's letter where it matters: "Z" ended but not reaped, "D" stuck in the kernel.
    """

    pid: int
    name: str | None = None
    user: str | None = None
    memory_bytes: int | None = None
    cpu_cores: float | None = None
    command: str | None = None
    local: bool = True
    own: bool = False
    state: str | None = None


class Processes(Event, frozen=True, kw_only=True, tag="processes"):
    """Compute processes on a device; `entries` None: could not be read, because `reason`."""

    device: str
    entries: tuple[ProcessEntry, ...] | None
    reason: str = ""


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


class Worker(Event, frozen=True, kw_only=True, tag="worker"):
    """A change in one of our own child processes ("poller", "prober GPU-...")."""

    worker: str
    condition: WorkerCondition
    restarts: int = 0
    detail: str = ""


class Finding(Event, frozen=True, kw_only=True, tag="finding"):
    """One diagnosed fact: what, how sure, from which numbers, what to do, on whose authority.

    `word` is the state word of the screen (SLOW, HOT, LOST, STALE, FAIL, FULL, SHARED, note).
    `basis` names the source of the threshold or rule.
    """

    code: str
    severity: Severity
    word: str
    title: str
    device: str | None = None
    cause: str = ""
    evidence: tuple[str, ...] = ()
    remedy: str = ""
    command: str = ""
    basis: str = ""


class CheckResult(Event, frozen=True, kw_only=True, tag="check"):
    """Verdict of one check on one device; `device` None: about the machine.

    `value` is in `unit` ("ops/s", "bytes/s", "s", "ratio", "celsius", "watts", "count"), as are the
    limits: as good as expected from `pass_limit` on, `fail_limit` is where a failure begins, None
    where there is none; a lower value is the better one where `lower_is_better`. `ratio` is value /
    ceiling. `unknown` True: what should have been judged could not be measured, so that the whole
    run cannot be called healthy. `experimental`: the limits are chosen, nobody published any; such
    a check never fails.
    """

    device: str | None
    label: str
    check: str
    state: CheckState
    title: str
    value: float | None = None
    unit: str = ""
    value_text: str = ""
    threshold_text: str = ""
    pass_limit: float | None = None
    fail_limit: float | None = None
    lower_is_better: bool = False
    ratio: float | None = None
    cause: str = ""
    evidence: tuple[str, ...] = ()
    remedy: str = ""
    command: str = ""
    basis: str = ""
    experimental: bool = False
    unknown: bool = False


AnyEvent = (
    Hello
    | Host
    | HostSample
    | Problem
    | Device
    | Ceilings
    | DeviceSample
    | DeviceStatus
    | Processes
    | ProberReady
    | ProbeStarted
    | RateMeasured
    | ProbeResult
    | ProbeUnsupported
    | ProberIdle
    | Worker
    | Finding
    | CheckResult
)


class _Tag(msgspec.Struct):
    type: str


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)
_tag_decoder = msgspec.json.Decoder(_Tag)
KNOWN_TAGS: frozenset[str] = frozenset(
    str(kind.__struct_config__.tag) for kind in Event.__subclasses__()
)
MAX_LINE_BYTES = 1 << 20


def encode(event: Event) -> bytes:
    """Return the event as one JSON line with its newline. Infinities and NaN become null."""
    return _encoder.encode(event) + b"\n"


class LineDecoder:
    """Decode a stream line by line and count what could not be read.

    `skipped` counts lines with a tag of a newer version, `malformed` the lines that are no event;
    `last_error` names the latest of those. Neither is ever raised: one bad line must not end a
    stream.
    """

    def __init__(self) -> None:
        self.skipped = 0
        self.malformed = 0
        self.last_error: str | None = None

    def decode(self, line: bytes) -> AnyEvent | None:
        """Return the event of a line, or None if there is none (empty, unknown or malformed)."""
        stripped = line.strip()
        if not stripped:
            return None
        if len(stripped) > MAX_LINE_BYTES:
            self._reject(f"line of {len(stripped)} bytes is over {MAX_LINE_BYTES}")
            return None
        try:
            return _decoder.decode(stripped)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._explain(stripped, error)
            return None

    def _explain(self, line: bytes, error: Exception) -> None:
        try:
            tag = _tag_decoder.decode(line).type
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._reject(str(error))
            return
        if tag in KNOWN_TAGS:
            self._reject(f"{tag}: {error}")
        else:
            self.skipped += 1

    def _reject(self, error: str) -> None:
        self.malformed += 1
        self.last_error = error
