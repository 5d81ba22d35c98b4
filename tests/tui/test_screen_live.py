"""The live screen as text, at the sizes people use, on machines that people have."""

from __future__ import annotations

import re

import pytest
from rich.cells import cell_len
from screen_demo import (
    GIB,
    NOW,
    RTX4090,
    FakeSession,
    capped_finding,
    ceilings,
    cpu_only,
    eight,
    fold,
    gpu,
    host,
    lost_finding,
    rate,
    sample,
    stamp,
)
from screen_text import OpenScreen, resize, text_of

from topsmon import events
from topsmon.state import State

SIZES = [(20, 5), (40, 8), (40, 10), (59, 20), (60, 10), (80, 24), (100, 30), (120, 40), (200, 60)]


def line_with(lines: list[str], *parts: str) -> str:
    found = [line for line in lines if all(part in line for part in parts)]
    assert found, f"no line with {parts} in\n" + "\n".join(lines)
    return found[0]


def end_of(line: str, word: str) -> int:
    found = re.search(rf"(?<!\S){re.escape(word)}(?!\S)", line)
    assert found, f"{word!r} is not in {line!r}"
    return found.end()


@pytest.mark.parametrize("machine", ["eight", "sixteen", "cpu", "nothing"])
async def test_every_size_draws(open_screen: OpenScreen, machine: str) -> None:
    states = {
        "eight": lambda: eight(ticks=20),
        "sixteen": lambda: eight(ticks=4, count=16),
        "cpu": cpu_only,
        "nothing": State,
    }
    async with open_screen(states[machine](), size=(10, 3)) as (app, pilot):
        for width, height in SIZES:
            await resize(app, pilot, width, height)
            lines = text_of(app)
            assert len(lines) == height
            assert all(cell_len(line) == width for line in lines)
            assert any(line.strip() for line in lines)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_the_worst_finding_with_cause_and_whole_command(
    open_screen: OpenScreen, size: tuple[int, int]
) -> None:
    async with open_screen(eight(ticks=20), (capped_finding(),), size) as (app, _):
        top = " ".join(text_of(app)[1:3])
        assert "SLOW" in top
        assert "GPU 3  BF16 412 of 989 TFLOPS (41.6%)" in top
        assert "power limit is set to 350 W (default 700 W)" in top
        assert "sudo nvidia-smi -i 3 -pl 700" in top


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_heads_stand_above_the_ends_of_their_numbers(
    open_screen: OpenScreen, size: tuple[int, int]
) -> None:
    async with open_screen(eight(), (capped_finding(),), size) as (app, _):
        lines = text_of(app)
        head = line_with(lines, "busy", "memory GiB", "MHz")
        row = line_with(lines, "SLOW", "1155", "50.2/80.0")
        cut = head.index("memory GiB")
        for word, number in (("GiB", "50.2/80.0"), ("W", "350/350"), ("°C", "84"), ("MHz", "1155")):
            assert end_of(head[cut:], word) == end_of(row[cut:], number)
        assert end_of(head[cut:], "BF16") == end_of(row[cut:], "41.2%")
        assert end_of(head, "busy") == end_of(row, "68%")


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_rates_name_units_and_the_device(
    open_screen: OpenScreen, size: tuple[int, int]
) -> None:
    async with open_screen(eight(ticks=20), (capped_finding(),), size) as (app, _):
        lines = text_of(app)
        head = line_with(lines, "ceiling", "ratio", "×FP32")
        bf16 = line_with(lines, "▸BF16", "TFLOPS")
        int8 = line_with(lines, "INT8", "TOPS")
        assert "TFLOPS" not in int8
        assert end_of(head, "rate") == end_of(bf16, "408")
        assert re.search(r"989\s+41\.2%", bf16)
        assert re.search(r"1979\s+40\.0%", int8)
        assert any("GPU 3" in line and "ceiling" in line for line in lines)
        assert line_with(lines, "FP4", "not on sm_90")


async def test_80x24_holds_everything(open_screen: OpenScreen) -> None:
    async with open_screen(eight(ticks=20), (capped_finding(),), (80, 24)) as (app, _):
        lines = text_of(app)
        for index in range(8):
            assert line_with(lines, f" {index} ", "/80.0")
        for label in ("FP64", "FP32", "TF32", "FP16", "BF16", "FP8", "INT8", "FP4"):
            assert any(re.match(rf"[ ▸]{label} ", line) for line in lines)
        assert "989 TFLOPS rated > 624 at held clock -36.9% > 408 best GEMM -21.9%" in lines[22]
        assert lines[23].startswith(" q quit")


async def test_120x40_has_waterfall_charts_and_legend(open_screen: OpenScreen) -> None:
    async with open_screen(eight(), (capped_finding(),), (120, 40)) as (app, _):
        lines = text_of(app)
        assert line_with(lines, "where do the TFLOPS go?", "GPU 3 BF16")
        assert line_with(lines, "rated ceiling", "989")
        assert line_with(lines, "at held clock", "624", "-36.9%")
        assert line_with(lines, "best GEMM", "408", "-21.9%")
        assert line_with(lines, "busy 68%", "memory traffic 30%", "-120s", "now")
        assert line_with(lines, "throttled: power limit 350 W of 700 W")
        assert line_with(lines, "SLOW", "power limit 350 W")


async def test_200x60_has_the_matrix(open_screen: OpenScreen) -> None:
    async with open_screen(eight(ticks=20), (capped_finding(),), (200, 60)) as (app, _):
        lines = text_of(app)
        head = line_with(lines, "TF32", "FP16a", "INT8", "limited by")
        row = line_with(lines, "▸  3", "51.4")
        cut = head.index("FP64")
        assert end_of(head[cut:], "FP64") == end_of(row[cut:], "51.4")
        assert end_of(head[cut:], "INT8") == end_of(row[cut:], "40.0")
        assert line_with(lines, "achieved", "41.2% of rated, best at 8192×8192×8192")
        assert line_with(lines, "power 348/350 W", "-120s")
        assert line_with(lines, "clock 1155/1980 MHz", "-120s")


async def test_the_list_under_60_columns(open_screen: OpenScreen) -> None:
    async with open_screen(eight(), (capped_finding(),), (50, 30)) as (app, _):
        lines = text_of(app)
        assert line_with(lines, "▸  3 SLOW", "68%", "BF16  41.2%")
        assert line_with(lines, "INT8", "792 TOPS", "40.0%")
        text = " ".join(lines)
        assert "power limit is set to 350 W (default 700 W)" in " ".join(text.split())
        assert "sudo nvidia-smi -i 3 -pl 700" in text


async def test_one_line_says_the_worst(open_screen: OpenScreen) -> None:
    async with open_screen(eight(ticks=20), (capped_finding(),), (20, 5)) as (app, _):
        assert text_of(app)[0].startswith(" SLOW  GPU 3")


async def test_a_device_word_is_its_worst_finding(open_screen: OpenScreen) -> None:
    findings = (lost_finding(), capped_finding())
    async with open_screen(eight(ticks=20), findings, (120, 40)) as (app, _):
        lines = text_of(app)
        assert line_with(lines, " 1 LOST")
        assert line_with(lines, " 3 SLOW")
        assert sum(" ok " in line for line in lines) == 6


async def test_a_lost_device_has_no_numbers(open_screen: OpenScreen) -> None:
    state = eight(ticks=20)
    gone = events.DeviceStatus(
        **stamp(), device="GPU-00000001", condition="lost", detail="GpuIsLost", since=NOW
    )
    state.apply(gone, NOW)
    async with open_screen(state, (lost_finding(),), (120, 40)) as (app, _):
        row = line_with(text_of(app), " 1 LOST")
        assert row.count("N/A") >= 5
        assert "/700" not in row


async def test_a_silent_device_is_not_shown_as_new(open_screen: OpenScreen) -> None:
    stalled = events.DeviceStatus(**stamp(), device="GPU-00000002", condition="stalled", since=NOW)
    state = eight()
    state.apply(stalled, NOW)
    async with open_screen(state, size=(120, 40)) as (app, _):
        (row,) = [line for line in text_of(app) if " 2 STALE" in line]
        panel = app._panels["devices"]
        (spans,) = [spans for spans in panel.shown_lines if any("STALE" in s.text for s in spans)]
        assert "94%" in row
        assert {span.role for span in spans if "54.0/80.0" in span.text} == {"muted"}


async def test_missing_numbers_are_na_and_never_zero(open_screen: OpenScreen) -> None:
    laptop = gpu(0, name="NVIDIA GeForce RTX 4070 Laptop GPU", power_limit_default_watts=None)
    nothing = sample(
        laptop.device,
        busy_ratio=None,
        memory_used_bytes=None,
        memory_busy_ratio=None,
        power_watts=None,
        power_limit_watts=None,
        temperature_celsius=None,
        sm_clock_mhz=None,
        clock_event_mask=None,
        unavailable={"busy_ratio": "not supported", "power_watts": "not supported"},
    )
    async with open_screen(fold([host(), laptop, nothing]), size=(120, 40)) as (app, _):
        lines = text_of(app)
        row = next(line for line in lines if line.startswith("│    0 "))
        assert row.count("N/A") == 7  # its state among them
        assert "0%" not in row
        assert line_with(lines, "busy N/A (not supported)")


async def test_a_power_limit_that_is_unknown_is_left_out(open_screen: OpenScreen) -> None:
    state = fold([gpu(0), sample("GPU-00000000", power_limit_watts=None)])
    async with open_screen(state, size=(80, 24)) as (app, _):
        assert re.search(r"  650   62", line_with(text_of(app), "50.2/80.0"))


async def test_a_cpu_is_described_as_one(open_screen: OpenScreen) -> None:
    async with open_screen(cpu_only(), size=(120, 40)) as (app, _):
        lines = text_of(app)
        text = "\n".join(lines)
        assert line_with(lines, "CPU ok", "6.0/16.0", "2445", "61.5%!")
        assert line_with(lines, "▸FP32", "118 GFLOPS", "192", "invalid: 62% CPU")
        assert line_with(lines, "2.13.0+cpu", "2 threads on 2 usable CPUs")
        assert "SM" not in text
        assert "kernel" not in text
        assert "°C" not in text


async def test_an_unknown_board_gets_no_ratio(open_screen: OpenScreen) -> None:
    unknown = events.Ceilings(**stamp(), device="GPU-00000000", unknown="board is not known")
    state = fold(
        [
            gpu(0, name="NVIDIA FutureCard X1"),
            sample("GPU-00000000"),
            unknown,
            rate("GPU-00000000", "bf16", 1.7e15),
        ]
    )
    async with open_screen(state, size=(120, 40)) as (app, _):
        lines = text_of(app)
        row = line_with(lines, "▸BF16", "1700 TFLOPS")
        assert row.count("N/A") == 3
        assert not re.search(r"\d%", row)
        assert line_with(lines, "ceilings", "unknown: board is not known")


async def test_a_boosting_card_is_above_one_hundred(open_screen: OpenScreen) -> None:
    card = gpu(0, name="NVIDIA GeForce RTX 4090", sm_clock_max_mhz=3105)
    state = fold(
        [
            card,
            ceilings(card.device, RTX4090, 2520.0),
            sample(card.device, sm_clock_mhz=2790.0),
            rate(card.device, "bf16", 171e12, held_clock_mhz=2790.0),
        ]
    )
    async with open_screen(state, size=(120, 40)) as (app, _):
        row = line_with(text_of(app), "▸BF16")
        # 171 / 165.2 = 103.5 %; ceiling at 2790 MHz = 165.2 x 2790 / 2520 = 182.9; 171 / 182.9
        assert "103.5%" in row
        assert "93.5%" in row
        assert "▶" in row


async def test_several_boards_are_named(open_screen: OpenScreen) -> None:
    state = fold(
        [gpu(0), gpu(1, name="NVIDIA L40S"), sample("GPU-00000000"), sample("GPU-00000001")]
    )
    async with open_screen(state, size=(120, 40)) as (app, _):
        lines = text_of(app)
        assert "H100 80GB HBM3 + L40S" in lines[0]
        assert line_with(lines, " 1 ok", "L40S")


async def test_a_simulation_is_labelled(open_screen: OpenScreen) -> None:
    state = eight(ticks=2)
    state.apply(
        events.Hello(
            **stamp(), version="0.1.0", schema=1, role="poller", pid=1, simulated="h100-8"
        ),
        NOW,
    )
    for size in ((80, 24), (120, 40), (59, 20)):
        async with open_screen(state, size=size) as (app, _):
            assert " SIMULATED h100-8 " in text_of(app)[0]


async def test_who_holds_the_benchmarks_back(open_screen: OpenScreen) -> None:
    state = eight(ticks=2, capped=None)
    users = events.Processes(
        **stamp(),
        device="GPU-00000000",
        entries=(
            events.ProcessEntry(
                pid=48213, name="python", user="ada", memory_bytes=41 * GIB, command="python t.py"
            ),
            events.ProcessEntry(pid=7, name="topsmon", own=True),
        ),
    )
    state.apply(users, NOW)
    idle = "python t.py (PID 48213) uses GPU 0"
    state.apply(events.ProberIdle(**stamp(), device="GPU-00000000", reason=idle), NOW)
    async with open_screen(state, size=(120, 40)) as (app, _):
        lines = text_of(app)
        assert f"{idle}: b measures anyway" in lines[3]
        assert line_with(lines, "used by", "PID 48213, 41.0 GiB: python t.py")
    async with open_screen(state, size=(200, 60)) as (app, _):
        lines = text_of(app)
        row = line_with(lines, "48213", "41.0", "ada", "python t.py")
        head = line_with(lines, "PID", "GiB", "command")
        assert end_of(head, "PID") == end_of(row, "48213")
        assert end_of(head, "GiB") == end_of(row, "41.0")
        assert not any("topsmon" in line for line in lines[4:])


async def test_nothing_is_said_about_training_without_a_run(open_screen: OpenScreen) -> None:
    async with open_screen(eight(ticks=2), size=(200, 60)) as (app, _):
        lines = text_of(app)
        assert "train" not in "\n".join([*lines[:3], *lines[4:]])


async def test_only_tabs_that_exist_are_shown(open_screen: OpenScreen) -> None:
    async with open_screen(eight(ticks=2), size=(120, 40)) as (app, _):
        tabs = text_of(app)[3]
        assert tabs.startswith(" 1 live  2 roofline  3 training  4 checks ")
        assert " 5 processes " in tabs
        assert "hosts" not in tabs


async def test_the_second_tab_is_the_roofline_and_the_first_brings_the_rates_back(
    open_screen: OpenScreen,
) -> None:
    async with open_screen(eight(ticks=2), size=(120, 40)) as (app, pilot):
        await pilot.press("2")
        await pilot.pause()
        text = "\n".join(text_of(app))
        assert "roofline  GPU 0" in text
        assert "FLOP/byte" in text
        assert "achieved / ceiling" not in text
        await pilot.press("1")
        await pilot.pause()
        assert "achieved / ceiling" in "\n".join(text_of(app))


async def test_the_selected_device_is_the_worst_until_the_user_moves(
    open_screen: OpenScreen,
) -> None:
    session = FakeSession(eight(ticks=2), (capped_finding(),))
    async with open_screen(session.state, size=(120, 40), session=session) as (app, pilot):
        assert app.view.selected == "GPU-00000003"
        session.given = (lost_finding(), capped_finding())
        app.redraw()
        assert app.view.selected == "GPU-00000001"
        await pilot.press("down")
        assert app.view.selected == "GPU-00000002"
        session.given = (capped_finding(),)
        app.redraw()
        assert app.view.selected == "GPU-00000002"


async def test_a_long_list_of_devices_scrolls(open_screen: OpenScreen) -> None:
    async with open_screen(eight(ticks=2, count=16), size=(80, 24)) as (app, pilot):
        assert "↓8" in text_of(app)[4]
        await pilot.press(*"jjjjjjjjjjjjjjj")
        await pilot.pause()
        lines = text_of(app)
        assert "↑8" in lines[4]
        assert line_with(lines, "▸ 15 ok")
        assert line_with(lines, "GPU 15", "ratio")


async def test_a_resize_storm(open_screen: OpenScreen) -> None:
    async with open_screen(eight(ticks=20), (capped_finding(),)) as (app, pilot):
        for width, height in [*SIZES, *reversed(SIZES), (1, 1), (500, 3), (3, 200)]:
            await pilot.resize_terminal(width, height)
        await resize(app, pilot, 120, 40)
        lines = text_of(app)
        assert len(lines) == 40
        assert line_with(lines, " 3 SLOW", "power limit 350 W")


async def test_only_what_changed_is_repainted(open_screen: OpenScreen) -> None:
    session = FakeSession(eight(ticks=20))
    async with open_screen(session.state, size=(120, 40), session=session) as (app, pilot):
        rows = app._panels["devices"]
        app.redraw()
        assert not rows._repaint_regions
        changed = sample(
            "GPU-00000004", power_watts=111.0, temperature_celsius=61.0, clock_event_mask=0
        )
        session.state.apply(changed, NOW)
        app.redraw()
        (region,) = rows._repaint_regions
        assert (region.y, region.height) == (6, 1)
        before_clock = "".join(span.text for span in rows.shown_lines[6]).index("1755")
        assert region.width <= before_clock
        await pilot.pause()
