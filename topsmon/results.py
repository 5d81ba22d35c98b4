"""The last rates of earlier sessions: one JSON event line per device and precision.

A convenience, never a source of failure: what cannot be read is skipped. Simulated rates are not
for this file; see `worth_keeping`.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from topsmon import events
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
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES)
    except OSError:
        return []
    decoder = events.LineDecoder()
    found = [
        event
        for line in content.split(b"\n")
        if len(line) <= MAX_LINE_BYTES
        and isinstance(event := decoder.decode(line), events.RateMeasured)
        and _is_sound(event)
    ]
    return list(_newest(found).values())[:MAX_RESULTS]


def _is_sound(result: events.RateMeasured) -> bool:
    rate = result.rate_ops_per_second
    return (
        rate is not None
        and math.isfinite(rate)
        and rate > 0
        and result.valid
        and result.correct is not False
        and math.isfinite(result.time)
    )


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
