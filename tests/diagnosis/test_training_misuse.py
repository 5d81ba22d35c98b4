"""Mixed precision put together wrongly, and errors that a scaler raises."""

import msgspec
import pytest
from watched_runs import SCALER, event, findings, run, sample, severities, status

DISABLED = msgspec.structs.replace(SCALER, enabled=False)


def test_clipping_before_unscaling() -> None:
    # Gradient 3.0 at scale 65536 has norm 196608; clipped to 1.0 it is worth 1/65536 = 1.526e-05.
    clip = event("scaled-clip", values={"norm": 196608.0, "max_norm": 1.0, "scale": 65536.0})
    found = findings(sample(20, totals={"scaled_clips": 20, "clip_calls": 20}), clip)
    one = found["clip-before-unscale"]
    assert set(found) == {"clip-before-unscale"}
    assert (one.severity, one.word) == ("fail", "GRAD")
    assert one.cause == "training stalls silently: steps are 65,536 times too small"
    assert one.evidence == (
        "20 clip calls found scaled gradients",
        "norm 1.966e+05 at loss scale 65536: the true norm is 3",
        "max_norm 1 leaves a norm of 1.526e-05",
    )
    assert one.remedy == "Call scaler.unscale_(optimizer) before clip_grad_norm_."


def test_steps_are_too_small_by_the_clip_where_the_true_norm_needed_none() -> None:
    # True norm 0.5 needs no clipping: 32768 scaled, cut to 1: 32,768 times too small.
    clip = event("scaled-clip", values={"norm": 32768.0, "max_norm": 1.0, "scale": 65536.0})
    assert "32,768 times too small" in findings(sample(), clip)["clip-before-unscale"].cause


def test_clipping_at_a_scale_of_one_does_no_harm() -> None:
    clip = event("scaled-clip", values={"norm": 3.0, "max_norm": 1.0, "scale": 1.0})
    assert severities(sample(totals={"scaled_clips": 5}), clip) == {}
    assert severities(sample(totals={"clip_calls": 1000})) == {}


def test_a_step_past_the_scaler() -> None:
    # The first step bypasses the scaler, update() then raises: there is no sample at all.
    raised = event(
        "exception", 0, 2, names=("AssertionError",),
        message="No inf checks were recorded prior to update.", values={"handled": 1.0},
    )  # fmt: skip
    found = findings(event("bypass", values={"scale": 65536.0}), raised)
    assert set(found) == {"bypass", "no-gradients"}
    assert found["bypass"].severity == "fail"
    assert "65,536 times too large" in found["bypass"].cause
    assert found["bypass"].remedy.startswith("Call scaler.step(optimizer)")
    assert severities(sample(totals={"bypasses": 3}))["bypass"] == "fail"


def test_fp16_autocast_wants_a_scaler() -> None:
    unscaled = sample(scale=None)
    assert severities(run(scaler=None), unscaled) == {"fp16-no-scaler": "warn"}
    assert severities(run(scaler=DISABLED), unscaled) == {
        "fp16-no-scaler": "warn",
        "scaler-disabled": "info",
    }
    assert severities(run(scaler=None), sample(scale=None, autocast="bf16")) == {}
    assert severities(run(scaler=None), sample(scale=None, autocast=None)) == {}
    assert severities(run(scaler=None)) == {}


def test_bf16_needs_no_scaler() -> None:
    # One step of a model in BF16 with a GradScaler: nothing raises on the CPU.
    bf16 = run(parameter_types={"torch.bfloat16": 577}, torch_device="cpu")
    one = findings(bf16, sample(1, autocast=None), status("finished"))["scaler-bf16"]
    assert (one.severity, one.word) == ("info", "note")
    assert one.remedy.startswith("Drop the GradScaler.")
    assert severities(sample(autocast="bf16")) == {"scaler-bf16": "info"}
    assert severities(run(scaler=None), sample(scale=None, autocast="bf16")) == {}
    mostly_fp32 = run(parameter_types={"torch.bfloat16": 10, "torch.float32": 1000})
    assert severities(mostly_fp32, sample()) == {}


def test_fp16_parameters_are_told_before_the_scaler_raises() -> None:
    half = run(parameter_types={"float16": 900, "float32": 100})
    assert severities(half) == {"fp16-parameters": "fail"}
    assert findings(half)["fp16-parameters"].evidence == ("90% of the trained parameters",)
    # Steps that succeeded show that the scaler never met them.
    assert severities(half, sample(10)) == {}
    sharded = msgspec.structs.replace(SCALER, kind="ShardedGradScaler")
    assert severities(run(parameter_types={"float16": 900}, scaler=sharded)) == {}
    assert severities(run(parameter_types={"float16": 900}, scaler=None)) == {}


@pytest.mark.parametrize(
    ("skipped", "scheduler", "told"),
    [
        (4, 1000, True),  # it stepped 1000 times, the optimizer 996
        (4, 996, False),
        (4, 10, False),  # once an epoch
        (0, 1000, False),
        (12, 999, True),  # the step under way
        (4, 2000, False),  # two schedulers
    ],
)
def test_a_scheduler_ahead_of_the_optimizer(skipped: int, scheduler: int, told: bool) -> None:
    newest = sample(totals={"skipped": skipped, "scheduler_steps": scheduler})
    assert ("scheduler-ahead" in severities(newest)) is told
    if told:
        assert findings(newest)["scheduler-ahead"].severity == "info"


TWICE = "unscale_() has already been called on this optimizer since the last update()."


@pytest.mark.parametrize(
    ("kind", "message", "code", "words"),
    [
        ("RuntimeError", TWICE, "unscale-twice", "once per optimizer"),
        (
            "RuntimeError",
            "unscale_() is being called after step().",
            "unscale-twice",
            "scaler.update()",
        ),
        (
            "AssertionError",
            "No inf checks were recorded for this optimizer.",
            "no-gradients",
            "parameters of the model that the loss comes from",
        ),
        (
            "AssertionError",
            "No inf checks were recorded prior to update.",
            "no-gradients",
            "scaler.step(optimizer) before scaler.update()",
        ),
        (
            "RuntimeError",
            "step() has already been called since the last update().",
            "step-twice",
            "scaler.update() once",
        ),
        ("ValueError", "Attempting to unscale FP16 gradients.", "fp16-gradients", "FP32"),
        (
            "NotImplementedError",
            "\"_amp_foreach_non_finite_check_and_unscale_cuda\" not implemented for 'BFloat16'",
            "scaler-bf16",
            "Drop the GradScaler",
        ),
    ],
)
def test_errors_of_the_scaler_come_with_their_fix(
    kind: str, message: str, code: str, words: str
) -> None:
    raised = event("exception", 0, names=(kind,), message=message)
    one = findings(raised)[code]
    assert one.severity == "fail"
    assert words in one.remedy
    assert one.evidence == (f"step 0: {kind}: {message}",)


def test_an_error_that_the_run_caught_is_a_warning_and_passes() -> None:
    caught = event(
        "exception", 700, names=("RuntimeError",), message=TWICE, values={"handled": 1.0}
    )
    assert severities(caught, status("finished")) == {"unscale-twice": "warn"}
    assert severities(sample(800), caught) == {"unscale-twice": "warn"}
    assert severities(sample(1000), caught) == {"unscale-twice": "info"}


def test_an_error_of_the_model_is_not_the_scalers() -> None:
    raised = event("exception", names=("ValueError",), message="shapes do not match")
    assert severities(raised) == {}


def test_how_runs_end() -> None:
    newest = sample(812)
    failed = status("failed", detail="exit code 1: OutOfMemoryError", exit_code=1)
    memory = event(
        "exception", 812, names=("OutOfMemoryError",), message="CUDA out of memory. Tried ..."
    )
    one = findings(newest, memory, failed)["run-failed"]
    assert (one.severity, one.word) == ("fail", "FAIL")
    assert one.title == "the run failed after 812 steps: exit code 1: OutOfMemoryError"
    assert "batch size" in one.remedy
    killed = findings(newest, status("killed", detail="signal SIGKILL", exit_code=137))
    assert killed["run-killed"].severity == "fail"
    assert "dmesg" in killed["run-killed"].command
    asked = status("killed", detail="signal SIGTERM", exit_code=143)
    assert severities(newest, asked) == {"run-killed": "info"}
    assert severities(newest, status("gone")) == {"run-gone": "info"}
    assert severities(newest, status("finished", exit_code=0)) == {}


@pytest.mark.parametrize(("ago", "severity"), [(120.0, "info"), (700.0, "warn")])
def test_a_silent_run(ago: float, severity: str) -> None:
    one = findings(sample(), status("silent", ago))["run-silent"]
    assert one.severity == severity
    assert "py-spy dump --nonblocking --pid 4711" in one.command


def test_the_recorders_own_trouble_is_a_note() -> None:
    off = event("recorder", message="switched itself off after 20 errors: KeyError")
    assert severities(sample(), off) == {"recorder": "info"}
