"""The checks' tab: verdicts over what is measured so far, and the way through them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from screen_demo import NOW, WALL, FakeSession, capped_finding, cpu_only, eight, rate, stamp
from screen_text import OpenScreen, resize, text_of
from test_screen_live import SIZES, line_with

from topsmon import checks, events
from topsmon.state import State
from topsmon.tui.app import TopsmonApp
from topsmon.tui.checks_view import progress, summary, verdict_lines
from topsmon.tui.judged import Judged


def result(check: str = "bf16", state: events.CheckState = "PASS", **changes) -> events.CheckResult:
    values = {"device": "cpu", "label": "CPU", "title": check.upper()}
    return events.CheckResult(**stamp(), check=check, state=state, **{**values, **changes})


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_the_worst_verdict_of_the_device_with_its_grounds(
    open_screen: OpenScreen, size: tuple[int, int]
) -> None:
    async with open_screen(eight(), (capped_finding(),), size) as (app, pilot):
        await pilot.press("4")
        await pilot.pause()
        lines = text_of(app)
        assert line_with(lines, "checks", "1 FAIL, 1 WARN", "not measured yet")
        assert line_with(lines, "▸GPU 3", "FAIL", "against equal GPUs", "within 5%")
        assert line_with(lines, "because", "power limit is set to 350 W")
        assert line_with(lines, "do  ", "Restore the default limit")
        assert line_with(lines, "GPU 3:", "checks have an answer", "b measures its rates now")
        assert line_with(lines, "topsmon check", "all of it at once")
        assert line_with(lines, "checks above", "below")


async def test_keys_move_among_checks_and_devices(open_screen: OpenScreen) -> None:
    async with open_screen(eight(ticks=2), (capped_finding(),)) as (app, pilot):
        await pilot.press("4")
        precision = app.view.precision

        def here() -> tuple[str | None, str]:
            found = app.view.checks[app.view.check]
            return found.label, found.check

        assert here() == ("GPU 3", "peers")
        await pilot.press("up")
        assert here() == ("GPU 3", "correctness")
        await pilot.press("down", "down")
        assert here() == ("GPU 4", "device")
        assert app.view.selected == "GPU-00000004"
        await pilot.press("left")
        assert here() == ("GPU 3", "device")
        await pilot.press("l", "l")
        assert here() == ("GPU 5", "device")
        await pilot.press(*["h"] * 8)
        assert here() == ("host", "driver")
        await pilot.press("k")
        assert here() == ("host", "driver")
        assert app.view.precision == precision


async def test_enter_shows_a_verdict_whole(open_screen: OpenScreen) -> None:
    async with open_screen(eight(), (capped_finding(),), (80, 24)) as (app, pilot):
        await pilot.press("4")
        await pilot.pause()
        assert line_with(text_of(app), "more lines: Enter")
        await pilot.press("enter")
        await pilot.pause()
        text = "\n".join(text_of(app))
        assert "GPU 3  against equal GPUs: FAIL" in text
        assert "sudo nvidia-smi -i 3 -pl 700" in text
        assert "held 1155 MHz" in text
        assert "basis" in text


async def test_a_cpu_has_its_own_checks(open_screen: OpenScreen) -> None:
    async with open_screen(cpu_only(), size=(120, 40)) as (app, pilot):
        await pilot.press("4")
        await pilot.pause()
        lines = text_of(app)
        assert line_with(lines, "▸CPU", "INVALID", "FP32 matrix product", "118 GFLOPS")
        assert line_with(lines, "CPU", "EMULATED", "BF16 matrix product", "4.00 GFLOPS")
        assert line_with(lines, "CPU", "UNSUPPORTED", "FP8 matrix product", "no FP8 on CPUs")
        assert line_with(lines, "memory bandwidth, copy", "not measured yet")


async def test_b_is_not_offered_where_it_cannot_work(open_screen: OpenScreen) -> None:
    session = FakeSession(cpu_only())
    session.torch_problem = "no Python with torch found"
    async with open_screen(session.state, session=session) as (app, pilot):
        await pilot.press("4")
        await pilot.pause()
        assert line_with(text_of(app), "CPU:", "checks have an answer")
        assert "b measures" not in " ".join(text_of(app))


async def test_a_new_rate_is_judged_a_second_later_and_not_before(
    make_app: Callable[..., TopsmonApp], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []
    judge = checks.judge

    def counted(*arguments):
        runs.append(arguments)
        return judge(*arguments)

    monkeypatch.setattr(checks, "judge", counted)
    state = cpu_only()
    app = make_app(state)
    now = [NOW]
    app._clock = lambda: (now[0], WALL + now[0] - NOW)
    async with app.run_test(size=(120, 40)) as pilot:
        app.redraw()
        assert not runs
        await pilot.press("4")
        assert len(runs) == 1
        state.apply(rate("cpu", "fp16", 3e9), NOW)
        now[0] += 0.5
        app.redraw()
        assert len(runs) == 1
        now[0] += 0.5
        app.redraw()
        assert len(runs) == 2
        now[0] += 5
        app.redraw()
        assert len(runs) == 2
        await pilot.pause()
        assert line_with(text_of(app), "FP16 matrix product", "3.00 GFLOPS")


async def test_every_size_draws(open_screen: OpenScreen) -> None:
    async with open_screen(eight(ticks=2), (capped_finding(),)) as (app, pilot):
        await pilot.press("4")
        for width, height in SIZES:
            await resize(app, pilot, width, height)
            await pilot.pause()
            lines = text_of(app)
            assert len(lines) == height
            if width >= 40 and height >= 10:
                assert line_with(lines, "▸GPU 3")


async def test_without_a_device_the_machine_is_judged(open_screen: OpenScreen) -> None:
    async with open_screen(State()) as (app, pilot):
        await pilot.press("4", "j", "l", "b")
        await pilot.pause()
        assert line_with(text_of(app), "▸host", "NVIDIA driver")


def test_counts_keep_what_is_not_measured_apart() -> None:
    results = [
        result("a"),
        result("b", "FAIL"),
        result("c", "NO-VERDICT", cause="not measured yet"),
        result("d", "NO-VERDICT", cause="no figures are published"),
        result("e", "UNSUPPORTED", cause="no FP8"),
    ]
    assert summary(results) == "1 FAIL, 1 PASS, 1 not measured yet, 1 UNSUPPORTED, 1 NO-VERDICT"
    assert progress(results) == (3, 4)


def test_a_chosen_limit_is_called_chosen() -> None:
    given = result(
        state="WARN", threshold_text=">= 9 GB/s", value_text="7 GB/s", experimental=True, basis="b"
    )
    assert verdict_lines(given) == [
        ("measured", "7 GB/s, expected >= 9 GB/s"),
        ("basis", "b"),
        ("", "the limit is chosen by topsmon, nobody published one: it never fails"),
    ]


def test_a_cursor_without_results_stands_nowhere() -> None:
    judged = Judged()
    assert judged.move("cpu", 1) is None
    assert judged.move_device("cpu", 1) is None
    assert judged.place("cpu") == 0
