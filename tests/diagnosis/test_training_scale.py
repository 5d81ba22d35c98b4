"""The loss scale and skipped steps: collapse, calibration, normal skips, growth without bound."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from watched_runs import (
    SCALER,
    bad_losses,
    findings,
    folded,
    good,
    run,
    sample,
    severities,
    skips,
    status,
)

GRAVITY = {"info": 1, "warn": 2, "fail": 3}


# A collapse: 65536 = 2^16 halves at each skip: 1 after 16, 2^-128 after 144, 0 at the 166th.
@pytest.mark.parametrize(
    ("skipped", "scale", "low", "dead"),
    [
        (16, 1.0, None, None),
        (17, 0.5, "fail", None),
        (115, 2.0**-99, "fail", None),
        (117, 2.0**-101, "fail", "warn"),
        (143, 2.0**-127, "fail", "warn"),
        (144, 2.0**-128, None, "fail"),
        (165, 2.0**-149, None, "fail"),
        (166, 0.0, None, "fail"),
        (200, 0.0, None, "fail"),
    ],
)
def test_a_collapse_from_65536(
    skipped: int, scale: float, low: str | None, dead: str | None
) -> None:
    newest = folded(bad_losses(skipped))
    assert newest.scale == scale
    found = severities(newest)
    assert found.get("scale-low") == low
    assert found.get("scale-dead") == dead


def test_the_collapse_of_a_loss_that_is_nan_is_told_in_this_order() -> None:
    # One NaN loss a step: the loss at once, the streak from 10 on, the scale from the 17th on.
    first = {}
    for count in range(1, 201):
        for code in severities(folded(bad_losses(count))):
            first.setdefault(code, count)
    assert first["loss-nan-forward"] == 1
    assert first["consecutive-skips"] == 10
    assert first["scale-low"] == 17
    assert severities(folded(bad_losses(20)))["consecutive-skips"] == "fail"
    assert "backward-overflow" not in first


def test_a_dead_scale_is_fatal_and_says_what_to_do() -> None:
    # Steps 0-199 bad, then clean ones: the scale stays 0, the first clean step ruins the weights.
    found = findings(folded([*bad_losses(200), *good(20)]))
    worst = next(iter(found.values()))
    assert (worst.code, worst.severity, worst.word) == ("scale-dead", "fail", "FAIL")
    assert worst.title == "loss scale is dead: 0"
    assert "restore a checkpoint from before" in worst.remedy
    assert "new GradScaler" in worst.remedy
    assert "do not wait" in worst.remedy
    assert any("200 steps of 220 skipped" in line for line in worst.evidence)


def test_a_scale_that_was_dead_and_was_set_anew_is_a_note() -> None:
    alive = sample(totals={"scale_lowest": 0.0})
    assert severities(alive) == {"scale-dead": "info"}
    assert "was dead" in findings(alive)["scale-dead"].title
    assert severities(alive, status("finished"))["scale-dead"] == "fail"


def test_a_low_scale_that_recovered_is_a_note_while_the_run_lives() -> None:
    recovered = sample(totals={"scale_lowest": 0.25})
    assert severities(recovered) == {"scale-low": "info"}
    assert findings(recovered)["scale-low"].title == "loss scale was 0.25, below 1"
    assert severities(recovered, status("finished"))["scale-low"] == "fail"


def test_a_small_first_scale_of_the_user_is_not_low() -> None:
    small = msgspec.structs.replace(SCALER, init_scale=0.5)
    assert severities(run(scaler=small), sample(scale=0.25, totals={"scale_lowest": 0.25})) == {}
    # As far below 0.5 as 1 is below 65536: 2^-17.
    low = sample(scale=2.0**-18, totals={"scale_lowest": 2.0**-18})
    assert severities(run(scaler=small), low) == {"scale-low": "fail"}


def test_a_scaler_at_its_least_scale_that_still_skips() -> None:
    scaler = events_scaler(min_scale=1.0)
    stuck = sample(scale=1.0, skip_streak=5, totals={"scale_lowest": 1.0})
    assert severities(run(scaler=scaler), stuck)["scale-low"] == "fail"
    fine = sample(scale=1.0, totals={"scale_lowest": 1.0})
    assert severities(run(scaler=scaler), fine) == {}


def events_scaler(**changes: object) -> object:
    return msgspec.structs.replace(SCALER, **changes)


def test_growth_at_each_step_ends_at_two_to_the_127() -> None:
    # 2^16 doubles 111 times; the next would be inf in FP32, so it stays (pytorch#98876).
    scaler = events_scaler(growth_interval=1)
    newest = folded(good(130), scaler)
    assert newest.scale == 2.0**127
    assert newest.totals.growths == 130
    found = findings(run(scaler=scaler), newest)["scale-huge"]
    assert (found.severity, found.word) == ("warn", "SCALE")
    assert found.title == "loss scale is 2^127, absurdly high"


@pytest.mark.parametrize(
    ("first", "scale", "last_skip", "told"),
    [
        (2.0**16, 2.0**24, None, False),
        (2.0**16, 2.0**25, None, True),
        (2.0**24, 2.0**25, None, False),  # the user began there
        (2.0**24, 2.0**33, None, True),
        (2.0**16, 2.0**26, 48_000, False),  # tiny losses: it has found its level
        (2.0**16, 2.0**26, 30_000, True),
        (2.0**16, 2.0**64, 49_999, True),
    ],
)
def test_how_high_is_too_high(
    first: float, scale: float, last_skip: int | None, told: bool
) -> None:
    newest = sample(50_000, totals={"last_skip_step": last_skip}, scale=scale)
    found = severities(run(scaler=events_scaler(init_scale=first)), newest)
    assert ("scale-huge" in found) is told


def test_calibration_is_normal() -> None:
    # From 2^24: steps 1-9 and 11 skipped, then it stays at 2^14 = 16384.
    steps = [*skips(9), *good(1), *skips(1), *good(29)]
    scaler = events_scaler(init_scale=2.0**24)
    newest = folded(steps, scaler)
    assert newest.scale == 16384.0
    assert severities(run(scaler=scaler), newest) == {"calibrating": "info"}
    assert severities(run(scaler=scaler), newest, status("finished")) == {"calibrating": "info"}
    title = findings(run(scaler=scaler), newest)["calibrating"].title
    assert title == "10 steps skipped at the start, loss scale found at 16384"


def test_while_the_scale_is_searched_twelve_skips_in_a_row_are_no_alarm() -> None:
    assert severities(folded(skips(12))) == {"calibrating": "info"}
    assert "still searched" in findings(folded(skips(12)))["calibrating"].title


def test_skips_that_do_not_end_with_the_calibration_are_an_alarm() -> None:
    assert severities(folded(skips(26)))["consecutive-skips"] == "fail"


def test_two_skips_at_the_start_and_thousands_of_good_steps_are_healthy() -> None:
    # 65536, 32768, 16384; doubled at steps 2002 and 4002.
    assert folded([*skips(2), *good(1999)]).scale == 16384.0
    assert folded([*skips(2), *good(2000)]).scale == 32768.0
    newest = folded([*skips(2), *good(4000)])
    assert newest.scale == 65536.0
    assert severities(newest) == {}


def test_two_bad_losses_at_the_start_that_were_skipped_are_no_alarm() -> None:
    assert set(severities(folded([*bad_losses(2), *good(100)])).values()) <= {"info"}
    assert severities(folded([*bad_losses(2), *good(4000)]))["loss-nan-forward"] == "info"


def test_a_single_skip_after_the_scale_grew_is_normal() -> None:
    newest = folded([*good(2000), *skips(1), *good(50)])
    assert newest.scale == 65536.0
    assert severities(newest) == {"growth-probe": "info"}


def test_a_single_skip_of_a_run_of_one_step_raises_no_alarm() -> None:
    assert not {"warn", "fail"} & set(severities(folded(skips(1)), status("finished")).values())


@pytest.mark.parametrize(
    ("count", "severity"), [(9, None), (10, "warn"), (19, "warn"), (20, "fail")]
)
def test_skips_in_a_row(count: int, severity: str | None) -> None:
    found = severities(folded([*good(300), *skips(count)]))
    assert found.get("consecutive-skips") == severity


def test_a_streak_that_is_over_is_a_note_until_the_run_ends() -> None:
    newest = folded([*good(300), *skips(15), *good(400)])
    assert severities(newest)["consecutive-skips"] == "info"
    assert "were skipped" in findings(newest)["consecutive-skips"].title
    assert severities(newest, status("finished"))["consecutive-skips"] == "warn"


@pytest.mark.parametrize(
    ("every", "severity"),
    [(40, None), (20, "warn"), (10, "warn"), (5, "fail"), (4, "fail")],
)
def test_the_share_of_skipped_steps(every: int, severity: str | None) -> None:
    # 200 / 40 = 5 skips are 2.5 %, 10 are 5 %, 40 are 20 %.
    newest = folded([*good(400), *([*good(every - 1), *skips(1)] * (200 // every))])
    assert newest.window.skipped == 200 // every
    assert severities(newest).get("skip-rate") == severity


def test_calibration_skips_do_not_count_in_the_share() -> None:
    # 20 of the first 100 steps, all in the first 25: over.
    newest = folded([*([*skips(4), *good(1)] * 5), *good(75)])
    assert newest.totals.calibration_skips == 20
    assert "skip-rate" not in severities(newest)


def test_a_short_growth_interval_skips_often_by_its_nature() -> None:
    # One skip in 20 steps is 5 %; an interval of 20 makes one in 20.
    scaler = events_scaler(growth_interval=20)
    steps = [*good(400), *([*good(19), *skips(1)] * 10)]
    assert "skip-rate" not in severities(run(scaler=scaler), folded(steps, scaler))
    assert severities(folded(steps))["skip-rate"] == "warn"


def test_without_a_scaler_nothing_is_said_of_scales() -> None:
    odd = sample(scale=0.0, skip_streak=50, totals={"skipped": 900, "longest_skip_streak": 50})
    assert set(severities(run(scaler=None), odd)) == {"fp16-no-scaler"}


@given(st.lists(st.floats(min_value=0.0, max_value=65536.0), min_size=2, max_size=2))
def test_a_lower_scale_is_never_judged_milder(scales: list[float]) -> None:
    def gravity(scale: float) -> int:
        found = severities(sample(scale=scale, totals={"scale_lowest": scale}))
        return max((GRAVITY[one] for one in found.values()), default=0)

    assert gravity(min(scales)) >= gravity(max(scales))


@given(st.floats(min_value=65536.0, max_value=2.0**127), st.floats(min_value=65536.0))
def test_a_higher_scale_is_never_judged_milder(one: float, other: float) -> None:
    def gravity(scale: float) -> int:
        return max((GRAVITY[it] for it in severities(sample(scale=scale)).values()), default=0)

    if math.isfinite(other):
        assert gravity(max(one, other)) >= gravity(min(one, other))
