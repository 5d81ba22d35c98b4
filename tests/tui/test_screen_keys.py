"""Keys: each does what the help says, at once, and says what it did."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from screen_demo import NOW, FakeSession, capped_finding, cpu_only, eight, fold, sample
from screen_text import OpenScreen, text_of

from topsmon.tui import dialogs
from topsmon.tui.app import TopsmonApp
from topsmon.units import PRECISIONS


def screen_text(app: TopsmonApp) -> str:
    return "\n".join(text_of(app))


@pytest.mark.parametrize("key", ["q", "ctrl+c", "ctrl+q"])
async def test_quit(open_screen: OpenScreen, key: str) -> None:
    session = FakeSession(eight(ticks=2))
    async with open_screen(session.state, session=session) as (app, pilot):
        await pilot.press(key)
    assert app.return_code == 0
    assert session.calls[0] == ("start",)
    assert session.calls[-1] == ("stop",)


@pytest.mark.parametrize("opened", ["question_mark", "enter", "B"])
@pytest.mark.parametrize("closed", ["escape", "q"])
async def test_dialogs_close(open_screen: OpenScreen, opened: str, closed: str) -> None:
    async with open_screen(eight(ticks=2)) as (app, pilot):
        await pilot.press(opened)
        assert len(app.screen_stack) == 2
        await pilot.press(closed)
        assert len(app.screen_stack) == 1


async def test_ctrl_c_leaves_from_a_dialog_too(open_screen: OpenScreen) -> None:
    session = FakeSession(eight(ticks=2))
    async with open_screen(session.state, session=session) as (app, pilot):
        await pilot.press("question_mark")
        await pilot.press("ctrl+c")
    assert app.return_code == 0
    assert session.calls[-1] == ("stop",)


async def test_help_names_every_key(open_screen: OpenScreen) -> None:
    async with open_screen(eight(ticks=2), size=(120, 60)) as (app, pilot):
        await pilot.press("question_mark")
        text = screen_text(app)
        for key, meaning in dialogs.HELP:
            assert key in text
            assert meaning in text
        assert "share of time in which any kernel ran" in text


def test_every_binding_is_in_the_help() -> None:
    names = {"question_mark": "", "plus": "+", "minus": "-", "space": "Space", "enter": "Enter"}
    names |= {"left_square_bracket": "[", "right_square_bracket": "]"}
    told = " ".join(key for key, _ in dialogs.HELP)
    for binding in TopsmonApp.BINDINGS:
        for key in binding.key.split(","):
            shown = names.get(key, key.replace("ctrl+", "Ctrl-"))
            assert shown.lower() in told.lower(), key


@pytest.mark.parametrize(("down", "up"), [("down", "up"), ("j", "k")])
async def test_devices_are_selected_in_order(open_screen: OpenScreen, down: str, up: str) -> None:
    async with open_screen(eight(ticks=2, count=3)) as (app, pilot):
        await pilot.press(down, down, up)
        assert app.view.selected == "GPU-00000001"
        await pilot.press(up, up)
        assert app.view.selected == "GPU-00000000"
        await pilot.press(down, down, down)
        assert app.view.selected == "GPU-00000002"


@pytest.mark.parametrize(
    ("key", "precision"), [("l", "fp8"), ("right", "fp8"), ("h", "fp16_acc16")]
)
async def test_the_precision_is_selected(open_screen: OpenScreen, key: str, precision: str) -> None:
    async with open_screen(eight(ticks=2)) as (app, pilot):
        assert app.view.precision == "bf16"
        await pilot.press(key)
        assert app.view.precision == precision
        await pilot.pause()
        label = PRECISIONS[precision].label
        assert re.search(rf"MHz +{label} +limited", screen_text(app))
        assert f"GPU 0 {label}, % of rated" in screen_text(app)


async def test_measure_and_stop(open_screen: OpenScreen) -> None:
    session = FakeSession(eight(ticks=2))
    async with open_screen(session.state, session=session) as (app, pilot):
        await pilot.press("j", "b")
        assert session.calls[-1] == ("benchmark", "GPU-00000001", True)
        await pilot.pause()
        assert "GPU 1: measuring half of the time, b for less" in screen_text(app)
        await pilot.press("b")
        assert session.calls[-1] == ("benchmark", "GPU-00000001", False)


async def test_choose_precisions(open_screen: OpenScreen) -> None:
    session = FakeSession(eight(ticks=2))
    async with open_screen(session.state, session=session) as (app, pilot):
        await pilot.press("B")
        assert "NVFP4, block-scaled" in screen_text(app)
        await pilot.press("space", "down", "space", "enter")
        assert session.precisions == tuple(PRECISIONS)[2:]
        await pilot.pause()
        assert len(app.screen_stack) == 1
        assert not re.search(r"FP64 ", screen_text(app))


async def test_leaving_the_choice_changes_nothing(open_screen: OpenScreen) -> None:
    session = FakeSession(eight(ticks=2))
    async with open_screen(session.state, session=session) as (_, pilot):
        await pilot.press("B", "space", "escape")
        assert session.precisions == tuple(PRECISIONS)
        assert not any(call[0] == "precisions" for call in session.calls)


async def test_pause_freezes_the_ages_and_goes_on(make_app: Callable[..., TopsmonApp]) -> None:
    session = FakeSession(eight(ticks=2))
    app = make_app(session.state, session=session)
    now = [NOW, 1_780_000_000.0]
    app._clock = lambda: (now[0], now[1])
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("space")
        assert session.calls[-1] == ("pause", True)
        now[0] += 600
        now[1] += 600
        app.redraw()
        await pilot.pause()
        assert " PAUSED " in text_of(app)[0]
        assert "paused: Space goes on" in text_of(app)[3]
        assert "10 min ago" not in screen_text(app)
        await pilot.press("space")
        assert session.calls[-1] == ("pause", False)
        await pilot.pause()
        assert " PAUSED " not in text_of(app)[0]
        assert "10 min ago" in screen_text(app)


async def test_the_interval_goes_in_steps(open_screen: OpenScreen) -> None:
    session = FakeSession(eight(ticks=2))
    async with open_screen(session.state, session=session) as (app, pilot):
        await pilot.press("plus")
        assert session.interval == 1.0
        await pilot.press("plus")
        await pilot.pause()
        assert "every 2 s" in text_of(app)[0]
        await pilot.press("minus", "minus", "minus", "minus", "minus", "minus", "minus")
        await pilot.pause()
        assert session.interval == 0.1
        assert "10 Hz" in text_of(app)[0]


async def test_theme_key_goes_through_all(open_screen: OpenScreen) -> None:
    async with open_screen(eight(ticks=2)) as (app, pilot):
        names = [theme.name for theme in app.loaded_themes.themes]
        seen = []
        for _ in names:
            await pilot.press("m")
            seen.append(app.theme)
        assert sorted(seen) == sorted(names)
        assert app.palette.style("text").bgcolor is not None


async def test_the_colours_follow_the_theme(open_screen: OpenScreen) -> None:
    async with open_screen(eight(ticks=2), theme="dusk") as (app, pilot):
        before = app.palette.style("text")
        app.theme = "daylight"
        await pilot.pause()
        assert app.palette.style("text") != before
        panel = app._panels["devices"]
        styles = {segment.style for segment in panel.render_line(3)}
        assert app.palette.style("text") in styles


async def test_details_give_sources_and_reasons(open_screen: OpenScreen) -> None:
    async with open_screen(cpu_only(), size=(120, 60)) as (app, pilot):
        await pilot.press("enter")
        text = screen_text(app)
        assert "AMD EPYC 7B13 64-Core Processor" in text
        assert "published: data sheet" in text
        assert re.search("power +N/A: no permission for RAPL", text)
        assert "invalid: 62% CPU" in text
        assert "2048×2048×2048" in text
        await pilot.press(*"jjjjjjjjjjjjjjjj")
        await pilot.pause()
        assert re.search("SM clock max +N/A: no cpufreq on this machine", screen_text(app))


async def test_details_show_the_findings_whole(open_screen: OpenScreen) -> None:
    async with open_screen(eight(ticks=2), (capped_finding(),), (80, 24)) as (app, pilot):
        await pilot.press("enter")
        text = screen_text(app)
        for part in ("342 W now", "power limit is set to 350 W", "sudo nvidia-smi -i 3 -pl 700"):
            assert part in text


async def test_snapshot(open_screen: OpenScreen, tmp_path: Path, monkeypatch) -> None:
    once = pytest.importorskip("topsmon.report.once")
    async with open_screen(eight(ticks=2), (capped_finding(),)) as (app, pilot):
        await pilot.press("S")
        for _ in range(3000):
            await pilot.pause(0.02)
            files = sorted((tmp_path / "state" / "topsmon" / "snapshots").glob("*"))
            if len(files) == 2 and app._notifications:
                break
        assert [file.suffix for file in files] == [".json", ".svg"]
        assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
        assert files[0].parent.stat().st_mode & 0o777 == 0o700
        saved = json.loads(files[0].read_bytes())
        assert saved.keys() == json.loads(once.to_json(app.view.state, (), NOW)).keys()
        assert len(saved["devices"]) == 8
        assert files[1].read_text(encoding="utf-8").startswith("<svg")
        assert any(str(files[0].with_suffix("")) in note.message for note in app._notifications)


async def test_a_snapshot_that_cannot_be_saved_is_told(
    open_screen: OpenScreen, tmp_path: Path
) -> None:
    pytest.importorskip("topsmon.report.once")
    (tmp_path / "state").write_text("a file where the directory should be")
    async with open_screen(eight(ticks=2)) as (app, pilot):
        await pilot.press("S")
        for _ in range(3000):
            await pilot.pause(0.02)
            if app._notifications:
                break
        assert any("snapshot not saved" in note.message for note in app._notifications)


async def test_the_palette_opens_and_finds_our_commands(open_screen: OpenScreen) -> None:
    async with open_screen(eight(ticks=2)) as (app, pilot):
        await pilot.press("ctrl+p")
        for _ in range(3000):
            await pilot.pause(0.02)
            if "Precisions" in screen_text(app):
                break
        assert "Precisions" in screen_text(app)


async def test_a_click_selects_a_device(open_screen: OpenScreen) -> None:
    for size in ((120, 40), (80, 24)):
        async with open_screen(eight(ticks=2), size=size) as (app, pilot):
            lines = text_of(app)
            target = next(y for y, line in enumerate(lines) if re.search(r" 4 ok", line))
            await pilot.click(offset=(20, target))
            assert app.view.selected == "GPU-00000004"
            head = next(y for y, line in enumerate(lines) if "memory GiB" in line)
            await pilot.click(offset=(20, head))
            assert app.view.selected == "GPU-00000004"


async def test_a_click_on_a_hint_does_it(open_screen: OpenScreen) -> None:
    async with open_screen(eight(ticks=2)) as (app, pilot):
        hints = text_of(app)[-1]
        await pilot.click(offset=(hints.index("help") + 1, 39))
        assert len(app.screen_stack) == 2


async def test_hints_fit_whole(open_screen: OpenScreen) -> None:
    async with open_screen(eight(ticks=2), size=(80, 24)) as (app, _):
        assert "…" not in text_of(app)[-1]


async def test_keys_without_a_device_do_nothing(open_screen: OpenScreen) -> None:
    async with open_screen(fold([])) as (app, pilot):
        await pilot.press("j", "k", "h", "l", "b", "enter", "space", "space", "1", "plus")
        await pilot.pause()
        assert "looking for devices" in text_of(app)[0]
        assert "the first samples are on their way" in text_of(app)[1]


async def test_an_exception_ends_the_screen_and_stops_the_session(
    make_app: Callable[..., TopsmonApp],
) -> None:
    session = FakeSession(eight(ticks=2))
    app = make_app(session.state, session=session)

    async def crash() -> None:
        async with app.run_test() as pilot:
            session.findings = lambda: 1 / 0
            app.call_later(app.redraw)
            await pilot.pause(0.2)

    with pytest.raises(ZeroDivisionError):
        await crash()
    assert app.return_code == 1
    assert ("stop",) in session.calls


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
async def test_signals_end_the_screen(open_screen: OpenScreen, number: signal.Signals) -> None:
    session = FakeSession(eight(ticks=2))
    async with open_screen(session.state, session=session) as (app, pilot):
        signal.raise_signal(number)
        await pilot.pause(0.05)
    assert app.return_code == 128 + number
    assert session.calls[-1] == ("stop",)


async def test_a_device_that_goes_away_loses_the_selection(open_screen: OpenScreen) -> None:
    state = eight(ticks=2)
    async with open_screen(state) as (app, pilot):
        await pilot.press("down", "down")
        del state.devices["GPU-00000002"]
        app.redraw()
        await pilot.pause()
        assert app.view.selected == "GPU-00000000"
        state.apply(sample("GPU-00000000"), NOW)
        app.redraw()


async def test_nothing_is_painted_under_a_dialog(open_screen: OpenScreen) -> None:
    state = eight(ticks=2)
    async with open_screen(state) as (app, pilot):
        await pilot.press("question_mark")
        state.apply(sample("GPU-00000004", power_watts=111.0), NOW)
        app.redraw()
        assert not app._panels["devices"]._repaint_regions
        await pilot.press("escape")
        await pilot.pause()
        assert "111/700" in screen_text(app)
