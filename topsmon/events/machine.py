"""What is there and what it does: hosts, devices, their readings and processes."""

from __future__ import annotations

from typing import Literal

import msgspec

from topsmon.events.base import Event

Kind = Literal["gpu", "cpu"]
DeviceCondition = Literal["ok", "lost", "stalled", "asleep", "error"]
WorkerCondition = Literal["starting", "running", "paused", "restarted", "failed", "stopped"]


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
    jetson: bool = False


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
    differ from CUDA's. `pci_path` names the PCI root complex and the bridges above the device, from
    the root down.
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
    pci_path: tuple[str, ...] = ()
    numa_node: int | None = None


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


class GpuCounters(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of time or of capacity over the last interval, by NVML's GPM (Hopper and newer).

    All ratios are 0..1. `sm_active_ratio`: SMs that had a warp; `sm_occupancy_ratio`: warps in
    flight of the most possible; `tensor_active_ratio` and the pipes `fp64`, `fp32`, `fp16` (not
    tensor): share of their peak issue rate; `dram_active_ratio`: of the theoretical bandwidth.
    `during_burst`: topsmon itself computed on the device meanwhile, so that this tells nothing of
    others. A metric that the driver did not give is None; `unavailable` says why.
    """

    seconds: float
    graphics_active_ratio: float | None = None
    sm_active_ratio: float | None = None
    sm_occupancy_ratio: float | None = None
    tensor_active_ratio: float | None = None
    dram_active_ratio: float | None = None
    fp64_active_ratio: float | None = None
    fp32_active_ratio: float | None = None
    fp16_active_ratio: float | None = None
    integer_active_ratio: float | None = None
    pcie_transmit_bytes_per_second: float | None = None
    pcie_receive_bytes_per_second: float | None = None
    nvlink_transmit_bytes_per_second: float | None = None
    nvlink_receive_bytes_per_second: float | None = None
    during_burst: bool = False
    unavailable: dict[str, str] = {}


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """One MIG instance of a GPU: profile ("1g.10gb"), memory in bytes, SMs of its own."""

    uuid: str | None
    profile: str | None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    sm_count: int | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    counters: GpuCounters | None = None
    unavailable: dict[str, str] = {}


class Slices(Event, frozen=True, kw_only=True, tag="slices"):
    """The MIG instances that a GPU is cut into now, in the driver's order."""

    device: str
    slices: tuple[Slice, ...]


class Xid(Event, frozen=True, kw_only=True, tag="xid"):
    """The driver has reported an error of a device by NVIDIA's number for it."""

    device: str
    code: int


class DeviceSample(Event, frozen=True, kw_only=True, tag="sample"):
    """The latest reading of a device. Ratios are 0..1.

    `busy_ratio` is the share of time in which any kernel ran ("GPU-Util"), no share of SMs or
    FLOPs; for a CPU the share of busy time over usable logical CPUs. `memory_busy_ratio` is the
    share of time in which memory was read or written. `memory_used_bytes` excludes
    `memory_reserved_bytes` where the driver tells them apart. ECC errors are counts, "volatile"
    since the driver was loaded, "aggregate" over the board's life. `throttle_ratios` are the shares
    of the time since the sample before in which clocks were held down, by reason ("power",
    "thermal", "sw_thermal", "hw_thermal", "power_brake", "sync_boost", "board_limit",
    "reliability"). PCIe and NVLink: "transmit" leaves the GPU; where the driver's byte counters
    wrap, PCIe rates are those of 20 ms of each second. `pcie_replays`, `nvlink_errors` and rows and
    pages are counts over the driver's or the board's life. `temperature_margin_celsius` is how much
    hotter it may get before clocks go down.
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
    memory_temperature_celsius: float | None = None
    temperature_margin_celsius: float | None = None
    fan_ratio: float | None = None
    encoder_busy_ratio: float | None = None
    decoder_busy_ratio: float | None = None
    throttle_ratios: dict[str, float] = {}
    pcie_transmit_bytes_per_second: float | None = None
    pcie_receive_bytes_per_second: float | None = None
    pcie_replays: int | None = None
    nvlink_links_up: int | None = None
    nvlink_links: int | None = None
    nvlink_transmit_bytes_per_second: float | None = None
    nvlink_receive_bytes_per_second: float | None = None
    nvlink_errors: int | None = None
    ecc_corrected_aggregate: int | None = None
    rows_remapped_corrected: int | None = None
    rows_remapped_uncorrected: int | None = None
    pages_retired: int | None = None
    pages_retirement_pending: bool | None = None
    power_limit_default_watts: float | None = None
    compute_mode: str | None = None
    persistence_mode: bool | None = None
    counters: GpuCounters | None = None


class DeviceStatus(Event, frozen=True, kw_only=True, tag="status"):
    """A change in how a device answers. `since` is the monotonic time at which it began."""

    device: str
    condition: DeviceCondition
    detail: str = ""
    since: float


class Ancestor(msgspec.Struct, frozen=True, kw_only=True):
    """A process above another one: its PID and name."""

    pid: int
    name: str | None = None


class ProcessEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One process that uses a device.

    `local` False: the PID is that of another PID namespace, not ours to touch. `own` True: a
    process of topsmon. `cpu_cores` is CPU time per wall time (1.0 = one core fully used). `state`
    is the kernel's letter where it matters: "Z" ended but not reaped, "D" stuck in the kernel, "T"
    stopped. `kind`: "compute", "graphics" or "both". `sm_ratio` and `memory_busy_ratio` are shares
    of time, 0..1, as the driver tells them per process; None: no sample. `started` is wall-clock
    time, `start_ticks` the kernel's own figure: with the PID it names a process for ever.
    `ancestors` are its parent, the parent's parent and so on.
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
    parent_pid: int | None = None
    kind: str = "compute"
    sm_ratio: float | None = None
    memory_busy_ratio: float | None = None
    host_memory_bytes: int | None = None
    started: float | None = None
    gpu_instance: int | None = None
    start_ticks: int | None = None
    ancestors: tuple[Ancestor, ...] = ()


class Processes(Event, frozen=True, kw_only=True, tag="processes"):
    """Processes on a device; `entries` None: could not be read, because `reason`.

    With entries, `reason` says what the driver does not tell of them.
    """

    device: str
    entries: tuple[ProcessEntry, ...] | None
    reason: str = ""


class Worker(Event, frozen=True, kw_only=True, tag="worker"):
    """A change in one of our own child processes ("poller", "prober GPU-...").

    `detail` says how its last run ended, also while the next one starts and runs; empty before.
    """

    worker: str
    condition: WorkerCondition
    restarts: int = 0
    detail: str = ""
