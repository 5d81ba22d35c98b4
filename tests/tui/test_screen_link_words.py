"""The PCIe link on a device's card: current and maximum, and what a low one at rest means."""

from typing import Any

import pytest
from screen_demo import GIB, NOW, WALL, gpu, sample

from topsmon.state import State
from topsmon.tui.device_facts import facts
from topsmon.tui.view import View


def link_words(**changes: Any) -> str | None:
    state = State()
    board = gpu(0)
    link = {"pcie_generation": 1, "pcie_width": 16, "pcie_generation_max": 3, "pcie_width_max": 16}
    reading = sample(board.device, memory_used_bytes=GIB, **{**link, **changes})
    state.apply(board, NOW)
    state.apply(reading, NOW)
    device = state.devices[board.device]
    return dict(facts(View(state, (), NOW, WALL, 1.0), device)).get("PCIe")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        # "Gen1@16x" at rest is so often taken for a fault.
        (
            {"busy_ratio": 0.0, "performance_state": 8},
            "generation 1 x16 of 3 x16 (idle: it slows down to save power)",
        ),
        ({"busy_ratio": 0.9, "performance_state": 0}, "generation 1 x16 of 3 x16"),
        ({"busy_ratio": 0.0, "pcie_generation": 3}, "generation 3 x16 of 3 x16"),
        # A GPU that does not tell its busy time is not known to rest.
        ({"busy_ratio": None}, "generation 1 x16 of 3 x16"),
        (
            {"busy_ratio": 0.0, "pcie_generation_max": None, "pcie_width_max": None},
            "generation 1 x16",
        ),
        (
            {"busy_ratio": 0.0, "pcie_generation": 3, "pcie_width": 8},
            "generation 3 x8 of 3 x16 (idle: it slows down to save power)",
        ),
        ({"pcie_generation": None, "pcie_width": None}, None),
    ],
)
def test_the_link(changes: dict[str, Any], words: str | None) -> None:
    assert link_words(**changes) == words
