"""Sizes and positions of recordings in words."""

from __future__ import annotations


def size(count: int) -> str:
    """A file's size: "812 kB", "1.4 MB" (decimal)."""
    if count < 1_000_000:
        return f"{count / 1e3:.0f} kB"
    return f"{count / 1e6:.1f} MB" if count < 100_000_000 else f"{count / 1e6:.0f} MB"


def clock(seconds: float) -> str:
    """A position in a recording: "04:09", "1:00:00"; whole seconds."""
    whole = int(max(seconds, 0.0))
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes:02}:{left:02}"
