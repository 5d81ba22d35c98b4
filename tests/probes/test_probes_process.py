"""Real probers: the protocol, and how they end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from probe_children import PROBES, decode

pytest.importorskip("torch")

from topsmon import events

# A prober has the lowest priority: beside other work each of its steps may take a minute.
pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
BARE = ["-S", "-X", "importtime"]
"""No site-packages, and the name of every module that is imported on stderr."""


def test_a_prober_greets_at_once_and_measures_fp32_first(prober):
    hello = prober.wait_for(events.Hello)
    assert (hello.role, hello.pid) == ("prober", prober.process.pid)
    ready = prober.wait_for(events.ProberReady)
    assert ready.torch_version
    assert ready.usable_cpus >= 1
    rate = prober.wait_for(events.RateMeasured)
    assert rate.precision == "fp32"
    assert rate.correct is True
    assert 1e5 < rate.rate_ops_per_second < 1e15
    assert rate.held_clock_mhz is None or 500 < rate.held_clock_mhz < 7000
    assert rate.valid is (rate.cpu_share >= 0.9)
    prober.wait_for(events.RateMeasured, precision="fp64")


def test_one_thread_for_several_cores_is_said_and_mended(prober):
    (ready,) = [event for event in prober.seen if isinstance(event, events.ProberReady)]
    cores = ready.threads
    if cores == 1:
        pytest.skip("one core")
    assert ready.default_threads == 1
    assert any("OMP_NUM_THREADS=1" in note for note in ready.notes)
    assert any(f"measured with {cores}" in note for note in ready.notes)


def test_the_lowest_priority_and_the_first_to_go_when_memory_ends(prober):
    assert os.getpriority(os.PRIO_PROCESS, prober.process.pid) == 19
    score = Path(f"/proc/{prober.process.pid}/oom_score_adj")
    assert score.read_text().strip() == "1000"


def test_types_of_gpus_are_unsupported_with_a_reason(prober):
    for key in ("tf32", "fp16_acc16", "fp4"):
        assert "CPU" in prober.wait_for(events.ProbeUnsupported, precision=key).reason


def test_precisions_pause_and_resume_act_at_once(prober):
    prober.say(command="precisions", keys=["int8"])
    prober.wait_for(events.ProbeStarted, precision="int8")
    prober.say(command="pause", reason="make -j (PID 9) uses CPU")
    assert prober.wait_for(events.ProberIdle).reason == "make -j (PID 9) uses CPU"
    prober.say(command="duty", value=0.9)
    prober.say(command="resume")
    assert prober.wait_for(events.ProbeStarted).precision == "int8"
    assert prober.process.poll() is None


def test_an_interrupt_of_the_terminal_is_the_parent_s_affair(prober):
    prober.process.send_signal(signal.SIGINT)
    prober.wait_for(events.ProbeStarted)
    assert prober.process.poll() is None


def test_a_stop_ends_it_well(prober):
    prober.say(command="stop")
    assert prober.process.wait(60) == 0


def test_a_paused_prober_loads_nothing_and_ends_with_its_input(start_child):
    child = start_child("-m", "topsmon.probes", "--device", "GPU-none", "--paused")
    child.wait_for(events.Hello)
    assert child.wait_for(events.ProberIdle).reason == "paused"
    assert "libtorch" not in Path(f"/proc/{child.process.pid}/maps").read_text()
    child.process.stdin.close()
    assert child.process.wait(60) == 0


def test_no_prober_outlives_a_parent_that_was_killed(tmp_path):
    # The grandchild's stdin is kept open by this test, so that only the death signal can end it.
    reading, writing = os.pipe()
    parent_code = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([{sys.executable!r}, {str(PROBES)!r}, '--device', 'cpu',"
        " '--paused'], stdin=0, stdout=subprocess.PIPE)\n"
        "child.stdout.readline(); child.stdout.readline()\n"
        "print(child.pid, flush=True); time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", parent_code], stdin=reading, stdout=subprocess.PIPE
    )
    try:
        prober = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
        deadline = time.monotonic() + 60
        while _lives(prober) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not _lives(prober)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
        os.close(reading)
        os.close(writing)


def _lives(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def imported(stderr: str) -> set[str]:
    """Names of the modules that -X importtime lists."""
    lines = [line for line in stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


def test_by_path_under_an_interpreter_without_torch(tmp_path):
    with subprocess.Popen(
        [sys.executable, *BARE, str(PROBES), "--device", "cpu"],
        cwd=tmp_path,
        env={"PATH": os.defpath},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        hello = decode(child.stdout.readline())
        assert child.wait(60) == 69
        stderr = child.stderr.read().decode()
    assert hello.role == "prober"
    said = [line for line in stderr.splitlines() if not line.startswith("import time:")]
    assert len(said) == 1
    assert f"{sys.executable} cannot load torch: No module named 'torch'" in said[0]
    names = imported(stderr)
    assert "topsmon_probes.wire" in names
    assert not any(name.split(".")[0] == "topsmon" for name in names)


def test_by_path_with_torch_but_without_topsmon(start_child, tmp_path):
    import torch

    packages = tmp_path / "packages"
    packages.mkdir()
    for entry in Path(torch.__file__).parent.parent.iterdir():
        if "topsmon" not in entry.name and entry.suffix != ".pth":
            (packages / entry.name).symlink_to(entry)
    # A module of the user's own, named like one of ours, must not be met either.
    (tmp_path / "prober.py").write_text("raise SystemExit('the wrong prober')")
    child = start_child(
        "-S",
        str(PROBES),
        "--device",
        "cpu",
        "--size",
        "65",
        cwd=tmp_path,
        env={"PATH": os.defpath, "PYTHONPATH": str(packages)},
    )
    rate = child.wait_for(events.RateMeasured)
    assert rate.correct is True
    assert rate.shape == (65, 65, 65)
    assert "65x65x65 has an odd size" in rate.note
    child.process.stdin.close()
    assert child.process.wait(60) == 0


@pytest.mark.skipif("not __import__('torch').__version__.endswith('+cpu')")
def test_a_torch_without_cuda_is_said_and_final():
    with subprocess.Popen(
        [sys.executable, "-m", "topsmon.probes", "--device", "GPU-1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as child:
        assert child.wait(60) == 69
        said = child.stderr.read().decode()
    assert said.count("\n") == 1
    assert "built without CUDA" in said
