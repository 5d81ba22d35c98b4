"""Rings made for tests: records with given fields, and a decoder that shares no code with ours."""

from __future__ import annotations

import json
import math
import struct
import time
import zlib
from pathlib import Path
from typing import Any

from topsmon.training.recorder import layout
from topsmon.training.recorder.ring import RingWriter, identity_of_process

UNKNOWN = {"d": math.nan, "i": -1, "I": 0, "Q": 0}
RECORD_AT = 64 + 2 * 16384
EVENT_AT = RECORD_AT + 4096 * 320
HISTORY_AT = EVENT_AT + 256 * 1024


def values(step: int, **fields: Any) -> list[Any]:
    """A record's values; what is not given is not known."""
    record = {name: UNKNOWN[code] for name, code in layout.RECORD_FIELDS}
    record.update(step=step, time=time.time(), **fields)
    return [record[name] for name in layout.RECORD_NAMES]


def new_run(**identity: Any) -> RingWriter:
    return RingWriter.create({**identity_of_process(), **identity})


def write_steps(writer: RingWriter, first: int, last: int, **fields: Any) -> None:
    for step in range(first, last + 1):
        writer.write(values(step, **fields))


def decode_record(path: Path, step: int) -> dict[str, float] | None:
    """Some fields of a record by hand: offsets counted from the layout's description."""
    slot = path.read_bytes()[RECORD_AT + step % 4096 * 320 :][:320]
    (crc,) = struct.unpack_from("<I", slot, 316)
    number, when, seconds, loss, scale, norm = struct.unpack_from("<Qddddd", slot, 0)
    tracker, flags, streak, backward = struct.unpack_from("<iIII", slot, 13 * 8)
    skipped, growths, backoffs = struct.unpack_from("<QQQ", slot, 13 * 8 + 16)
    # 13 8-byte fields, 4 of 4 bytes, 15 counters, 5 floats, and the errors.
    size = 13 * 8 + 4 * 4 + 16 * 8 + 5 * 8 + 4
    if number != step or zlib.crc32(slot[:size]) != crc:
        return None
    return {
        "step": number,
        "time": when,
        "step_seconds": seconds,
        "loss": loss,
        "scale": scale,
        "gradient_norm": norm,
        "growth_tracker": tracker,
        "flags": flags,
        "skip_streak": streak,
        "backward_calls": backward,
        "skipped": skipped,
        "growths": growths,
        "backoffs": backoffs,
    }


def decode_text(data: bytes) -> tuple[int, Any]:
    """Number and JSON of an identity or event slot, by hand."""
    crc, number, length = struct.unpack_from("<IQI", data)
    assert zlib.crc32(data[4 : 16 + length]) == crc
    return number, json.loads(data[16 : 16 + length])
