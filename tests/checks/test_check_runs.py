"""Whole runs on the simulated driver: poller, probers, verdicts, exit codes."""

import asyncio
import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from topsmon import events
from topsmon.checks import Moment, judge, select
from topsmon.checks.model import plan
from topsmon.checks.outcome import exit_code
from topsmon.laboratory import Progress, Run, RunOptions, UnknownDeviceError, hasten
from topsmon.simulated import SimulationError, prepare
from topsmon.units import PRECISIONS

pytestmark = pytest.mark.real

PROGRAM = Path(__file__).with_name("simulation.py")
EXPECTED = {
    "h100-8": (0, set()),
    "power-cap": (2, {("GPU 3", "peers")}),
    "thermal": (2, {("GPU 5", "throttling"), ("GPU 5", "peers")}),
    "pcie-narrow": (2, {("GPU 1", "h2d"), ("GPU 1", "d2h")}),
    "ecc": (2, {("GPU 2", "ecc")}),
    "gpu-lost-at-start": (2, {("GPU 1", "device")}),
    "mismatch": (2, {("host", "driver")}),
    "shared": (3, set()),
    "no-library": (3, set()),
}
"""Exit code, and what fails on which device. `all-zero` has a test of its own."""


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("driver")
    try:
        prepare("h100-8", directory)
    except SimulationError as error:
        pytest.skip(f"no simulated driver: {error}")
    return directory


all_checks = functools.partial(plan, select())
LIMIT_SECONDS = 150.0
"""More than any run needs, on a machine that has much else to do."""
PATIENT = {"limit_seconds": LIMIT_SECONDS, "quick_seconds": 60.0}


async def measure(name: str, directory: Path, **options: Any) -> tuple[Any, Run]:
    environment = prepare(name, directory)
    wanted = {"plan": all_checks, "simulated": name, "environment": environment, **options}
    wanted.setdefault("limit_seconds", LIMIT_SECONDS)
    run = Run(RunOptions(**wanted))
    return await run.run(), run


@pytest.fixture(scope="module")
def outcomes(builds: Path) -> dict[str, Any]:
    async def all_of_them() -> dict[str, Any]:
        turn = asyncio.Semaphore(3)

        async def one(name: str) -> Any:
            async with turn:
                return (await measure(name, builds))[0]

        names = [*EXPECTED, "all-zero"]
        return dict(zip(names, await asyncio.gather(*map(one, names)), strict=True))

    return asyncio.run(all_of_them())


def verdicts(outcome: Any) -> Any:
    return judge(outcome.state, Moment(0.0, 0.0), select(), outcome.seen, outcome.devices)


@pytest.mark.parametrize("name", EXPECTED)
def test_scenarios(outcomes: dict[str, Any], name: str) -> None:
    results = verdicts(outcomes[name])
    failed = {(result.label, result.check) for result in results if result.state == "FAIL"}
    if name == "thermal":
        # How hot it is when a rate is measured depends on when: these may fail as well.
        failed -= {("GPU 5", check) for check in ("temperature", *PRECISIONS)}
    assert (exit_code(results), failed) == EXPECTED[name]


def test_all_readings_zero(outcomes: dict[str, Any]) -> None:
    results = verdicts(outcomes["all-zero"])
    states = {(result.check, result.state) for result in results}
    assert exit_code(results) == 2
    assert {("bf16", "FAIL"), ("dram-copy", "FAIL"), ("temperature", "INVALID")} <= states
    passed = {check for check, state in states if state == "PASS"}
    assert passed == {"driver", "device"}
    assert {("correctness", "INVALID"), ("throttling", "INVALID"), ("launch", "INVALID")} <= states
    invalid = [result for result in results if result.state == "INVALID"]
    assert all(result.remedy for result in invalid)


@pytest.mark.parametrize(("name", "gone"), [("gpu-lost", 2), ("hang", 1)])
def test_a_fault_in_mid_check_is_met(builds: Path, name: str, gone: int) -> None:
    """The scenario's fault begins after 8 s and 5 s, when a check would be over."""
    done = command(name, builds, format="json")
    assert done.returncode == 2, done.stderr
    read = json.loads(done.stdout)
    failed = [(one["label"], one["check"]) for one in read["checks"] if one["state"] == "FAIL"]
    assert failed == [(f"GPU {gone}", "device")]


def test_a_device_that_no_longer_answers_at_the_end_is_never_ok(builds: Path) -> None:
    """The time limit comes before the hanging call is noticed."""
    checks = select(["device"])
    for limit in (3, 10, 30):  # the others must have answered by then, however busy the machine
        outcome, _ = asyncio.run(
            measure("hang", builds, plan=functools.partial(plan, checks), limit_seconds=limit)
        )
        results = judge(outcome.state, Moment(0.0, 0.0), checks, outcome.seen, outcome.devices)
        assert exit_code(results) in (2, 3)
        wrong = {result.label for result in results if result.state != "PASS"}
        if wrong == {"GPU 1"}:
            break
    assert wrong == {"GPU 1"}


def test_a_reading_from_before_the_end_of_the_work_is_no_answer() -> None:
    run = Run(RunOptions(plan=lambda _: {}))

    def read(at: float) -> str:
        header = {"time": at, "monotonic": at, "source": "node"}
        run.receive(events.DeviceSample(**header, device="GPU-1", busy_ratio=0.0))
        return run._outcome().seen["GPU-1"].unanswered

    header = {"time": 0.0, "monotonic": 0.0, "source": "node"}
    run.receive(events.Device(**header, device="GPU-1", kind="gpu", index=0, name="x"))
    run.receive(events.Processes(**header, device="GPU-1", entries=()))
    ended = time.monotonic()
    run._devices["GPU-1"].finished, run._devices["GPU-1"].finished_at = True, ended
    for at in (ended - 2.0, ended - 1.0):
        assert "no answer" in read(at)
    later = time.monotonic()
    assert "no answer" in read(later)  # it may have been begun before
    assert read(later + 1.0) == ""


def test_the_run_measures_under_load_and_every_device(outcomes: dict[str, Any]) -> None:
    outcome = outcomes["h100-8"]
    assert len(outcome.devices) == 8
    assert not outcome.interrupted
    assert all(seen.loaded and not seen.missing for seen in outcome.seen.values())
    capped = [result for result in verdicts(outcomes["power-cap"]) if result.check == "peers"]
    uuid = capped[3].device
    assert uuid is not None
    assert uuid in capped[3].evidence
    assert any("median" in line for line in capped[3].evidence)


def test_a_shared_device_is_measured_only_when_forced(builds: Path) -> None:
    checks = select(["bf16"])
    outcome, _ = asyncio.run(
        measure("shared", builds, plan=functools.partial(plan, checks), force=True)
    )
    results = judge(outcome.state, Moment(0.0, 0.0), checks, outcome.seen, outcome.devices)
    shared = [result for result in results if result.value is not None and result.unknown]
    assert shared
    assert {result.state for result in shared} == {"INVALID"}
    assert all("shared" in result.cause for result in shared)


def test_a_run_ends_at_its_limit_with_what_is_known(builds: Path) -> None:
    checks = select(["driver", "bf16", "sync-stall"])
    outcome, run = asyncio.run(
        measure("h100-8", builds, plan=functools.partial(plan, checks), limit_seconds=0.05)
    )
    assert outcome.seen == {} or all(seen.missing for seen in outcome.seen.values())
    assert exit_code(judge(outcome.state, Moment(0.0, 0.0), checks, outcome.seen)) == 3
    assert run.options.limit_seconds == 0.05


def test_an_unknown_device_is_refused(builds: Path) -> None:
    with pytest.raises(UnknownDeviceError, match="no device '17'"):
        asyncio.run(measure("h100-8", builds, devices=("17",)))


def test_only_the_named_device_is_checked_and_progress_is_told(builds: Path) -> None:
    told: list[Progress] = []

    async def run() -> Any:
        environment = prepare("h100-8", builds)
        options = RunOptions(
            plan=functools.partial(plan, select(["bf16", "fp4"])),
            devices=("2",),
            simulated="h100-8",
            environment=environment,
            limit_seconds=LIMIT_SECONDS,
        )
        return await Run(options, told.append).run()

    outcome = asyncio.run(run())
    assert len(outcome.devices) == 1
    assert [progress.total for progress in told][-1] == 2
    assert told[-1].done == 2
    assert [progress.done for progress in told] == sorted(progress.done for progress in told)
    assert any("bf16 on GPU 2" in progress.text() for progress in told)


# As a command -------------------------------------------------------------------------------------


def command(scenario: str, directory: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROGRAM), scenario, json.dumps({**PATIENT, **options})],
        env={**os.environ, **prepare(scenario, directory)},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS + 20,
        check=False,
    )


@pytest.mark.parametrize(
    ("scenario", "code"),
    [("h100-8", 0), ("idle", 0), ("ecc", 2), ("thermal", 2), ("all-zero", 3), ("no-library", 3)],
)
def test_quick_reads_the_driver_alone(builds: Path, scenario: str, code: int) -> None:
    done = command(scenario, builds, quick=True, format="json")
    assert done.returncode == code, done.stderr
    read = json.loads(done.stdout)
    assert read["exit_code"] == code
    assert {one["check"] for one in read["checks"]} <= {check.id for check in select(quick=True)}


def test_quick_on_a_driver_that_hangs_is_unknown(builds: Path, tmp_path: Path) -> None:
    hanging = tmp_path / "hanging.json"
    fault = {"call": "nvmlDeviceGetPowerUsage", "device": 1, "hang": True}
    content = {
        "title": "hangs",
        "description": "d",
        "expected": "STALE",
        "extends": "h100-8",
        "count": 2,
        "faults": [fault],
    }
    hanging.write_text(json.dumps(content))
    for seconds in (1.6, 6.0, 30.0):  # in so long it is not only slow, however busy the machine
        done = command(str(hanging), builds, quick=True, quick_seconds=seconds, format="nagios")
        if "not answering" in done.stdout:
            break
    assert done.returncode == 3
    assert done.stdout.startswith("TOPSMON UNKNOWN - ")
    assert "not answering" in done.stdout


def test_an_interrupt_reports_what_is_known(builds: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), "h100-8", json.dumps({**PATIENT, "progress": True})],
        env={**os.environ, **prepare("h100-8", builds), "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    told = b""
    while b"measuring" not in told and (byte := process.stderr.read(1)):
        told += byte
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    last = output.decode().splitlines()[-1]
    assert last.startswith("INTERRUPTED")
    assert "exit 130" in last
    assert b"interrupted" in output


def test_a_kept_verdict_answers_without_a_run(builds: Path, tmp_path: Path) -> None:
    kept = tmp_path / "verdicts" / "verdict.json"
    kept.parent.mkdir()
    options = {"quick": True, "cached": str(kept)}
    first = command("thermal", builds, format="json", **options)
    assert first.returncode == 2
    assert json.loads(kept.read_text()) == json.loads(first.stdout)
    again = command("thermal", builds, format="json", **options)
    assert again.returncode == 2
    new, old = json.loads(again.stdout), json.loads(first.stdout)
    assert (old.pop("cached"), old.pop("age_seconds")) == (False, None)
    assert new.pop("cached") is True
    assert new.pop("age_seconds") > 0
    assert new == old
    nagios = command("thermal", builds, format="nagios", **options)
    assert nagios.stdout.startswith("TOPSMON CRITICAL - SIMULATED thermal: cached, ")
    assert list(kept.parent.iterdir()) == [kept]


def test_wrong_usage(builds: Path) -> None:
    done = command("h100-8", builds, only=["bf17"])
    assert done.returncode == 64
    assert done.stderr.startswith("topsmon: --only: no check is called 'bf17'; there are: driver")
    done = command("h100-8", builds, quick=True, only=["bf16"])
    assert done.returncode == 64
    for quick in (True, False):
        done = command("h100-8", builds, devices=["17"], quick=quick)
        assert done.returncode == 64
        assert "--device: no device '17'" in done.stderr


@pytest.mark.timeout(600)
def test_this_cpu_is_checked_for_right_results() -> None:
    checks = select(["fp32", "correctness", "threads"])
    outcome = asyncio.run(
        Run(
            RunOptions(
                plan=functools.partial(plan, checks),
                devices=("cpu",),
                limit_seconds=500.0,
            )
        ).run()
    )
    results = judge(outcome.state, Moment(0.0, 0.0), checks, outcome.seen, outcome.devices)
    by_check = {result.check: result for result in results}
    assert outcome.devices == ("cpu",)
    assert by_check["correctness"].state == "PASS"
    rate = by_check["fp32"]
    assert rate.value is not None
    assert rate.value > 1e8
    # A processor gets no verdict on its rates; a disturbed one is invalid.
    assert rate.state == ("INVALID" if rate.unknown else "NO-VERDICT")


def test_a_run_of_a_scenario_without_a_late_fault_is_not_hastened(builds: Path) -> None:
    given = prepare("h100-8", builds)
    assert hasten.environment("h100-8", given, 1000.0) == (given, 1000.0)
    late, strike = hasten.environment("gpu-lost", {hasten.START: "1000.0"}, 1000.0)
    # Scenario time is the time since the start: 8 s of it have passed when the GPU is lost.
    assert strike - float(late[hasten.START]) == 8
    assert strike == 1000.0 + hasten.STRIKE_SECONDS
    # A scenario that is past its fault already is left as it is.
    past = {hasten.START: "900.0"}
    assert hasten.environment("gpu-lost", past, 1000.0) == (past, 908.0)
