"""Where the training tab's panels stand, and what happened in few words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from screen_demo import stamp

from topsmon import events
from topsmon.tui.plan import Content, plan
from topsmon.tui.training.happened import event_text, newest
from topsmon.tui.training.plan import TrainingContent

CONTENTS = st.builds(
    TrainingContent,
    rows=st.integers(0, 40),
    verdict=st.integers(1, 30),
    numbers=st.integers(1, 20),
    happened=st.integers(0, 60),
    scaler=st.booleans(),
)


def shown(width: int, height: int, content: TrainingContent) -> dict[str, object]:
    base = Content(devices=8, precisions=9, training=content)
    return {place.panel: place for place in plan(width, height, base, "training")}


@given(st.integers(1, 320), st.integers(1, 120), CONTENTS)
def test_panels_stay_inside_and_apart(width: int, height: int, content: TrainingContent) -> None:
    taken: set[tuple[int, int]] = set()
    for place in shown(width, height, content).values():
        assert place.height > 0
        assert place.x >= 0
        assert place.x + place.width <= width
        assert place.y + place.height <= height
        rows = range(place.y, place.y + place.height)
        cells = {(x, y) for y in rows for x in (place.x, place.x + place.width - 1)}
        assert not cells & taken
        taken |= {(x, y) for y in rows for x in range(place.x, place.x + place.width)}


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_80x24_has_list_verdict_chart_and_numbers(rows: int) -> None:
    places = shown(80, 24, TrainingContent(rows=rows, verdict=4, numbers=18))
    assert places["runs"].height >= rows + 1
    assert places["run-verdict"].height >= 1
    assert places["scale"].height >= 6
    assert places["run-numbers"].height >= 7


def test_short_terminals_keep_list_verdict_and_numbers() -> None:
    places = shown(80, 16, TrainingContent(rows=3, verdict=4, numbers=18, happened=9))
    assert {"runs", "run-verdict", "run-numbers"} <= set(places)
    assert "scale" not in places


def test_120x40_has_all_of_it_even_with_a_long_verdict() -> None:
    places = shown(120, 40, TrainingContent(rows=3, verdict=20, numbers=18, happened=9))
    assert {"runs", "run-verdict", "scale", "loss", "run-numbers", "run-happened"} <= set(places)
    assert places["run-numbers"].height >= 13
    assert places["run-happened"].height >= 5


def test_200x60_is_full() -> None:
    places = shown(200, 60, TrainingContent(rows=3, verdict=4, numbers=18, happened=30))
    covered = sum(place.width * place.height for place in places.values())
    assert covered >= 0.97 * 200 * 60
    assert places["loss"].y == places["norm"].y


def test_without_runs_there_is_help_alone() -> None:
    assert set(shown(120, 40, TrainingContent())) == {
        "identity", "finding", "tabs", "no-runs", "footer",
    }  # fmt: skip


def happening(number: int, kind: str, step: int, **values) -> events.RunEvent:
    return events.RunEvent(**stamp(), run="r", number=number, kind=kind, step=step, **values)


def falls(first: int, steps: range) -> list[events.RunEvent]:
    return [
        happening(first + place, "back-off", step, values={"scale": 2.0**-place})
        for place, step in enumerate(steps)
    ]


def test_a_streak_of_skips_is_one_line_and_the_newest_is_first() -> None:
    told = [
        happening(1, "growth", 3, values={"scale": 2.0}),
        happening(2, "skip", 4),
        *falls(3, range(4, 9)),
        happening(8, "nonfinite-loss", 9),
    ]
    found = newest(told)
    assert [(one.event.kind, one.event.step, one.times) for one in found] == [
        ("nonfinite-loss", 9, 1),
        ("back-off", 8, 5),
        ("growth", 3, 1),
    ]
    assert event_text(found[1].event, found[1].times) == "5 skipped, scale down to 2^-4"


def test_a_skip_without_a_fall_is_kept() -> None:
    found = newest([happening(1, "skip", 4), happening(2, "end", 9)])
    assert [one.event.kind for one in found] == ["end", "skip"]


@pytest.mark.parametrize(
    ("kind", "values", "text"),
    [
        ("growth", {"values": {"scale": 131072.0}}, "scale up to 131072"),
        ("back-off", {"values": {"scale": 0.0}}, "skipped, scale down to 0"),
        ("nonfinite-loss", {}, "loss not finite"),
        ("nonfinite-output", {"names": ("a.b",), "message": "Gelu"},
         "first bad output: a.b (Gelu)"),
        ("nonfinite-output", {"message": "compiled"}, "first bad output: compiled"),
        (
            "nonfinite-gradients",
            {"names": ("w", "b"), "values": {"bad": 2.0, "parameters": 9.0}},
            "bad gradients in 2 of 9: w, b",
        ),
        ("nonfinite-weights", {"names": ("w",)}, "weights not finite: w"),
        (
            "scaled-clip",
            {"values": {"norm": 196608.0, "max_norm": 1.0, "scale": 65536.0}},
            "clipped before unscaling: norm 1.97e+05, clipped at 1.000",
        ),
        ("gradient-zeros", {"values": {"ratio": 1.0, "scale": 1.0}},
         "100.0% of FP16 gradients are 0 at scale 1"),
        ("exception", {"names": ("ValueError",), "message": "no"}, "ValueError: no"),
        ("exception", {"names": ("ValueError",), "message": "no", "values": {"handled": 1.0}},
         "ValueError: no (passed on)"),
        ("bypass", {}, "optimizer.step() was called past the scaler"),
        ("end", {"message": "exit code 0"}, "ended: exit code 0"),
        ("profile", {"message": "/tmp/p.json"}, "profile stored: /tmp/p.json"),
        ("recorder", {"message": "off"}, "recorder: off"),
    ],
)  # fmt: skip
def test_every_kind_has_words(kind: str, values: dict, text: str) -> None:
    assert event_text(happening(1, kind, 5, **values)) == text
