"""A finished check as one document: what `--json` prints and `--cached` keeps."""

from __future__ import annotations

import msgspec

from topsmon import events
from topsmon.diagnosis.balance import Balance
from topsmon.launcher.document import Ranks

SCHEMA = "topsmon.check/1"

BY_SETTING = "a setting, no defect"
"""Ends the cause of a failure that somebody has set so."""

STATE_WORDS = ("PASS", "WARN", "FAIL", "NO-VERDICT", "INVALID", "EMULATED", "UNSUPPORTED")


class CheckedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device that was judged; `device` is its key in the results."""

    device: str
    label: str
    kind: str
    index: int
    name: str
    uuid: str | None = None
    pci_bus_id: str | None = None
    board: str | None = None


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for: a document answers the same question again, and no other."""

    quick: bool = False
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    only_visible: bool = False
    force: bool = False
    simulated: str | None = None


class CheckDocument(msgspec.Struct, frozen=True, kw_only=True, rename={"format": "schema"}):
    """All verdicts of one run on one machine.

    `status` is OK, WARN, FAIL or UNKNOWN; `exit_code` what it means under the run's options.
    `started_unix_seconds` is wall-clock time. `cached`: no new run, but one of `age_seconds` ago.
    `ranks` is what several ranks have measured together, `balance` the advice that follows.
    """

    format: str = SCHEMA
    version: str
    host: str
    started_unix_seconds: float
    duration_seconds: float
    status: str
    exit_code: int
    interrupted: bool = False
    cached: bool = False
    age_seconds: float | None = None
    selection: Selection = Selection()
    driver_version: str | None = None
    cuda_version: str | None = None
    devices: tuple[CheckedDevice, ...] = ()
    checks: tuple[events.CheckResult, ...] = ()
    ranks: Ranks | None = None
    balance: Balance | None = None


class _Head(msgspec.Struct, rename={"format": "schema"}):
    """What says that a document is one."""

    format: str


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[CheckDocument] = msgspec.json.Decoder(CheckDocument)


def to_json(document: CheckDocument) -> bytes:
    """The document as indented JSON with a final newline."""
    return msgspec.json.format(_encoder.encode(document), indent=2) + b"\n"


def from_json(content: bytes) -> CheckDocument:
    """Read a document. ValueError: it is none, or one of another version."""
    try:
        document = _decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"no result of topsmon check: {error}") from None
    if document.format != SCHEMA:
        raise ValueError(f"a result in the format {document.format!r}, not {SCHEMA!r}")
    return document


def is_document(content: bytes) -> bool:
    """Tell whether this is a result of topsmon check, of whatever version."""
    try:
        head = msgspec.json.decode(content, type=_Head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return head.format.startswith(SCHEMA.rpartition("/")[0] + "/")


def counts(document: CheckDocument) -> dict[str, int]:
    """How many results there are of each state, those that occur."""
    found = [result.state for result in document.checks]
    return {word: found.count(word) for word in STATE_WORDS if word in found}


def in_words(document: CheckDocument) -> str:
    """All counts in one line: "2 failed, 1 warned, 30 passed, 4 without a verdict"."""
    found = counts(document)
    without = sum(found.get(word, 0) for word in ("NO-VERDICT", "EMULATED", "UNSUPPORTED"))
    parts = (
        (found.get("FAIL", 0), "failed"),
        (found.get("WARN", 0), "warned"),
        (found.get("INVALID", 0), "invalid"),
        (found.get("PASS", 0), "passed"),
        (without, "without a verdict"),
    )
    return ", ".join(f"{count} {word}" for count, word in parts if count) or "nothing was checked"


def subject(document: CheckDocument) -> str:
    """The devices in words: "8 GPUs", "1 GPU", "CPU", "no device"."""
    gpus = sum(device.kind == "gpu" for device in document.devices)
    names = [f"{gpus} GPU{'s' if gpus > 1 else ''}"] if gpus else []
    names += ["CPU"] if any(device.kind == "cpu" for device in document.devices) else []
    return " and ".join(names) or "no device"


def age(document: CheckDocument) -> str:
    """That the verdict is no fresh one: "cached, 47 s old"; "" for a fresh one."""
    if not document.cached or document.age_seconds is None:
        return ""
    return f"cached, {document.age_seconds:.0f} s old"


def without_gpu(document: CheckDocument) -> str:
    """What to do after a quick check of a machine that has no GPU, else ""."""
    if not document.selection.quick or document.devices or document.status != "UNKNOWN":
        return ""
    return (
        "no GPU: --quick reads only the NVIDIA driver; without --quick the CPU is checked; "
        "--unknown-ok makes this exit 0"
    )


def worst_first(document: CheckDocument) -> list[events.CheckResult]:
    """The results that speak against the machine: failures, warnings, what is not known."""
    order = {"FAIL": 0, "WARN": 1}
    against = [result for result in document.checks if result.state in order or result.unknown]
    return sorted(against, key=lambda result: order.get(result.state, 2))
