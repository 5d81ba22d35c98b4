"""What ranks have told: the document that rank 0 writes, and the notes of each rank.

Fields are those that `topsmon.distributed` writes. Whatever a rank did not reach is None or empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

SCHEMA = "topsmon.ranks/1"
INTERRUPTED = "interrupted"
"""The problem of a document that nobody waited for."""

_VICTIM = re.compile(
    r"time-out|timed out|timeout|SIGTERM|connection|socket|broken pipe|(read|write) error|"
    r"gloo/transport|remote (process|worker)|NCCL (error|communicator)|did not meet",
    re.IGNORECASE,
)
"""Failures that another rank or the network between them has caused."""


class RankDevice(msgspec.Struct, frozen=True, kw_only=True):
    """The device of a rank. On a processor, memory is the rank's share of the machine's."""

    kind: str
    name: str
    index: int = 0
    uuid: str | None = None
    compute_capability: str | None = None
    sm_count: int | None = None
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None
    threads: int | None = None
    cuda_devices: int = 0
    peer_access: bool | None = None


class RankRate(msgspec.Struct, frozen=True, kw_only=True):
    """The rate of a rank's own matrix products. Fields mean what they do in `RateMeasured`."""

    precision: str
    rate_ops_per_second: float
    shape: tuple[int, int, int] | None = None
    correct: bool | None = None
    relative_error: float | None = None
    error_limit: float | None = None
    valid: bool = True
    invalid_reason: str = ""
    held_clock_mhz: float | None = None
    clock_event_mask: int | None = None
    power_watts: float | None = None
    cpu_share: float | None = None
    threads: int | None = None
    burst_rates: tuple[float, ...] = ()
    method: str = ""


class RankTime(msgspec.Struct, frozen=True, kw_only=True):
    """The median time of one operation of one size on one rank."""

    operation: str
    bytes: int
    seconds: float
    correct: bool
    calls: int = 0
    low_seconds: float | None = None
    high_seconds: float | None = None


class RankReport(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of one rank. `ended`: "finished", "failed", or "" without last words.

    `steps` counts stages and collective calls entered. `transfer` has bytes/s of pinned copies,
    "h2d_alone_bytes_per_second" while the other ranks rest and "h2d_together_..." with them.
    `fate` is what this machine's kernel says of the process of a rank that has not finished:
    "gone", "stopped", "alive", or "" where it runs elsewhere.
    """

    rank: int
    host: str
    pid: int
    local_rank: int = 0
    local_world_size: int = 1
    launcher: str = ""
    stage: str = ""
    steps: int = 0
    wrote_unix_seconds: float | None = None
    ended: str = ""
    failure: str = ""
    device: RankDevice | None = None
    gemm: RankRate | None = None
    transfer: dict[str, float] = {}
    collectives: tuple[RankTime, ...] = ()
    unsupported: dict[str, str] = {}
    fate: str = ""

    @property
    def label(self) -> str:
        """The name in results."""
        return f"rank {self.rank}"

    @property
    def place(self) -> str:
        """Host and device in words: "node3 GPU 2"."""
        if self.device is None or self.device.kind != "gpu":
            return f"{self.host} PID {self.pid}"
        return f"{self.host} GPU {self.device.index}"

    @property
    def failed_by_itself(self) -> bool:
        """True for a failure that no other rank has caused."""
        return self.ended == "failed" and not _VICTIM.search(self.failure)


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One operation of one size over all ranks: `seconds` is the slowest rank's median."""

    operation: str
    bytes: int
    seconds: float
    algbw_bytes_per_second: float
    busbw_bytes_per_second: float
    correct: bool
    calls: int = 0


class Ranks(msgspec.Struct, frozen=True, kw_only=True, rename={"format": "schema"}):
    """The document of all ranks. `problem` says in words why it is not complete."""

    format: str = SCHEMA
    world_size: int
    version: str = ""
    started_unix_seconds: float | None = None
    duration_seconds: float | None = None
    launcher: str = ""
    limit_seconds: float | None = None
    problem: str = ""
    backend: str | None = None
    nodes: int | None = None
    torch_version: str = ""
    nccl_version: str | None = None
    measurements: tuple[Measurement, ...] = ()
    ranks: tuple[RankReport, ...] = ()

    @property
    def complete(self) -> bool:
        """True when every rank has measured to the end."""
        finished = [report for report in self.ranks if report.ended == "finished"]
        return not self.problem and len(finished) == self.world_size

    @property
    def kind(self) -> str | None:
        """What the ranks compute on, "gpu" or "cpu"; None while no rank has said."""
        return next((one.device.kind for one in self.ranks if one.device is not None), None)

    def of(self, operation: str) -> list[Measurement]:
        """The measurements of one operation, by size."""
        chosen = [one for one in self.measurements if one.operation == operation]
        return sorted(chosen, key=lambda one: one.bytes)


_decoder = msgspec.json.Decoder(Ranks)
_report_decoder = msgspec.json.Decoder(RankReport)


def read(path: Path) -> Ranks | None:
    """The document, None while there is none. ValueError: it is of another version or broken."""
    try:
        document = _decoder.decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise ValueError(f"{path.name}: no document of ranks: {error}") from None
    if document.format != SCHEMA:
        raise ValueError(f"{path.name}: a document in the format {document.format!r}")
    return document


def read_notes(folder: Path) -> dict[int, RankReport]:
    """What each rank of this machine has last written of itself."""
    found = {}
    for path in folder.glob("rank-*.json"):
        try:
            report = _report_decoder.decode(path.read_bytes())
        except (OSError, msgspec.DecodeError):
            continue
        found[report.rank] = report
    return found


def completed(document: Ranks | None, notes: Mapping[int, RankReport], world_size: int) -> Ranks:
    """The document with the notes of ranks that it lacks or that have spoken since."""
    if document is None:
        words = [one.failure for one in notes.values() if one.failure]
        problem = words[0] if words else "rank 0 has left no document"
        document = Ranks(world_size=world_size, problem=problem)
    reports = {one.rank: one for one in document.ranks}
    for rank, note in notes.items():
        known = reports.get(rank)
        if known is None or (note.ended and not known.ended):
            reports[rank] = note
        elif note.fate:
            reports[rank] = msgspec.structs.replace(known, fate=note.fate)
    ordered = tuple(reports[rank] for rank in sorted(reports))
    return msgspec.structs.replace(document, ranks=ordered)


def missing(document: Ranks) -> list[int]:
    """Ranks of which nothing at all is known."""
    known = {report.rank for report in document.ranks}
    return [rank for rank in range(document.world_size) if rank not in known]


def to_blame(document: Ranks) -> list[RankReport]:
    """The ranks that the others have waited for in vain, empty where none stands out.

    First those that failed by themselves, then those that end without a word, then those that lag
    behind in a common sequence of steps.
    """
    if document.complete or document.problem == INTERRUPTED:
        return []
    reports = document.ranks
    own = [one for one in reports if one.failed_by_itself]
    silent = [one for one in reports if not one.ended]
    steps = [one.steps for one in reports]
    lagging = [one for one in reports if one.steps == min(steps, default=0)]
    for found in (own, silent, lagging):
        if found and len(found) < max(len(reports), 2):
            return found
    return []


def hosts(reports: Iterable[RankReport]) -> list[str]:
    """The machines, in the order of their first rank."""
    return list(dict.fromkeys(report.host for report in reports))
