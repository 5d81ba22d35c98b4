"""Every scenario: what the live screen says, what one snapshot says, findings, exit code.

The expectations are data: scenario_table.toml beside this file.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from watch_scenario import cards, told

from topsmon.diagnosis import SEVERITIES, WORDS, diagnose
from topsmon.session import Session, SessionOptions
from topsmon.simulated import SCENARIOS, prepare, scenario, table

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = pytest.mark.real

FOLDER = Path(__file__).parent
TABLE: dict[str, dict[str, Any]] = tomllib.loads((FOLDER / "scenario_table.toml").read_text())
REAL = [name for name in TABLE if TABLE[name].get("real")]
WATCHED = [name for name in TABLE if not TABLE[name].get("real")]
WATCH_SECONDS = 20
HELD_SECONDS = 4.0
"""Scenario time stands still here until every GPU was read: no fault of a real one is missed."""
STARTED_SECONDS = 6.0
"""After so long it goes on without."""
QUIET_SECONDS = 3.0
"""For so long a scenario in which nothing may be found is watched."""
PATIENCE_SECONDS = 30.0
AT_ONCE = 6
SNAPSHOTS_AT_ONCE = 2


class Seen(NamedTuple):
    """Findings by what was told of them: severity and word; the rows of the GPUs by index."""

    words: dict[str, list[str]]
    cards: dict[str, dict[str, str]]


class Snapshot(NamedTuple):
    document: dict[str, Any]
    exit_code: int


@dataclass(frozen=True, repr=False)
class Everything:
    seen: dict[str, Seen]
    snapshots: dict[str, Snapshot]
    logs: dict[str, Path]
    """Of the driver's calls, by the scenarios that are watched through the real poller."""


def expected_live(name: str) -> list[str]:
    row = TABLE[name]
    return list(row.get("live", row.get("once", [])))


# One snapshot -------------------------------------------------------------------------------------


def take_snapshot(name: str, builds: Path, environment: dict[str, str]) -> Snapshot:
    done = subprocess.run(
        [sys.executable, "-m", "topsmon", "--once", "--json"],
        env={**environment, **prepare(name, builds, one_look=True)},
        capture_output=True,
        timeout=60,
        check=False,
    )
    try:
        return Snapshot(json.loads(done.stdout), done.returncode)
    except ValueError:
        raise AssertionError(f"{name}: {done.returncode} {done.stderr.decode()}") from None


# The live screen ----------------------------------------------------------------------------------


def watch_all(
    builds: Path, folder: Path, environment: dict[str, str]
) -> tuple[dict[str, Seen], dict[str, Snapshot]]:
    """Every scenario that can be watched without time passing; and a snapshot of each."""
    found, taken = {}, {}
    with subprocess.Popen(
        [sys.executable, str(FOLDER / "watch_scenario.py")],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:

        def asked(variables: dict[str, str], place: Path, seconds: int | None) -> int:
            assert child.stdin is not None
            assert child.stdout is not None
            request = {"variables": variables, "folder": str(place), "seconds": seconds}
            child.stdin.write(f"{json.dumps(request)}\n")
            child.stdin.flush()
            return int(child.stdout.readline())

        for name in WATCHED:
            place = folder / name
            place.mkdir()
            table.write(scenario.load(name), place / "table")
            variables = {
                **prepare(name, builds),
                "TOPSMON_SIMULATED_TABLE": str(place / "table"),
                "TOPSMON_SIMULATED_CLOCK": str(place / "clock"),
                "TOPSMON_SIMULATED_LOG": str(place / "log"),
            }
            code = asked(variables, place, WATCH_SECONDS)
            assert code == 0, f"{name}: {(place / 'errors').read_text()}"
            found[name] = Seen(**json.loads((place / "seen.json").read_text()))
            code = asked(prepare(name, builds, one_look=True), place, None)
            document = (place / "once.json").read_text()
            assert document, f"{name}: {code} {(place / 'errors').read_text()}"
            taken[name] = Snapshot(json.loads(document), code)
        assert child.stdin is not None
        child.stdin.close()
    return found, taken


async def watch_real(name: str, builds: Path, folder: Path) -> Seen:
    """The real session, until what is expected was found (where nothing is: for a while)."""
    clock = folder / "clock"
    measures = TABLE[name]["real"] == "benchmarks"
    start = 0.0 if measures else HELD_SECONDS
    table.set_clock(clock, start)
    environment = {
        **prepare(name, builds),
        "TOPSMON_SIMULATED_CLOCK": str(clock),
        "TOPSMON_SIMULATED_LOG": str(folder / "log"),
    }
    session = Session(
        SessionOptions(interval=0.3, simulated=name, environment=environment, benchmarks=measures)
    )
    words: dict[str, list[str]] = {}
    shown: dict[str, dict[str, str]] = {}
    await session.start()
    began = time.monotonic()
    started: float | None = None
    try:
        while time.monotonic() - began < PATIENCE_SECONDS:
            await asyncio.sleep(0.1)
            now = time.monotonic()
            if started is None and (is_read(session) or now - began > STARTED_SECONDS):
                started = now
            if started is not None:
                table.set_clock(clock, start + now - started)
            findings = diagnose(session.state, now)
            for finding in findings:
                if finding.device != "cpu":
                    words.setdefault(told(session.state, finding), [finding.severity, finding.word])
            shown = cards(session.state, findings, now)
            if is_complete(name, words, shown) and (words or now - began > QUIET_SECONDS):
                break
        return Seen(words, shown)
    finally:
        await session.stop()


def is_read(session: Session) -> bool:
    gpus = list(session.state.gpus())
    return bool(session.state.problems) or (
        bool(gpus) and all(gpu.sample is not None or gpu.condition != "ok" for gpu in gpus)
    )


def is_complete(name: str, words: dict[str, list[str]], shown: dict[str, dict[str, str]]) -> bool:
    rows = TABLE[name].get("rows", {})
    return set(expected_live(name)) <= set(words) and all(
        shown.get(index, {}).get("state") == row["state"] for index, row in rows.items()
    )


def watch_all_real(builds: Path, folder: Path) -> dict[str, Seen]:
    for name in REAL:
        (folder / name).mkdir()

    async def everything() -> dict[str, Seen]:
        places = asyncio.Semaphore(AT_ONCE)

        async def one(name: str) -> tuple[str, Seen]:
            async with places:
                return name, await watch_real(name, builds, folder / name)

        return dict(await asyncio.gather(*(one(name) for name in REAL)))

    return asyncio.run(everything())


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory, builds: Path) -> Iterator[Everything]:
    """All scenarios, once, at the same time: most of them only wait.

    A snapshot of a driver that does not work as it should is taken by a process of its own.
    """
    folder = tmp_path_factory.mktemp("scenarios")
    homes = {name: str(folder) for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR")}
    environment = {**os.environ, **homes}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    with ThreadPoolExecutor(SNAPSHOTS_AT_ONCE + 1) as pool:
        real = pool.submit(watch_all_real, builds, folder)
        taken = {name: pool.submit(take_snapshot, name, builds, environment) for name in REAL}
        watched, snapshots = watch_all(builds, folder, environment)
        snapshots |= {name: future.result() for name, future in taken.items()}
        logs = {name: folder / name / "log" for name in REAL}
        yield Everything({**watched, **real.result()}, snapshots, logs)


# What is said -------------------------------------------------------------------------------------


def test_the_table_has_every_scenario() -> None:
    assert set(TABLE) == set(SCENARIOS)


@pytest.mark.parametrize("name", TABLE)
def test_the_live_screen(name: str, everything: Everything) -> None:
    seen = everything.seen[name]
    passing = set(TABLE[name].get("passing", []))
    if name in REAL:
        # Where this machine is too busy to keep up, samples come late.
        passing |= {told for told in seen.words if told.endswith("samples-stale")}
    expected = set(expected_live(name))
    assert set(seen.words) - (passing - expected) == expected
    for index, row in TABLE[name].get("rows", {}).items():
        card = seen.cards[index]
        assert {head: card[head] for head in row} == row


@pytest.mark.parametrize("name", TABLE)
def test_the_worst_word(name: str, everything: Everything) -> None:
    words = everything.seen[name].words
    found = [words[one] for one in words if one in expected_live(name)]
    worst = min(
        found, key=lambda one: (SEVERITIES.index(one[0]), WORDS.index(one[1])), default=("", "ok")
    )
    assert worst[1] == SCENARIOS[name].expected


@pytest.mark.parametrize("name", TABLE)
def test_one_snapshot(name: str, everything: Everything) -> None:
    document, exit_code = everything.snapshots[name]
    labels = {device["device"]: device["label"] for device in document["devices"]}
    assert document["simulated"] == name
    # The CPU is the real one of this machine, on which anything may be going on.
    told_of = [one for one in document["findings"] if one["device"] != "cpu"]
    assert [
        f"{labels[one['device']]} {one['code']}" if one["device"] else one["code"]
        for one in told_of
    ] == TABLE[name].get("once", [])
    severities = {one["severity"] for one in document["findings"]}
    assert exit_code == (2 if "fail" in severities else 1 if "warn" in severities else 0)
    own = {one["severity"] for one in told_of}
    assert TABLE[name].get("exit", 0) == (2 if "fail" in own else 1 if "warn" in own else 0)
    for index, fields in TABLE[name].get("reads", {}).items():
        device = next(one for one in document["devices"] if one["label"] == f"GPU {index}")
        for field, wanted in fields.items():
            check_reading(device["sample"], field, wanted)


def check_reading(sample: dict[str, Any], field: str, wanted: object) -> None:
    if isinstance(wanted, str) and wanted.startswith("N/A: "):
        assert sample[field] is None
        assert wanted.removeprefix("N/A: ") in sample["unavailable"][field]
    else:
        assert sample[field] == wanted, field


def test_a_gpu_that_sleeps_is_not_woken(
    everything: Everything, builds: Path, tmp_path: Path
) -> None:
    """Nobody has called the driver: neither the poller of a screen nor a snapshot."""
    assert everything.logs["gpu-lost"].exists()
    assert not everything.logs["asleep"].exists()
    environment = {**os.environ, **prepare("asleep", builds)}
    environment["TOPSMON_SIMULATED_LOG"] = str(tmp_path / "log")
    subprocess.run(
        [sys.executable, "-m", "topsmon", "--once", "--json"],
        env=environment, capture_output=True, timeout=60, check=True,
    )  # fmt: skip
    assert not (tmp_path / "log").exists()
