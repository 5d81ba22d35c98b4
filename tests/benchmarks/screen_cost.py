"""Measure what the live screen costs: start, processor, bytes, memory, keys.

Run it on a quiet machine with a C compiler (for the simulated driver):

    python tests/benchmarks/screen_cost.py

Each row is one run of `topsmon --simulate h100-8` in a pseudo-terminal of 256 colours at 2 Hz; the
bars are those that the project promises. Figures depend on the machine and are only reported.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from dataclasses import dataclass

import psutil

COMMAND = [sys.executable, "-m", "topsmon", "--simulate", "h100-8", "--interval", "0.5"]
PAINTED_BYTES = 1500
"""A screen is painted once this much has been written; before it there are only mode switches."""
CURSOR = "▸".encode()
LOAD = "while True: pass"


@dataclass(frozen=True)
class Bar:
    """What is promised at a size."""

    size: tuple[int, int]
    kilobytes_per_second: float


BARS = (Bar((120, 40), 16.0), Bar((80, 24), 8.0))
FIRST_PAINT_SECONDS, CPU_PERCENT, MEMORY_MIB, KEY_MILLISECONDS = 1.0, 6.0, 60.0, 50.0


class Screen:
    """The program in a pseudo-terminal; counts what it writes."""

    def __init__(self, columns: int, rows: int, home: str) -> None:
        self.started = time.monotonic()
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            environment = {**os.environ, "TERM": "xterm-256color"}
            environment |= {"XDG_STATE_HOME": home, "XDG_CONFIG_HOME": home}
            for name in ("COLORTERM", "NO_COLOR"):
                environment.pop(name, None)
            os.execve(COMMAND[0], COMMAND, environment)
        self.written = 0
        self.first_paint: float | None = None

    def pump(self, seconds: float, until: bytes | None = None) -> float | None:
        """Read for a time, or until some bytes come; return how long that took."""
        begin = time.monotonic()
        while (left := begin + seconds - time.monotonic()) > 0:
            ready, _, _ = select.select([self.master], [], [], left)
            if not ready:
                break
            data = os.read(self.master, 65536)
            self.written += len(data)
            if self.first_paint is None and self.written >= PAINTED_BYTES:
                self.first_paint = time.monotonic() - self.started
            if until is not None and until in data:
                return time.monotonic() - begin
        return None

    def key_milliseconds(self, presses: int) -> list[float]:
        """Times from a key to the cursor's new place on the terminal."""
        times = []
        for number in range(presses):
            self.pump(0.13)
            os.write(self.master, b"j" if number % 2 else b"k")
            seconds = self.pump(2.0, until=CURSOR)
            times.append(seconds * 1000 if seconds is not None else float("inf"))
        return times

    def quit_seconds(self) -> float:
        """Press q and wait for the end."""
        begin = time.monotonic()
        os.write(self.master, b"q")
        while True:
            ready, _, _ = select.select([self.master], [], [], 0.005)
            if ready:
                with contextlib.suppress(OSError):
                    os.read(self.master, 65536)
            if os.waitpid(self.pid, os.WNOHANG)[0]:
                os.close(self.master)
                return time.monotonic() - begin


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def measure(bar: Bar, seconds: float, presses: int, home: str) -> None:
    columns, rows = bar.size
    screen = Screen(columns, rows, home)
    screen.pump(8.0)
    process = psutil.Process(screen.pid)
    # Key up in the first row moves nothing, so the cursor starts at the second.
    os.write(screen.master, b"j")
    screen.pump(0.5)
    children = process.children(recursive=True)
    before = cpu_seconds(process), sum(map(cpu_seconds, children)), screen.written
    begin = time.monotonic()
    screen.pump(seconds)
    elapsed = time.monotonic() - begin
    own = (cpu_seconds(process) - before[0]) / elapsed * 100
    others = (sum(map(cpu_seconds, children)) - before[1]) / elapsed * 100
    kilobytes = (screen.written - before[2]) / elapsed / 1000
    memory = process.memory_info().rss / 2**20
    idle = screen.key_milliseconds(presses)
    load = [
        subprocess.Popen(["nice", "-n", "10", sys.executable, "-c", LOAD])
        for _ in range(os.cpu_count() or 1)
    ]
    try:
        time.sleep(0.5)
        loaded = screen.key_milliseconds(presses)
    finally:
        for child in load:
            child.kill()
            child.wait()
    end = screen.quit_seconds()
    print(f"\n{columns}x{rows}")
    report("first paint", screen.first_paint or float("inf"), "s", FIRST_PAINT_SECONDS)
    report("CPU of the screen", own, "% of a core", CPU_PERCENT)
    report("CPU of its children", others, "% of a core", None)
    report("written", kilobytes, "kB/s", bar.kilobytes_per_second)
    report("memory", memory, "MiB", MEMORY_MIB)
    report("key to paint, median", statistics.median(idle), "ms", None)
    report("key to paint, p95", percentile(idle), "ms", KEY_MILLISECONDS)
    report("same, all cores loaded", percentile(loaded), "ms", KEY_MILLISECONDS)
    report("quit", end, "s", 0.5)


def percentile(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, round(0.95 * (len(values) - 1)))]


def report(what: str, value: float, unit: str, bar: float | None) -> None:
    promised = "" if bar is None else f"bar {bar:g}: {'met' if value <= bar else 'NOT MET'}"
    print(f"  {what:<24}{value:8.2f} {unit:<12} {promised}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="time to measure each size for")
    parser.add_argument("--presses", type=int, default=40, help="keys pressed for each latency")
    options = parser.parse_args()
    # Builds the simulated driver, which is not the screen's cost.
    subprocess.run([*COMMAND, "--once"], check=False, stdout=subprocess.DEVNULL)
    with tempfile.TemporaryDirectory() as home:
        for bar in BARS:
            measure(bar, options.seconds, options.presses, home)


if __name__ == "__main__":
    main()
