"""Each signal of the card has a simulated value of its own: a swapped one fails.

The values go from the scenario through the real nvidia-ml-py, the poller's readers and the state to
the lines of the panel.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from screen_demo import NOW, WALL
from signal_machines import machine, read

from topsmon import events
from topsmon.state import State
from topsmon.tui.activity import Activity
from topsmon.tui.cells import plain_text
from topsmon.tui.view import View

SECONDS = [1.01 * second for second in range(1, 9)]
"""No two ticks are exactly a second apart: then every second one would be early."""
GAUGES = {
    "SM active": "71%",
    "tensor": "46%",
    "DRAM": "36%",
    "occupancy": "29%",
    "FP32": "11%",
    "FP64": "5%",
    "FP16": "7%",
    "integer": "14%",
}
FACTS = {
    "PCIe": ["out 0.215", "in 0.349 GB/s", "2.2% of 15.8"],
    "NVLink": ["17/18 up", "out 26.1", "in 27.9 GB/s", "6.2% of 450"],
    "heat": ["memory 72 °C", "margin 34 °C", "fan 38%"],
    "video": ["encoder 17%", "decoder 19%"],
}
"""205 and 333 MiB/s of PCIe in GB/s; payload of NVLink from counters of KiB; ceilings of the board:
63.0 GB/s a direction of generation 5 x16, 450 GB/s of 18 links."""
THROTTLED = {
    "power cap": "1.1%",
    "thermal": "1.2%",
    "sync boost": "1.3%",
    "board limit": "1.4%",
    "reliability": "1.6%",
    "SW thermal": "1.7%",
    "HW thermal": "1.8%",
    "power brake": "1.9%",
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[events.AnyEvent]:
    return read("every-signal", tmp_path_factory.mktemp("signals"), SECONDS)


def card(state: State, width: int = 110, height: int = 20) -> list[str]:
    panel = Activity(id="activity")
    panel.framed = True
    (device,) = state.gpus()
    view = View(state, (), NOW, WALL, 1.0, selected=device.key)
    return [plain_text(line) for line in panel.lines(view, width, height)]


def gauge(lines: list[str], label: str) -> str:
    """The number after a bar."""
    found = re.search(rf"(?:^|  ){label} +[━╸─]+ +(\d+%)", "\n".join(lines), re.MULTILINE)
    assert found, f"{label} is not in\n" + "\n".join(lines)
    return found[1]


def fact(lines: list[str], head: str) -> str:
    """The text of a line with a head, with the lines that go on with it."""
    start = next(place for place, line in enumerate(lines) if line.startswith(head))
    end = start + 1
    while end < len(lines) and lines[end].startswith(" "):
        end += 1
    return " ".join(" ".join(lines[start:end]).split())


def test_every_counter_is_where_its_label_is(told: list[events.AnyEvent]) -> None:
    lines = card(machine(told))
    assert {label: gauge(lines, label) for label in GAUGES} == GAUGES


def test_links_heat_and_codecs(told: list[events.AnyEvent]) -> None:
    lines = card(machine(told))
    for head, parts in FACTS.items():
        assert fact(lines, head) == f"{head} {', '.join(parts)}"


def test_each_reason_of_throttled_time_has_its_share(told: list[events.AnyEvent]) -> None:
    text = fact(card(machine(told)), "throttled").removeprefix("throttled ")
    assert dict(part.rsplit(" ", 1) for part in text.split(", ")) == THROTTLED


def test_without_counters_the_other_values_have_places_of_their_own(
    told: list[events.AnyEvent],
) -> None:
    def without(event: events.AnyEvent) -> events.AnyEvent:
        if not isinstance(event, events.DeviceSample):
            return event
        reason = {"counters": "no GPM on this device"}
        return msgspec.structs.replace(event, counters=None, unavailable=reason)

    lines = card(machine([without(event) for event in told]))
    assert lines[0] == "cannot tell: no GPM on this device"
    # 613 of 690 W, 1741 of 1980 MHz.
    shown = {label: gauge(lines, label) for label in ("busy", "mem busy", "power", "clock")}
    assert shown == {"busy": "83%", "mem busy": "47%", "power": "89%", "clock": "88%"}


def test_a_missing_counter_has_no_bar_and_its_reason_once(tmp_path: Path) -> None:
    scenario = {
        "title": "one",
        "description": "one",
        "expected": "ok",
        "extends": "every-signal",
        "device": {"gpm_fp16_percent": None, "gpm_integer_percent": None},
    }
    lines = card(machine(read(scenario, tmp_path, SECONDS)))
    text = "\n".join(lines)
    assert not re.search(r"FP16 +[━╸─]", text)
    assert "0%" not in text.replace("0.0%", "")
    assert fact(lines, "not told").startswith("not told FP16, integer: ")
    assert gauge(lines, "FP32") == "11%"


def test_links_that_a_board_lacks_have_no_line_and_are_no_zero(tmp_path: Path) -> None:
    lines = card(machine(read("rtx4090", tmp_path, SECONDS)))
    assert not [line for line in lines if line.startswith("NVLink")]
    assert "out" in fact(lines, "PCIe")


def test_instances_stand_instead_of_bars(tmp_path: Path) -> None:
    lines = card(machine(read("mig", tmp_path, SECONDS)), width=56)
    assert lines[0] == "in MIG mode, 3 instances"
    rows = [line.split() for line in lines[1:5]]
    assert rows[0] == ["instance", "GiB", "SM", "tensor", "DRAM", "ceiling", "bound", "by"]
    # 20214 of 40320 MiB; 60 of 132 SMs at the board's 989.4 TFLOPS are 450, 16 are 120.
    assert rows[1] == ["3g.40gb", "#1", "19.7/39.4", "88%", "71%", "49%", "450", "tensor"]
    assert rows[2] == ["3g.40gb", "#2", "11.2/39.4", "28%", "9%", "63%", "450", "memory"]
    assert rows[3] == ["1g.10gb", "#9", "0.2/9.8", "0%", "0%", "0%", "120", "idle"]
    assert not re.search("[━╸─]", "".join(lines))


def test_instances_that_do_not_fit_are_counted(tmp_path: Path) -> None:
    lines = card(machine(read("mig-7", tmp_path, SECONDS)), width=56, height=5)
    assert len(lines) == 5
    assert lines[-1] == "and 5 more: Enter"


@pytest.mark.parametrize("height", [2, 3])
def test_instances_have_no_heading_without_a_row(tmp_path: Path, height: int) -> None:
    lines = card(machine(read("mig-7", tmp_path, SECONDS)), width=80, height=height)
    assert lines[0].startswith("in MIG mode, 7 instances")
    assert lines[1] == "7 instances: Enter"


@pytest.mark.parametrize("height", range(1, 12))
def test_whatever_the_height_the_verdict_comes_first(
    told: list[events.AnyEvent], height: int
) -> None:
    lines = card(machine(told), 56, height)
    assert len(lines) <= height
    assert lines[0].startswith("mixed: several units work")
    if height >= 4:
        shown = "\n".join(lines)
        for label, value in GAUGES.items():
            assert re.search(rf"{label.removesuffix(' active')}( active)? [ ━╸─]*{value}", shown)
