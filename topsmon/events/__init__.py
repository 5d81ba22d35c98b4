"""The vocabulary of the stream: one typed event a JSON line.

`topsmon stream` prints these lines, a prober writes them to its parent, a recording holds them.
Every event has a wall-clock `time` (s since the epoch), a `monotonic` time (s, comparable only
within one source host) and a `source`: a host name, or `host/device`.

`None` always means "not measured" and never 0; `unavailable` maps a field's name to the reason.
"""

from topsmon.events.base import Event
from topsmon.events.machine import (
    Ancestor,
    Ceiling,
    Ceilings,
    Device,
    DeviceCondition,
    DeviceSample,
    DeviceStatus,
    GpuCounters,
    Hello,
    Host,
    HostSample,
    Kind,
    Problem,
    ProcessEntry,
    Processes,
    Slice,
    Slices,
    Worker,
    WorkerCondition,
    Xid,
)
from topsmon.events.measuring import (
    ProbeResult,
    ProberIdle,
    ProberReady,
    ProbeStarted,
    ProbeUnsupported,
    RateMeasured,
)
from topsmon.events.recording import Recording
from topsmon.events.training import (
    AutocastType,
    HistoryBucket,
    Run,
    RunCondition,
    RunEvent,
    RunHistory,
    RunSample,
    RunStatus,
    RunTotals,
    RunWindow,
    Scaler,
)
from topsmon.events.verdicts import CheckResult, CheckState, Finding, Severity
from topsmon.events.wire import (
    KNOWN_TAGS,
    MAX_LINE_BYTES,
    SCHEMA_VERSION,
    AnyEvent,
    LineDecoder,
    encode,
)

__all__ = [
    "KNOWN_TAGS",
    "MAX_LINE_BYTES",
    "SCHEMA_VERSION",
    "Ancestor",
    "AnyEvent",
    "AutocastType",
    "Ceiling",
    "Ceilings",
    "CheckResult",
    "CheckState",
    "Device",
    "DeviceCondition",
    "DeviceSample",
    "DeviceStatus",
    "Event",
    "Finding",
    "GpuCounters",
    "Hello",
    "HistoryBucket",
    "Host",
    "HostSample",
    "Kind",
    "LineDecoder",
    "ProbeResult",
    "ProbeStarted",
    "ProbeUnsupported",
    "ProberIdle",
    "ProberReady",
    "Problem",
    "ProcessEntry",
    "Processes",
    "RateMeasured",
    "Recording",
    "Run",
    "RunCondition",
    "RunEvent",
    "RunHistory",
    "RunSample",
    "RunStatus",
    "RunTotals",
    "RunWindow",
    "Scaler",
    "Severity",
    "Slice",
    "Slices",
    "Worker",
    "WorkerCondition",
    "Xid",
    "encode",
]
