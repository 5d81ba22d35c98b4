"""Clock, temperature and power of the processor, where the kernel tells them; else why not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from topsmon.devices.host import ROOT, read_number, read_text

CLOCK_SAMPLES = 16
"""CPUs whose clock is read: a read may interrupt the CPU that it asks about."""
_CHIPS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "soc_thermal")
_LABELS = ("Package id 0", "Tctl", "Tdie")


@dataclass
class Clock:
    """Live clock from cpufreq. The constant of /proc/cpuinfo in a virtual machine is no clock."""

    files: list[Path]
    max_mhz: int | None = None

    @classmethod
    def find(cls, cpus: Iterable[int], root: Path = ROOT) -> Clock:
        """Look for the cpufreq files of some of the CPUs, evenly spread."""
        numbers = sorted(cpus)
        chosen = numbers[:: max(1, len(numbers) // CLOCK_SAMPLES)][:CLOCK_SAMPLES]
        base = root / "sys/devices/system/cpu"
        directories = [base / f"cpu{number}/cpufreq" for number in chosen]
        maxima = [read_number(directory / "cpuinfo_max_freq") for directory in directories]
        known = [value for value in maxima if value]
        files = [directory / "scaling_cur_freq" for directory in directories]
        return cls([path for path in files if path.exists()], max(known) // 1000 if known else None)

    def read(self) -> float | str:
        """Return the mean clock in MHz, or why there is none."""
        if not self.files:
            return "no cpufreq on this machine (virtual machine?)"
        values = [value for value in map(read_number, self.files) if value]
        return sum(values) / len(values) / 1000 if values else "cpufreq does not tell the clock"


@dataclass
class Thermometer:
    """The package's sensor of the hardware monitor."""

    file: Path | None

    @classmethod
    def find(cls, root: Path = ROOT) -> Thermometer:
        """Choose the sensor once: finding it anew each time would read every chip."""
        best: tuple[tuple[int, int, str], Path] | None = None
        for chip in sorted((root / "sys/class/hwmon").glob("hwmon*")):
            name = (read_text(chip / "name") or "").strip()
            if name not in _CHIPS:
                continue
            for path in chip.glob("temp*_input"):
                label = (read_text(path.with_name(path.name[:-5] + "label")) or "").strip()
                labelled = _LABELS.index(label) if label in _LABELS else len(_LABELS)
                rank = (_CHIPS.index(name), labelled, path.name)
                if best is None or rank < best[0]:
                    best = rank, path
        return cls(None if best is None else best[1])

    def read(self) -> float | str:
        """Return degrees Celsius, or why there are none."""
        if self.file is None:
            return "no CPU temperature sensor"
        value = read_number(self.file)
        if value is None or not -50_000 < value < 200_000:
            return "the CPU temperature sensor does not answer"
        return value / 1000


@dataclass
class PowerMeter:
    """Package power from the RAPL energy counters (powercap), in W over the last interval."""

    domains: list[Path]
    _last: dict[Path, tuple[int, float]] = field(default_factory=dict)

    @classmethod
    def find(cls, root: Path = ROOT) -> PowerMeter:
        """Look for the package domains; their parts (core, dram) are counted in them."""
        domains = sorted((root / "sys/class/powercap").glob("intel-rapl:*"))
        return cls(
            [path for path in domains if (read_text(path / "name") or "").startswith("package")]
        )

    def read(self, now: float) -> float | str:
        """Return watts since the last reading at monotonic time `now`, or why there are none."""
        if not self.domains:
            return "no RAPL energy counter"
        watts = 0.0
        complete = True
        for domain in self.domains:
            energy = read_number(domain / "energy_uj")
            if energy is None:
                return f"reading {domain}/energy_uj needs root"
            before = self._last.get(domain)
            self._last[domain] = (energy, now)
            if before is None or now <= before[1]:
                complete = False
                continue
            joined = energy - before[0]
            if joined < 0:
                joined += read_number(domain / "max_energy_range_uj") or 0
            if joined < 0:
                complete = False
                continue
            watts += joined / 1e6 / (now - before[1])
        return watts if complete else "two readings are needed"
