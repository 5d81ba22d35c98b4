"""The live tab's panel about mixed precision: there only while a run is news."""

from __future__ import annotations

import pytest
from screen_demo import NOW, cpu_only, eight
from screen_text import OpenScreen, text_of
from test_screen_live import line_with
from training_runs import bf16, collapsing, crashed, finished, healthy, killed, with_runs

from topsmon.state import State


def machine(*sources) -> State:
    return with_runs(eight(ticks=2), *sources)


@pytest.mark.parametrize("size", [(120, 40), (200, 60)])
async def test_a_living_run_has_a_panel(open_screen: OpenScreen, size: tuple[int, int]) -> None:
    async with open_screen(machine(healthy(), killed()), size=size) as (app, _):
        lines = text_of(app)
        assert line_with(lines, "training run: key 3")
        assert line_with(lines, " ok ", "train.py", "step 18,442")
        assert line_with(lines, "scale", "131072", "▂", "▅")
        assert line_with(lines, "skipped", "0 of last 200")
        assert line_with(lines, "MFU", "≥34.7%")
        assert line_with(lines, "verdict", "mixed precision healthy")
        assert line_with(lines, "busy", "memory traffic")


async def test_80x24_has_a_line(open_screen: OpenScreen) -> None:
    async with open_screen(machine(healthy()), size=(80, 24)) as (app, _):
        lines = text_of(app)
        assert line_with(lines, " ok ", "train.py", "step 18,442", "scale 131072", "MFU ≥34.7%")
        assert line_with(lines, "TFLOPS rated")
        assert sum(f" {index} " in line[:6] for index, line in enumerate(lines[5:13])) == 8


async def test_a_narrow_terminal_has_a_line(open_screen: OpenScreen) -> None:
    async with open_screen(machine(collapsing()), size=(50, 30)) as (app, _):
        assert line_with(text_of(app), "FAIL", "finetune.py", "step 220", "scale 0")


async def test_trouble_is_told_in_words(open_screen: OpenScreen) -> None:
    async with open_screen(machine(collapsing(), healthy()), size=(120, 40)) as (app, _):
        lines = text_of(app)
        assert line_with(lines, "training run, 1 more: key 3")
        assert line_with(lines, "FAIL", "finetune.py --fp16", "step 220")
        assert line_with(lines, "verdict", "loss scale is dead: 0")


async def test_a_run_that_ended_minutes_ago_is_still_shown(open_screen: OpenScreen) -> None:
    async with open_screen(machine(crashed()), size=(200, 60)) as (app, _):
        lines = text_of(app)
        assert line_with(lines, "FAILED", "train.py --batch 64", "step 812")


@pytest.mark.parametrize("source", [killed, finished])
async def test_what_ended_long_ago_is_not(open_screen: OpenScreen, source) -> None:
    for size in ((50, 30), (80, 24), (120, 40), (200, 60)):
        async with open_screen(machine(source()), size=size) as (app, _):
            lines = text_of(app)
            assert not any("verdict" in line or "train.py" in line for line in lines)


async def test_bf16_needs_no_scale(open_screen: OpenScreen) -> None:
    async with open_screen(with_runs(cpu_only(), bf16()), size=(120, 40)) as (app, _):
        lines = text_of(app)
        assert line_with(lines, "verdict", "healthy (BF16, no loss scaler)")
        assert not any("skipped" in line for line in lines)


async def test_the_panel_shows_the_run_chosen_on_its_tab(open_screen: OpenScreen) -> None:
    async with open_screen(machine(collapsing(), healthy()), size=(120, 40)) as (app, pilot):
        await pilot.press("3", "j", "1")
        await pilot.pause()
        assert line_with(text_of(app), " ok ", "train.py --config", "step 18,442")


async def test_a_run_without_a_step_says_so(open_screen: OpenScreen) -> None:
    async with open_screen(machine(healthy()[:1]), size=(120, 40)) as (app, _):
        lines = text_of(app)
        assert line_with(lines, " ok ", "train.py", "no step yet")
        assert line_with(lines, "verdict", "no step seen yet")
        assert app.view.now == NOW


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_the_job_joins_the_waterfall_of_its_precision(
    open_screen: OpenScreen, size: tuple[int, int]
) -> None:
    async with open_screen(machine(healthy()), size=size) as (app, pilot):
        while app.view.precision != "fp16":
            await pilot.press("h")
        await pilot.pause()
        lines = text_of(app)
        # 6 x (123,653,376 - 39,383,808) parameters x 147,456 tokens / (1.01 x 0.215 s)
        if size[0] < 100:
            assert line_with(lines, "TFLOPS rated", "best GEMM", "343 job")
        else:
            assert line_with(lines, "the job (MFU)", "343", "━")
            assert line_with(lines, "MFU", "34.7% of rated, best GEMM 75.0%")
