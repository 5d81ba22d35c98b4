"""The preamble's bytes, and the slots that hold JSON: an identity or an event."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from typing import Any

from . import layout

_SHORTEST = 8
"""Texts and lists are not cut below this."""


def preamble() -> bytes:
    """Return the first bytes of every ring of this version."""
    data = layout.PREAMBLE.pack(
        layout.MAGIC,
        layout.VERSION,
        layout.IDENTITY_SLOTS,
        layout.IDENTITY_SLOT_BYTES,
        layout.RECORD_SLOTS,
        layout.RECORD_SLOT_BYTES,
        layout.EVENT_SLOTS,
        layout.EVENT_SLOT_BYTES,
        layout.HISTORY_SLOTS,
        layout.HISTORY_SLOT_BYTES,
        0,
    )[: -layout.CRC.size]
    return data + layout.CRC.pack(zlib.crc32(data))


def checked(data: bytes) -> bytes:
    """Return a slot whose first four bytes are replaced by the CRC-32 of the rest."""
    rest = data[layout.CRC.size :]
    return layout.CRC.pack(zlib.crc32(rest)) + rest


def encode_text(number: int, document: Mapping[str, Any], slot_bytes: int) -> bytes:
    """Return a slot's bytes. What does not fit loses the ends of its longest texts and lists."""
    room = slot_bytes - layout.TEXT.size
    body = _plain(document)
    data = _json(body)
    while len(data) > room and _shorten(body):
        data = _json(body)
    if len(data) > room:
        raise ValueError(f"{len(data)} bytes of JSON do not fit into {room}")
    return checked(layout.TEXT.pack(0, number, len(data)) + data)


def decode_text(slot: bytes) -> tuple[int, bytes] | None:
    """Return a slot's number and JSON, None where it is empty, torn or foreign."""
    crc, number, length = layout.TEXT.unpack_from(slot)
    end = layout.TEXT.size + length
    if number == 0 or end > len(slot) or zlib.crc32(slot[layout.CRC.size : end]) != crc:
        return None
    return number, slot[layout.TEXT.size : end]


def newest_text(region: bytes, slot_bytes: int) -> tuple[int, bytes] | None:
    """Return the highest number and its JSON among a region's slots, None without a valid one."""
    slots = (
        decode_text(region[start : start + slot_bytes])
        for start in range(0, len(region), slot_bytes)
    )
    return max((slot for slot in slots if slot is not None), default=None)


def _json(body: Any) -> bytes:
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # A lone surrogate, as undecodable arguments leave it, is no valid Unicode.
    return text.encode("utf-8", "replace")


def _plain(value: Any) -> Any:
    """A copy made of JSON's own types. JSON has no infinities: left out of dicts, else null."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {
            str(key): _plain(item)
            for key, item in value.items()
            if not (isinstance(item, float) and not math.isfinite(item))
        }
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    return str(value)


def _shorten(body: dict[str, Any]) -> bool:
    """Cut the longest text, list or mapping of `body` to half; False if there is none to cut."""
    sizes = {
        key: len(_json(value))
        for key, value in body.items()
        if isinstance(value, (str, list, dict)) and len(value) > _least(value)
    }
    if not sizes:
        return False
    key = max(sizes, key=lambda name: sizes[name])
    value = body[key]
    keep = max(len(value) // 2, _least(value))
    body[key] = dict(list(value.items())[:keep]) if isinstance(value, dict) else value[:keep]
    return True


def _least(value: Any) -> int:
    return _SHORTEST if isinstance(value, str) else 0
