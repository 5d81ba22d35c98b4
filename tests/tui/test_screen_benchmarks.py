"""What the screen says of its own measurements: why there are none, who disturbs them, and when."""

from __future__ import annotations

import pytest
from screen_demo import CPU, FakeSession, ceilings, cpu, cpu_only, eight, fold, rate, ready, stamp
from screen_text import OpenScreen, resize, text_of
from test_screen_live import line_with

from topsmon import events
from topsmon.state import State
from topsmon.tui import benchmarks
from topsmon.tui.app import TopsmonApp
from topsmon.tui.dialogs import TEXT_WIDTH, TextDialog

NO_TORCH = (
    "no Python with torch found: install torch beside topsmon (CPU build: pip install torch "
    "--index-url https://example.org/whl/cpu) or name an interpreter with --python PATH"
)
GPU_0 = "GPU-00000000"


def without_torch() -> FakeSession:
    session = FakeSession(fold([cpu(), ceilings("cpu", CPU, 3000.0)]))
    session.torch_problem = NO_TORCH
    return session


def told(app: TopsmonApp) -> list[str]:
    return [note.message for note in app._notifications]


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_without_torch_the_screen_says_so_and_how_to_get_it(
    open_screen: OpenScreen, size: tuple[int, int]
) -> None:
    session = without_torch()
    async with open_screen(session.state, size=size, session=session) as (app, pilot):
        assert "no Python with torch found" in text_of(app)[3]
        assert size[0] < 100 or "no benchmarks: no Python with torch found" in text_of(app)[3]
        assert " b " not in text_of(app)[-1]
        await pilot.press("b")
        assert session.calls == [("start",)]
        assert told(app) == [f"no benchmarks: {NO_TORCH}"]
        await pilot.press("enter")
        await pilot.pause()
        words = " ".join(" ".join(text_of(app)).replace("│", " ").split())
        assert "--python PATH" in words


async def test_torch_that_is_found_later_clears_it(open_screen: OpenScreen) -> None:
    session = without_torch()
    async with open_screen(session.state, session=session) as (app, pilot):
        session.torch_problem = None
        await pilot.press("b")
        assert session.calls[-1] == ("benchmark", "cpu", True)
        await pilot.pause()
        assert " b " in text_of(app)[-1]


@pytest.mark.parametrize(
    ("condition", "words"),
    [("lost", "GPU 0 is lost"), ("stalled", "GPU 0 does not answer"), ("asleep", "is asleep")],
)
async def test_b_is_not_offered_on_a_device_that_is_away(
    open_screen: OpenScreen, condition: str, words: str
) -> None:
    state = eight(ticks=2)
    state.apply(
        events.DeviceStatus(**stamp(), device=GPU_0, condition=condition, since=1000.0), 1000.0
    )
    session = FakeSession(state)
    async with open_screen(state, session=session) as (app, pilot):
        assert words in text_of(app)[3]
        assert " b " not in text_of(app)[3] + text_of(app)[-1]
        await pilot.press("b")
        assert session.calls == [("start",)]
        assert words in told(app)[0]


async def test_a_failed_worker_gives_its_reason(open_screen: OpenScreen) -> None:
    state = eight(ticks=2)
    failed = events.Worker(
        **stamp(),
        worker=f"prober {GPU_0}",
        condition="failed",
        detail="ImportError: libcudart.so.13: no such file",
    )
    state.apply(failed, 1000.0)
    async with open_screen(state) as (app, pilot):
        assert "no benchmarks: the worker failed (ImportError: libcudart.so.13" in text_of(app)[3]
        await pilot.press("b")
        assert "libcudart.so.13: no such file" in told(app)[0]


def shared(state: State, *, idle: bool) -> events.Finding:
    if idle:
        reason = "python3 t.py (PID 7) uses GPU 0"
        state.apply(events.ProberIdle(**stamp(), device=GPU_0, reason=reason), 1000.0)
    return events.Finding(
        **stamp(),
        device=GPU_0,
        code=benchmarks.SHARED,
        severity="info",
        word="SHARED",
        title="GPU 0  used by python3 t.py (PID 7)",
        cause="benchmarks are not started beside other work",
        remedy="Press b to measure anyway.",
    )


async def test_measuring_beside_others_is_told_in_one_voice(open_screen: OpenScreen) -> None:
    state = eight(ticks=2)
    finding = shared(state, idle=False)
    session = FakeSession(state, (finding,))
    async with open_screen(state, session=session) as (app, pilot):
        assert "Press b to measure anyway." in " ".join(text_of(app)[1:3])
        await pilot.press("b")
        await pilot.pause()
        top = " ".join(text_of(app)[1:4])
        assert "measured beside this work, as asked" in top
        assert "GPU 0: measuring half of the time, b for less" in top
        assert "not started" not in top
        assert "anyway" not in top


async def test_a_held_back_device_is_not_promised_anything_without_torch(
    open_screen: OpenScreen,
) -> None:
    state = eight(ticks=2)
    session = FakeSession(state, (shared(state, idle=True),))
    session.torch_problem = NO_TORCH
    async with open_screen(state, session=session) as (app, _):
        assert "anyway" not in " ".join(text_of(app))


async def test_a_cpu_with_disturbed_rates_alone_says_so(open_screen: OpenScreen) -> None:
    bad = {"valid": False, "invalid_reason": "got 21 % of the CPU time", "cpu_share": 0.21}
    rates = [rate("cpu", key, 20e9, **bad) for key in ("fp32", "fp64")]
    source = [cpu(), ceilings("cpu", CPU, 3000.0), ready("cpu"), *rates]
    async with open_screen(fold(source)) as (app, _):
        assert "CPU: rates disturbed by other processes" in text_of(app)[3]
    async with open_screen(fold([*source, rate("cpu", "int8", 1e9)])) as (app, _):
        assert "disturbed" not in text_of(app)[3]


async def test_a_good_rate_keeps_its_age_beside_a_disturbed_last_try(
    open_screen: OpenScreen,
) -> None:
    state = cpu_only()
    state.apply(
        rate("cpu", "fp64", 20e9, 2, valid=False, cpu_share=0.21, shape=(2048,) * 3), 1000.0
    )
    async with open_screen(state, size=(120, 40)) as (app, pilot):
        assert line_with(text_of(app), "FP64", "71.0 GFLOPS", "40 s ago !")
        await resize(app, pilot, 150, 40)
        await pilot.pause()
        assert line_with(text_of(app), "FP64", "71.0 GFLOPS", "40 s ago, last try 21% CPU")


async def test_a_missing_rate_has_no_unit_and_its_ceiling_has(open_screen: OpenScreen) -> None:
    state = fold([cpu(), ceilings("cpu", CPU, 3000.0)])
    async with open_screen(state, size=(120, 40)) as (app, pilot):
        row = line_with(text_of(app), "FP64", "96.0 GFLOPS")
        assert "N/A GFLOPS" not in row
        assert row.index("N/A") < row.index("96.0 GFLOPS")
        await resize(app, pilot, 100, 30)
        await pilot.pause()
        assert line_with(text_of(app), "FP64", "not measured", "96.0 GFLOPS")


async def test_the_ceilings_reason_comes_before_the_benchmarks(open_screen: OpenScreen) -> None:
    state = cpu_only()
    refusal = events.ProbeUnsupported(
        **stamp(), device="cpu", precision="fp16", reason="mm not implemented for Half"
    )
    state.apply(refusal, 1000.0)
    known = ceilings("cpu", CPU, 3000.0, absent={"fp16_acc32": "no FP16 arithmetic in AVX2"})
    state.apply(known, 1000.0)
    async with open_screen(state, size=(120, 40)) as (app, _):
        assert line_with(text_of(app), "FP16 ", "no FP16 arithmetic in AVX2")
        assert "not implemented" not in " ".join(text_of(app))


async def test_a_measured_clock_is_not_called_rated(open_screen: OpenScreen) -> None:
    source = "3400 MHz, the highest clock measured here; told: nominal clock 3000 MHz"
    state = fold(
        [cpu(), ceilings("cpu", CPU, 3400.0, clock_source=source), rate("cpu", "fp32", 96e9)]
    )
    async with open_screen(state, size=(120, 40)) as (app, pilot):
        lines = text_of(app)
        assert line_with(lines, "where do the TFLOPS go?", "% of ceiling")
        assert line_with(lines, "at top clock", "192")
        assert line_with(lines, "clock below top")
        assert line_with(lines, "achieved", "50.0% of ceiling")
        assert line_with(lines, "ceiling at the highest clock measured")
        assert "rated" not in " ".join(lines)
        await resize(app, pilot, 80, 18)
        await pilot.pause()
        assert line_with(text_of(app), "192 GFLOPS at top clock")


async def test_the_details_break_long_notes_between_words(open_screen: OpenScreen) -> None:
    note = "both operands row-major, right side column-major, " + "median of many calls, " * 6
    state = eight(ticks=2)
    state.apply(rate(GPU_0, "bf16", 900e12, note=note + "the end"), 1000.0)
    async with open_screen(state, size=(120, 60)) as (app, pilot):
        await pilot.press("enter")
        assert isinstance(app.screen, TextDialog)
        assert note + "the end" in " ".join(app.screen.text.split())
        assert all(len(line) <= TEXT_WIDTH for line in app.screen.text.splitlines())


@pytest.mark.parametrize("key", ["question_mark", "enter", "B"])
async def test_an_open_dialog_says_that_the_screen_stands_still(
    open_screen: OpenScreen, key: str
) -> None:
    async with open_screen(eight(ticks=2), size=(80, 24)) as (app, pilot):
        await pilot.press(key)
        await pilot.pause()
        assert "the screen behind stands still" in " ".join(text_of(app))


@pytest.mark.parametrize("size", [(20, 5), (10, 3)])
async def test_a_tiny_screen_tells_the_way_out_and_opens_nothing(
    open_screen: OpenScreen, size: tuple[int, int]
) -> None:
    async with open_screen(eight(ticks=2), size=size) as (app, pilot):
        assert text_of(app)[1].strip() == "q quits"
        await pilot.press("question_mark", "enter", "B")
        assert len(app.screen_stack) == 1
        await pilot.press("q")
    assert app.return_code == 0
