"""The simulated prober as a child process: its protocol, its rates, its end."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from topsmon import events
from topsmon.simulated import load
from topsmon.units import PRECISIONS

DEADLINE = 60.0


class Child:
    """A running prober: what it says and what it is told."""

    def __init__(self, simulation: Any, name: str, index: int, *options: str) -> None:
        self.uuid = load(name).devices[index].texts["uuid"]
        self.decoder = events.LineDecoder()
        self.process = simulation.start(
            "-m", "topsmon.simulated.prober", "--device", self.uuid, *options
        )

    def next(self) -> Any:
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read().decode()
        event = self.decoder.decode(line)
        assert event is not None, self.decoder.last_error
        return event

    def until(self, kind: type[events.Event], **fields: object) -> Any:
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            event = self.next()
            if isinstance(event, kind) and all(getattr(event, k) == v for k, v in fields.items()):
                return event
        raise AssertionError(f"no {kind.__name__} with {fields}")

    def tell(self, **command: object) -> None:
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        self.process.stdin.flush()

    def ends(self) -> int:
        return self.process.wait(timeout=DEADLINE)


@pytest.fixture
def prober(simulate) -> Callable[..., Child]:
    """Return a function that starts a prober, on request for one precision alone."""

    def start(
        name: str, index: int = 0, *options: str, seconds: float = 0.0, only: str | None = None
    ) -> Child:
        paused = () if only is None else ("--paused",)
        child = Child(simulate(name, seconds=seconds), name, index, *options, *paused)
        if only is not None:
            child.tell(command="precisions", keys=[only])
            child.tell(command="resume")
        return child

    return start


def test_it_introduces_itself_and_measures_every_precision(prober) -> None:
    child = prober("h100-8", 3)
    hello = child.next()
    assert isinstance(hello, events.Hello)
    assert (hello.role, hello.simulated, hello.pid) == ("prober", "h100-8", child.process.pid)
    assert hello.schema == events.SCHEMA_VERSION
    ready = child.next()
    assert isinstance(ready, events.ProberReady)
    assert ready.device == child.uuid
    assert (ready.name, ready.sm_count) == ("NVIDIA H100 80GB HBM3", 132)
    assert ready.memory_total_bytes == 81559 << 20
    unsupported = child.next()
    assert isinstance(unsupported, events.ProbeUnsupported)
    assert unsupported.precision == "fp4"
    assert "9.0" in unsupported.reason
    for key in PRECISIONS:
        if key == "fp4":
            continue
        started, rate = child.next(), child.next()
        assert isinstance(started, events.ProbeStarted)
        assert isinstance(rate, events.RateMeasured)
        assert started.precision == rate.precision == key
        assert started.device == rate.device == child.uuid
    assert child.decoder.malformed == child.decoder.skipped == 0


def test_the_rate_follows_the_held_clock(prober) -> None:
    """Published 794.5 TFLOPS in BF16 at 1755 MHz, so 522.9 at the 1155 MHz of a capped board."""
    capped = prober("power-cap", 3, only="bf16").until(events.RateMeasured)
    assert 1151 <= capped.held_clock_mhz <= 1159
    expected = 794.5e12 * capped.held_clock_mhz / 1755
    assert capped.rate_ops_per_second == pytest.approx(expected, rel=0.005)
    assert capped.rate_ops_per_second == pytest.approx(522.9e12, rel=0.01)
    assert capped.rate_low_ops_per_second < capped.rate_ops_per_second
    assert capped.rate_high_ops_per_second > capped.rate_ops_per_second
    assert capped.clock_event_mask == 0x4
    assert 345 <= capped.power_watts <= 349
    assert capped.shape == (2048, 2048, 13312)
    assert capped.valid
    assert capped.correct
    assert capped.relative_error < capped.error_limit
    assert capped.method == "simulated"
    assert "stas00" in capped.note
    flop = 2 * 2048 * 2048 * 13312 * capped.calls
    assert flop / capped.rate_ops_per_second == pytest.approx(capped.burst_seconds, rel=0.05)


def test_the_throttle_mask_is_that_of_the_moment(prober) -> None:
    hot = prober("thermal", 5, seconds=13.0).until(events.RateMeasured)
    assert hot.clock_event_mask == 0x68
    assert 971 <= hot.held_clock_mhz <= 979


def test_a_device_at_rest_is_measured_at_its_clock_under_load(prober) -> None:
    boosted = prober("rtx4090", only="fp16").until(events.RateMeasured)
    assert 2745 <= boosted.held_clock_mhz <= 2790
    assert boosted.clock_event_mask == 0  # GpuIdle cannot hold while it computes
    assert boosted.power_watts > 390
    # 128 SMs x 512 FLOP x 2520 MHz = 165.2 TFLOPS rated
    assert 1.0 < boosted.rate_ops_per_second / 165.2e12 < 1.1


def test_emulated_and_unsupported_precisions_are_told_apart(prober) -> None:
    child = prober("driver-470")
    reasons = {}
    while True:
        event = child.next()
        if isinstance(event, events.ProbeUnsupported):
            reasons[event.precision] = event.reason
        elif isinstance(event, events.ProbeStarted):
            break
    assert set(reasons) == {"tf32", "fp8", "int8", "fp4", "fp16_acc16"}
    bf16 = child.until(events.RateMeasured, precision="bf16")
    assert bf16.emulated
    assert bf16.rate_ops_per_second == pytest.approx(10.3e12 * 1515 / 1530, rel=0.005)


def test_only_chosen_precisions_are_measured(prober) -> None:
    child = prober("h100-8", 0, "--paused", "--duty", "1")
    child.until(events.ProberIdle, reason="paused")
    child.tell(command="precisions", keys=["bf16", "fp4", "nonsense"])
    told = child.until(events.ProbeUnsupported, precision="fp4")
    assert told.device == child.uuid
    child.tell(command="resume")
    rates = [child.until(events.RateMeasured) for _ in range(3)]
    assert {rate.precision for rate in rates} == {"bf16"}
    assert len({rate.shape for rate in rates}) == 2
    child.tell(command="precisions", keys=["fp4"])
    assert child.until(events.ProberIdle).reason == "no precision to measure"


def test_pause_stops_measuring_until_resume(prober) -> None:
    child = prober("h100-8", 0, "--duty", "1")
    child.until(events.RateMeasured)
    child.tell(command="pause", reason="python train.py (PID 12) uses GPU 0")
    idle = child.until(events.ProberIdle)
    assert idle.reason == "python train.py (PID 12) uses GPU 0"
    child.tell(command="pause", reason="paused")
    # the very next thing it says is the other reason: nothing was measured in between
    assert child.next().reason == "paused"
    child.tell(command="resume")
    assert isinstance(child.next(), events.ProbeStarted)


def test_duty_decides_how_soon_the_next_burst_comes(prober) -> None:
    child = prober("h100-8", 0, "--paused", "--duty", "0.0001")
    child.tell(command="precisions", keys=["fp32"])
    child.tell(command="resume")
    child.until(events.RateMeasured)
    child.until(events.RateMeasured)  # the first round does not wait
    child.tell(command="duty", value=1)
    assert child.until(events.RateMeasured).precision == "fp32"


@pytest.mark.parametrize(
    "line",
    [b"nonsense\n", b"[]\n", b'{"command":"fly"}\n', b'{"command":"duty","value":7}\n', b"\xff\n"],
)
def test_a_senseless_command_is_ignored_aloud(prober, line: bytes) -> None:
    child = prober("h100-8", 0, "--paused")
    child.process.stdin.write(line)
    child.tell(command="stop")
    assert child.ends() == 0
    assert b"ignored a command" in child.process.stderr.read()


def test_it_ends_when_stdin_closes(prober) -> None:
    child = prober("h100-8")
    child.until(events.ProbeStarted)
    child.process.stdin.close()
    assert child.ends() == 0


def test_it_ends_when_told_to_stop(prober) -> None:
    child = prober("h100-8")
    child.until(events.ProbeStarted)
    child.tell(command="stop")
    assert child.ends() == 0
    assert child.process.stderr.read() == b""


def test_it_ends_although_the_device_hangs(prober) -> None:
    child = prober("hang-all", 1, seconds=6)
    assert isinstance(child.next(), events.Hello)
    child.process.stdin.close()
    assert child.ends() == 0


def test_it_ends_when_nobody_reads_it(prober) -> None:
    child = prober("h100-8", 0, "--duty", "1")
    child.until(events.RateMeasured)
    child.process.stdout.close()
    assert child.ends() == 0


def test_it_dies_with_its_parent(simulate) -> None:
    """Even by SIGKILL, and with its stdin held open by somebody else."""
    simulation = simulate("h100-8")
    uuid = load("h100-8").devices[0].texts["uuid"]
    reading, writing = os.pipe()
    code = (
        "import subprocess, sys\n"
        "p = subprocess.Popen([sys.executable, '-m', 'topsmon.simulated.prober',\n"
        f"  '--device', {uuid!r}], stdin={reading}, stdout=subprocess.PIPE)\n"
        "[p.stdout.readline() for _ in range(4)]\n"
        "print(p.pid, flush=True); p.wait()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        env=simulation.environment,
        stdout=subprocess.PIPE,
        pass_fds=[reading],
    )
    try:
        pid = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
        end = time.monotonic() + DEADLINE
        while _alive(pid):
            assert time.monotonic() < end
            time.sleep(0.01)
    finally:
        parent.kill()
        parent.stdout.close()
        os.close(reading)
        os.close(writing)


def _alive(pid: int) -> bool:
    """False for a zombie too: nobody here may reap a grandchild."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_lost_device_ends_it_with_the_code_of_device_errors(prober) -> None:
    child = prober("gpu-lost", 2, seconds=9)
    assert child.ends() == 70
    assert b"device error 15" in child.process.stderr.read()


@pytest.mark.skipif(sys.platform != "linux", reason="signals of a Linux terminal")
def test_control_c_in_the_terminal_is_left_to_the_parent(prober) -> None:
    child = prober("h100-8", 0, "--duty", "1")
    child.until(events.RateMeasured)
    child.process.send_signal(signal.SIGINT)
    child.until(events.RateMeasured)
    child.tell(command="stop")
    assert child.ends() == 0


@pytest.mark.parametrize(
    ("device", "words"), [("GPU-1", "has no device GPU-1"), ("cpu", "has no device cpu")]
)
def test_an_unknown_device_is_named(simulate, device: str, words: str) -> None:
    process = simulate("h100-8").start("-m", "topsmon.simulated.prober", "--device", device)
    assert process.wait(timeout=DEADLINE) == 64
    assert words in process.stderr.read().decode()


def test_without_a_simulation_it_says_how_to_get_one(simulate) -> None:
    simulation = simulate("h100-8")
    del simulation.environment["TOPSMON_SIMULATED_SCENARIO"]
    process = simulation.start("-m", "topsmon.simulated.prober", "--device", "GPU-1")
    assert process.wait(timeout=DEADLINE) == 64
    assert b"topsmon --simulate" in process.stderr.read()


def test_two_runs_give_the_same_rates(prober) -> None:
    rates = [
        prober("h100-8", 1, only="tf32").until(events.RateMeasured).rate_ops_per_second
        for _ in range(2)
    ]
    assert rates[0] == rates[1]


def test_it_needs_neither_torch_nor_a_screen(simulate) -> None:
    simulation = simulate("h100-8")
    code = (
        "import topsmon.simulated.prober\n"
        "r = sorted({'torch', 'textual', 'rich', 'pynvml', 'numpy'} & (set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, json; before = set()\n{code}\nprint(json.dumps(r))"],
        env=simulation.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == []
