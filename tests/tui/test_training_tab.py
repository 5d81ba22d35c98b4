"""The training tab: each kind of run at the sizes people use, and the keys."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rich.cells import cell_len
from screen_demo import NOW, cpu_only, eight
from screen_text import OpenScreen, resize, text_of
from test_screen_live import SIZES, end_of, line_with
from textual.pilot import Pilot
from training_runs import (
    Training,
    backward_overflow,
    bf16,
    calibrating,
    clip_before_unscale,
    collapsing,
    crashed,
    finished,
    healthy,
    killed,
    ranks,
    status,
    with_energy,
    with_runs,
)

from topsmon import events
from topsmon.state import State
from topsmon.tui.app import TopsmonApp

Lines = list[str]


def machine(*sources: list[events.AnyEvent]) -> State:
    return with_runs(eight(ticks=2), *sources)


async def tab_of(app: TopsmonApp, pilot: Pilot) -> Lines:
    await pilot.press("3")
    await pilot.pause()
    return text_of(app)


async def drawn(open_screen: OpenScreen, size: tuple[int, int], *sources, **options) -> Lines:
    async with open_screen(machine(*sources), size=size, **options) as (app, pilot):
        return await tab_of(app, pilot)


@pytest.mark.parametrize(
    "source",
    [healthy, calibrating, collapsing, backward_overflow, clip_before_unscale, crashed, killed,
     bf16, ranks],
)  # fmt: skip
async def test_every_size_draws(open_screen: OpenScreen, source: Callable) -> None:
    async with open_screen(machine(source(), finished())) as (app, pilot):
        await pilot.press("3")
        for width, height in SIZES:
            await resize(app, pilot, width, height)
            await pilot.pause()
            lines = text_of(app)
            assert len(lines) == height
            assert all(cell_len(line) == width for line in lines)
            if width >= 40 and height >= 12:
                assert any("▸" in line for line in lines)


async def test_80x24_holds_the_essentials(open_screen: OpenScreen) -> None:
    lines = await drawn(open_screen, (80, 24), healthy(), finished(), crashed())
    row = line_with(lines, "▸ ok", "train.py", "18,442", "131072", "0.0%", "2.183")
    head = line_with(lines, "run", "step", "scale", "skipped", "loss", "MFU")
    for name, value in (("step", "18,442"), ("scale", "131072"), ("skipped", "0.0%")):
        assert end_of(head, name) == end_of(row, value)
    assert line_with(lines, "FAILED", "train.py --batch 64", "812", "exit code 1: OutOfMemory")
    assert line_with(lines, "done", "2,400", "exit code 0")
    assert line_with(lines, " ok ", "mixed precision healthy")
    assert line_with(lines, "loss scale over the run, log2")
    assert line_with(lines, "step 1", "scale 131072", "newest 18,442")
    assert line_with(lines, " skips ", "·")
    for part in ("last 200  0 skipped", "overall   8 skipped", "in a row  none now",
                 "growth    434 of 2,000", "norm      1.017", "clipped   34%", "MFU       ≥",
                 "step time 215 ms", "speed     679k tokens/s", "data wait 1.2%"):  # fmt: skip
        assert line_with(lines, part)


async def test_120x40_adds_what_happened_and_more_charts(open_screen: OpenScreen) -> None:
    lines = await drawn(open_screen, (120, 40), healthy(), finished(), crashed())
    assert line_with(lines, "3 training runs, 1 live")
    assert line_with(lines, "train.py --config configs/base.yaml  PID 48213")
    assert line_with(lines, "GPT  123.7M parameters  cuda:0")
    assert line_with(lines, "loss over the run, mean")
    assert line_with(lines, "gradient norm over the run")
    assert line_with(lines, "what happened, newest first")
    assert line_with(lines, "18,008", "2 min ago", "skipped, scale down to 131072")
    assert line_with(lines, "18,007", "scale up to 262144")
    assert line_with(lines, "MFU", "343 TFLOPS, 6ND, lower bound")
    assert line_with(lines, "energy", "N/A", "no GPU counter")
    assert line_with(lines, "memory", "41.2 GiB", "peak 62.1 GiB")
    assert line_with(lines, "lr", "0.0006")
    assert line_with(lines, "autocast", "fp16")


async def test_energy_is_told_a_step_and_a_token(open_screen: OpenScreen) -> None:
    async with open_screen(with_energy(machine(healthy())), size=(120, 40)) as (app, pilot):
        lines = await tab_of(app, pilot)
        # 650 W x 1.01 x 0.215 s, and that over 147,456 tokens
        assert line_with(lines, "energy", "141 J/step", "957 uJ/token")


async def test_200x60_has_loss_and_norm_side_by_side(open_screen: OpenScreen) -> None:
    lines = await drawn(open_screen, (200, 60), healthy())
    assert line_with(lines, "loss over the run, mean", "gradient norm over the run")
    assert line_with(lines, "2^18")
    assert line_with(lines, "1e1")


async def test_a_narrow_terminal_has_one_column(open_screen: OpenScreen) -> None:
    lines = await drawn(open_screen, (50, 40), backward_overflow(), killed())
    assert line_with(lines, "▸", "seq2seq.train --amp")
    assert line_with(lines, "KILLED", "pretrain.py", "signal SIGKILL")
    assert line_with(lines, "last 200", "50 skipped")
    assert line_with(lines, "bad grads", "step 896")


async def test_a_dead_scale_is_told_in_words_marks_and_numbers(open_screen: OpenScreen) -> None:
    lines = await drawn(open_screen, (120, 40), collapsing(), healthy())
    assert line_with(lines, "▸ FAIL", "finetune.py", "220", " 0 ", "90.5%", "NaN/Inf")
    assert line_with(lines, " FAIL ", "loss scale is dead: 0")
    assert line_with(lines, "→", "restore a checkpoint")
    assert line_with(lines, "skips", "×××")
    assert line_with(lines, "NaN", "×××")
    assert line_with(lines, "scale", "0 to 65536 so far")
    assert line_with(lines, "in a row", "181 skipped")
    assert line_with(lines, "bad layer", "step 41", "model.layers.7.self_attn.softmax")
    assert line_with(lines, "bad grads", "148 of 148")
    assert line_with(lines, "179 skipped, scale down to 0")


async def test_a_finite_loss_with_bad_gradients_names_the_parameter(
    open_screen: OpenScreen,
) -> None:
    lines = await drawn(open_screen, (80, 24), backward_overflow())
    assert line_with(lines, "bad grads", "1 of 148: decoder.blocks.11.mlp.fc2.weight")


async def test_clipping_before_unscaling_is_named(open_screen: OpenScreen) -> None:
    lines = await drawn(open_screen, (120, 40), clip_before_unscale())
    assert line_with(lines, "gradients are clipped before they are unscaled")
    assert line_with(lines, "→", "scaler.unscale_(optimizer)")
    assert line_with(lines, "clipped before unscaling: norm")
    assert line_with(lines, "norm", "80319")


async def test_calibration_is_calm(open_screen: OpenScreen) -> None:
    lines = await drawn(open_screen, (120, 40), calibrating())
    assert line_with(lines, "▸ ok", "tune.py")
    assert line_with(lines, "note", "at the start")
    assert line_with(lines, "8 skipped, scale down to 256")


async def test_without_a_scaler_the_loss_takes_its_place(open_screen: OpenScreen) -> None:
    lines = await drawn(open_screen, (80, 24), bf16())
    assert line_with(lines, "▸ ok", "vit.py", "4,000", "none")
    assert line_with(lines, "loss over the run")
    assert not any("loss scale over" in line for line in lines)
    assert not any("in a row" in line for line in lines)


async def test_a_run_without_a_step_says_so(open_screen: OpenScreen) -> None:
    run = healthy()[:1]
    for size in ((80, 24), (120, 40)):
        lines = await drawn(open_screen, size, run)
        assert line_with(lines, "▸ ok", "train.py", "N/A")
        assert line_with(lines, "step", "none yet", "the first one is on its way")


async def test_without_a_run_the_tab_tells_how_to_start_one(open_screen: OpenScreen) -> None:
    for size in ((50, 20), (80, 24), (120, 40)):
        async with open_screen(cpu_only(), size=size) as (app, pilot):
            lines = await tab_of(app, pilot)
            assert line_with(lines, "topsmon run -- python train.py")
            assert line_with(lines, "topsmon demo amp")
            assert not any("MFU" in line for line in lines)
            await pilot.press("j", "k", "h", "l", "t", "[", "]", "enter")
            assert len(app.screen_stack) == 1


async def test_ranks_of_one_launch_share_a_line_until_t(open_screen: OpenScreen) -> None:
    async with open_screen(machine(ranks(), killed()), size=(120, 40)) as (app, pilot):
        lines = await tab_of(app, pilot)
        assert line_with(lines, "2 training runs, 1 live, 9 processes")
        # 7 ranks at 147,456 tokens / 0.36 s and one at 0.38 s
        assert line_with(lines, "▸ ok", "ranks 0-7 (rank 0)", "2,598", "380 ms", "3.22M tokens/s")
        assert line_with(lines, "several ranks: the worst of each column")
        assert line_with(lines, "rank 0 of 8")
        assert line_with(lines, "h l rank", "t all ranks")
        await pilot.press("right", "]", "l")
        await pilot.pause()
        lines = text_of(app)
        assert line_with(lines, "ranks 0-7 (rank 3)")
        assert line_with(lines, "PID 3003  rank 3 of 8")
        await pilot.press("[", "t")
        await pilot.pause()
        lines = text_of(app)
        assert line_with(lines, "▸ ok", "pretrain.py", "rank 2", "2,600")
        assert line_with(lines, "  ok", "rank 5", "2,598", "380 ms")
        assert line_with(lines, "t launches")
        await pilot.press("down", "t")
        await pilot.pause()
        assert line_with(text_of(app), "▸ ok", "ranks 0-7 (rank 3)")


async def test_keys_and_mouse_choose_a_run(open_screen: OpenScreen) -> None:
    state = machine(healthy(), crashed(), killed())
    async with open_screen(state, size=(120, 40)) as (app, pilot):
        lines = await tab_of(app, pilot)
        device, precision = app.view.selected, app.view.precision
        await pilot.press("j")
        await pilot.pause()
        lines = text_of(app)
        assert line_with(lines, "▸ FAILED", "train.py --batch 64")
        assert line_with(lines, "ended: exit code 1")
        assert line_with(lines, "OutOfMemoryError: CUDA out of memory")
        row = next(i for i, line in enumerate(lines) if "KILLED" in line)
        await pilot.click(offset=(20, row))
        await pilot.pause()
        assert line_with(text_of(app), "▸ KILLED", "pretrain.py")
        await pilot.press("up", "up", "k")
        await pilot.pause()
        assert line_with(text_of(app), "▸ ok", "train.py")
        assert (app.view.selected, app.view.precision) == (device, precision)


async def test_more_runs_than_rows_scroll(open_screen: OpenScreen) -> None:
    many = [
        Training(20 + place, key=f"run-{place}", identity={"pid": 100 + place,
                 "command": f"python job{place:02}.py", "started": 1000.0 - place}).events()
        for place in range(14)
    ]  # fmt: skip
    async with open_screen(machine(*many), size=(80, 24)) as (app, pilot):
        lines = await tab_of(app, pilot)
        assert line_with(lines, "▸ ok", "job00.py")
        assert line_with(lines, "↓", "run", "step")
        await pilot.press(*["j"] * 13)
        await pilot.pause()
        lines = text_of(app)
        assert line_with(lines, "▸ ok", "job13.py")
        assert line_with(lines, "↑", "run", "step")
        await resize(app, pilot, 120, 40)
        await pilot.pause()
        assert line_with(text_of(app), "↑6 above")


async def test_enter_tells_everything(open_screen: OpenScreen) -> None:
    run = healthy(
        identity={
            "limits": ("compiled modules show no layers",), "rank": 1, "local_rank": 1,
            "world_size": 2,
        },
        totals={"dropped": 3},
    )  # fmt: skip
    async with open_screen(machine(run), size=(120, 80)) as (app, pilot):
        await pilot.press("3", "enter")
        await pilot.pause()
        text = "\n".join(text_of(app))
    for part in (
        "python train.py --config configs/base.yaml",
        "48213 on ml-node-07",
        "1 of 2, local rank 1",
        "cuda:0, GPU 0, GPU-00000000",
        "Python 3.11.7, torch 2.13.0+cu130",
        "123.7M, 39.38M of them embeddings (124M float32)",
        "AdamW",
        "torch.amp.GradScaler",
        "starts at 65536, grows by a factor of 2, after 2,000 steps, falls by a factor of",
        "started by topsmon run",
        "19 us a step by its own measure",
        "3 readings given up rather than waited for",
        "compiled modules show no layers",
    ):
        assert part in text
    # 19 us of a mean step of 1.01 x 215 ms
    assert "0.009% of a step" in text


async def test_how_it_ended_and_a_past_spike_stand_in_the_details(open_screen: OpenScreen) -> None:
    async with open_screen(machine(crashed()), size=(120, 80)) as (app, pilot):
        await pilot.press("3", "enter")
        await pilot.pause()
        text = "\n".join(text_of(app))
        assert "exit code 1: OutOfMemoryError" in text
        assert "Lower the batch size" in text


async def test_words_and_signs_do_the_telling_in_ascii(open_screen: OpenScreen) -> None:
    for size in ((50, 30), (80, 24), (120, 40), (200, 60)):
        lines = await drawn(open_screen, size, collapsing(), killed(), ascii_only=True)
        assert all(line.isascii() for line in lines)
        assert line_with(lines, "> FAIL", "finetune.py")
        assert line_with(lines, "KILLED")
        if size[0] >= 60:
            assert line_with(lines, "skips", "xxx")


HOSTILE = "python \x1b[2Jevil.py\n[bold]x[/] \u202e訓練🚀\udcff " + "y" * 5000


async def test_text_from_a_run_is_only_text(open_screen: OpenScreen) -> None:
    key = "1780000000-48213-0"
    source = healthy(
        steps=300,
        identity={
            "command": HOSTILE, "model": HOSTILE, "torch_device": HOSTILE, "hostname": HOSTILE,
            "limits": (HOSTILE,), "optimizers": (HOSTILE,), "entry": HOSTILE,
            "parameter_types": {HOSTILE: 5}, "torch_version": HOSTILE,
            "scaler": events.Scaler(kind=HOSTILE, init_scale=65536.0, backoff_factor=0.5,
                                    growth_factor=2.0, growth_interval=2000),
        },
        told=[(kind, 200, {"names": (HOSTILE,), "message": HOSTILE, "values": {"bad": 1.0}})
              for kind in ("nonfinite-output", "nonfinite-gradients", "exception", "end", HOSTILE)],
    )  # fmt: skip
    ended = status(key, "failed", HOSTILE, 5.0, 1)
    for size in ((50, 30), (80, 24), (120, 40)):
        async with open_screen(machine(source, [ended]), size=size) as (app, pilot):
            for press in ("1", "3", "enter"):
                await pilot.press(press)
                await pilot.pause()
                for line in text_of(app):
                    assert not any(ord(sign) < 32 for sign in line)
                    assert cell_len(line) == size[0]
                    line.encode("utf-8")


async def test_a_new_step_repaints_little(
    open_screen: OpenScreen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tick in which one step more was made redraws numbers, not charts or frames."""
    state = machine(healthy(), killed())
    async with open_screen(state, size=(120, 40)) as (app, pilot):
        await tab_of(app, pilot)
        painted: list[tuple[str, int]] = []
        for name, panel in app._panels.items():

            def noted(*regions, panel=panel, name=name, **options):
                rows = [region.height for region in regions] or [panel.size.height]
                painted.append((name, sum(rows)))

            monkeypatch.setattr(panel, "refresh", noted)
        app.redraw()
        assert painted == []
        for event in healthy(steps=18443)[-1:]:
            state.apply(event, NOW)
        app.redraw()
        assert {name for name, _ in painted} <= {"runs", "run-numbers", "run-verdict", "happened"}
        assert sum(rows for _, rows in painted) <= 8
