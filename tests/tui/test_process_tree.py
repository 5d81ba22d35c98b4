"""Processes below their parents, whoever of these uses a device."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from process_demo import crowd, entry
from screen_text import OpenScreen, text_of

from topsmon import events
from topsmon.report.process_rows import Row, RowKey
from topsmon.tui.processes.tree import ASCII, as_tree


def row(pid: int, *chain: int, device: str = "GPU 0", local: bool = True) -> Row:
    names = tuple((f"p{parent}", parent) for parent in chain)
    one = entry(pid, f"command {pid}", names, local=local)
    return Row(RowKey(device, pid), device, 0, one)


def drawn(*rows: Row) -> list[str]:
    return [f"{one.branch}{one.entry.pid}" for one in as_tree(rows, ascii_only=True)]


def test_children_stand_below_their_parents() -> None:
    assert drawn(row(1), row(3, 2, 1), row(2, 1)) == ["1", "`- 2", "   `- 3"]


def test_a_parent_on_no_device_is_shown_where_branches_meet() -> None:
    assert drawn(row(5, 4, 3, 2), row(6, 4, 3, 2), row(7, 2)) == [
        "2",
        "|- 4",
        "|  |- 5",
        "|  `- 6",
        "`- 7",
    ]


def test_a_parent_of_one_is_not_shown() -> None:
    assert drawn(row(5, 4, 3), row(6)) == ["5", "6"]


def test_the_best_below_decides_the_order() -> None:
    """Rows come sorted: 9 is the largest, so its launcher comes before 5."""
    assert drawn(row(9, 1), row(5), row(8, 1)) == ["1", "|- 9", "`- 8", "5"]


def test_a_process_on_two_devices_has_its_rows_together() -> None:
    rows = (row(2, 1), row(3, 1), row(2, 1, device="GPU 1"))
    assert drawn(*rows) == ["1", "|- 2", "|  2", "`- 3"]


def test_pids_of_another_system_have_no_parents_here() -> None:
    assert drawn(row(2, 1, local=False), row(1)) == ["2", "1"]


def test_a_circle_of_parents_loses_nobody() -> None:
    assert sorted(drawn(row(1, 2), row(2, 1), row(3))) == ["1", "2", "3"]


chains = st.lists(st.integers(1, 9), max_size=5, unique=True).map(tuple)


@given(st.dictionaries(st.integers(1, 9), chains, max_size=9))
def test_every_row_is_drawn_once(processes: dict[int, tuple[int, ...]]) -> None:
    rows = [row(pid, *(one for one in chain if one != pid)) for pid, chain in processes.items()]
    found = as_tree(rows, ascii_only=True)
    assert sorted(one.key for one in found if not one.is_parent) == sorted(one.key for one in rows)
    assert len({one.key for one in found}) == len(found)
    for one in found:
        assert set(one.branch) <= set("".join(ASCII))


async def test_ranks_stand_below_their_launcher(open_screen: OpenScreen) -> None:
    async with open_screen(crowd(), size=(120, 40)) as (app, pilot):
        await pilot.press("5", "t")
        lines = [line for line in text_of(app) if "train.py" in line or "torchrun" in line]
        assert "torchrun" in lines[0]
        assert all("├─ python3" in line for line in lines[1:8])
        assert "└─ python3" in lines[8]
        assert "tmux" not in "\n".join(lines[:9])
        await pilot.press("K")
        await pilot.pause()
        assert len(app.screen_stack) == 1  # the launcher itself is on no device
        await pilot.press("t")
        assert not any("├─" in line for line in text_of(app))


def test_a_parent_has_a_name_and_nothing_else() -> None:
    parent = as_tree([row(5, 4), row(6, 4)], ascii_only=False)[0]
    assert parent.entry == events.ProcessEntry(pid=4, name="p4")
