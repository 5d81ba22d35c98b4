"""A replay shows what was known live, from wherever one comes to a moment."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import START, UUIDS, WALL, at, fold, identities, plain_values, sample, stream

from topsmon import events
from topsmon.diagnosis import diagnose
from topsmon.recording import cursor as cursor_module
from topsmon.recording import index as index_module
from topsmon.recording.clock import Moment, after
from topsmon.recording.cursor import Cursor
from topsmon.recording.part import Part
from topsmon.recording.reader import RecordingReader
from topsmon.recording.replay import SPEEDS, ReplaySession

SECONDS = 60


def store(path: Path, found: list[events.AnyEvent]) -> Path:
    """Write events as the recorder does, a block each second and a frame each 10 s of them."""
    part = Part.create(path, compressed=path.name.endswith(".zst"))
    for event in found:
        part.append([events.encode(event)], (event.monotonic - START) * 6)
    part.close()
    return path


@pytest.fixture(scope="module", params=["a.topsmon.jsonl.zst", "a.jsonl"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store(tmp_path_factory.mktemp("recordings") / request.param, stream(SECONDS))


@pytest.fixture(autouse=True)
def _many_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursor_module, "CHECKPOINT_SECONDS", 2.0)


def opened(path: Path, **options) -> ReplaySession:
    reader = RecordingReader(path)
    return ReplaySession(reader, index_module.build(reader), **options)


def live(seconds: float):
    return fold(event for event in stream(SECONDS) if event.monotonic <= START + seconds)


def test_the_index_knows_how_long_it_is(path: Path) -> None:
    index = index_module.build(RecordingReader(path))
    assert index.begin == Moment(START, WALL)
    assert index.seconds == pytest.approx(59.02)
    assert index.lines == len(stream(SECONDS))
    assert index.wall(START + 30) == pytest.approx(WALL + 30)
    assert index.at_wall(WALL + 12.5) == pytest.approx(START + 12.5)
    assert not index.knows_findings


@pytest.mark.parametrize("seconds", [0.0, 0.15, 10.0, 29.9, 30.0, 30.1, 59.02])
def test_the_state_is_that_of_live_folding(path: Path, seconds: float) -> None:
    session = opened(path, at=START + seconds)
    assert plain_values(session.state) == plain_values(live(seconds))
    assert session.clock() == (pytest.approx(START + seconds), pytest.approx(WALL + seconds))
    assert session.findings() == diagnose(live(seconds), session.clock()[0])


@settings(max_examples=25, deadline=None)
@given(goals=st.lists(st.floats(0, SECONDS), min_size=1, max_size=8))
def test_going_back_and_forth_equals_going_straight(goals: list[float]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        reader = RecordingReader(store(Path(folder) / "a.jsonl.zst", stream(SECONDS)))
        cursor = Cursor(reader, START)
        cursor._spacing = 2.0
        for goal in goals:
            cursor.seek(START + goal)
            assert cursor.advance(START + goal)
            assert plain_values(cursor.state) == plain_values(live(goal)), goal


def test_going_back_starts_from_a_checkpoint(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not path.name.endswith(".zst"):
        pytest.skip("a short text has one entry")
    cursor = Cursor(RecordingReader(path), START)
    cursor.advance(START + SECONDS)
    folded = []
    monkeypatch.setattr(
        type(cursor.state), "apply", lambda self, event, now: folded.append(event.monotonic)
    )
    cursor.seek(START + 45)
    cursor.advance(START + 45)
    assert folded
    assert min(folded) > START + 30
    assert max(folded) <= START + 45


def test_checkpoints_stay_few(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursor_module, "MOST_CHECKPOINTS", 3)
    cursor = Cursor(RecordingReader(path), START)
    cursor.advance(START + SECONDS)
    assert len(cursor._checkpoints) <= 3
    cursor.seek(START + 50)
    cursor.advance(START + 50)
    assert plain_values(cursor.state) == plain_values(live(50))


def test_a_state_gone_back_to_looks_changed(path: Path) -> None:
    session = opened(path, at=START + 40)
    before = session.state.version
    session.seek(-20)
    session.settle()
    assert session.state.version != before
    assert session.progress.position == pytest.approx(20)


def test_it_stays_within_the_recording(path: Path) -> None:
    session = opened(path)
    session.seek(-100)
    session.settle()
    assert session.progress.position == 0
    session.seek(1e9)
    session.settle()
    assert session.at_end
    assert session.progress.position == pytest.approx(session.progress.duration)
    assert session.progress.message == "the end"


def test_speeds() -> None:
    assert list(SPEEDS) == sorted(SPEEDS)


def test_speed_goes_in_steps(path: Path) -> None:
    session = opened(path, speed=7.0)
    session.change_speed(1)
    assert session.speed == 10.0
    session.change_speed(-1)
    session.change_speed(-1)
    assert session.speed == 2.0
    session.set_speed(SPEEDS[-1])
    session.change_speed(1)
    assert session.speed == SPEEDS[-1]


async def until(session: ReplaySession, reached) -> None:
    deadline = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < deadline, session.progress
        await asyncio.sleep(0.005)


async def test_it_plays_to_the_end_and_from_the_beginning_again(path: Path) -> None:
    session = opened(path, speed=600.0)
    await session.start()
    await until(session, lambda: session.at_end)
    assert plain_values(session.state) == plain_values(live(SECONDS))
    session.set_speed(1.0)
    session.pause(False)
    await until(session, lambda: session.progress.position < 30)
    await session.stop()


async def test_it_stands_still_while_paused(path: Path) -> None:
    session = opened(path, speed=600.0)
    session.pause(True)
    await session.start()
    await asyncio.sleep(0.3)
    assert session.progress.position == 0
    session.seek(12)
    await until(session, lambda: session.progress.position >= 12)
    assert session.progress.position == 12
    await session.stop()


async def test_the_next_finding_is_searched_where_none_was_noted(path: Path) -> None:
    """GPU 1 is lost at 30 s; a stream notes no findings."""
    session = opened(path, at=START + 25)
    assert not any(one.word == "LOST" for one in session.findings())
    await session.start()
    assert session.next_finding()
    await until(session, lambda: session.paused)
    await session.stop()
    assert any(one.word == "LOST" for one in diagnose(session.state, session.clock()[0]))
    assert 30 <= session.progress.position <= 31


def test_the_next_finding_is_known_where_it_was_noted(tmp_path: Path) -> None:
    hello = events.Hello(**at(-1), version="1", schema=1, role="recording", pid=1)

    def finding(seconds: float, code: str, *, ended: bool = False) -> events.Finding:
        return events.Finding(
            **at(seconds), code=code, severity="warn", word="SLOW", title=code, ended=ended
        )

    noted = [
        finding(10, "a"),
        finding(15, "a"),  # a new file tells again what lasts
        finding(20, "a", ended=True),
        finding(40, "a"),
        finding(50, "b"),
    ]
    found = sorted([hello, *stream(SECONDS), *noted], key=lambda event: event.monotonic)
    session = opened(store(tmp_path / "a.jsonl", found))
    assert session.index.knows_findings
    reached = []
    while session.next_finding():
        session.settle()
        reached.append(session.clock()[0] - START)
    assert reached == [10, 40, 50]
    assert session.paused


def test_nothing_can_be_measured_in_a_replay(path: Path) -> None:
    session = opened(path, at=START + 30)
    session.benchmark(None, True)
    assert not session.benchmarking(UUIDS[0])
    assert "replay" in (session.torch_problem or "")


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (events.HostSample(time=110, monotonic=20, source=""), (20, 110)),
        (events.HostSample(time=95, monotonic=5, source=""), (10, 100)),  # late
        (events.HostSample(time=101, monotonic=1e9, source=""), (10, 100)),  # cannot be
        (events.HostSample(time=8000, monotonic=7910, source=""), (7910, 8000)),  # a long pause
    ],
)
def test_the_clock_goes_on_and_believes_no_nonsense(
    event: events.HostSample, expected: tuple[float, float]
) -> None:
    assert after(Moment(10, 100), event) == expected


def test_rates_of_an_earlier_session_do_not_move_the_clock(tmp_path: Path) -> None:
    remembered = events.RateMeasured(
        time=1.0,
        monotonic=START + 500,
        source="a",
        device=UUIDS[0],
        precision="bf16",
        rate_ops_per_second=5e14,
        earlier_session=True,
    )
    found = [*identities(), remembered, sample(1, UUIDS[0])]
    session = opened(store(tmp_path / "a.jsonl", found))
    assert session.index.seconds == 1
    session.seek(1)
    session.settle()
    rates = session.state.devices[UUIDS[0]].rates["bf16"]
    assert rates.is_remembered
    assert rates.latest is None


def test_the_wall_clock_may_be_set_meanwhile(tmp_path: Path) -> None:
    later = [
        events.HostSample(time=WALL + 3600 + second, monotonic=START + second, source="a")
        for second in (11, 12)
    ]
    index = index_module.build(RecordingReader(store(tmp_path / "a.jsonl", [*stream(10), *later])))
    assert index.wall(START + 5) == pytest.approx(WALL + 5)
    assert index.wall(START + 12) == pytest.approx(WALL + 3612)
    assert index.at_wall(WALL + 3611.5) == pytest.approx(START + 11.5)
