"""The noise of two runs: against tables, against simulation, by hand."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topsmon.report.bench import noise


@pytest.mark.parametrize(
    ("outside", "dof", "expected"),
    [
        # two-sided quantiles of any printed table of Student's t
        (0.01, 1, 63.657),
        (0.01, 2, 9.925),
        (0.01, 3, 5.841),
        (0.01, 4, 4.604),
        (0.05, 5, 2.571),
        (0.001, 7, 5.408),
        (0.01, 9, 3.250),
        (0.01, 10, 3.169),
        (0.05, 120, 1.980),
    ],
)
def test_student_against_printed_tables(outside: float, dof: int, expected: float) -> None:
    assert noise.student_limit(outside, dof) == pytest.approx(expected, abs=0.001)


def test_student_approaches_the_normal_distribution() -> None:
    normal = statistics.NormalDist().inv_cdf(1 - 0.01 / 2)
    assert noise.student_limit(0.01, 1e9) == pytest.approx(normal, rel=0.015)


@given(st.floats(1e-6, 0.5), st.integers(1, 200))
def test_student_limit_inverts_student_outside(outside: float, dof: int) -> None:
    t = noise.student_limit(outside, dof)
    assert noise.student_outside(t, dof) == pytest.approx(outside, rel=1e-6)


@given(st.floats(1e-4, 0.2), st.integers(1, 198))
def test_less_evidence_widens_the_limit(outside: float, dof: int) -> None:
    assert noise.student_limit(outside, dof) > noise.student_limit(outside, dof + 1)


@pytest.mark.parametrize("calls", [3, 5, 10, 40, 400])
def test_sigma_from_quartiles_is_unbiased_within_a_tenth(calls: int) -> None:
    # quartiles as the prober takes them, of normal call times of sigma 1 %
    source = random.Random(calls)
    sigmas = []
    for _ in range(4000 if calls < 100 else 400):
        seconds = [source.gauss(1.0, 0.01) for _ in range(calls)]
        low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
        variance = noise.of_calls((high - low) / median, calls)
        assert variance is not None
        sigmas.append(math.sqrt(variance.value))
    assert statistics.fmean(sigmas) == pytest.approx(0.01, rel=0.1)


def test_between_the_quartiles_of_many_values_are_1_349_sigmas() -> None:
    assert noise.between_quartiles(None) == pytest.approx(1.349, abs=0.0001)
    assert noise.between_quartiles(100_000) == pytest.approx(1.349, abs=0.001)


@pytest.mark.parametrize(("iqr", "calls"), [(None, 10), (0.0, 10), (-0.1, 10), (0.1, 1), (0.1, 0)])
def test_no_spread_no_variance(iqr: float | None, calls: int) -> None:
    assert noise.of_calls(iqr, calls) is None


def test_drift_of_one_or_two_precisions_is_their_mean_variance() -> None:
    # variances 1e-4 (2 degrees of freedom) and 4e-4 (1): (2 x 1e-4 + 4e-4) / 3 = 2e-4
    found = noise.of_bursts([[0.0, 0.01, -0.01], [0.02, math.sqrt(8e-4) + 0.02], [0.5]])
    assert found is not None
    assert found.value == pytest.approx(2e-4)
    assert found.dof == 3


def test_drift_is_unknown_without_two_shapes() -> None:
    assert noise.of_bursts([[0.1], [0.2], []]) is None


def test_one_changed_kernel_does_not_make_everything_drift() -> None:
    quiet = [[0.001, -0.001, 0.0], [0.0, 0.002, 0.001], [0.001, 0.0, 0.002]]
    calm, odd = noise.of_bursts(quiet), noise.of_bursts([*quiet, [0.0, 0.0, 0.5]])
    assert calm is not None
    assert odd is not None
    assert odd.value == pytest.approx(calm.value, rel=0.5)


def test_drift_of_many_precisions_is_unbiased_within_a_tenth() -> None:
    source = random.Random(7)
    values = []
    for _ in range(4000):
        groups = [[source.gauss(0.0, 0.01) for _ in range(3)] for _ in range(9)]
        found = noise.of_bursts(groups)
        assert found is not None
        values.append(found.value)
    # a median of nine lies somewhat above that of the distribution on average
    assert statistics.fmean(values) == pytest.approx(1e-4, rel=0.12)


def test_the_limit_by_hand() -> None:
    # sigma 3e-3 twice and 4e-3 of drift with many degrees of freedom: root(34e-6) = 5.83e-3,
    # times 2.576, the 0.5 % point of the normal distribution
    parts = [noise.Variance(9e-6, 1e6), noise.Variance(9e-6, 1e6), noise.Variance(16e-6, 1e6)]
    assert noise.limit(parts, 1) == pytest.approx(2.576 * 5.831e-3, rel=0.015)


def test_more_values_compared_need_larger_changes() -> None:
    parts = [noise.Variance(1e-4, 20.0)]
    limits = [noise.limit(parts, count) for count in (1, 10, 100)]
    assert limits == sorted(limits)
    assert limits[0] < limits[2]


def test_few_degrees_of_freedom_dominate_by_their_share_of_the_variance() -> None:
    # equal variances of 2 and many degrees: (2 v)^2 / (v^2 / 2) = 8
    parts = [noise.Variance(1e-4, 2.0), noise.Variance(1e-4, 1e9)]
    expected = noise.student_limit(0.01, 8) * math.sqrt(2e-4)
    assert noise.limit(parts, 1) == pytest.approx(expected, rel=0.1)
