"""The clock that a CPU core really holds, measured without a compiler.

A chain of additions, each needing the sum before it, takes one cycle per addition on every x86-64
and 64-bit Arm core; a few bytes of machine code time it. Registers are added, not constants: recent
cores fold small constants away. /proc/cpuinfo may show the nominal clock in a virtual machine, and
cpufreq what was asked for.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import statistics
import struct
import time
from collections.abc import Callable
from typing import Any, cast

ADDITIONS = 100
"""Per round of the loop; counting down and jumping back run beside the chain for free."""
WINDOW_SECONDS = 30e-6
TRIAL_ROUNDS = 100
WINDOWS = 3
"""Per sample; interruptions only ever lengthen a window, so the shortest one counts."""
SAMPLE_PAUSE_SECONDS = 8e-3
PLAUSIBLE_MHZ = (300.0, 8000.0)

SOURCE = "measured: dependent-add loop"


class ClockUnavailableError(Exception):
    """The clock cannot be measured here, and why."""


def x86_64_loop(link: bytes = b"\x48\x01\xf0") -> bytes:
    """Code of long f(long rounds, long addend). `link`: one link of the chain, add rax, rsi."""
    body = link * ADDITIONS + b"\x48\xff\xcf"  # dec rdi
    jump = b"\x0f\x85" + struct.pack("<i", -(len(body) + 6))  # jnz to the start
    return body + jump + b"\xc3"


def aarch64_loop() -> bytes:
    """The same for 64-bit Arm: add x2, x2, x1; subs x0, x0, #1; b.ne; ret."""
    back = -(ADDITIONS + 1) & 0x7FFFF
    words = [0x8B010042] * ADDITIONS + [0xF1000400, 0x54000001 | back << 5, 0xD65F03C0]
    return struct.pack(f"<{len(words)}I", *words)


_LOOPS: dict[str, Callable[[], bytes]] = {
    "x86_64": x86_64_loop,
    "AMD64": x86_64_loop,
    "aarch64": aarch64_loop,
    "arm64": aarch64_loop,
}


def executable(code: bytes) -> Callable[[int, int], int]:
    """Machine code of a function of two integers, in a page of its own.

    Written first and executable only after: that it turns executable last also makes the kernel
    bring Arm's instruction cache up to date. Raises `ClockUnavailableError` where the system
    refuses.
    """
    try:
        pages = mmap.mmap(-1, len(code), prot=mmap.PROT_READ | mmap.PROT_WRITE)
        pages.write(code)
        address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        protect = ctypes.CDLL(None, use_errno=True).mprotect
    except (OSError, AttributeError, TypeError, ValueError) as error:
        raise ClockUnavailableError(f"no memory for code: {error}") from error
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if protect(address, len(code), mmap.PROT_READ | mmap.PROT_EXEC) != 0:
        raise ClockUnavailableError(
            f"the system refuses executable memory (errno {ctypes.get_errno()})"
        )
    # A CFUNCTYPE would give up the interpreter lock and wait to have it back inside the window.
    prototype = ctypes.PYFUNCTYPE(ctypes.c_long, ctypes.c_long, ctypes.c_long)
    run: Any = prototype(address)
    run.pages = pages  # the code lives as long as the function
    return cast("Callable[[int, int], int]", run)


def native_loop() -> Callable[[int, int], int]:
    """The chain for this machine: f(rounds, addend). Raises `ClockUnavailableError`."""
    machine = platform.machine()
    make = _LOOPS.get(machine)
    if make is None or struct.calcsize("P") != 8:
        raise ClockUnavailableError(f"no code for {machine or 'this machine'}")
    return executable(make())


class CpuClock:
    """Measures the clock of the core that the calling thread runs on.

    `run(rounds, addend)` makes rounds * ADDITIONS dependent additions.
    """

    def __init__(
        self,
        run: Callable[[int, int], object],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._run = run
        self._clock = clock
        for _ in range(8):
            self._seconds(1)  # the first calls are slow
        self._call_seconds = min(self._seconds(1) for _ in range(8))
        shortest = min(self._seconds(TRIAL_ROUNDS) for _ in range(8))
        self._rounds = max(TRIAL_ROUNDS, int(TRIAL_ROUNDS * WINDOW_SECONDS / max(shortest, 1e-9)))

    def _seconds(self, rounds: int) -> float:
        before = self._clock()
        self._run(rounds, 1)
        return self._clock() - before

    def sample(self) -> float | None:
        """MHz from the shortest of a few windows; None if the result is no clock of any CPU."""
        shortest = min(self._seconds(self._rounds) for _ in range(WINDOWS)) - self._call_seconds
        if shortest <= 0:
            return None
        # The call's own cost was measured with one round in it, so one round is left out here.
        megahertz = (self._rounds - 1) * ADDITIONS / shortest / 1e6
        low, high = PLAUSIBLE_MHZ
        return megahertz if low <= megahertz <= high else None


class ClockSampler:
    """Samples the clock between the calls of a burst, at most every `SAMPLE_PAUSE_SECONDS`.

    Right after a call, before the core can speed up again; wide vector instructions may have run at
    a lower clock still, so that the median is an upper bound for them.
    """

    def __init__(
        self, sample: Callable[[], float | None], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._sample = sample
        self._clock = clock
        self._last: float | None = None
        self._samples: list[float] = []

    def between(self) -> None:
        """Called after each timed call."""
        now = self._clock()
        if self._last is not None and now - self._last < SAMPLE_PAUSE_SECONDS:
            return
        value = self._sample()
        self._last = self._clock()
        if value is not None:
            self._samples.append(value)

    def median(self) -> float | None:
        """Median MHz of the burst, None without a sample."""
        return statistics.median(self._samples) if self._samples else None
