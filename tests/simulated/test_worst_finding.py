"""Every scenario through the real poller and probers: does the screen get the right worst word?"""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from topsmon.diagnosis import device_word, diagnose
from topsmon.session import Session, SessionOptions
from topsmon.simulated import SCENARIOS, SimulationError, prepare

pytestmark = pytest.mark.real

AHEAD_SECONDS = 4.0
"""Scenario time at the start, so that faults of the 6th second need two seconds of waiting."""
QUIET_SECONDS = 4.0
PATIENCE_SECONDS = 20.0
ATTEMPTS = 3
"""A fault of the 6th second that lasts 0.4 s is missed where the machine was too busy to look."""
AT_ONCE = 3
SEVERITY = ("ok", "note", "SHARED", "N/A", "FULL", "SLOW", "HOT", "STALE", "LOST", "FAIL")
STILL = [
    "a100",
    "asleep",
    "b200",
    "counters-wrap",
    "early-535",
    "every-signal",
    "fp32-bound",
    "h100-loaded",
    "host-pids",
    "jetson",
    "jetson-nonsense",
    "latency-bound",
    "memory-bound",
    "mig-7",
    "mps",
    "out-of-range",
    "process-table-grows",
    "starved",
    "tensor-bound",
    "timestamps-jump",
    "utilisation-nonsense",
    "vgpu",
    "visible-devices",
    "visible-mig",
    "wsl2",
]
"""Scenarios whose word a single look tells: it rests on no change and on nothing measured."""
WATCHED = [name for name in SCENARIOS if name not in STILL]


def worst_word(session: Session) -> str:
    """The word of the worst finding: of a GPU, or of the machine.

    The CPU is the real one of this machine, on which anything may be going on.
    """
    found = diagnose(session.state, time.monotonic())
    findings = [finding for finding in found if finding.device != "cpu"]
    words = ["ok", *(device_word(device, findings) for device in session.state.gpus())]
    words += [finding.word for finding in findings]
    return max(words, key=SEVERITY.index)


async def watch(name: str, directory: Path) -> str:
    """Return a scenario's worst word, from a fresh start again where it was not the expected."""
    word = ""
    for _ in range(ATTEMPTS):
        word = await watch_once(name, directory)
        if word == SCENARIOS[name].expected:
            break
    return word


async def watch_once(name: str, directory: Path) -> str:
    """Run a scenario until its expected word shows (a quiet one: for a while)."""
    expected = SCENARIOS[name].expected
    environment = dict(prepare(name, directory))
    start = float(environment["TOPSMON_SIMULATED_START"]) - AHEAD_SECONDS
    environment["TOPSMON_SIMULATED_START"] = repr(start)
    session = Session(SessionOptions(interval=0.3, simulated=name, environment=environment))
    await session.start()
    try:
        began = time.monotonic()
        word = ""
        while time.monotonic() - began < PATIENCE_SECONDS:
            await asyncio.sleep(0.2)
            waited = time.monotonic() - began
            word = worst_word(session)
            measured = any(device.sample is not None for device in session.state.ordered())
            if (
                word == expected
                and measured
                and (word not in {"ok", "note"} or waited > QUIET_SECONDS)
            ):
                break
        return word
    finally:
        await session.stop()


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    directory = tmp_path_factory.mktemp("driver")
    try:
        prepare("idle", directory)
    except SimulationError as error:
        pytest.skip(str(error))

    async def watch_all() -> dict[str, str]:
        places = asyncio.Semaphore(AT_ONCE)

        async def one(name: str) -> tuple[str, str]:
            async with places:
                return name, await watch(name, directory)

        return dict(await asyncio.gather(*(one(name) for name in WATCHED)))

    return asyncio.run(watch_all())


@pytest.mark.parametrize("name", WATCHED)
def test_the_worst_word(name: str, words: dict[str, str]) -> None:
    assert words[name] == SCENARIOS[name].expected


@pytest.mark.parametrize("name", STILL)
def test_the_worst_word_of_a_single_look(name: str, builds: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "topsmon", "--once", "--json"],
        env={**os.environ, **prepare(name, builds)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert report["simulated"] == name
    found = [finding["word"] for finding in report["findings"] if finding["device"] != "cpu"]
    assert max(["ok", *found], key=SEVERITY.index) == SCENARIOS[name].expected
