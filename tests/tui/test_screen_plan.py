"""Where panels stand: nothing overlaps, nothing leaves the terminal, what matters comes first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topsmon.tui.plan import Content, plan
from topsmon.tui.stack import Place

EIGHT = Content(devices=8, precisions=9, findings=1)


def by_name(places: list[Place]) -> dict[str, Place]:
    return {place.panel: place for place in places}


@given(
    st.integers(1, 320),
    st.integers(1, 120),
    st.builds(
        Content,
        devices=st.integers(1, 40),
        precisions=st.integers(1, 9),
        findings=st.integers(0, 30),
        facts=st.integers(0, 30),
        power=st.booleans(),
        history=st.integers(0, 40),
        activity=st.integers(0, 20),
        amp=st.booleans(),
    ),
)
def test_panels_stay_inside_and_apart(width: int, height: int, content: Content) -> None:
    taken: set[tuple[int, int]] = set()
    for place in plan(width, height, content):
        assert place.height > 0
        assert place.x >= 0
        assert place.x + place.width <= width
        assert place.y + place.height <= height
        rows = range(place.y, place.y + place.height)
        # Corners and edges are enough to find rectangles that overlap.
        cells = {(x, y) for y in rows for x in (place.x, place.x + place.width - 1)}
        assert not cells & taken
        taken |= {(x, y) for y in rows for x in range(place.x, place.x + place.width)}


def test_80x24_holds_eight_devices_and_eight_precisions() -> None:
    places = by_name(plan(80, 24, EIGHT))
    assert places["devices"].height == 1 + 8
    assert places["rates"].height == 1 + 8
    assert places["waterfall"].height == 1
    assert {"identity", "finding", "tabs", "footer"} <= set(places)


def test_sixteen_devices_leave_room_for_the_rates() -> None:
    places = by_name(plan(80, 24, EIGHT._replace(devices=16)))
    assert places["devices"].height == 1 + 8
    assert places["rates"].height == 1 + 8


@pytest.mark.parametrize(("width", "height"), [(20, 5), (39, 24), (80, 7), (1, 1)])
def test_a_tiny_terminal_gets_a_line_and_the_way_out(width: int, height: int) -> None:
    assert plan(width, height, EIGHT) == [Place("one-line", 0, 0, width, min(height, 2))]


def test_under_60_columns_there_is_one_list() -> None:
    assert {place.panel for place in plan(59, 24, EIGHT)} == {
        "identity", "finding", "tabs", "compact", "footer",
    }  # fmt: skip


def test_short_terminals_keep_the_finding_and_the_devices() -> None:
    """Dropped first: waterfall, then rates, then everything but the finding and the devices."""
    shown = [set(by_name(plan(80, height, EIGHT))) for height in (24, 16, 15, 8)]
    assert "waterfall" in shown[0] & shown[1]
    assert "rates" in shown[2]
    assert "waterfall" not in shown[2]
    assert shown[3] == {"identity", "finding", "devices"}


def test_120x40_is_full() -> None:
    places = plan(120, 40, EIGHT)
    assert sum(place.width * place.height for place in places) == 120 * 40


@pytest.mark.parametrize("lines", [6, 9])
def test_120x40_has_what_the_device_does_and_a_chart(lines: int) -> None:
    places = plan(120, 40, EIGHT._replace(activity=lines))
    assert sum(place.width * place.height for place in places) == 120 * 40
    assert {"activity", "utilisation", "waterfall", "facts"} <= set(by_name(places))
    alone = by_name(plan(120, 40, EIGHT._replace(devices=1, activity=lines)))
    assert alone["activity"].height == lines + 2
    assert "utilisation" in alone


@pytest.mark.parametrize("activity", [0, 9])
@pytest.mark.parametrize("devices", [1, 4, 8])
def test_200x60_has_no_large_hole(devices: int, activity: int) -> None:
    places = plan(200, 60, EIGHT._replace(devices=devices, history=8, activity=activity))
    assert sum(place.width * place.height for place in places) >= 0.97 * 200 * 60


def test_200x60_has_the_matrix_only_where_there_is_something_to_compare() -> None:
    assert "matrix" in by_name(plan(200, 60, EIGHT))
    assert "matrix" not in by_name(plan(200, 60, EIGHT._replace(devices=1)))


def test_nothing_is_stretched_on_a_huge_terminal() -> None:
    for place in plan(300, 120, EIGHT):
        assert place.height <= 20
