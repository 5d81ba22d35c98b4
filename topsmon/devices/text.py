"""Strings from outside, made valid Unicode so that they can be written as JSON.

Control characters stay: they are replaced where text is drawn, not where it is recorded.
"""

from __future__ import annotations

import re

_SURROGATES = re.compile("[\ud800-\udfff]")


def valid_text(value: object, limit: int = 4096) -> str | None:
    """Return `value` (str or bytes) with every unreadable byte as U+FFFD; None if it is no text."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if not isinstance(value, str):
        return None
    return _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", value[:limit])


def readable(text: str) -> bool:
    """True unless half of a text or more is U+FFFD: then it is not worth showing."""
    return text.count("\N{REPLACEMENT CHARACTER}") * 2 < len(text)
