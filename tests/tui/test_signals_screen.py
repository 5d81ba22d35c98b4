"""What a GPU does, on the screen: at all sizes, only for GPUs, and read only while it is shown."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from screen_demo import NOW, FakeSession, cpu_only, eight, stamp
from screen_text import OpenScreen, text_of
from signal_machines import bound_by_memory, machine, read
from test_screen_live import line_with

from topsmon import events
from topsmon.tui.plan import Content, plan


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
@pytest.mark.parametrize("count", [1, 2, 4, 7])
async def test_the_verdict_stands_at_every_usual_size(
    open_screen: OpenScreen, size: tuple[int, int], count: int
) -> None:
    async with open_screen(bound_by_memory(count), size=size) as (app, _):
        assert line_with(text_of(app), "memory-bound: DRAM 91% of its bandwidth")


@pytest.mark.parametrize("size", [(120, 40), (200, 60)])
async def test_eight_gpus_keep_bars_and_chart(
    open_screen: OpenScreen, size: tuple[int, int]
) -> None:
    async with open_screen(bound_by_memory(8), size=size) as (app, _):
        lines = text_of(app)
        assert line_with(lines, "GPU 0  what it does")
        assert line_with(lines, "SM", "97%", "tensor", "23%", "DRAM", "91%")
        assert line_with(lines, "occupancy", "71%")
        assert line_with(lines, "memory traffic 44%", "-120s", "now")
        assert line_with(lines, " 0 ok", "memory (DRAM)")


def test_at_80x24_eight_gpus_keep_their_rates() -> None:
    places = {place.panel: place for place in plan(80, 24, Content(8, 9, activity=9))}
    assert "activity" not in places
    assert places["rates"].height == 9
    assert "activity" in {place.panel for place in plan(80, 25, Content(8, 9, activity=9))}


async def test_what_holds_the_clocks_goes_before_what_bounds_the_work(
    open_screen: OpenScreen,
) -> None:
    state = bound_by_memory(2)
    for index, mask in ((0, 0x40), (1, 0)):
        for turn in range(2):
            sample = state.devices[f"GPU-{index:08d}"].sample
            assert sample is not None
            told = msgspec.structs.replace(
                sample, **stamp(at=NOW + turn / 10), clock_event_mask=mask
            )
            state.apply(told, NOW)
    async with open_screen(state, size=(120, 40)) as (app, _):
        lines = text_of(app)
        assert line_with(lines, " 0 ok", "HW thermal")
        assert line_with(lines, " 1 ok", "memory (DRAM)")


async def test_own_bursts_are_named_and_no_verdict(open_screen: OpenScreen) -> None:
    state = bound_by_memory(1, during_burst=True)
    async with open_screen(state, size=(120, 40)) as (app, _):
        lines = text_of(app)
        assert line_with(lines, "own burst: topsmon itself computed meanwhile")
        assert line_with(lines, "cannot tell: topsmon itself has computed in this time")
        spans = [span for line in app._panels["activity"].shown_lines for span in line]
        assert "muted" in {span.role for span in spans if "━" in span.text}
        assert "spark" not in {span.role for span in spans}


async def test_healthy_is_quiet_and_throttled_is_not(open_screen: OpenScreen) -> None:
    state = bound_by_memory()
    async with open_screen(state, size=(120, 40)) as (app, _):
        panel = app._panels["activity"]
        assert not {"warn", "fail"} & {span.role for line in panel.shown_lines for span in line}
        for turn in range(4):
            sample = next(state.gpus()).sample
            assert sample is not None
            shares = {"sw_thermal": 0.31, "power": 0.002}
            told = msgspec.structs.replace(
                sample,
                **stamp(at=NOW + turn / 10),
                throttle_ratios=shares,
                clock_event_mask=0x20,
            )
            state.apply(told, NOW)
        app.redraw()
        warned = {span.text for line in panel.shown_lines for span in line if span.role == "warn"}
        assert "SW thermal 31.0%, power cap 0.2%" in warned
        assert any(text.startswith("throttled: ") for text in warned)


async def test_a_cpu_has_no_such_panel(open_screen: OpenScreen) -> None:
    async with open_screen(cpu_only(), size=(120, 40)) as (app, _):
        assert not app._panels["activity"].display


async def test_a_lost_gpu_has_no_bars(open_screen: OpenScreen) -> None:
    state = bound_by_memory()
    gone = events.DeviceStatus(**stamp(), device="GPU-00000000", condition="lost", since=NOW)
    state.apply(gone, NOW)
    async with open_screen(state, size=(120, 40)) as (app, _):
        (line,) = [one for one in text_of(app) if "not read now" in one]
        assert "cannot tell" in line
        assert "91%" not in "\n".join(text_of(app))


async def test_a_silent_gpu_is_not_shown_as_new(open_screen: OpenScreen) -> None:
    state = bound_by_memory()
    stalled = events.DeviceStatus(**stamp(), device="GPU-00000000", condition="stalled", since=NOW)
    state.apply(stalled, NOW)
    async with open_screen(state, size=(120, 40)) as (app, _):
        spans = [span for line in app._panels["activity"].shown_lines for span in line]
        assert {span.role for span in spans if "━" in span.text} == {"muted"}


async def test_without_gpm_busy_time_has_its_true_name(
    open_screen: OpenScreen, tmp_path: Path
) -> None:
    state = machine(read("a100", tmp_path, [1.01 * second for second in range(1, 8)]))
    async with open_screen(state, size=(120, 40)) as (app, _):
        lines = text_of(app)
        assert line_with(lines, "cannot tell: no GPM on this device")
        assert line_with(lines, "busy, mem busy: time with kernels, memory traffic")
        assert "SM active" not in "\n".join(lines)


async def test_counters_are_read_only_while_the_live_tab_is_shown(open_screen: OpenScreen) -> None:
    session = FakeSession(eight(ticks=2))
    async with open_screen(session.state, size=(120, 40), session=session) as (_, pilot):
        assert session.counters == [True]
        await pilot.press("2")
        assert session.counters == [True, False]
        await pilot.press("3", "4", "5")
        assert session.counters == [True, False]
        await pilot.press("1")
        assert session.counters == [True, False, True]
        await pilot.press("enter", "escape")
        assert session.counters == [True, False, True]


async def test_a_recording_keeps_the_counters(open_screen: OpenScreen) -> None:
    session = FakeSession(eight(ticks=2))
    async with open_screen(session.state, size=(120, 40), session=session) as (_, pilot):
        await pilot.press("R")
        await pilot.press("2")
        assert session.counters == [True]
        await pilot.press("R")
        assert session.counters == [True, False]
