"""What wrong scales, disabled scalers and several clip limits do, by what the run is made of."""

from __future__ import annotations

import msgspec
import pytest
from watched_runs import SCALER, event, findings, run, sample, severities

DISABLED = msgspec.structs.replace(SCALER, enabled=False)
CLIP = event("scaled-clip", values={"norm": 3072.0, "max_norm": 1.0, "scale": 1024.0})
BYPASS = event("bypass", values={"scale": 1024.0})
HARDLY = "hardly change, but clipping, eps and the norms shown do"
NORMS = {"gradient_norm_median": 0.8766, "gradient_norm_deviation": 0.01}
ALWAYS = {"clip_calls": 150, "clipped_ratio": 1.0, **NORMS}


def causes(*optimizers: str) -> tuple[str, str]:
    made = run(optimizers=optimizers)
    newest = sample(scale=1024.0)
    clip = findings(made, newest, CLIP)["clip-before-unscale"].cause
    return clip, findings(made, newest, BYPASS)["bypass"].cause


def test_steps_of_sgd_are_as_long_as_its_gradients() -> None:
    clip, bypass = causes("SGD")
    assert clip == "training stalls silently: steps are 1,024 times too small"
    assert bypass == "steps are 1,024 times too large, and nothing skips a bad one"


@pytest.mark.parametrize("name", ["Adam", "AdamW8bit", "NAdam", "RAdam", "Adamax", "RMSprop",
                                  "Adagrad", "Lion", "Adafactor", "DeepSpeedCPUAdam"])  # fmt: skip
def test_steps_of_adam_do_not_depend_on_the_size_of_its_gradients(name: str) -> None:
    clip, bypass = causes(name, name)
    assert clip == f"gradients are 1,024 times too small; steps of {name} {HARDLY}"
    assert bypass == (
        f"gradients are 1,024 times too large; steps of {name} {HARDLY}, "
        "and nothing skips a bad one"
    )


def test_of_both_kinds_only_the_gradients_are_told() -> None:
    clip, bypass = causes("SGD", "Adam")
    assert clip == "gradients are 1,024 times too small"
    assert bypass == "gradients are 1,024 times too large, and nothing skips a bad one"


def test_a_disabled_scaler_is_told_where_fp16_is_in_use() -> None:
    def told(autocast: str | None, **types: int) -> bool:
        made = run(scaler=DISABLED, parameter_types=types)
        return "scaler-disabled" in severities(made, sample(scale=None, autocast=autocast))

    assert told("fp16", float32=10)
    assert told(None, float16=10)
    assert not told("bf16", float32=10)
    assert not told(None, bfloat16=10)
    assert not told(None, float32=10)


def test_several_clip_calls_in_a_step_may_have_limits_of_their_own() -> None:
    # A critic clipped at 0.1 always and a generator at 10 never: the flag is that of the step.
    both = sample(150, ALWAYS, {"clip_calls": 300}, clip_max_norm=0.1)
    assert severities(both) == {}
    one = sample(150, ALWAYS, {"clip_calls": 150}, clip_max_norm=0.1)
    assert severities(one) == {"clip-always": "info"}


def test_a_limit_above_the_norms_is_not_the_one_that_bites() -> None:
    assert severities(sample(150, ALWAYS, {"clip_calls": 150}, clip_max_norm=10.0)) == {}


def test_of_several_optimizers_no_limit_is_set_beside_the_norms_of_all() -> None:
    newest = sample(150, ALWAYS, {"clip_calls": 150}, clip_max_norm=0.1)
    alone = findings(run(optimizers=("Adam",)), newest)["clip-always"]
    assert "median norm 0.8766, max_norm 0.1" in alone.evidence
    several = findings(run(optimizers=("Adam", "Adam")), newest)["clip-always"]
    assert not any("max_norm" in line for line in several.evidence)
