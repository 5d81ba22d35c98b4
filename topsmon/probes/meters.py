"""Meters of energy: the GPU's counter, or the RAPL counters of the processor's packages."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from .errors import UnsupportedError

POWERCAP = "sys/class/powercap"


class _Package(NamedTuple):
    path: Path
    range_joules: float


class Rapl:
    """Energy of all processor packages since the meter was made, in joules.

    The kernel's powercap files count microjoules up to `max_energy_range_uj` and begin again at 0
    (kernel, Documentation/power/powercap/powercap.rst). Core and DRAM domains lie inside a package
    or beside it; "psys" holds the packages: only packages are added up. Raises `UnsupportedError`.
    """

    source = "RAPL"

    def __init__(self, root: Path = Path("/")) -> None:
        folder = root / POWERCAP
        found = [
            zone
            for zone in sorted(folder.glob("intel-rapl:*"))
            if (_read(zone / "name") or "").startswith("package")
        ]
        if not found:
            raise UnsupportedError(
                f"no energy counter of the processor: /{POWERCAP} has no RAPL package "
                "(virtual machines and many Arm systems have none)"
            )
        self._packages = []
        self._last = []
        for zone in found:
            counter = zone / "energy_uj"
            try:
                self._last.append(int(counter.read_text(encoding="ascii")) / 1e6)
            except (OSError, ValueError) as error:
                raise UnsupportedError(
                    f"/{counter.relative_to(root)} cannot be read ({_words(error)}): most kernels "
                    "let root alone read it; `chmod a+r` it as root"
                ) from error
            limit = _read(zone / "max_energy_range_uj") or ""
            self._packages.append(_Package(counter, int(limit) / 1e6 if limit.isdigit() else 0.0))
        self._total = 0.0

    def joules(self) -> float | None:
        """Joules since the meter was made; None if a counter is gone."""
        for at, package in enumerate(self._packages):
            text = _read(package.path) or ""
            if not text.isdigit():
                return None
            now = int(text) / 1e6
            step = now - self._last[at]
            self._total += step if step >= 0 else step + package.range_joules
            self._last[at] = now
        return self._total


class Look(NamedTuple):
    """One reading of a counter that had moved: s, J, and calls made so far."""

    seconds: float
    joules: float
    calls: int


class Used(NamedTuple):
    """What was used between two moments: seconds, joules, calls made."""

    seconds: float
    joules: float
    calls: int

    @property
    def watts(self) -> float:
        """Mean power."""
        return self.joules / self.seconds


class Ledger:
    """Readings of a counter beside the calls made so far.

    A counter moves in steps of up to 0.1 s, and a reading is as old as the last step: only the
    moments at which it is seen to have moved count, and the time between two of them.
    """

    def __init__(self) -> None:
        self._last: float | None = None
        self._looks: list[Look] = []

    def look(self, seconds: float, joules: float | None, calls: int) -> None:
        """Note a reading at a time."""
        if joules is None:
            return
        if self._last is not None and joules != self._last:
            self._looks.append(Look(seconds, joules, calls))
        self._last = joules

    def used(self) -> Used | None:
        """From the first step to the last, None without two of them or if the counter went back."""
        if len(self._looks) < 2:
            return None
        first, last = self._looks[0], self._looks[-1]
        used = Used(
            last.seconds - first.seconds, last.joules - first.joules, last.calls - first.calls
        )
        return used if used.seconds > 0 and used.joules > 0 else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _words(error: Exception) -> str:
    return getattr(error, "strerror", None) or "not a number"
