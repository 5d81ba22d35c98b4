"""The clock of a CPU core: arithmetic on made-up time, machine code on the real core."""

from __future__ import annotations

import errno
import platform
import struct

import pytest

from topsmon.probes import cpu_clock
from topsmon.probes.cpu_clock import ADDITIONS, ClockSampler, ClockUnavailableError, CpuClock

X86 = platform.machine() in ("x86_64", "AMD64")


class Core:
    """Runs chains at a clock in MHz; every call costs some time more."""

    def __init__(self, megahertz: float, call_seconds: float = 0.0, stolen=()) -> None:
        self.now = 0.0
        self.megahertz = megahertz
        self._call_seconds = call_seconds
        self.stolen = list(stolen)

    def clock(self) -> float:
        return self.now

    def run(self, rounds: int, addend: int) -> None:
        self.now += self._call_seconds + rounds * ADDITIONS / (self.megahertz * 1e6)
        if self.stolen:
            self.now += self.stolen.pop(0)


@pytest.mark.parametrize("megahertz", [600.0, 2445.4, 4200.0, 6800.0])
@pytest.mark.parametrize("call_seconds", [0.0, 5e-7])
def test_additions_over_time_are_the_clock(megahertz, call_seconds):
    core = Core(megahertz, call_seconds)
    assert CpuClock(core.run, core.clock).sample() == pytest.approx(megahertz, rel=1e-3)


def test_a_window_that_was_interrupted_does_not_count():
    core = Core(3000.0)
    clock = CpuClock(core.run, core.clock)
    core.stolen = [4e-3, 0.0, 4e-3]
    assert clock.sample() == pytest.approx(3000.0, rel=1e-3)


def test_what_is_no_clock_of_any_cpu_is_not_reported():
    core = Core(3000.0)
    clock = CpuClock(core.run, core.clock)
    core.megahertz = 20_000.0
    assert clock.sample() is None
    core.megahertz = 3000.0
    core.stolen = [1.0, 1.0, 1.0]
    assert clock.sample() is None


def test_windows_are_short():
    core = Core(3000.0)
    clock = CpuClock(core.run, core.clock)
    before = core.now
    clock.sample()
    assert core.now - before == pytest.approx(
        cpu_clock.WINDOWS * cpu_clock.WINDOW_SECONDS, rel=0.05
    )


def test_the_burst_s_clock_is_the_median_of_spaced_samples():
    now = [0.0]
    values = iter([4000.0, None, 3000.0, 3100.0])
    sampler = ClockSampler(lambda: next(values), lambda: now[0])
    for now[0] in (0.0, 0.001, 0.0081, 0.0162, 0.0163, 0.0243):
        sampler.between()
    assert sampler.median() == 3100.0
    assert list(values) == []


def test_without_a_sample_there_is_no_clock():
    assert ClockSampler(lambda: None).median() is None


def test_x86_code_is_a_chain_of_register_additions():
    code = cpu_clock.x86_64_loop()
    assert code.startswith(b"\x48\x01\xf0" * ADDITIONS + b"\x48\xff\xcf\x0f\x85")
    assert code[-1:] == b"\xc3"
    jump = struct.unpack("<i", code[-5:-1])[0]
    assert len(code) - 1 + jump == 0  # relative to the instruction after the jump


def test_arm_code_is_what_an_assembler_makes_of_it():
    # aarch64-linux-gnu-objdump: add x2,x2,x1 / subs x0,x0,#1 / b.ne 0 / ret.
    words = struct.unpack(f"<{ADDITIONS + 3}I", cpu_clock.aarch64_loop())
    assert set(words[:ADDITIONS]) == {0x8B010042}
    assert words[ADDITIONS:] == (0xF1000400, 0x54FFF361, 0xD65F03C0)


def test_a_system_that_refuses_executable_memory_is_no_error(monkeypatch):
    class Refusing:
        class mprotect:  # noqa: N801 - the C function's name
            argtypes = ()

            def __new__(cls, *arguments):
                cpu_clock.ctypes.set_errno(errno.EACCES)
                return -1

    monkeypatch.setattr(cpu_clock.ctypes, "CDLL", lambda *a, **k: Refusing)
    with pytest.raises(ClockUnavailableError, match=f"errno {errno.EACCES}"):
        cpu_clock.executable(b"\xc3")


def test_an_unknown_machine_is_named(monkeypatch):
    monkeypatch.setattr(cpu_clock.platform, "machine", lambda: "riscv64")
    with pytest.raises(ClockUnavailableError, match="riscv64"):
        cpu_clock.native_loop()


@pytest.fixture
def loop():
    try:
        return cpu_clock.native_loop()
    except ClockUnavailableError as refusal:
        pytest.skip(str(refusal))


def test_the_code_adds(loop):
    # The result register is not cleared first: only differences count, modulo 2**64.
    assert isinstance(loop(3, 1), int)


def best(clock, factor=1.0):
    samples = [clock.sample() for _ in range(60)]
    return max(sample for sample in samples if sample) * factor


def test_the_clock_of_this_core_is_plausible(loop):
    assert 500 < best(CpuClock(loop)) < 7000


@pytest.mark.skipif(not X86, reason="the second chain is x86 code")
def test_a_chain_of_multiplications_agrees(loop):
    # imul r64, r64 has a latency of 3 cycles on Intel cores since Nehalem and AMD's since Zen.
    additions = CpuClock(loop)
    products = CpuClock(cpu_clock.executable(cpu_clock.x86_64_loop(b"\x48\x0f\xaf\xc6")))
    assert best(products, 3.0) == pytest.approx(best(additions), rel=0.15)
