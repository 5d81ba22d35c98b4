"""Tab 5: who uses the devices; order, filter, tree, cursor, at every size."""

from __future__ import annotations

import pytest
from process_demo import crowd, entry, on
from rich.cells import cell_len
from screen_demo import GIB, NOW, WALL, cpu_only, eight, gpu, host, stamp
from screen_text import OpenScreen, resize, text_of
from test_screen_live import end_of, line_with

from topsmon import events
from topsmon.state import State
from topsmon.tui.app import TopsmonApp
from topsmon.tui.processes.list import ProcessList

GPU_0 = "GPU-00000000"


def table_of(app: TopsmonApp) -> ProcessList:
    return app.query_one("#processes", ProcessList)


def pids(app: TopsmonApp) -> list[int]:
    return [row.entry.pid for row in table_of(app).table.rows]


def selected(app: TopsmonApp) -> int:
    row = table_of(app).table.selected
    assert row is not None
    return row.entry.pid


async def test_every_column_has_its_number(open_screen: OpenScreen) -> None:
    async with open_screen(crowd(), size=(200, 60)) as (app, pilot):
        await pilot.press("5")
        lines = text_of(app)
        head = line_with(lines, "PID", "user", "device", "host GiB", "age")
        row = line_with(lines, "48213", "ada", "GPU 0")
        for title, value in (
            ("PID", "48213"),
            ("GPU GiB↓", "49.6"),
            ("SM", "93%"),
            ("mem", "47%"),
            ("CPU", "102%"),
            ("host GiB", "6.4"),
        ):
            assert end_of(head, title) == end_of(row, value), title
        assert "3 h 12" in row
        assert "python3 -u train.py --amp bf16 --config configs/7b.yaml --rank 0" in row
        assert "venv" not in row
        dead = line_with(lines, "51544")
        assert head.index(" S ") == dead.index(" Z ")


async def test_what_is_not_known_is_not_zero(open_screen: OpenScreen) -> None:
    async with open_screen(crowd(), size=(200, 60)) as (app, pilot):
        await pilot.press("5")
        stranger = line_with(text_of(app), "1904417")
        # user, CPU, host memory and age; its share of the GPU is known
        assert stranger.count("N/A") == 4
        assert "not of this system" in stranger
        desktop = line_with(text_of(app), "2755")
        assert desktop.count("N/A") == 2
        fresh = line_with(text_of(app), "51600")
        # at first no CPU use can be told
        assert "N/A" not in fresh
        assert fresh.count("%") == 2


async def test_a_process_on_two_gpus_has_one_cpu_use(open_screen: OpenScreen) -> None:
    """The newest reading counts on both, whichever device it came with."""
    state = crowd()
    for index, (at, cores) in enumerate([(NOW + 1, 0.25), (NOW + 2, 0.75)]):
        event = on(
            f"GPU-{index:08d}", entry(700, "server", cpu_cores=cores, memory_bytes=GIB), at=at
        )
        state.apply(event, NOW)
    async with open_screen(state, size=(120, 40)) as (app, pilot):
        await pilot.press("5")
        rows = [line for line in text_of(app) if "  700 " in line]
        assert len(rows) == 2
        assert all("75%" in row for row in rows)


async def test_a_gpu_process_is_not_listed_again_for_the_cpu(open_screen: OpenScreen) -> None:
    state = crowd()
    state.apply(events.Device(**stamp(), device="cpu", kind="cpu", index=0, name="EPYC"), NOW)
    compiler = entry(311, "cc1plus x.cc", cpu_cores=0.5)
    state.apply(on("cpu", compiler, entry(48213, "python3 train.py", cpu_cores=1.0)), NOW)
    async with open_screen(state, size=(120, 40)) as (app, pilot):
        await pilot.press("5")
        assert pids(app).count(48213) == 1
        row = line_with(text_of(app), "  311 ", "CPU", "50%")
        assert "N/A" not in row


async def test_cpu_users_are_sorted_by_what_they_use(open_screen: OpenScreen) -> None:
    state = cpu_only()
    first, second = entry(1, "idle", cpu_cores=0.3), entry(2, "busy", cpu_cores=1.9)
    state.apply(on("cpu", first, second), NOW)
    async with open_screen(state, size=(80, 24)) as (app, pilot):
        await pilot.press("5")
        assert pids(app) == [2, 1]
        assert "CPU↓" in "\n".join(text_of(app))


@pytest.mark.parametrize(
    ("letter", "first", "last"),
    [
        ("p", 2755, 1904417),
        ("P", 1904417, 2755),
        ("d", 30121, 48220),
        ("D", 48220, 48213),
        ("g", 48220, 2755),
        ("G", 2755, 48220),
        ("s", 48213, 2755),
        ("c", 30121, 1904417),
        ("m", 30121, 1904417),
        ("t", 2755, 1904417),
        ("T", 51600, 1904417),
        ("u", 48220, 1904417),
        ("z", 51544, 48220),
    ],
)
async def test_a_letter_sorts(open_screen: OpenScreen, letter: str, first: int, last: int) -> None:
    """Largest first, a capital the other way; what is not known is last either way."""
    async with open_screen(crowd(), size=(120, 40)) as (app, pilot):
        await pilot.press("5", "o", letter)
        order = pids(app)
        if letter in "uz":  # many are equal: these keep the order of the devices
            assert order[0 if letter == "z" else -1] == (first if letter == "z" else last)
        else:
            assert (order[0], order[-1]) == (first, last)


async def test_the_order_is_marked_asked_for_and_left(open_screen: OpenScreen) -> None:
    async with open_screen(crowd(), size=(120, 40)) as (app, pilot):
        await pilot.press("5", "o")
        assert line_with(text_of(app), "sort by", "p PID", "g GPU memory", "t age")
        await pilot.press("escape")
        assert "sort by" not in "\n".join(text_of(app))
        assert "GPU GiB↓" in "\n".join(text_of(app))
        await pilot.press("o", "c")
        assert "CPU↓" in "\n".join(text_of(app))
        await pilot.press("o", "C")
        assert "CPU↑" in "\n".join(text_of(app))
        await pilot.press("o", "o")
        assert "host GiB↓" in "\n".join(text_of(app))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("triton", [30121, 30121]),
        ("ADA gpu 3", [48216, 60011]),
        ("gpu2", [48215, 51544, 51600]),
        ("eval", [51544]),
        ("1904417", [1904417]),
        ("第一部分", [51600]),
        ("no such thing", []),
    ],
)
async def test_a_filter_finds_user_command_pid_and_device(
    open_screen: OpenScreen, text: str, found: list[int]
) -> None:
    async with open_screen(crowd(), size=(120, 40)) as (app, pilot):
        await pilot.press("5", "slash")
        for sign in text:
            await pilot.press("space" if sign == " " else sign)
        assert pids(app) == found
        assert f"{len(found)} of 15" in "\n".join(text_of(app))
        await pilot.press("enter")
        assert pids(app) == found
        assert repr(text) in "\n".join(text_of(app))
        await pilot.press("escape")
        assert len(pids(app)) == 15


async def test_letters_are_text_while_a_filter_is_typed(open_screen: OpenScreen) -> None:
    """q does not quit and 1 does not change the tab; Backspace and Ctrl-U correct."""
    async with open_screen(crowd(), size=(120, 40)) as (app, pilot):
        await pilot.press("5", "slash", "q", "1", "t", "K", "backspace")
        assert app.is_running
        assert table_of(app).table.filter == "q1t"
        await pilot.press("ctrl+u", "x")
        assert table_of(app).table.filter == "x"
        await pilot.press("escape", "1")
        assert app.view.tab == "live"
        await pilot.press("5")
        assert len(pids(app)) == 15


async def test_the_cursor_stays_on_its_process(open_screen: OpenScreen) -> None:
    async with open_screen(crowd(), size=(120, 40)) as (app, pilot):
        await pilot.press("5", "j", "j", "k")
        assert selected(app) == 48219
        await pilot.press("o", "p")
        assert selected(app) == 48219
        await pilot.press("end")
        assert selected(app) == pids(app)[-1]
        await pilot.press("home")
        assert selected(app) == pids(app)[0]


async def test_a_process_that_ends_leaves_the_cursor_where_it_was(open_screen: OpenScreen) -> None:
    state = crowd()
    async with open_screen(state, size=(120, 40)) as (app, pilot):
        await pilot.press("5", "j", "j")
        state.apply(on("GPU-00000005"), NOW)
        app.redraw()
        assert selected(app) == 48217


async def test_other_tabs_keep_their_keys(open_screen: OpenScreen) -> None:
    async with open_screen(crowd(), size=(120, 40)) as (app, pilot):
        await pilot.press("5", "j", "1", "j")
        assert app.view.selected == "GPU-00000001"
        await pilot.press("enter")
        assert len(app.screen_stack) == 2
        await pilot.press("escape", "5")
        assert selected(app) == 48219
        await pilot.press("b")
        assert app.session.calls[-1] == ("benchmark", "GPU-00000001", True)


async def test_commands_move_sideways(open_screen: OpenScreen) -> None:
    async with open_screen(crowd(), size=(80, 24)) as (app, pilot):
        await pilot.press("5", "l", "l")
        assert line_with(text_of(app), "48220", "--amp bf16")
        await pilot.press("h", "h", "h")
        assert line_with(text_of(app), "48220", "python3 -u")


async def test_many_processes_scroll(open_screen: OpenScreen) -> None:
    state = eight(ticks=2)
    many = [
        entry(1000 + number, f"job {number}", memory_bytes=(300 - number) * GIB)
        for number in range(300)
    ]
    state.apply(on(GPU_0, *many), NOW)
    async with open_screen(state, size=(80, 24)) as (app, pilot):
        await pilot.press("5", "end")
        text = "\n".join(text_of(app))
        assert "1299" in text
        assert "above" in text
        await pilot.press("pageup", "pageup")
        assert 1200 < selected(app) < 1299
        assert str(selected(app)) in "\n".join(text_of(app))
        await pilot.press("home")
        assert "below" in "\n".join(text_of(app))


async def test_a_click_selects(open_screen: OpenScreen) -> None:
    async with open_screen(crowd(), size=(120, 40)) as (app, pilot):
        await pilot.press("5")
        await pilot.pause()
        row = next(y for y, line in enumerate(text_of(app)) if "51544" in line)
        await pilot.click(offset=(20, row))
        assert selected(app) == 51544


async def test_a_dead_process_says_what_it_holds(open_screen: OpenScreen) -> None:
    async with open_screen(crowd(), size=(120, 40)) as (app, pilot):
        await pilot.press("5", "o", "z")
        text = " ".join(" ".join(text_of(app)).split())
        assert "GPU memory still listed here is held by a dead" in text


async def test_devices_that_cannot_be_read_are_named(open_screen: OpenScreen) -> None:
    state = eight(ticks=2)
    refused = events.Processes(**stamp(), device=GPU_0, entries=None, reason="no permission")
    state.apply(refused, NOW)
    async with open_screen(state, size=(80, 24)) as (app, pilot):
        await pilot.press("5")
        assert line_with(text_of(app), "GPU 0: processes N/A: no permission")


async def test_mig_instances_are_named(open_screen: OpenScreen) -> None:
    state = State()
    for event in (
        host(),
        gpu(0, mig=True),
        events.Slices(
            **stamp(),
            device=GPU_0,
            slices=(events.Slice(uuid="MIG-1", profile="3g.40gb", gpu_instance=12),),
        ),
        on(
            GPU_0,
            entry(5, "python3 a.py", memory_bytes=GIB, gpu_instance=12),
            reason="SM and memory share: not reported for a GPU in MIG mode",
        ),
    ):
        state.apply(event, NOW)
    async with open_screen(state, size=(120, 40)) as (app, pilot):
        await pilot.press("5")
        assert line_with(text_of(app), "    5 ", "GPU 0/gi12")
        assert line_with(text_of(app), "MIG instance 3g.40gb")
        assert line_with(text_of(app), "not told", "MIG mode")


SIZES = [(40, 8), (45, 12), (59, 20), (60, 20), (80, 24), (100, 32), (120, 40), (200, 60)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("ascii_only", [False, True])
async def test_every_size_has_the_largest_user(
    open_screen: OpenScreen, size: tuple[int, int], ascii_only: bool
) -> None:
    async with open_screen(crowd(), size=size, ascii_only=ascii_only) as (app, pilot):
        for key in ("5", "t", "o", "escape", "slash", "x", "escape"):
            await pilot.press(key)
            await pilot.pause()
            lines = text_of(app)
            assert len(lines) == size[1]
            for line in lines:
                assert cell_len(line) == size[0]
                assert line.isascii() or not ascii_only
        assert line_with(text_of(app), "48220", "56.6", "py")


async def test_columns_go_where_room_is_short(open_screen: OpenScreen) -> None:
    async with open_screen(crowd(), size=(120, 40)) as (app, pilot):
        await pilot.press("5")
        for width, there, gone in (
            (120, ("host GiB", "age", "mem", "user"), ()),
            (80, ("user", "SM", "CPU"), ("host GiB", "mem ")),
            (50, ("PID", "device", "GPU GiB"), ("user", "CPU")),
        ):
            await resize(app, pilot, width, 40)
            await pilot.pause()
            head = line_with(text_of(app), "PID", "command")
            assert all(word in head for word in there)
            assert not any(word in head for word in gone)


HOSTILE = "evil\x1b[2J\x1b]0;x\x07\nline2 [bold]x[/] \u202eabc [@click=app.quit]y[/]"


@pytest.mark.parametrize(
    "text",
    [HOSTILE, "train\udcff\udcfe", "训练🚀" * 40, "x" * 120_000, " ", "é\u0301"],
    ids=["escapes", "surrogates", "wide", "long", "blank", "combining"],
)
@pytest.mark.parametrize("key", [None, "t", "enter", "K"])
async def test_hostile_names_are_only_text(
    open_screen: OpenScreen, text: str, key: str | None
) -> None:
    state = eight(ticks=2)
    chain = ((text, 9), (text, 8))
    hostile = entry(
        12, text, chain, name=text, user=text, memory_bytes=GIB, parent_pid=9, start_ticks=1
    )
    other = entry(13, text, chain, memory_bytes=GIB, state="D")
    state.apply(on(GPU_0, hostile, other, reason=text), NOW)
    async with open_screen(state, size=(80, 24)) as (app, pilot):
        await pilot.press("5", *([key] if key else []))
        await pilot.pause()
        lines = text_of(app)
        assert len(lines) == 24
        for line in lines:
            assert not any(ord(sign) < 32 or ord(sign) == 127 for sign in line)
            assert cell_len(line) == 80
            line.encode("utf-8")
        assert app.is_running


async def test_ages_are_those_of_now(open_screen: OpenScreen) -> None:
    state = eight(ticks=2)
    ages = {1: 12.0, 2: 5 * 60, 3: 47.9 * 3600, 4: 3 * 86400 + 7200, 5: 400 * 86400, 6: -5.0}
    entries = [
        entry(pid, "job", memory_bytes=pid * GIB, started=WALL - age) for pid, age in ages.items()
    ]
    state.apply(on(GPU_0, *entries), NOW)
    async with open_screen(state, size=(120, 40)) as (app, pilot):
        await pilot.press("5")
        for pid, shown in enumerate(("12 s", "5 min", "47 h 54", "3 d 2 h", "400 d", "0 s"), 1):
            assert line_with(text_of(app), f" {pid} ", shown)
