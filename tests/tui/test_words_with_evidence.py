"""Words that claim something stand only where it was read."""

from __future__ import annotations

from typing import Any

import pytest
from screen_demo import GIB, NOW, WALL, ceilings, gpu, sample, stamp

from topsmon import events
from topsmon.diagnosis import device_word
from topsmon.state import State
from topsmon.tui.cells import Line
from topsmon.tui.device_facts import facts
from topsmon.tui.header import HINT_GAP, WorstFinding, finding_lines
from topsmon.tui.process_rows import process_lines
from topsmon.tui.sample_fields import sample_pairs
from topsmon.tui.view import View

BOARD = gpu(0)
KEY = BOARD.device
UNREAD: dict[str, Any] = dict.fromkeys(
    ("busy_ratio", "power_watts", "sm_clock_mhz", "memory_used_bytes")
)


def fold(*told: events.AnyEvent) -> State:
    state = State()
    for event in (BOARD, *told):
        state.apply(event, NOW)
    return state


def view_of(state: State) -> View:
    return View(state, (), NOW, WALL, 1.0)


def text(line: Line) -> str:
    return "".join(span.text for span in line)


def of_processes(state: State, **how: Any) -> str:
    return text(process_lines(state.devices[KEY], 80, 5, **how)[0]).strip()


def listed(*entries: events.ProcessEntry) -> events.Processes:
    return events.Processes(**stamp(), device=KEY, entries=entries)


def condition(word: events.DeviceCondition) -> events.DeviceStatus:
    return events.DeviceStatus(**stamp(), device=KEY, condition=word, since=NOW)


@pytest.mark.parametrize(
    ("changes", "word"),
    [(UNREAD, "N/A"), ({**UNREAD, "busy_ratio": 0.0}, "ok"), ({**UNREAD, "power_watts": 9}, "ok")],
)
def test_a_gpu_that_tells_nothing_is_not_ok(changes: dict[str, Any], word: str) -> None:
    assert device_word(fold(sample(KEY, **changes)).devices[KEY], ()) == word


@pytest.mark.parametrize(
    ("busy", "words"),
    [
        (0.0, "nobody else uses it"),
        (0.95, "no process is visible"),
        (None, "no process is visible"),
    ],
)
def test_an_empty_list_of_a_busy_gpu_is_no_proof(busy: float | None, words: str) -> None:
    assert of_processes(fold(sample(KEY, busy_ratio=busy), listed())) == words


def test_own_work_explains_a_busy_gpu() -> None:
    own = events.ProcessEntry(pid=1, own=True)
    assert of_processes(fold(sample(KEY), listed(own))) == "nobody else uses it"


@pytest.mark.parametrize("word", ["lost", "stalled", "error"])
def test_of_a_silent_gpu_nothing_is_said_about_processes(word: events.DeviceCondition) -> None:
    state = fold(sample(KEY, busy_ratio=0.0), listed(), condition(word))
    assert of_processes(state) == "processes N/A: the device does not answer"


def test_of_a_late_gpu_nothing_is_said_about_processes() -> None:
    state = fold(sample(KEY, busy_ratio=0.0), listed())
    assert of_processes(state, stale=True) == "processes N/A: the device does not answer"


def test_unified_memory_is_called_so() -> None:
    note = "unified with system memory"
    reading = sample(KEY, memory_note=note, memory_used_bytes=None, memory_total_bytes=120 * GIB)
    state = fold(reading, ceilings(KEY, {"bf16": 1e14}))
    told = dict(facts(view_of(state), state.devices[KEY]))["memory"]
    assert told.endswith("L2 50.0 MiB, unified: 120.0 GiB shared with the CPU")


def test_a_gpu_asleep_is_not_waited_for() -> None:
    state = fold(condition("asleep"))
    (line,) = WorstFinding(id="finding").lines(view_of(state), 80, 2)
    assert text(line).strip() == "asleep  the GPU sleeps and is left alone"
    assert sample_pairs(state.devices[KEY]) == [("reading", "N/A: it sleeps and is left alone")]


@pytest.mark.parametrize("width", [110, 115, 120])
@pytest.mark.parametrize("command", ["", "nvidia-smi -q", "sudo nvidia-smi " + "-i 0 " * 17])
def test_further_findings_are_always_hinted_at(width: int, command: str) -> None:
    finding = events.Finding(
        **stamp(),
        device=KEY,
        code="power-limit-low",
        severity="warn",
        word="SLOW",
        title="GPU 0  power limit 350 W",
        cause="the limit was set " + "below the default " * 5,
        remedy="Set the limit back to its default value " * 4,
        command=command.strip(),
    )
    lines = [text(line) for line in finding_lines(view_of(fold(sample(KEY))), finding, 2, width)]
    assert sum("+2 more, Enter" in line for line in lines) == 1
    assert all(len(line) <= width for line in lines)
    if len(command) + HINT_GAP < width - 20:
        assert command.strip() in " ".join(lines)
