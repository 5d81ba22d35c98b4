"""The poller as a process: commands, its end, a reader that leaves, and the snapshot."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poller_process import PATIENCE, Environment, Simulate

from topsmon import events
from topsmon.devices import pipes, poller
from topsmon.devices.pace import Pace

PIPE_BYTES = 4096
LONGER_AND_LONGER = (0.5, 3.0, 20.0)
"""Deadlines of a snapshot: what answers has answered by one of them, however busy the machine."""

RUN = """
import sys
from topsmon.devices.poller import run
sys.exit(run(0.1, (), False, {child}, gpu={gpu}))
"""
SNAPSHOT = """
import sys
from topsmon import events
from topsmon.devices import poller
found = poller.snapshot({deadline}, {only!r})
sys.stdout.buffer.write(b"".join(events.encode(event) for event in found))
sys.stdout.flush()
loaded = sorted(name for name in sys.modules if name in ("torch", "textual", "pynvml"))
print("loaded", *loaded, file=sys.stderr)
import os; os._exit(0)
"""


def child(code: str, environment: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def lines(process: subprocess.Popen[bytes], count: int) -> list[events.AnyEvent]:
    assert process.stdout is not None
    decoder = events.LineDecoder()
    found = [decoder.decode(process.stdout.readline()) for _ in range(count)]
    return [event for event in found if event is not None]


def finish(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def test_hello_comes_first_and_says_that_it_is_a_simulation(simulate: Simulate) -> None:
    running = simulate("rtx4090")
    hello = running.next()
    assert isinstance(hello, events.Hello)
    assert (hello.role, hello.pid, hello.simulated) == ("poller", running.process.pid, "rtx4090")
    assert hello.schema == events.SCHEMA_VERSION


def test_without_a_driver_the_cpu_is_sampled() -> None:
    process = child(RUN.format(child=True, gpu=False))
    try:
        found = lines(process, 4)
        sampled = {events.DeviceSample, events.HostSample}
        while not sampled <= {type(event) for event in found}:
            found += lines(process, 1)
        kinds = {type(event) for event in found}
        assert {events.Hello, events.Host, events.Device, events.Ceilings} <= kinds
        samples = [event for event in found if isinstance(event, events.DeviceSample)]
        assert all(sample.busy_ratio is not None for sample in samples)
        assert not any(isinstance(event, events.Problem) for event in found)
    finally:
        finish(process)


def test_the_end_of_its_input_ends_it() -> None:
    process = child(RUN.format(child=True, gpu=False))
    lines(process, 3)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(PATIENCE) == 0
    finish_closed(process)


def finish_closed(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def test_a_reader_that_leaves_ends_it_quietly() -> None:
    process = child(RUN.format(child=False, gpu=False))
    lines(process, 3)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.wait(PATIENCE) == 0
    assert process.stderr.read() == b""
    finish_closed(process)


@pytest.mark.skipif(sys.platform != "linux", reason="the size of a pipe is Linux's")
def test_its_end_does_not_wait_for_a_reader_that_sleeps() -> None:
    """The pipe is full and nobody reads: the end of input must still end the process."""
    process = subprocess.Popen(
        [sys.executable, "-c", RUN.format(child=True, gpu=False)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pipesize=PIPE_BYTES,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    waiting, before = _waiting(process.stdout.fileno()), -1
    while waiting == 0 or waiting != before:  # until it is blocked
        time.sleep(0.3)
        waiting, before = _waiting(process.stdout.fileno()), waiting
    process.stdin.close()
    assert process.wait(PATIENCE) == 0
    assert waiting <= _waiting(process.stdout.fileno()) <= PIPE_BYTES
    finish_closed(process)


def _waiting(descriptor: int) -> int:
    """Bytes in a pipe that nobody has read."""
    return struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))[0]


def test_ctrl_c_is_left_to_the_screen() -> None:
    process = child(RUN.format(child=True, gpu=False))
    try:
        lines(process, 3)
        process.send_signal(signal.SIGINT)
        assert len(lines(process, 8)) == 8
        assert process.poll() is None
    finally:
        finish(process)


def test_by_hand_ctrl_c_ends_it() -> None:
    process = child(RUN.format(child=False, gpu=False))
    lines(process, 3)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    finish_closed(process)


@pytest.mark.skipif(sys.platform != "linux", reason="parent death signal is Linux's")
def test_it_dies_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    """The input stays open in another process, so that only the parent's death can end it."""
    code = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {RUN.format(child=True, gpu=False)!r}],"
        " stdin=0, stdout=subprocess.PIPE)\n"
        "child.stdout.readline(); print(child.pid, flush=True); time.sleep(60)"
    )
    reading, writing = os.pipe()
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdin=reading, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + PATIENCE
    while _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _runs(pid)
    parent.stdout.close()
    os.close(reading)
    os.close(writing)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_pause_and_resume(simulate: Simulate) -> None:
    running = simulate("rtx4090")
    running.sample(0)
    running.send(b'{"command": "pause"}')
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:  # until nothing more comes
        before = running.calls()
        time.sleep(0.35)
        if running.calls() == before:
            break
    else:
        pytest.fail("it was not paused")
    running.send(b'{"command": "resume"}')
    while running.calls() == before:
        running.sample(0)


def test_a_shorter_interval_takes_effect_at_once(simulate: Simulate) -> None:
    running = simulate("rtx4090", interval=60.0)
    running.sample(0)
    running.send(b'{"command": "interval", "seconds": 0.1}')
    running.sample(0)


def test_a_bad_command_is_named_and_does_no_harm(simulate: Simulate) -> None:
    running = simulate("rtx4090")
    running.sample(0)
    running.send(b"{nonsense")
    running.send(b'{"command": "explode"}')
    running.sample(0)
    assert running.close() == 0
    assert running.process.stderr is not None
    errors = running.process.stderr.read()
    assert b"not a JSON command: b'{nonsense'" in errors
    assert b"unknown command" in errors


@pytest.mark.parametrize(
    "line",
    [
        b"[]",
        b"null",
        b'{"command":"interval"}',
        b'{"command":"interval","seconds":-1}',
        b'{"command":"interval","seconds":"x"}',
        b'{"command":"interval","seconds":NaN}',
        b"\xff",
    ],
)
def test_commands_that_make_no_sense(line: bytes) -> None:
    assert pipes.command(Pace(1.0), line) is not None


@given(st.binary())
def test_any_bytes_as_a_command_do_no_harm(line: bytes) -> None:
    pace = Pace(1.0)
    pipes.command(pace, line)
    assert not pace.ending


def test_stop_ends_the_pace_and_the_first_code_counts() -> None:
    pace = Pace(1.0)
    assert pipes.command(pace, b'{"command":"stop"}') is None
    pace.leave(75)
    assert pace.code == 0
    assert not pace.sleep(60)
    assert pace.next_tick(0.0) is None


def test_ticks_keep_their_rhythm_and_skip_what_was_missed() -> None:
    pace = Pace(1.0)
    now = time.monotonic()
    assert pace.next_tick(now - 1.2) == now - 1.2 + 1.0
    late = pace.next_tick(now - 50)
    assert late is not None
    assert late >= now
    assert pace.next_tick(now, patience=0.0) is None


def test_a_pipe_that_cannot_take_it_all_gets_it_in_parts() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    data = os.urandom(1 << 20)
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, topsmon.devices.pipes as p; p.write_to_stdout(sys.stdin.buffer.read())",
        ],
        stdin=subprocess.PIPE,
        stdout=writing,
    )
    os.close(writing)
    assert process.stdin is not None
    process.stdin.write(data)
    process.stdin.close()
    received = b""
    while chunk := os.read(reading, 1 << 16):
        received += chunk
    os.close(reading)
    assert process.wait(PATIENCE) == 0
    assert received == data


def take_snapshot(
    environment: dict[str, str], deadline: float = PATIENCE, only: tuple[str, ...] = ()
) -> tuple[list[events.AnyEvent], str]:
    process = child(SNAPSHOT.format(deadline=deadline, only=only), environment)
    out, err = process.communicate(timeout=2 * PATIENCE)
    decoder = events.LineDecoder()
    found = [decoder.decode(line) for line in out.splitlines()]
    assert decoder.malformed == 0
    return [event for event in found if event is not None], err.decode()


def test_a_snapshot_has_everything_once(environment: Environment) -> None:
    _, variables = environment("h100-8")
    found, loaded = take_snapshot(variables)
    devices = [event for event in found if isinstance(event, events.Device)]
    assert [device.index for device in devices if device.kind == "gpu"] == list(range(8))
    for kind in (events.DeviceSample, events.Ceilings, events.Processes):
        told = [event.device for event in found if isinstance(event, kind)]
        assert sorted(told) == sorted(device.device for device in devices)
    assert [type(event) for event in found[:2]] == [events.Hello, events.Host]
    assert "torch" not in loaded
    assert "textual" not in loaded


def test_a_snapshot_without_a_library_does_not_load_the_binding(environment: Environment) -> None:
    _, variables = environment("no-library")
    found, loaded = take_snapshot(variables)
    problem = next(event for event in found if isinstance(event, events.Problem))
    assert problem.code == "no-library"
    assert "pynvml" not in loaded
    sample = next(event for event in found if isinstance(event, events.DeviceSample))
    assert sample.device == "cpu"
    assert sample.busy_ratio is not None


def test_a_snapshot_does_not_wait_for_a_gpu_that_hangs(environment: Environment) -> None:
    _, variables = environment("hang", seconds=30.0)
    for deadline in LONGER_AND_LONGER:
        found, _ = take_snapshot(variables, deadline=deadline)
        stalled = [
            event
            for event in found
            if isinstance(event, events.DeviceStatus) and event.condition == "stalled"
        ]
        sampled = {event.device for event in found if isinstance(event, events.DeviceSample)}
        if len(stalled) == 1 and len(sampled) > 1:
            break
    assert len(stalled) == 1
    assert "driver not answering" in stalled[0].detail
    assert stalled[0].device not in sampled
    assert len(sampled) > 1


def test_a_snapshot_does_not_wait_for_a_driver_that_does_not_start(
    environment: Environment,
) -> None:
    content = {
        "title": "hangs",
        "description": "hanging start",
        "expected": "STALE",
        "faults": [{"call": "nvmlInit*", "hang": True}],
    }
    _, variables = environment(content)
    for deadline in LONGER_AND_LONGER:
        found, _ = take_snapshot(variables, deadline=deadline)
        if any(isinstance(event, events.DeviceSample) for event in found):
            break
    problem = next(event for event in found if isinstance(event, events.Problem))
    assert problem.code == "stalled"
    assert any(isinstance(event, events.DeviceSample) for event in found)


def test_a_snapshot_of_the_cpu_alone_does_not_touch_the_driver(environment: Environment) -> None:
    folder, variables = environment("h100-8")
    found, _ = take_snapshot(variables, only=("cpu",))
    assert {event.device for event in found if isinstance(event, events.Device)} == {"cpu"}
    assert not (folder / "log").exists()


def test_a_snapshot_of_what_is_not_here_is_an_error(environment: Environment) -> None:
    _, variables = environment("rtx4090")
    found, errors = take_snapshot(variables, only=("GPU-nothing",))
    assert found == []
    assert "ValueError: --only: no device 'GPU-nothing'" in errors


def test_events_of_a_snapshot_in_this_process_are_in_order() -> None:
    found = poller.snapshot(5.0, ("cpu",))
    ranks = [poller._rank(event) for event in found]
    assert ranks == sorted(ranks)
