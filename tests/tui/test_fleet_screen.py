"""The tab of many hosts: what it shows, its keys, and the way down to a host and back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fleet_screens import StillSession, fleet_app, troubled
from screen_demo import FakeSession, eight
from screen_text import text_of
from textual.pilot import Pilot

from topsmon import events
from topsmon.fleet.metrics import METRICS
from topsmon.fleet.session import FleetSession
from topsmon.tui.app import TopsmonApp
from topsmon.tui.fleet import watched
from topsmon.tui.fleet.spread import _row
from topsmon.tui.fleet_app import FleetApp
from topsmon.tui.options import ScreenOptions
from topsmon.tui.run import create_app

SIZES = ((80, 24), (120, 40), (200, 60), (50, 30), (60, 20), (30, 5))


@asynccontextmanager
async def opened(
    session: FleetSession, size: tuple[int, int] = (120, 40), **options: object
) -> AsyncIterator[tuple[FleetApp, Pilot]]:
    app = fleet_app(session, **options)
    async with app.run_test(size=size, notifications=True) as pilot:
        await pilot.pause()
        app.redraw()
        await pilot.pause()
        yield app, pilot


async def press(pilot: Pilot, *keys: str) -> None:
    for key in keys:
        await pilot.press(key)
    await pilot.pause()


def line_with(app: FleetApp, words: str) -> str:
    return next(line for line in text_of(app) if words in line)


# What is shown


async def test_it_begins_with_the_hosts_and_their_sums() -> None:
    async with opened(troubled()) as (app, _):
        text = text_of(app)
        assert "40 hosts" in text[0]
        assert "320 × H100 80GB HBM3" in text[0]
        assert "6 hosts" in text[3]
        summary = line_with(app, "40 hosts:")
        assert "37 live, 1 stale, 2 gone" in summary
        assert "296 of 320 devices" in summary
        assert "217 of 293 PFLOPS" in summary


async def test_the_worst_is_under_the_header_with_a_word() -> None:
    async with opened(troubled()) as (app, _):
        assert text_of(app)[1].startswith(" LOST  node5  host gone: Connection timed out, last")


async def test_a_cell_has_the_initial_of_what_is_wrong_and_the_host_a_word() -> None:
    async with opened(troubled()) as (app, _):
        assert "node17 ▇▇▇S▇▇▇▇ SLOW" in line_with(app, "node17 ▇")
        assert "node4  H▇▇▇▇▇▇▇ HOT" in line_with(app, "node4  H")
        assert "node21 ▇▇▇▇▇▇▇L LOST" in line_with(app, "node21 ▇")
        assert "node11 ········ STALE" in line_with(app, "node11 ·")


async def test_the_worst_list_gives_reasons_and_then_the_ends_of_the_metric() -> None:
    async with opened(troubled(), (200, 60)) as (app, _):
        row = line_with(app, "BF16 55.7% of rated, 26% below equals (SW power cap)")
        assert "SLOW node17 GPU 3 100.0% BF16" in " ".join(row.split())
        text = "\n".join(text_of(app))
        assert text.count("XID 48") == 1
        assert "low    node" in text


async def test_quantiles_are_those_of_the_fleet() -> None:
    session = troubled()
    async with opened(session, (200, 60)) as (app, _):
        found = session.fleet.aggregate("temperature", 0.0)
        row = line_with(app, " temperature  ")
        for value in (found.low, found.p5, found.p50, found.p95, found.high):
            assert f"{value:.0f} °C" in row


async def test_nothing_off_is_said_in_words() -> None:
    async with opened(StillSession("nodes=3,gpus=2")) as (app, _):
        assert text_of(app)[1].startswith(" ok  3 live hosts, 6 devices: nothing stands out")
        assert "worst: nothing stands out; lowest busy" in "\n".join(text_of(app))


async def test_before_anything_was_heard() -> None:
    session = StillSession("nodes=1")
    session.fleet.remove("node0")
    session.fleet.add("alpha")
    async with opened(session) as (app, _):
        text = "\n".join(text_of(app))
        assert "the first host is yet to be heard of" in text
        assert "alpha" in text
        assert "N/A" in text


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("ascii_only", [False, True])
async def test_every_size_shows_something_and_nothing_is_wider_than_the_screen(
    size: tuple[int, int], ascii_only: bool
) -> None:
    async with opened(troubled(), size, ascii_only=ascii_only) as (app, _):
        text = text_of(app)
        assert "hosts" in "".join(text[:8])
        for panel in app._panels.values():
            if panel.display:
                for line in panel.shown_lines:
                    assert sum(len(span.text) for span in line) <= panel.size.width
        if ascii_only:
            assert "".join(text).isascii()


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_many_hosts_are_one_cell_each_and_only_what_is_in_sight_is_made(
    size: tuple[int, int],
) -> None:
    async with opened(troubled(600), size) as (app, pilot):
        text = "\n".join(text_of(app))
        assert "a cell a host" in text
        assert len(app._panels["fleet-map"].shown_lines) <= size[1]
        await press(pilot, "end")
        assert app.view.hosts.selected == "node599"
        assert any(line.strip(" │").startswith("node5") for line in text_of(app))
        await press(pilot, "t")
        assert "a cell a device" in "\n".join(text_of(app))
        assert "node599" in "\n".join(text_of(app))


async def test_text_of_a_host_is_no_markup_and_moves_no_cursor() -> None:
    session = StillSession("nodes=2,gpus=1")
    evil = "[bold red]\x1b[2Jhost\N{RIGHT-TO-LEFT OVERRIDE}"
    session.fleet.link(evil, "refused", "[red]no\x1b[31m\nsecond line", 0.0)
    async with opened(session) as (app, _):
        text = "".join(text_of(app))
        assert "[bold red]" in text
        assert not any(char in text for char in "\x1b\N{RIGHT-TO-LEFT OVERRIDE}")


async def test_a_screen_of_one_host_has_no_sixth_tab() -> None:
    app = create_app(FakeSession(eight()), ScreenOptions())
    assert type(app) is TopsmonApp
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "6")
        assert app.view.tab == "live"
        assert "6 hosts" not in "".join(text_of(app))


def test_several_hosts_get_the_tab() -> None:
    assert isinstance(create_app(troubled(), ScreenOptions()), FleetApp)


# Keys


async def test_the_cursor_starts_at_the_worst_and_moves_by_host_and_by_line() -> None:
    async with opened(troubled()) as (app, pilot):
        assert app.view.hosts.selected == "node5"
        await press(pilot, "j")
        assert app.view.hosts.selected == "node6"
        await press(pilot, "right_square_bracket")
        assert app.view.hosts.selected == "node10"
        await press(pilot, "k", "home")
        assert app.view.hosts.selected == "node0"
        await press(pilot, "up")
        assert app.view.hosts.selected == "node0"


async def test_left_and_right_go_through_the_metrics() -> None:
    async with opened(troubled()) as (app, pilot):
        seen = []
        for _ in METRICS:
            seen.append(app.view.hosts.metric.key)
            await press(pilot, "right")
        assert seen == list(METRICS)
        await press(pilot, "left")
        assert app.view.hosts.metric.key == seen[-1]


async def test_orders() -> None:
    async with opened(troubled()) as (app, pilot):
        names = [row.view.name for row in app.view.hosts.rows]
        assert names == [f"node{number}" for number in range(40)]
        await press(pilot, "o")
        assert [row.view.name for row in app.view.hosts.rows][:3] == ["node5", "node9", "node21"]
        await press(pilot, "o", "right", "right")
        assert app.view.hosts.metric.key == "temperature"
        assert app.view.hosts.rows[0].view.name == "node4"


async def test_a_filter_narrows_everything_and_escape_ends_it() -> None:
    async with opened(troubled()) as (app, pilot):
        await press(pilot, "slash", "e", "1", "q")
        assert app.view.hosts.filter == "e1q"
        assert "no host fits the filter" in "\n".join(text_of(app))
        await press(pilot, "backspace", "enter")
        hosts = app.view.hosts
        assert [row.view.name for row in hosts.rows][:3] == ["node1", "node10", "node11"]
        assert len(hosts.rows) == 11
        assert hosts.aggregate.count == 8 * 10
        assert {trouble.host for trouble in hosts.troubles} == {"node11", "node17"}
        assert "11 of 40 hosts with 'e1'" in "\n".join(text_of(app))
        await press(pilot, "escape")
        assert len(app.view.hosts.rows) == 40


async def test_enter_goes_to_the_host_and_escape_comes_back() -> None:
    session = troubled()
    async with opened(session) as (app, pilot):
        await press(pilot, "slash", *"node17", "enter", "enter")
        assert (app.view.tab, session.host) == ("live", "node17")
        assert app.view.state is session.fleet.state_of("node17")
        assert "node17 of 40 hosts" in text_of(app)[0]
        assert "1290" in line_with(app, "power limit 500 W")
        await press(pilot, "3")
        assert "train.py" in "\n".join(text_of(app))
        await press(pilot, "escape")
        assert app.view.tab == "hosts"


async def test_backspace_comes_back_too() -> None:
    async with opened(troubled()) as (app, pilot):
        await press(pilot, "enter")
        assert app.view.tab == "live"
        await press(pilot, "backspace")
        assert app.view.tab == "hosts"


async def test_other_tabs_are_about_the_host_under_the_cursor() -> None:
    session = troubled()
    async with opened(session) as (app, pilot):
        await press(pilot, "j", "4")
        assert (app.view.tab, session.host) == ("checks", "node6")
        await press(pilot, "1", "2")
        assert session.host == "node6"


async def test_a_host_that_is_looked_at_is_fed() -> None:
    session = troubled()
    async with opened(session) as (app, pilot):
        await press(pilot, "j", "enter")
        device = session.fleet.hosts["node6"].shown[0]
        sample = events.DeviceSample(
            time=1.0, monotonic=1.0, source="node6", device=device.key, busy_ratio=0.123
        )
        session.fleet.receive("node6", sample, 1.0)
        app.redraw()
        await pilot.pause()
        assert "12%" in "\n".join(text_of(app))


async def test_the_help_begins_with_the_keys_of_this_tab() -> None:
    async with opened(troubled()) as (app, pilot):
        await press(pilot, "question_mark")
        assert "all hosts" in "\n".join(text_of(app))
        await press(pilot, "escape")
        assert app.view.tab == "hosts"


async def test_a_click_selects_and_a_second_one_goes_there() -> None:
    session = troubled()
    async with opened(session) as (app, pilot):
        panel = app._panels["fleet-map"]
        row = next(
            number
            for number, line in enumerate(panel.shown_lines)
            if "node13" in "".join(span.text for span in line)
        )
        text = "".join(span.text for span in panel.shown_lines[row])
        column = text.index("node13") + 1
        await pilot.click("#fleet-map", offset=(column, row))
        assert app.view.hosts.selected == "node13"
        await pilot.click("#fleet-map", offset=(column, row))
        assert (app.view.tab, session.host) == ("live", "node13")


async def test_space_stands_still() -> None:
    session = troubled()
    async with opened(session) as (app, pilot):
        await press(pilot, "space")
        assert session.paused
        assert "PAUSED" in text_of(app)[0]


async def test_the_numbers_of_a_snapshot_are_those_of_the_fleet() -> None:
    async with opened(troubled()) as (app, pilot):
        assert b'"topsmon.fleet-snapshot/1"' in app.numbers()
        await press(pilot, "enter")
        assert b'"topsmon.fleet-snapshot/1"' not in app.numbers()


async def test_the_processes_of_a_simulated_fleet_are_not_awaited() -> None:
    async with opened(troubled()) as (app, pilot):
        await press(pilot, "enter", "5")
        text = "\n".join(text_of(app))
        assert "simulated fleet: it plays no processes" in text
        assert "on its way" not in text
        assert "nobody uses a device" not in text


async def test_a_recording_ends_when_another_host_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    session = troubled()
    async with opened(session) as (app, pilot):
        app.drill_down("node1")
        await press(pilot, "R")
        assert app.view.recording
        app.drill_down("node1")
        await press(pilot, "1")
        assert app.view.recording
        app.drill_down("node2")
        await press(pilot, "1")
        assert not app.view.recording
        assert session.host == "node2"


async def test_all_metrics_are_there_at_once_in_a_small_fleet() -> None:
    session = StillSession("nodes=4,gpus=8")
    app = FleetApp(session, ScreenOptions(), clock=lambda: (0.0, 0.0))
    assert set(app.view.hosts.aggregates) == set(METRICS)
    app.watching.set_filter("node1")
    app.view = app._look()
    assert app.view.hosts.aggregates["power"].count == 8


async def test_what_is_not_computed_yet_is_not_called_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watched, "AT_ONCE", 0)
    app = FleetApp(troubled(), ScreenOptions(), clock=lambda: (0.0, 0.0))
    hosts = app.view.hosts
    assert "mfu" not in hosts.aggregates
    shown = _row(hosts, METRICS["mfu"], ("median",), app.glyphs, 40)
    text = "".join(span.text for span in shown)
    assert "…" in text
    assert "N/A" not in text


async def test_the_hint_beside_the_tabs_is_cut_between_words() -> None:
    for width in (60, 72, 80, 88, 96, 104):
        async with opened(troubled(), size=(width, 24)) as (app, _):
            (line,) = [line for line in text_of(app) if "6 hosts" in line][:1]
            hint = line.partition("6 hosts")[2].strip()
            assert hint in {"", "by name", "by name: o sorts", "by name: o sorts, / filters"}


async def test_numbers_are_taken_at_most_twice_a_second() -> None:
    session = troubled()
    async with opened(session) as (app, _):
        before = app.view.hosts.aggregate
        app.watching.update(None, 0.3)
        assert app.watching.hosts.aggregate is before
        app.watching.update(None, 0.6)
        assert app.watching.hosts.aggregate is not before
