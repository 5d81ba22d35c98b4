"""Verdicts of a comparison: what is a regression, what is noise, what cannot be told."""

from __future__ import annotations

import math
import random
import statistics

import msgspec
import pytest
from bench_runs import CUBE, LONG, SMALL, burst, device, precision, run
from hypothesis import given
from hypothesis import strategies as st

from topsmon.report import bench
from topsmon.report.bench import model

SHAPES = (CUBE, LONG, SMALL)


def compared(old, new) -> bench.Row:
    """The one row of two runs with one precision or value each."""
    (found,) = bench.compare(old, new).devices
    (row,) = found.rows
    return row


def bf16(ops: float | None = 700e12, iqr: float | None = 0.006, **changes) -> model.BenchDocument:
    """A run with one shape of BF16."""
    return run(device(precision("bf16", burst(ops, iqr, **changes))))


def shapes(*ops: float, iqr: float = 0.006, key: str = "bf16") -> model.PrecisionResult:
    """A precision with one burst a shape."""
    pairs = zip(SHAPES, ops, strict=False)
    return precision(key, *(burst(value, iqr, shape=shape) for shape, value in pairs))


# Verdicts -----------------------------------------------------------------------------------------


def test_a_third_less_with_tight_quartiles_is_a_regression() -> None:
    row = compared(bf16(700e12), bf16(490e12))
    assert row.verdict == "regression"
    assert row.change_ratio == pytest.approx(-0.3)
    assert (row.before, row.now, row.shape, row.unit) == (700e12, 490e12, CUBE, "ops/s")


def test_a_third_more_is_an_improvement() -> None:
    assert compared(bf16(490e12), bf16(700e12)).verdict == "improvement"


def test_the_same_loss_within_wide_quartiles_is_no_difference() -> None:
    # IQR 20 %: sigma 14.8 % of each run, 21 % together; 2.6 times that is more than ln 1.43
    row = compared(bf16(700e12, 0.2), bf16(490e12, 0.2))
    assert row.verdict == "no difference"
    assert row.noise_ratio is not None
    assert row.noise_ratio > 0.3


def test_the_limit_of_one_value_by_hand() -> None:
    # sigma = 0.6 % / 1.349 = 0.445 % a run, 0.629 % for both; t of 398 degrees, 1 %: 2.59
    row = compared(bf16(), bf16())
    assert row.noise_ratio == pytest.approx(math.expm1(2.59 * 0.00629), rel=0.02)


def test_what_noise_hides_altogether_cannot_be_told() -> None:
    row = compared(bf16(700e12, 1.2), bf16(700e12, 1.2))
    assert row.verdict == "cannot tell"
    assert "too noisy" in row.reason


def test_three_calls_are_weak_evidence() -> None:
    many, few = (compared(bf16(calls=calls), bf16(calls=calls)) for calls in (200, 3))
    assert many.noise_ratio is not None
    assert few.noise_ratio is not None
    assert few.noise_ratio > 2 * many.noise_ratio


def test_shapes_that_drift_apart_widen_the_limit() -> None:
    before = run(device(shapes(700e12, 690e12, 680e12)))
    steady = compared(before, run(device(shapes(686e12, 676e12, 666e12))))
    drifting = compared(before, run(device(shapes(686e12, 710e12, 640e12))))
    assert steady.verdict == "regression"
    assert drifting.verdict == "no difference"


def test_the_fastest_shape_of_both_runs_is_compared() -> None:
    # the best of each run alone is another one: 720 against 715 would be the luck of both
    row = compared(run(device(shapes(720e12, 710e12))), run(device(shapes(700e12, 715e12))))
    assert (row.shape, row.before, row.now) == (LONG, 710e12, 715e12)


def test_another_kernel_for_one_shape_is_told() -> None:
    others = [shapes(100e12, 99e12, 98e12, key=key) for key in ("fp32", "tf32", "fp16")]
    old = run(device(shapes(700e12, 690e12, 680e12), *others))
    new = run(device(shapes(700e12, 690e12, 408e12), *others))
    row = bench.compare(old, new).devices[0].rows[0]
    assert row.verdict == "no difference"
    assert row.remarks == ("other shapes changed otherwise: 4096^3 -40.0%",)


def test_a_kernel_that_changed_in_one_precision_hides_no_loss_in_another() -> None:
    keys = ("fp32", "tf32", "fp16", "fp8")
    quiet = [shapes(100e12, 99e12, 98e12, key=key) for key in keys[:-1]]
    old = run(
        device(*quiet, shapes(900e12, 890e12, 880e12, key="fp8"), shapes(700e12, 690e12, 680e12))
    )
    new = run(
        device(*quiet, shapes(900e12, 445e12, 1320e12, key="fp8"), shapes(630e12, 621e12, 612e12))
    )
    rows = {row.key: row for row in bench.compare(old, new).devices[0].rows}
    assert rows["bf16"].verdict == "regression"


def test_a_slower_clock_is_named_as_the_reason() -> None:
    row = compared(bf16(700e12, held_clock_mhz=1755.0), bf16(560e12, held_clock_mhz=1404.0))
    assert row.verdict == "regression"
    assert row.remarks == ("the clock explains it: 1755 MHz before, 1404 MHz now",)


def test_a_loss_at_the_same_clock_is_not_the_clocks() -> None:
    row = compared(bf16(700e12, held_clock_mhz=1755.0), bf16(560e12, held_clock_mhz=1740.0))
    assert row.remarks == ("the clock does not explain it: 1755 MHz before, 1740 MHz now",)


# What cannot be told ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (
            bf16(),
            bf16(valid=False, invalid_reason="shared: train.py"),
            "now not valid: shared: train.py",
        ),
        (bf16(valid=False, invalid_reason="busy"), bf16(), "before not valid: busy"),
        (bf16(correct=False), bf16(), "before the result was wrong"),
        (bf16(), bf16(shape=SMALL), "no shape in common: 8192^3 before, 4096^3 now"),
        (bf16(threads=8), bf16(threads=4), "8 threads before, 4 now"),
        (bf16(), bf16(emulated=True), "emulated only now"),
        (bf16(), bf16(iqr=None), "no quartiles"),
        (bf16(), bf16(iqr=0.0), "no quartiles"),
    ],
)
def test_another_question_is_no_regression(old, new, reason: str) -> None:
    slower = msgspec.json.decode(bench.to_json(new))
    for one in slower["devices"][0]["precisions"]:
        for found in (one["best"], *one["bursts"]):
            for key in ("", "low_", "high_"):
                name = f"rate_{key}ops_per_second"
                found[name] = None if found[name] is None else found[name] / 3
    comparison = bench.compare(old, msgspec.convert(slower, model.BenchDocument))
    (row,) = comparison.devices[0].rows
    assert (row.verdict, row.noise_ratio) == ("cannot tell", None)
    assert reason in row.reason
    assert bench.exit_code(comparison) == 3


def test_a_rate_of_an_earlier_session_is_no_measurement() -> None:
    old = run(device(precision("bf16", burst(700e12), remembered=True)))
    row = compared(old, bf16(400e12))
    assert (row.verdict, row.reason) == ("cannot tell", "before it was of an earlier session")


def test_a_simulation_is_not_compared_with_a_machine() -> None:
    simulated = msgspec.structs.replace(bf16(400e12), simulated="h100-8")
    assert compared(bf16(), simulated).verdict == "cannot tell"
    assert compared(simulated, simulated).verdict == "no difference"


def test_a_mig_slice_is_not_compared_with_the_whole_board() -> None:
    slice_of = run(device(precision("bf16", burst(100e12)), mig=True))
    assert "MIG" in compared(bf16(), slice_of).reason


def test_what_could_not_be_measured_any_more_is_unknown() -> None:
    new = run(device(not_measured={"bf16": "no kernel image for sm_90"}))
    comparison = bench.compare(bf16(), new)
    assert comparison.devices[0].rows[0].reason == "not measured now: no kernel image for sm_90"
    assert bench.exit_code(comparison) == 3


def test_what_was_not_asked_for_is_only_named() -> None:
    old = run(device(precision("bf16", burst(700e12)), precision("fp8", burst(1400e12))))
    comparison = bench.compare(old, bf16())
    assert [row.key for row in comparison.devices[0].rows] == ["bf16"]
    assert comparison.devices[0].only_before == ("fp8",)
    assert bench.compare(bf16(), old).devices[0].only_now == ("fp8",)
    assert bench.exit_code(comparison) == 0


# Conditions ---------------------------------------------------------------------------------------


def test_a_changed_condition_is_named_and_the_verdict_stands() -> None:
    def with_conditions(ops: float, **changes) -> model.BenchDocument:
        conditions = model.Conditions(**changes)
        return run(device(precision("bf16", burst(ops)), conditions=conditions))

    old = with_conditions(700e12, torch_version="2.6.0", power_limit_watts=700.0, clocks_set=False)
    new = with_conditions(490e12, torch_version="2.7.1", power_limit_watts=500.0, clocks_set=True)
    (found,) = bench.compare(old, new).devices
    assert [(one.condition, one.before, one.now) for one in found.changed] == [
        ("torch", "2.6.0", "2.7.1"),
        ("power limit", "700 W", "500 W"),
        ("clocks set", "no", "yes"),
    ]
    assert found.rows[0].verdict == "regression"


def test_a_condition_that_is_not_known_has_not_changed() -> None:
    known = run(
        device(precision("bf16", burst(700e12)), conditions=model.Conditions(torch_version="2.6"))
    )
    assert bench.compare(known, bf16()).devices[0].changed == ()


# Devices ------------------------------------------------------------------------------------------


def two(first: str, second: str, ops: tuple[float, float]) -> model.BenchDocument:
    """Two boards in slots 0 and 1, by UUID."""
    return run(
        *(
            device(
                precision("bf16", burst(value)), device=uuid, uuid=uuid, index=at, label=f"GPU {at}"
            )
            for at, (uuid, value) in enumerate(zip((first, second), ops, strict=True))
        )
    )


def test_boards_are_found_again_by_uuid_in_another_slot() -> None:
    comparison = bench.compare(two("A", "B", (700e12, 500e12)), two("B", "A", (500e12, 700e12)))
    assert [one.matched_by for one in comparison.devices] == ["UUID", "UUID"]
    assert {row.verdict for one in comparison.devices for row in one.rows} == {"no difference"}


def test_a_board_that_was_replaced_is_compared_with_its_predecessor_and_named() -> None:
    comparison = bench.compare(two("A", "B", (700e12, 700e12)), two("A", "C", (700e12, 490e12)))
    first, second = comparison.devices
    assert (first.matched_by, second.matched_by) == ("UUID", "name and index")
    assert second.changed[0].condition == "board's UUID"
    assert second.rows[0].verdict == "regression"
    assert comparison.only_before == ()


def test_a_board_is_not_compared_with_one_of_another_name() -> None:
    other = run(device(precision("bf16", burst(300e12)), name="NVIDIA A100", uuid="X", device="X"))
    comparison = bench.compare(bf16(), other)
    assert comparison.devices == ()
    assert comparison.only_before == ("GPU 0 NVIDIA H100 80GB HBM3 GPU-0",)
    assert comparison.only_now == ("GPU 0 NVIDIA A100 X",)
    assert bench.exit_code(comparison) == 3


def test_processors_are_found_by_name() -> None:
    def processor(name: str, ops: float) -> model.BenchDocument:
        changes = {"device": "cpu", "kind": "cpu", "label": "CPU", "uuid": None, "name": name}
        return run(device(precision("fp32", burst(ops)), **changes))

    (found,) = bench.compare(processor("EPYC", 1e11), processor("EPYC", 1e11)).devices
    assert found.matched_by == "name"
    assert bench.compare(processor("EPYC", 1e11), processor("Xeon", 1e11)).devices == ()


# Probes -------------------------------------------------------------------------------------------


def copy(median: float, iqr: float | None = 0.01, **changes) -> model.BenchDocument:
    sides = (None, None) if iqr is None else (median * (1 - iqr / 2), median * (1 + iqr / 2))
    fields = {"low_bytes_per_second": sides[0], "high_bytes_per_second": sides[1], "calls": 100}
    value = model.Bandwidth(
        name="DRAM copy", probe="memory", bytes_per_second=median, **{**fields, **changes}
    )
    return run(device(bandwidths=(value,)))


def launch(seconds: float) -> model.BenchDocument:
    value = model.Latency(
        name="kernel launch",
        probe="launch",
        seconds=seconds,
        low_seconds=seconds * 0.99,
        high_seconds=seconds * 1.01,
    )
    return run(device(latencies=(value,)))


def test_a_bandwidth_that_fell() -> None:
    row = compared(copy(3e12), copy(2.1e12))
    assert (row.verdict, row.unit, row.key) == ("regression", "bytes/s", "DRAM copy")
    assert compared(copy(3e12), copy(2.98e12)).verdict == "no difference"


def test_more_time_is_worse() -> None:
    slower, faster = compared(launch(3e-6), launch(9e-6)), compared(launch(9e-6), launch(3e-6))
    assert (slower.verdict, slower.change_ratio) == ("regression", pytest.approx(2.0))
    assert (faster.verdict, slower.unit) == ("improvement", "s")


def test_a_value_without_a_spread_is_shown_but_not_judged() -> None:
    comparison = bench.compare(copy(3e12, None), copy(1e12, None))
    (row,) = comparison.devices[0].rows
    assert (row.verdict, row.judged) == ("cannot tell", False)
    assert row.change_ratio == pytest.approx(-2 / 3)
    assert bench.exit_code(comparison) == 3, "nothing at all was judged"
    beside = precision("bf16", burst(700e12))
    with_rate = [
        run(device(beside, bandwidths=copy(speed, None).devices[0].bandwidths))
        for speed in (3e12, 1e12)
    ]
    assert bench.exit_code(bench.compare(*with_rate)) == 0


def test_a_disturbed_probe_cannot_be_told() -> None:
    row = compared(copy(3e12), copy(1e12, valid=False, invalid_reason="34 % of CPU time"))
    assert (row.verdict, row.reason) == ("cannot tell", "not valid now: 34 % of CPU time")


def test_a_probe_that_failed_this_time_is_unknown() -> None:
    new = run(device(not_measured={"memory": "out of memory"}))
    assert compared(copy(3e12), new).reason == "not measured now: out of memory"


# Exit codes ---------------------------------------------------------------------------------------


def test_a_wrong_result_is_a_failure_whatever_its_rate() -> None:
    comparison = bench.compare(bf16(700e12), bf16(900e12, correct=False))
    (row,) = comparison.devices[0].rows
    assert row.wrong
    assert "wrong now" in row.reason
    assert bench.exit_code(comparison) == 2
    assert bench.exit_code(bench.compare(copy(3e12), copy(3e12, correct=False))) == 2


@pytest.mark.parametrize(("now", "code"), [(700e12, 0), (900e12, 0), (490e12, 1)])
def test_exit_codes(now: float, code: int) -> None:
    assert bench.exit_code(bench.compare(bf16(700e12), bf16(now))) == code


def test_a_regression_outweighs_what_cannot_be_told() -> None:
    old = run(device(precision("bf16", burst(700e12)), precision("fp8", burst(1400e12))))
    new = run(device(precision("bf16", burst(400e12)), not_measured={"fp8": "refused"}))
    assert bench.exit_code(bench.compare(old, new)) == 1


# For any runs -------------------------------------------------------------------------------------

RATES = st.floats(1e6, 1e16)
SPREADS = st.floats(1e-4, 1.0)
BURSTS = st.builds(
    lambda ops, iqr, calls, shape: burst(ops, iqr, calls=calls, shape=(shape, shape, shape)),
    st.one_of(st.none(), RATES, st.sampled_from([0.0, math.inf, math.nan, -1.0])),
    SPREADS,
    st.integers(0, 1000),
    st.integers(1, 4),
)
PRECISIONS = st.builds(
    lambda key, bursts: precision(key, *bursts),
    st.sampled_from(["fp32", "bf16", "int8"]),
    st.lists(BURSTS, min_size=1, max_size=3, unique_by=lambda one: one.shape),
)
RUNS = st.builds(
    lambda found: run(device(*found)),
    st.lists(PRECISIONS, max_size=3, unique_by=lambda one: one.precision),
)


@given(RUNS)
def test_identical_runs_never_regress(document: model.BenchDocument) -> None:
    comparison = bench.compare(document, document)
    verdicts = {row.verdict for found in comparison.devices for row in found.rows}
    assert verdicts <= {"no difference", "cannot tell"}
    zero = any(one.nothing_computed for found in document.devices for one in found.precisions)
    assert bench.exit_code(comparison) in ((2,) if zero else (0, 3))
    bench.comparison_text(comparison, 80, False)


@given(RUNS, RUNS)
def test_what_one_way_calls_a_regression_the_other_calls_an_improvement(one, other) -> None:
    swapped = {"regression": "improvement", "improvement": "regression"}
    forth = [row for found in bench.compare(one, other).devices for row in found.rows]
    back = {row.key: row for found in bench.compare(other, one).devices for row in found.rows}
    for row in forth:
        assert back[row.key].verdict == swapped.get(row.verdict, row.verdict)


@given(
    st.lists(RATES, min_size=1, max_size=3),
    st.floats(1e-4, 0.01),
    st.integers(30, 5000),
    st.lists(st.floats(-0.002, 0.002), min_size=3, max_size=3),
    st.integers(1, 9),
)
def test_a_loss_of_a_third_with_tight_quartiles_always_regresses(
    rates, iqr, calls, jitter, precisions
) -> None:
    keys = ("fp64", "fp32", "tf32", "fp16", "fp16_acc16", "bf16", "fp8", "int8", "fp4")[:precisions]

    def document(factor: float) -> model.BenchDocument:
        found = []
        for key in keys:
            bursts = [
                burst(
                    ops * factor * (1 + (one if factor < 1 else 0.0)),
                    iqr,
                    calls=calls,
                    shape=shape,
                )
                for ops, one, shape in zip(rates, jitter, SHAPES, strict=False)
            ]
            found.append(precision(key, *bursts))
        return run(device(*found))

    rows = bench.compare(document(1.0), document(0.7)).devices[0].rows
    assert [row.verdict for row in rows] == ["regression"] * precisions


@pytest.mark.parametrize("seed", range(3))
def test_a_machine_that_drifts_seldom_seems_to_change(seed: int) -> None:
    """Calls spread by 0.5 %; from burst to burst and from run to run rates move by as much."""
    source = random.Random(seed)

    def measure() -> model.BenchDocument:
        day = source.gauss(0.0, 0.005)
        found = []
        for key in ("fp32", "tf32", "fp16", "bf16", "fp8", "int8"):
            bursts = []
            for shape in SHAPES:
                moment = math.exp(day + source.gauss(0.0, 0.005))
                calls = [1e14 * moment * math.exp(source.gauss(0, 0.005)) for _ in range(30)]
                low, median, high = statistics.quantiles(calls, n=4, method="inclusive")
                quartiles = {"rate_low_ops_per_second": low, "rate_high_ops_per_second": high}
                bursts.append(burst(median, shape=shape, calls=30, **quartiles))
            found.append(precision(key, *bursts))
        return run(device(*found))

    alarms = sum(bench.exit_code(bench.compare(measure(), measure())) != 0 for _ in range(60))
    assert alarms <= 2
