"""The log of the calls that processes have made to the simulated driver.

The driver appends a line a call to the file that TOPSMON_SIMULATED_LOG names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

SYSTEM = -1
"""The device of calls that concern none."""


class Call(NamedTuple):
    """One call: scenario time in s, name of the NVML function, index of the device."""

    seconds: float
    name: str
    device: int


def read(path: Path) -> list[Call]:
    """Return the calls so far, none where nobody has called yet; a line being written is left."""
    try:
        content = path.read_text("ascii")
    except FileNotFoundError:
        return []
    calls = []
    for line in content[: content.rfind("\n") + 1].splitlines():
        seconds, name, device = line.split()
        calls.append(Call(float(seconds), name, int(device)))
    return calls


def counts(
    calls: Iterable[Call],
    device: int | None = None,
    *,
    start: float = 0.0,
    end: float | None = None,
) -> Counter[str]:
    """Count the calls by name: of one device (None: all), in `start` <= scenario time < `end`."""
    return Counter(
        call.name
        for call in calls
        if (device is None or call.device == device)
        and call.seconds >= start
        and (end is None or call.seconds < end)
    )
