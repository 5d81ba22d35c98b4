"""A driver library that crashes, or hangs as a whole, while one snapshot is taken."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil
import pytest
from poller_process import PATIENCE, Environment

from topsmon import events
from topsmon.devices import forked

pytestmark = pytest.mark.real

CRASHED = "The NVIDIA driver library crashed"
HEALING = """
import sys
from pathlib import Path
from topsmon.cli import main
from topsmon.devices.gpu_snapshot import GpuSnapshot
from topsmon.simulated import scenario, table

again = GpuSnapshot._one_by_one

def heal(self, indexes):
    table.write(scenario.load("{folder}/healthy/given.json"), Path("{folder}/table"))
    return again(self, indexes)

GpuSnapshot._one_by_one = heal
sys.exit(main(sys.argv[1:]))
"""
"""The driver is healthy again when the GPUs are read for a second time."""
H100 = {"title": "t", "description": "d", "expected": "FAIL", "extends": "h100-8", "count": 3}


def machine(*faults: dict[str, Any]) -> dict[str, Any]:
    """Three H100 whose driver has these faults."""
    return {**H100, "faults": list(faults)}


def topsmon(
    variables: dict[str, str], *arguments: str, program: tuple[str, str] = ("-m", "topsmon")
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *program, *arguments]
    return subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=60, check=False
    )


def snapshot(variables: dict[str, str], code: int) -> dict[str, Any]:
    done = topsmon(variables, "--once", "--json")
    assert done.stderr == ""
    assert done.returncode == code
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def by_label(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {device["label"]: device for device in document["devices"]}


def problem(document: dict[str, Any]) -> dict[str, Any]:
    (found,) = document["problems"]
    return dict(found)


# One snapshot -------------------------------------------------------------------------------------


def test_a_gpu_that_crashes_the_library_does_not_hide_the_others(
    environment: Environment,
) -> None:
    _, healthy = environment(machine())
    _, variables = environment(
        machine({"call": "nvmlDeviceGetUtilizationRates", "crash": True, "device": 1})
    )
    document = snapshot(variables, code=2)
    good, devices = by_label(snapshot(healthy, code=0)), by_label(document)
    assert list(devices) == ["GPU 0", "GPU 1", "GPU 2", "CPU"]
    for label in ("GPU 0", "GPU 2"):
        assert devices[label]["condition"] == "ok"
        assert devices[label]["sample"]["power_watts"] == good[label]["sample"]["power_watts"]
        assert devices[label]["identity"] == good[label]["identity"]
    broken = devices["GPU 1"]
    assert broken["condition"] == "error"
    assert broken["sample"] is None
    assert "SIGSEGV in nvmlDeviceGetUtilizationRates" in broken["condition_detail"]
    assert broken["identity"]["uuid"] == good["GPU 1"]["identity"]["uuid"]
    told = problem(document)
    assert told["code"] == "crashed"
    assert told["message"].startswith(f"{CRASHED} (SIGSEGV")
    assert told["message"].endswith(": GPU 1 could not be read.")
    for word in ("dmesg", "topsmon doctor", "reinstall"):
        assert word in told["remedy"]
    assert devices["CPU"]["sample"]["busy_ratio"] is not None
    assert document["host"]["driver_version"] is not None
    assert document["host_sample"]["memory_used_bytes"] > 0


def test_a_gpu_that_has_not_told_its_name_has_a_row_too(environment: Environment) -> None:
    _, variables = environment(machine({"call": "nvmlDeviceGetName", "crash": True, "device": 2}))
    devices = by_label(snapshot(variables, code=2))
    assert devices["GPU 2"]["identity"]["name"] == "NVIDIA GPU 2 (name unknown)"
    assert devices["GPU 2"]["condition"] == "error"
    assert devices["GPU 0"]["sample"]["power_watts"] > 0


def test_only_the_selected_gpu_is_missed(environment: Environment) -> None:
    _, variables = environment(machine({"call": "nvmlDeviceGetPowerUsage", "crash": True}))
    done = topsmon(variables, "--once", "--json", "--only", "2")
    devices = by_label(json.loads(done.stdout))
    assert list(devices) == ["GPU 2"]
    assert done.returncode == 2


def test_a_library_that_crashes_at_once_leaves_the_cpu(environment: Environment) -> None:
    _, variables = environment(machine({"call": "nvmlInit*", "crash": True}))
    document = snapshot(variables, code=2)
    assert list(by_label(document)) == ["CPU"]
    assert problem(document)["message"] == (
        f"{CRASHED} (SIGSEGV in nvmlInitWithFlags): no GPU could be read."
    )


def test_a_crash_that_does_not_come_again_costs_nothing(environment: Environment) -> None:
    fault = {"call": "nvmlDeviceGetPowerUsage", "crash": True, "device": 0}
    folder, variables = environment(machine(fault))
    (folder / "healthy").mkdir()
    # By the name of its scenario the simulated driver makes up the UUIDs.
    (folder / "healthy/given.json").write_text(json.dumps(machine()))
    code = HEALING.format(folder=str(folder))
    done = topsmon(variables, "--once", "--json", program=("-c", code))
    assert done.stderr == ""
    document = json.loads(done.stdout)
    assert done.returncode == 1
    told = problem(document)
    assert told["message"].startswith(CRASHED)
    assert told["message"].endswith("everything was read in a second try.")
    assert all(device["condition"] == "ok" for device in document["devices"])
    assert not [device["label"] for device in document["devices"] if not device["sample"]]


# Other commands -----------------------------------------------------------------------------------


def test_a_quick_check_cannot_measure_it(environment: Environment) -> None:
    _, variables = environment(
        machine({"call": "nvmlDeviceGetUtilizationRates", "crash": True, "device": 1})
    )
    done = topsmon(variables, "check", "--quick", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 3
    assert document["status"] == "UNKNOWN"
    verdicts = {(check["device"], check["check"]): check["state"] for check in document["checks"]}
    keys = [device["device"] for device in document["devices"]]
    states = [verdicts[key, "device"] for key in keys]
    # A machine with other work may not read the others within the check's short time.
    assert states[1] == "NO-VERDICT"
    assert set(states) <= {"PASS", "NO-VERDICT"}
    driver = next(check for check in document["checks"] if check["check"] == "driver")
    assert driver["state"] == "NO-VERDICT"
    assert driver["cause"].startswith(f"{CRASHED} (SIGSEGV")


def test_the_doctor_names_the_crash(environment: Environment) -> None:
    _, variables = environment(machine({"call": "nvmlDeviceGetCount*", "crash": True}))
    done = topsmon(variables, "doctor", "--json")
    results = {result["id"]: result for result in json.loads(done.stdout)["checks"]}
    assert done.returncode == 2
    assert results["driver"]["state"] == "fail"
    assert results["driver"]["finding"].startswith(f"{CRASHED} (SIGSEGV in nvmlDeviceGetCount")
    assert results["cpus"]["state"] == "ok"


def test_specs_go_on_with_the_cpu(environment: Environment) -> None:
    _, variables = environment(machine({"call": "nvmlInit*", "crash": True}))
    done = topsmon(variables, "specs")
    assert done.returncode == 0
    assert "CPU" in done.stdout


# The stream by hand -------------------------------------------------------------------------------


@contextlib.contextmanager
def started(*words: str, variables: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Python in a session of its own, killed at the end."""
    with subprocess.Popen(
        [sys.executable, *words],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        yield process
        if process.poll() is None:
            process.kill()


def streaming(
    variables: dict[str, str],
) -> AbstractContextManager[subprocess.Popen[bytes]]:
    code = "import sys; from topsmon.devices import crashes; crashes.FIRST_PAUSE_SECONDS = 0.001; "
    code += "from topsmon.cli import main; sys.exit(main(sys.argv[1:]))"
    return started("-c", code, "stream", "--interval", "0.1", variables=variables)


def read_until(process: subprocess.Popen[bytes], wanted: Callable[[events.AnyEvent], bool]) -> Any:
    assert process.stdout is not None
    found: list[events.AnyEvent] = []
    for line in process.stdout:
        event = events.LineDecoder().decode(line)
        if event is not None:
            found.append(event)
            if wanted(event):
                return found
    raise AssertionError(f"the stream ended: {found[-3:]}")


def test_a_stream_by_hand_goes_on_without_the_gpus(environment: Environment) -> None:
    _, variables = environment(machine({"call": "nvmlDeviceGetPowerUsage", "crash": True}))
    with streaming(variables) as process:
        crashed = read_until(process, lambda event: isinstance(event, events.Problem))
        assert crashed[-1].code == "crashed"
        assert "SIGSEGV" in crashed[-1].message
        told = [event.restarts for event in crashed if isinstance(event, events.Worker)]
        assert told == [1, 2, 3, 4]
        later = read_until(process, lambda event: isinstance(event, events.DeviceSample))
        assert later[-1].device == "cpu"
        children = relatives(process)
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 130
        assert errors.decode().splitlines()[:4] == [
            *["topsmon: the NVIDIA driver library crashed (SIGSEGV); reading it again"] * 3,
            "topsmon: the NVIDIA driver library crashed (SIGSEGV) 4 times; going on without GPUs",
        ]
        assert gone(children)


def test_a_stream_that_is_killed_leaves_nobody(environment: Environment) -> None:
    _, variables = environment(machine())
    with streaming(variables) as process:
        read_until(process, lambda event: isinstance(event, events.DeviceSample))
        children = relatives(process)
        process.kill()
        assert gone(children)


def test_a_wrong_device_of_a_stream_is_wrong_usage(environment: Environment) -> None:
    _, variables = environment(machine())
    done = topsmon(variables, "stream", "--only", "GPU-nothing")
    assert done.returncode == 64
    assert "no device 'GPU-nothing'" in done.stderr


# The child ----------------------------------------------------------------------------------------


def relatives(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The children of a command, as soon as it has one."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        found = psutil.Process(process.pid).children(recursive=True)
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError("no child was started")


def hanging(
    variables: dict[str, str],
) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """A snapshot whose driver never answers."""
    return started("-m", "topsmon", "--once", "--json", variables=variables)


def gone(processes: list[psutil.Process]) -> bool:
    left = psutil.wait_procs(processes, timeout=PATIENCE)[1]
    return not [one for one in left if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture
def hung(environment: Environment) -> dict[str, str]:
    return environment(machine({"call": "nvml*", "hang": True}))[1]


def test_no_child_is_left_after_a_driver_that_hangs(hung: dict[str, str]) -> None:
    with hanging(hung) as process:
        children = relatives(process)
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 2
        assert json.loads(out)["problems"][0]["code"] == "stalled"
        assert gone(children)


def test_the_child_of_a_killed_snapshot_ends(hung: dict[str, str]) -> None:
    with hanging(hung) as process:
        children = relatives(process)
        process.kill()
        assert gone(children)


def test_ctrl_c_ends_a_snapshot_and_its_child_at_once(hung: dict[str, str]) -> None:
    with hanging(hung) as process:
        children = relatives(process)
        os.killpg(process.pid, signal.SIGINT)
        out, errors = process.communicate(timeout=120)
        assert (process.returncode, out, errors) == (130, b"", b"\n")
        assert gone(children)


# Work in a fork -----------------------------------------------------------------------------------


def outcome(work: Callable[[Callable[[bytes], None]], None], seconds: float = 10.0) -> Any:
    with forked.child(work) as child:
        return child.outcome(time.monotonic() + seconds)


def test_what_a_child_told_before_its_end_is_kept() -> None:
    def finishes(write: Callable[[bytes], None]) -> None:
        write(b"one\ntwo\n")

    def aborts(write: Callable[[bytes], None]) -> None:
        write(b"one\nhalf a li")
        os.abort()

    def leaves(write: Callable[[bytes], None]) -> None:
        write(b"one\n")
        os._exit(7)

    def killed(write: Callable[[bytes], None]) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    assert outcome(finishes) == forked.Outcome((b"one", b"two"))
    aborted = outcome(aborts)
    assert (aborted.lines, aborted.end, aborted.crashed) == ((b"one",), "SIGABRT", True)
    assert "aborts" in aborted.frames
    left = outcome(leaves)
    assert (left.lines, left.end, left.crashed) == ((b"one",), "exit code 7", False)
    assert (outcome(killed).end, outcome(killed).crashed) == ("SIGKILL", False)


def test_where_the_kernel_forgets_how_children_end_the_work_counts_all_the_same() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        found = outcome(lambda write: write(b"one\n"))
        crashed = outcome(lambda write: os.abort())
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert found == forked.Outcome((b"one",))
    assert (crashed.end, crashed.crashed) == ("an end that nobody has seen", True)


def test_a_child_that_is_still_at_it_is_ended(tmp_path: Path) -> None:
    def sleeps(write: Callable[[bytes], None]) -> None:
        write(b"one\n")
        time.sleep(600)

    for seconds in (0.2, 2.0, 20.0):  # its first line has come by then
        with forked.child(sleeps) as child:
            found = child.outcome(time.monotonic() + seconds)
        if found.lines:
            break
    assert found == forked.Outcome((b"one",), end="")
    assert child.reaped
    assert not psutil.pid_exists(child.pid)


def test_an_error_of_the_work_never_reaches_the_parents_code(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fails(write: Callable[[bytes], None]) -> None:
        raise KeyError("lost")

    assert outcome(fails).end == "exit code 1"
    assert "KeyError: 'lost'" in capfd.readouterr().err


def test_much_is_told_before_anybody_reads() -> None:
    line = b"x" * 999 + b"\n"

    def tells(write: Callable[[bytes], None]) -> None:
        for _ in range(3000):
            write(line)

    with forked.child(tells) as child:
        time.sleep(0.05)
        found = child.outcome(time.monotonic() + 60)
    assert (len(found.lines), found.end) == (3000, None)
