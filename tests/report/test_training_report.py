"""A run as one line, as a block, in the snapshot's text and in its JSON."""

import json
from typing import Any

import pytest

from topsmon import ceilings, events
from topsmon.diagnosis import diagnose, of_run
from topsmon.report import once, training
from topsmon.report.columns import cells
from topsmon.state import State

WALL, NOW, KEY = 1_700_000_000.0, 10.0, "run-0"
HEADER: dict[str, Any] = {"time": WALL - 1, "monotonic": 9.0, "source": "node"}
SCALER = events.Scaler(kind="GradScaler", init_scale=65536.0, growth_interval=2000)


def run(rank: int | None = None, **changes: Any) -> events.Run:
    fields: dict[str, Any] = {
        "run": f"run-{rank or 0}",
        "pid": 4711 + (rank or 0),
        "hostname": "node",
        "started": WALL - 500,
        "command": "python train.py",
        "rank": rank,
        "world_size": 8 if rank is not None else None,
        "launch": "one" if rank is not None else None,
        "scaler": SCALER,
        "torch_device": f"cuda:{rank or 0}",
        "device_uuid": f"GPU-{rank or 0}",
        "flops_per_step": 49.47e12,
        "flops_source": "given",
    }
    return events.Run(**HEADER, **{**fields, **changes})


def sample(rank: int = 0, totals: dict[str, Any] | None = None, **changes: Any) -> Any:
    life = {
        "steps": 1204,
        "skipped": 2,
        "calibration_skips": 2,
        "longest_skip_streak": 2,
        "scale_lowest": 16384.0,
        "scale_highest": 65536.0,
        "recorder_seconds": 1204 * 21e-6,
    }
    fields: dict[str, Any] = {
        "run": f"run-{rank}",
        "step": 1204,
        "stepped_at": WALL - 1,
        "loss": 2.31,
        "loss_finite": True,
        "scale": 65536.0,
        "autocast": "fp16",
        "gradient_norm": 1.2,
        "memory_bytes": 12 * 2**30,
        "memory_peak_bytes": 14 * 2**30,
        "window": events.RunWindow(
            steps=200,
            step_seconds=0.2,
            mean_step_seconds=0.2,
            high_step_seconds=0.21,
            tokens_per_second=40960.0,
            data_wait_ratio=0.03,
            clip_calls=200,
            clipped_ratio=0.12,
        ),
        "totals": events.RunTotals(**{**life, **(totals or {})}),
    }
    return events.RunSample(**HEADER, **{**fields, **changes})


def status(condition: Any, rank: int = 0, **changes: Any) -> events.RunStatus:
    fields = {"run": f"run-{rank}", "condition": condition, "since": WALL - 3}
    return events.RunStatus(**HEADER, **{**fields, **changes})


def h100(index: int = 0) -> list[Any]:
    device = events.Device(
        **HEADER,
        device=f"GPU-{index}",
        kind="gpu",
        index=index,
        name="NVIDIA H100 80GB HBM3",
        pci_device_id="2330",
        compute_capability="9.0",
        sm_count=132,
    )
    return [device, ceilings.for_device(device)]


def machine(*found: Any) -> State:
    state = State()
    for group in found:
        for one in group if isinstance(group, list) else [group]:
            state.apply(one, one.monotonic)
    return state


def verdict(*found: Any) -> str:
    state = machine(*found)
    return training.verdict(state.runs[KEY], of_run(state, KEY, NOW))


def summary(state: State, **changes: Any) -> str:
    return training.summary(state.ordered_runs(), state, NOW, **changes)


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (
            (run(), sample()),
            "mixed precision healthy: scale 65536, 2 of 1,204 steps skipped (calibration)",
        ),
        (
            (run(), sample(totals={"skipped": 0, "calibration_skips": 0})),
            "mixed precision healthy: scale 65536, no step of 1,204 skipped",
        ),
        (
            (run(), sample(totals={"skipped": 5})),
            (
                "mixed precision healthy: scale 65536, 5 of 1,204 steps skipped "
                "(2 calibration, 3 later)"
            ),
        ),
        (
            (run(scaler=None), sample(scale=None, autocast="bf16")),
            "healthy (BF16, no loss scaler): loss 2.31, 1,204 steps",
        ),
        ((run(), sample(scale=0.0)), "FAIL: loss scale is dead: 0"),
        ((run(),), "no step seen yet"),
        ((run(), status("finished")), "ended before its first step"),
        (
            (run(), sample(), status("failed", detail="exit code 1")),
            "FAIL: the run failed after 1,204 steps: exit code 1",
        ),
        (
            (run(), sample(totals={"scale_lowest": 0.5})),
            (
                "mixed precision healthy: scale 65536, 2 of 1,204 steps skipped (calibration); "
                "loss scale was 0.5, below 1"
            ),
        ),
    ],
)
def test_the_verdict_is_one_line(found: tuple[Any, ...], line: str) -> None:
    assert verdict(*found) == line


def test_the_training_itself_comes_before_how_it_ended() -> None:
    line = verdict(run(), sample(scale=0.0), status("failed", detail="exit code 1"))
    assert line == "FAIL: loss scale is dead: 0"


@pytest.mark.parametrize(
    ("types", "kind"),
    [
        ({"bfloat16": 84}, "BF16 weights"),
        ({"torch.float16": 84, "float32": 4}, "FP16 weights"),
        ({"float32": 84, "bfloat16": 4}, "no mixed precision"),
        ({}, "no mixed precision"),
    ],
)
def test_without_autocast_the_weights_tell_the_precision(types: dict[str, int], kind: str) -> None:
    identity = run(scaler=None, parameter_types=types)
    line = verdict(identity, sample(scale=None, autocast=None))
    assert line.startswith(f"healthy ({kind}, no loss scaler): loss 2.31")


def test_a_summary_tells_the_numbers() -> None:
    state = machine(h100(), run(), sample(), status("finished", detail="exit code 0", exit_code=0))
    lines = summary(state).splitlines()
    assert lines[0] == "train.py  PID 4711  cuda:0  finished, exit code 0"
    assert lines[1].startswith("  mixed precision healthy: scale 65536")
    shown = " ".join(line.strip() for line in lines)
    assert "1,204, 200 ms each (95% within 210 ms), waits for data 3.0%" in shown
    assert "2.31, always finite" in shown
    assert "65536 (16384 to 65536)" in shown
    assert "norm 1.2, clipped in 12% of 200 steps with clip calls" in shown
    assert "40,960 tokens/s" in shown
    # 49.47 TFLOP in 0.2 s are 247.35 TFLOPS, 25.0 % of 989.4.
    assert "247 TFLOPS, 25.0% of 989 TFLOPS FP16 (given)" in shown
    assert "12.0 GiB, peak 14.0 GiB" in shown
    assert "21 us a step" in shown
    assert "energy" not in shown


def test_a_loss_of_several_backward_calls_is_their_sum() -> None:
    window = events.RunWindow(steps=200, step_seconds=0.2, backward_calls_per_step=4.0)
    lines = summary(machine(h100(), run(), sample(window=window))).splitlines()
    assert "  loss       2.31 (sum of 4 backward calls), always finite" in lines


def test_a_summary_ends_with_the_findings_and_their_remedies() -> None:
    shown = summary(machine(run(), sample(scale=0.0)))
    assert "  FAIL   loss scale is dead: 0\n" in shown
    assert "-> Stop the run, restore a checkpoint from before the collapse" in shown


def test_ranks_are_one_block() -> None:
    found = [[run(rank), sample(rank, scale=0.0 if rank < 7 else 65536.0)] for rank in range(8)]
    shown = summary(machine(*found))
    assert shown.count("loss scale is dead") == 2  # the verdict, and the finding
    assert "train.py  ranks 0-7  8 devices  running" in shown
    assert "FAIL   ranks 0-6: loss scale is dead: 0" in shown
    assert "  rank 7     1,204 steps, 200 ms, scale 65536, 2 skipped, loss 2.31, running" in shown


def test_text_is_plain_and_80_columns_wide() -> None:
    hostile = "python \x1b[31m" + "x" * 300 + ".py"
    found = [run(command=hostile), sample(), status("failed", detail="y" * 300 + "\n\x1b[2J")]
    state = machine(found)
    for shown in (summary(state), once.text(state, (), NOW, ascii_only=False, wall=WALL)):
        assert all(cells(line) <= 80 for line in shown.splitlines())
        assert all(line.isprintable() for line in shown.splitlines())
    assert summary(state, ascii_only=True).isascii()
    assert training.summary([], state, NOW) == "no run\n"


def test_the_snapshot_lists_runs_alike_ranks_in_one_line() -> None:
    found = [[run(rank), sample(rank, scale=0.5 if rank == 3 else 65536.0)] for rank in range(8)]
    state = machine(*found)
    shown = once.text(state, diagnose(state, NOW), NOW, ascii_only=True, wall=WALL)
    lines = shown.splitlines()
    start = lines.index("training runs")
    assert lines[start + 1].startswith("train.py ranks 0-2, 4-7  running  1,204 steps  mixed")
    assert "train.py rank 3  running  1,204 steps  SCALE: loss scale is 0.5, below 1" in lines
    assert "training runs" not in once.text(State(), (), NOW, ascii_only=True, wall=WALL)


def test_json_has_the_runs_with_units_and_null() -> None:
    state = machine(h100(), run(), sample(loss=float("inf")))
    document = json.loads(once.to_json(state, diagnose(state, NOW), NOW, wall=WALL))
    (one,) = document["runs"]
    assert (one["run"], one["label"], one["condition"]) == ("run-0", "train.py", "running")
    assert one["device"] == "GPU-0"
    assert one["identity"]["scaler"]["init_scale"] == 65536.0
    assert one["sample"]["window"]["mean_step_seconds"] == 0.2
    assert one["sample"]["loss"] is None
    assert one["sample"]["totals"]["tokens"] is None
    assert one["joules_per_step"] is None
    assert one["mfu"]["ratio"] == pytest.approx(0.25, abs=1e-3)
    assert one["mfu"]["flops_per_second"] == pytest.approx(247.35e12)
    assert one["mfu"]["precision"] == "fp16"
    assert json.loads(once.to_json(State(), (), NOW, wall=WALL))["runs"] == []


def test_a_silent_run_has_no_rate_and_no_speed() -> None:
    state = machine(h100(), run(), sample(), status("silent"))
    document = json.loads(once.to_json(state, diagnose(state, NOW), NOW, wall=WALL))
    (one,) = document["runs"]
    assert (one["condition"], one["mfu"]["ratio"]) == ("silent", None)
    assert one["mfu"]["unavailable"] == "no step for long"
    assert [finding["code"] for finding in one["findings"]] == ["run-silent"]
    assert [finding["run"] for finding in document["findings"]] == ["run-0"]
    assert summary(state).count("N/A: no step for long") == 2
    line = verdict(run(), sample(), status("silent"))
    assert line.startswith("no step for ")
    assert "; until then mixed precision healthy: scale 65536" in line


def test_what_torch_has_allocated_is_not_all_that_a_gpu_holds() -> None:
    # pytorch#37250: nothing allocated, gigabytes used; the gap is torch's cache and the context.
    words = "allocated by torch: its cache and the CUDA context come on top"
    held = sample(memory_bytes=0, memory_peak_bytes=12 << 30)
    for device, said in (("cuda:0", True), ("cpu", False)):
        state = State()
        for event in (run(torch_device=device), held):
            state.apply(event, NOW)
        text = " ".join(training.summary(state.ordered_runs(), state, NOW).split())
        assert (words in text) is said
        assert "peak 12.0 GiB" in text


def test_a_run_whose_exit_code_is_not_known_has_ended_and_not_finished() -> None:
    state = machine(h100(), run(), sample(), status("finished", detail="exit code not known"))
    assert summary(state).splitlines()[0].endswith("  ended, exit code not known")
    told = machine(h100(), run(), sample(), status("finished", detail="exit code 0", exit_code=0))
    assert summary(told).splitlines()[0].endswith("  finished, exit code 0")
