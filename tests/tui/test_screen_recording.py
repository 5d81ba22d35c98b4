"""The key R records, and the screen of a recording moves in time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from screen_demo import FakeSession, capped_finding, eight
from screen_text import OpenScreen, text_of
from textual.pilot import Pilot

from topsmon import events
from topsmon.recording import index as index_module
from topsmon.recording.reader import RecordingReader
from topsmon.recording.replay import ReplaySession
from topsmon.tui import dialogs
from topsmon.tui.app import TopsmonApp
from topsmon.tui.options import ScreenOptions
from topsmon.tui.replay_app import ReplayApp

SECONDS = 100
BEGIN, WALL = 1000.0, 1_780_000_000.0


def screen_text(app: TopsmonApp) -> str:
    return "\n".join(text_of(app))


async def test_r_records_and_ends(open_screen: OpenScreen, tmp_path: Path) -> None:
    session = FakeSession(eight(ticks=2), (capped_finding(),))
    async with open_screen(session.state, session=session) as (app, pilot):
        assert "REC" not in text_of(app)[0]
        await pilot.press("R")
        assert " REC " in text_of(app)[0]
        assert len(session.listeners) == 1
        sample = next(iter(session.state.devices.values())).sample
        assert sample is not None
        session.listeners[0](sample)
        await pilot.press("R")
        await pilot.pause()
        assert "REC" not in text_of(app)[0]
        assert session.listeners == []
    (path,) = (tmp_path / "state" / "topsmon" / "recordings").iterdir()
    found = list(RecordingReader(path).read())
    assert found[-2] == sample or sample in found
    told = [event for event in found if isinstance(event, events.Finding)]
    assert [one.code for one in told] == [capped_finding().code]
    assert isinstance(found[-1], events.Recording)
    assert found[-1].ended


async def test_leaving_ends_the_recording(open_screen: OpenScreen, tmp_path: Path) -> None:
    async with open_screen(eight(ticks=2)) as (_, pilot):
        await pilot.press("R")
        await pilot.press("q")
    (path,) = (tmp_path / "state" / "topsmon" / "recordings").iterdir()
    reader = RecordingReader(path)
    list(reader.read())
    assert not reader.lost.cut


async def test_a_folder_that_cannot_be_written_is_said(
    open_screen: OpenScreen, tmp_path: Path
) -> None:
    (tmp_path / "state").write_text("no folder")
    async with open_screen(eight(ticks=2), size=(160, 40)) as (app, pilot):
        await pilot.press("R")
        await pilot.pause()
        assert "REC" not in text_of(app)[0]
        assert "not recording: " in screen_text(app)


async def test_a_full_disk_is_said_once(open_screen: OpenScreen) -> None:
    async with open_screen(eight(ticks=2), size=(160, 40)) as (app, pilot):
        await pilot.press("R")
        recorder = app._tape._recorder
        assert recorder is not None
        recorder.writer._report("no room: No space left on device")
        said = app._tape.look([])
        assert said is not None
        assert "no room: No space left on device; trying again" in said[0]
        assert app._tape.look([]) is None
        app.redraw()
        await pilot.pause()
        assert " REC STUCK " in text_of(app)[0]


def events_of_a_machine() -> list[events.AnyEvent]:
    stamp = {"time": WALL, "monotonic": BEGIN, "source": "host"}
    found: list[events.AnyEvent] = [
        events.Hello(**stamp, version="0.1.0", schema=1, role="recording", pid=1),
        events.Host(**stamp, hostname="host", system="Linux"),
        events.Device(**stamp, device="GPU-0", kind="gpu", index=0, name="NVIDIA H100"),
    ]
    for second in range(SECONDS + 1):
        stamp = {"time": WALL + second, "monotonic": BEGIN + second, "source": "host"}
        if second == 60:
            found += [
                events.DeviceStatus(
                    **stamp, device="GPU-0", condition="lost", since=BEGIN + second
                ),
                events.Finding(
                    **stamp, code="device-lost", severity="fail", word="LOST", title="t",
                    device="GPU-0",
                ),
            ]  # fmt: skip
        found.append(
            events.DeviceSample(
                **stamp, device="GPU-0", busy_ratio=second / 100, power_watts=100.0 + second
            )
        )
    return found


@pytest.fixture
def make_replay(tmp_path: Path) -> Callable[..., ReplayApp]:
    def make(**options: float) -> ReplayApp:
        path = tmp_path / "r.jsonl"
        path.write_bytes(b"".join(map(events.encode, events_of_a_machine())))
        reader = RecordingReader(path)
        session = ReplaySession(reader, index_module.build(reader), **options)
        session.paused = True
        return ReplayApp(session, ScreenOptions())

    return make


async def at_rest(app: ReplayApp, pilot: Pilot) -> list[str]:
    """The screen once the replay stands where it is to stand."""
    for _ in range(3000):
        if app.replayed.progress.message != "reading":
            break
        await pilot.pause(0.02)
    app.redraw()
    await pilot.pause()
    return text_of(app)


async def is_shown(app: ReplayApp, pilot: Pilot, words: str, line: int | None = None) -> bool:
    """Wait until these words are on the screen, or in one of its lines."""
    for _ in range(3000):
        app.redraw()
        await pilot.pause(0.02)
        if words in (screen_text(app) if line is None else text_of(app)[line]):
            return True
    return False


async def test_it_is_labelled_and_has_a_position_bar(
    make_replay: Callable[..., ReplayApp],
) -> None:
    app = make_replay(at=BEGIN + 50)
    async with app.run_test(size=(120, 40)) as pilot:
        lines = await at_rest(app, pilot)
        assert " REPLAY " in lines[0]
        assert " PAUSED " in lines[0]
        assert "00:50 " in lines[3]
        assert " 01:40" in lines[3]
        bar = lines[3][lines[3].index("00:50 ") + 6 : lines[3].index(" 01:40")]
        assert bar.count("━") == pytest.approx(len(bar) / 2, abs=1)
        assert "150" in "\n".join(lines)


async def test_keys_move_in_time(make_replay: Callable[..., ReplayApp]) -> None:
    app = make_replay(at=BEGIN + 50)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("right")
        assert "01:00 " in (await at_rest(app, pilot))[3]
        await pilot.press("left", "left", "left")
        assert "00:30 " in (await at_rest(app, pilot))[3]
        await pilot.press("end")
        assert "the end" in (await at_rest(app, pilot))[3]
        await pilot.press("home")
        assert "00:00 " in (await at_rest(app, pilot))[3]


async def test_keys_change_the_speed(make_replay: Callable[..., ReplayApp]) -> None:
    app = make_replay()
    async with app.run_test(size=(120, 40)) as pilot:
        assert "×1 " in (await at_rest(app, pilot))[3]
        await pilot.press("greater_than_sign", "full_stop")
        assert "×5 " in (await at_rest(app, pilot))[3]
        await pilot.press("less_than_sign", "comma", "comma")
        assert "×0.5 " in (await at_rest(app, pilot))[3]


async def test_n_goes_to_the_next_finding(make_replay: Callable[..., ReplayApp]) -> None:
    app = make_replay()
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        assert "LOST" not in "\n".join(await at_rest(app, pilot))
        await pilot.press("n")
        lines = await at_rest(app, pilot)
        assert "01:00 " in lines[3]
        assert await is_shown(app, pilot, " LOST ", line=1)
        await pilot.press("n")
        assert await is_shown(app, pilot, "no finding begins after this")


async def test_space_plays(make_replay: Callable[..., ReplayApp]) -> None:
    app = make_replay(speed=500.0)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("space")
        for _ in range(3000):
            await pilot.pause(0.02)
            if app.replayed.at_end:
                break
        assert app.replayed.at_end
        assert " PAUSED " not in (await at_rest(app, pilot))[0]


async def test_what_is_for_running_machines_does_nothing(
    make_replay: Callable[..., ReplayApp], tmp_path: Path
) -> None:
    app = make_replay(at=BEGIN + 10)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("b", "R", "plus", "minus")
        lines = await at_rest(app, pilot)
        assert "REC" not in lines[0].replace("RECORD", "")
        assert not (tmp_path / "state").exists()
        assert "measure" not in lines[-1]


async def test_the_help_names_the_keys_of_a_replay(
    make_replay: Callable[..., ReplayApp],
) -> None:
    app = make_replay()
    async with app.run_test(size=(120, 70)) as pilot:
        await pilot.press("question_mark")
        await pilot.pause()
        text = screen_text(app)
        for key, meaning in dialogs.REPLAY_KEYS:
            assert key in text
            assert meaning in text
        assert "pause sampling" not in text
        assert "send the process a signal" not in text
        assert "longer or shorter interval" not in text


@pytest.mark.parametrize("size", [(200, 60), (80, 24), (59, 24), (40, 10), (30, 5)])
async def test_it_fits_every_size(
    make_replay: Callable[..., ReplayApp], size: tuple[int, int]
) -> None:
    app = make_replay(at=BEGIN + 50)
    async with app.run_test(size=size) as pilot:
        lines = await at_rest(app, pilot)
        assert max(len(line) for line in lines) <= size[0]
