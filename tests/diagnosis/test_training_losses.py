"""Losses and weights that are not finite, gradients that overflow, spike or vanish."""

import msgspec
import pytest
from watched_runs import (
    SCALER,
    bad_losses,
    event,
    findings,
    folded,
    good,
    run,
    sample,
    severities,
    skips,
    status,
)

ATTENTION = event(
    "nonfinite-output", 3, names=("encoder.layers.3.attention",), message="MultiheadAttention"
)


def test_a_loss_that_is_nan_names_the_first_bad_module() -> None:
    found = findings(folded([*good(50), *bad_losses(4)]), ATTENTION)["loss-nan-forward"]
    assert (found.severity, found.word) == ("fail", "NAN")
    assert found.title == "loss is not finite in 4 steps, first at step 51"
    assert found.cause == "first bad output: encoder.layers.3.attention (MultiheadAttention)"
    assert "FP32" in found.remedy


@pytest.mark.parametrize("scaler", [SCALER, None])
def test_clipping_is_never_advised_for_a_loss_that_is_nan(scaler: object) -> None:
    steps = [*good(250), *bad_losses(30)]
    for one in findings(run(scaler=scaler), folded(steps), ATTENTION).values():
        assert "clip" not in one.remedy.lower() or "no clipping helps" in one.remedy


def test_one_bad_batch_that_the_scaler_skipped_is_a_warning_then_a_note() -> None:
    assert severities(folded([*good(300), *bad_losses(1)]))["loss-nan-forward"] == "warn"
    assert severities(folded([*good(300), *bad_losses(1), *good(10)])) == {
        "loss-nan-forward": "warn"
    }
    over = folded([*good(300), *bad_losses(1), *good(300)])
    assert severities(over) == {"loss-nan-forward": "info"}
    assert "was not finite" in findings(over)["loss-nan-forward"].title


def test_of_a_run_that_ended_the_worst_counts() -> None:
    ended = folded([*good(300), *bad_losses(50), *good(300)])
    assert severities(ended)["loss-nan-forward"] == "info"
    assert severities(ended, status("finished"))["loss-nan-forward"] == "fail"


def test_bf16_without_scaler_meets_one_nan_batch() -> None:
    # Five steps, the third with a NaN input: AdamW carries it into three of four tensors.
    bf16 = run(scaler=None, parameter_types={"torch.float32": 577})
    third = sample(
        3,
        {"nonfinite_losses": 1},
        {"nonfinite_losses": 1, "first_nonfinite_loss_step": 3, "scale_lowest": None},
        scale=None,
        autocast="bf16",
        loss=None,
        loss_finite=False,
    )
    assert severities(bf16, third) == {"loss-nan-no-scaler": "fail"}
    found = findings(bf16, third)["loss-nan-no-scaler"]
    assert "first at step 3" in found.title
    assert "nothing skips such a step" in found.cause
    weights = event("nonfinite-weights", 3, names=("0.weight", "0.bias", "2.weight"))
    both = findings(bf16, third, weights, status("finished"))
    assert {code: one.severity for code, one in both.items()} == {
        "weights-nan": "fail",
        "loss-nan-no-scaler": "fail",
    }
    assert next(iter(both)) == "weights-nan"
    assert both["weights-nan"].word == "FAIL"
    assert both["weights-nan"].title == "weights are NaN or inf, seen at step 3"
    assert "restore a checkpoint from before step 3 " in both["weights-nan"].remedy
    assert both["weights-nan"].evidence == ("parameters 0.weight, 0.bias, 2.weight",)


def test_weights_that_were_restored_are_a_note() -> None:
    weights = event("nonfinite-weights", 100, names=("head.weight",))
    assert severities(sample(1000), weights) == {"weights-nan": "info"}
    assert severities(sample(250), weights)["weights-nan"] == "fail"
    bad = sample(1000, {"nonfinite_losses": 200}, {"nonfinite_losses": 900}, loss_finite=False)
    assert severities(bad, weights)["weights-nan"] == "fail"


def test_a_module_that_could_not_be_seen_is_said_to_be_so() -> None:
    blind = event("nonfinite-output", 3, message="compiled modules show no layers")
    found = findings(folded([*good(50), *bad_losses(4)]), blind)["loss-nan-forward"]
    assert "module not seen: compiled modules show no layers" in found.evidence


def test_a_bad_batch_is_the_cause_not_the_weights_that_it_has_ruined() -> None:
    batch = event(
        "nonfinite-output",
        4,
        number=1,
        message="the input batch is not finite",
        values={"input_finite": 0.0},
    )
    later = event(
        "nonfinite-output",
        40,
        number=2,
        names=("0",),
        message="Linear, whose own weights are not finite",
        values={"weights_finite": 0.0},
    )
    found = findings(folded([*good(50), *bad_losses(40)]), batch, later)["loss-nan-forward"]
    assert found.cause == "the input batch is not finite"
    assert "Check the data" in found.remedy
    assert "clip" not in found.remedy


FOUR = event(
    "nonfinite-gradients",
    1,
    names=("0.weight", "0.bias", "2.weight", "2.bias"),
    values={"parameters": 4.0, "bad": 4.0},
)


def test_one_overflow_is_classified_with_names_and_is_no_alarm() -> None:
    # All four parameters are bad: the overflow came from the last layer, or from the loss.
    found = findings(folded(skips(1)), FOUR, status("finished"))
    assert set(found) == {"backward-overflow"}
    one = found["backward-overflow"]
    assert (one.severity, one.word) == ("info", "note")
    assert one.title == (
        "non-finite gradients in the backward pass: 4 of 4 parameters "
        "(0.weight, 0.bias, 2.weight, 2.bias)"
    )
    assert one.cause.startswith("likely origin: 2, the last bad layer in forward order")
    assert "step 1: 0.weight, 0.bias, 2.weight, 2.bias" in one.evidence
    assert one.remedy == ""


def test_three_overflows_in_a_row_are_an_alarm() -> None:
    assert "backward-overflow" not in severities(folded([*good(300), *skips(2)]))
    three = findings(folded([*good(300), *skips(3)]))["backward-overflow"]
    assert three.severity == "warn"
    assert "scaler.unscale_(optimizer)" in three.remedy


def test_overflows_by_rate() -> None:
    often = [*good(400), *([*good(9), *skips(1)] * 20)]
    assert severities(folded(often))["backward-overflow"] == "warn"
    seldom = [*good(400), *([*good(99), *skips(1)] * 2)]
    assert "backward-overflow" not in severities(folded(seldom))


def test_a_name_that_was_cut_off_is_no_origin() -> None:
    cut = event(
        "nonfinite-gradients", 301, names=("a.weight",), values={"parameters": 90.0, "bad": 80.0}
    )
    found = findings(folded([*good(300), *skips(3)]), cut)["backward-overflow"]
    assert "likely origin" not in found.cause


def test_a_nan_loss_is_no_backward_overflow() -> None:
    assert "backward-overflow" not in severities(folded([*good(300), *bad_losses(30)]), FOUR)


def overflowed(*steps: int, names: tuple[str, ...] = ("fc2.weight",)) -> list[object]:
    values = {"parameters": 90.0, "bad": float(len(names))}
    return [
        event("nonfinite-gradients", step, number, names=names, values=values)
        for number, step in enumerate(steps, 1)
    ]


def test_always_the_same_parameter() -> None:
    newest = folded([*good(400), *([*good(39), *skips(1)] * 5)])
    found = findings(newest, *overflowed(440, 480, 520))["one-parameter-bad"]
    assert found.severity == "warn"
    assert found.title == "fc2.weight had non-finite gradients in 3 skipped steps"
    assert "fc2 in FP32" in found.remedy
    assert "one-parameter-bad" not in severities(newest, *overflowed(440, 480))
    many = tuple(f"layer{index}.weight" for index in range(4))
    assert "one-parameter-bad" not in severities(newest, *overflowed(440, 480, 520, names=many))


def test_the_same_parameter_at_each_growth_is_the_weakest_one_no_more() -> None:
    scaler = msgspec.structs.replace(SCALER, growth_interval=50)
    newest = folded([*good(50), *skips(1), *good(50), *skips(1), *good(50), *skips(1)], scaler)
    assert newest.window.skips_after_growth == newest.window.skipped == 3
    found = severities(run(scaler=scaler), newest, *overflowed(51, 102, 153))
    assert "one-parameter-bad" not in found


NORMS = {
    "gradient_norm_median": 1.0,
    "gradient_norm_deviation": 0.1,
    "gradient_norm_highest": 1.4,
}


@pytest.mark.parametrize(
    ("norm", "changes", "severity"),
    [
        (3.1, {}, "warn"),
        (2.9, {}, None),  # above 1 + 10 x 0.1, but not 3 times the median
        (3.1, {"clip_max_norm": 1.0}, "info"),
        (3.1, {"clip_max_norm": 5.0}, "warn"),
        (3.1, {"loss_finite": False, "loss": None}, None),
    ],
)
def test_a_gradient_spike(norm: float, changes: dict[str, object], severity: str | None) -> None:
    newest = sample(1000, NORMS, gradient_norm=norm, **changes)
    assert severities(newest).get("gradient-spike") == severity


def test_a_spike_in_a_wide_spread_or_at_the_start_is_none() -> None:
    wide = {**NORMS, "gradient_norm_deviation": 0.5}
    assert "gradient-spike" not in severities(sample(1000, wide, gradient_norm=5.9))
    assert "gradient-spike" in severities(sample(1000, wide, gradient_norm=6.1))
    assert "gradient-spike" not in severities(sample(49, NORMS, gradient_norm=50.0))


def test_a_spike_of_before_is_a_note() -> None:
    past = sample(1000, {**NORMS, "gradient_norm_highest": 40.0}, gradient_norm=1.0)
    assert severities(past) == {"gradient-spike": "info"}
    assert findings(past)["gradient-spike"].title == "gradient norm was 40, 40 times its median"


def test_a_run_that_clips_is_not_told_to_clip() -> None:
    unclipped = findings(sample(1000, NORMS, gradient_norm=9.0))["gradient-spike"]
    assert "clip_grad_norm_ after scaler.unscale_" in unclipped.remedy
    clips = findings(sample(1000, NORMS, gradient_norm=9.0, clip_max_norm=10.0))
    assert clips["gradient-spike"].remedy.startswith("Lower max_norm")


def test_clipping_at_every_step() -> None:
    always = {"clip_calls": 200, "clipped_ratio": 0.99, **NORMS}
    assert severities(sample(1000, always, clip_max_norm=0.1)) == {"clip-always": "info"}
    often = {**always, "clipped_ratio": 0.9}
    assert severities(sample(1000, often, clip_max_norm=0.1)) == {}
    few = {**always, "clip_calls": 20}
    assert severities(sample(1000, few, clip_max_norm=0.1)) == {}


def zeros(ratio: float, scale: float | None, number: int = 1) -> object:
    values = {"ratio": ratio} if scale is None else {"ratio": ratio, "scale": scale}
    return event("gradient-zeros", number, number, values=values)


def test_gradients_that_are_zero_without_scale_and_are_not_with_it() -> None:
    # 100 % zeros at scale 1, none at 65536, and no step was made.
    found = findings(zeros(1.0, 1.0), zeros(0.0, 65536.0, 2), status("finished"))
    assert set(found) == {"underflow"}
    assert found["underflow"].severity == "warn"
    assert found["underflow"].evidence == (
        "100% of sampled FP16 gradients are zero at loss scale 1",
        "0% at a higher scale",
    )
    assert "larger init_scale" in found["underflow"].remedy


def test_a_scale_that_has_grown_out_of_the_underflow_is_a_note() -> None:
    found = findings(sample(1000), zeros(0.8, 1.0), zeros(0.1, 1024.0, 2))
    assert found["underflow"].severity == "info"
    assert "were zero" in found["underflow"].title


def test_zeros_that_no_scale_removes_are_those_of_relu() -> None:
    assert severities(sample(1000), zeros(0.7, 1024.0), zeros(0.68, 65536.0, 2)) == {}
    assert severities(sample(1000), zeros(0.7, 65536.0)) == {}
    assert severities(sample(1000), zeros(0.4, 1.0), zeros(0.0, 65536.0, 2)) == {}


def test_zeros_without_a_scaler() -> None:
    plain = run(scaler=None)
    assert severities(plain, sample(1000, scale=None), zeros(0.7, None))["underflow"] == "warn"
    assert "underflow" not in severities(plain, sample(1000, scale=None), zeros(0.3, None))


def test_underflow_from_the_totals_of_a_long_run() -> None:
    totals = {
        "gradient_zero_ratio": 0.9,
        "gradient_zero_scale": 1.0,
        "gradient_zero_ratio_later": 0.1,
    }
    assert severities(sample(1000, totals=totals))["underflow"] == "info"
    low = sample(1000, totals=totals, scale=1.0)
    assert severities(low)["underflow"] == "warn"
    never_higher = {**totals, "scale_highest": 1.0}
    assert severities(sample(1000, totals=never_higher, scale=1.0)) == {}


def test_probes_after_growth_are_normal_of_an_ended_run_too() -> None:
    # growth_interval 10: 229 growths, 225 of them tried out with a skip, 9 skips of calibration.
    short = run(scaler=msgspec.structs.replace(SCALER, growth_interval=10))
    window = {"skipped": 16, "skips_after_growth": 16, "growths": 16}
    life = {
        "skipped": 234,
        "backward_overflows": 234,
        "calibration_skips": 9,
        "growths": 229,
        "backoffs": 234,
    }
    newest = sample(3000, window, life)
    seen = overflowed(2900, 2950, 2999)
    for more in ((), (status("finished"),)):
        assert "warn" not in severities(short, newest, *seen, *more).values()
    # As many skips without growth are a trouble.
    bad = sample(3000, {"skipped": 16}, {**life, "growths": 0})
    assert severities(short, bad, *seen, status("finished"))["backward-overflow"] == "warn"


def test_calibration_and_probes_blame_no_parameter() -> None:
    window = {"steps": 60, "skipped": 12, "skips_after_growth": 3, "growths": 4}
    life = {"skipped": 12, "backward_overflows": 12, "calibration_skips": 9, "growths": 4}
    newest = sample(60, window, life)
    assert "one-parameter-bad" not in severities(newest, *overflowed(2, 30, 41, 52))
