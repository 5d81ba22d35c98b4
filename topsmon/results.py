"""The last rates of earlier sessions: one JSON event line per device and precision.

A convenience, never a source of failure: what cannot be read is skipped. Simulated rates are not
for this file; see `worth_keeping`.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from topsmon import events
from topsmon.files import read_regular
from topsmon.state import State

MAX_RESULTS = 512
"""The newest are kept: 56 devices with nine precisions."""
MAX_FILE_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 14


def default_path() -> Path:
    """The file in the user's state directory."""
    import platformdirs

    return platformdirs.user_state_path("topsmon") / "rates.jsonl"


def worth_keeping(state: State) -> list[events.RateMeasured]:
    """The rates of a session that `save` may keep: none of a simulated one."""
    if state.simulated is not None:
        return []
    best = (rate.best for device in state.devices.values() for rate in device.rates.values())
    return [result for result in best if result is not None and _is_sound(result)]


def save(path: Path, results: Iterable[events.RateMeasured]) -> None:
    """Merge `results` into the file, the newest per device and precision; raises OSError.

    The file is replaced in one step and readable by its owner only. Wrong and invalid results are
    not kept, and nothing is written where nothing is new.
    """
    before = _newest(load(path))
    kept = _newest([*before.values(), *filter(_is_sound, results)])
    if kept == before:
        return
    newest = sorted(kept.values(), key=lambda result: result.time, reverse=True)
    lines = [line for line in map(events.encode, newest) if len(line) <= MAX_LINE_BYTES]
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _replace(path, b"".join(lines[:MAX_RESULTS]))


def load(path: Path) -> list[events.RateMeasured]:
    """Return the saved rates, newest per device and precision; [] where there are none.

    Lines that are damaged, of another kind or absurd are skipped.
    """
    return list(read(path).results)


class Loaded(NamedTuple):
    """The saved rates, and how many lines were skipped for which reason."""

    results: tuple[events.RateMeasured, ...]
    skipped: dict[str, int]


def read(path: Path, now: float | None = None) -> Loaded:
    """As `load`, with what was skipped. `now` is in epoch seconds (the clock's if None)."""
    now = time.time() if now is None else now
    try:
        content = read_regular(path, MAX_FILE_BYTES)
    except OSError:
        return Loaded((), {})
    decoder = events.LineDecoder()
    found: list[events.RateMeasured] = []
    skipped: Counter[str] = Counter()
    for line in content.split(b"\n"):
        if not line.strip():
            continue
        event = decoder.decode(line) if len(line) <= MAX_LINE_BYTES else None
        if not isinstance(event, events.RateMeasured):
            skipped["no saved rate"] += 1
        elif (reason := why_implausible(event, now)) is not None:
            skipped[reason] += 1
        else:
            found.append(event)
    return Loaded(tuple(_newest(found).values())[:MAX_RESULTS], dict(skipped))


def why_implausible(result: events.RateMeasured, now: float) -> str | None:
    """Why a saved rate cannot be one that was measured, None where it can.

    The bounds leave room for boards to come: a GB300 has 1.5e16 ops/s, CPUs run below 7 GHz.
    """
    rate, clock = result.rate_ops_per_second, result.held_clock_mhz
    if not result.valid or result.correct is False:
        return "wrong or invalid result"
    if rate is None or not 0 < rate <= MOST_OPS_PER_SECOND:
        return "impossible rate"
    if clock is not None and not 0 < clock <= MOST_CLOCK_MHZ:
        return "impossible clock"
    if result.shape is not None and not all(0 < edge <= LONGEST_EDGE for edge in result.shape):
        return "impossible shape"
    if not 0 <= result.time <= now + MOST_AHEAD_SECONDS:
        return "time in the future" if result.time > 0 else "impossible time"
    return None


MOST_OPS_PER_SECOND = 1e19
MOST_CLOCK_MHZ = 10_000.0
LONGEST_EDGE = 1 << 24
MOST_AHEAD_SECONDS = 86_400.0
"""A clock that was set wrong and put right again; more is no clock."""


def _is_sound(result: events.RateMeasured) -> bool:
    return why_implausible(result, time.time()) is None


def _newest(
    results: Iterable[events.RateMeasured],
) -> dict[tuple[str, str], events.RateMeasured]:
    newest: dict[tuple[str, str], events.RateMeasured] = {}
    for result in results:
        key = (result.device, result.precision)
        if key not in newest or result.time >= newest[key].time:
            newest[key] = result
    return newest


def _replace(path: Path, content: bytes) -> None:
    """Write a new file beside the old one and rename it over; mkstemp makes it private."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
