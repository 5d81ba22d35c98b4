"""Batch split and cost of communication in closed form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topsmon.diagnosis import balance
from topsmon.diagnosis.balance import Member, gradient_weights, samples

GIB = float(1 << 30)


def member(name: str, gib: float, tera: float) -> Member:
    return Member(label=name, memory_bytes=gib * GIB, rate_ops_per_second=tera * 1e12)


def test_twice_the_memory_at_half_the_speed() -> None:
    # Memory 2/3 and 1/3, rate 1/3 and 2/3: the smaller ones are equal, so each takes half.
    found = balance.split([member("big", 48, 50), member("fast", 24, 100)])
    assert found is not None
    assert [one.batch for one in found.shares] == pytest.approx([0.5, 0.5])
    # By memory the big card has 2/3 of the work at 1/3 of the speed: 2 units against 1.5.
    assert found.step_by_memory == pytest.approx(2.0)
    assert found.step_advised == pytest.approx(1.5)
    assert not found.uneven


def test_equal_memory_splits_by_the_smaller_share() -> None:
    # min(1/2, 3/4) = 1/2 and min(1/2, 1/4) = 1/4, normalised 2/3 and 1/3.
    found = balance.split([member("a", 24, 300), member("b", 24, 100)])
    assert found is not None
    assert [one.batch for one in found.shares] == pytest.approx([2 / 3, 1 / 3])
    assert found.step_even == pytest.approx(2.0)
    assert found.step_advised == pytest.approx((1 / 3) / (1 / 4))
    assert found.uneven


@pytest.mark.parametrize(
    "members",
    [
        [],
        [member("a", 24, 100)],
        [member("a", 24, 100), member("b", 0, 100)],
        [member("a", 24, 0), member("b", 24, 100)],
    ],
)
def test_nothing_to_split(members: list[Member]) -> None:
    assert balance.split(members) is None


@given(
    st.lists(st.tuples(st.floats(1, 200), st.floats(0.1, 2000)), min_size=2, max_size=16),
    st.integers(16, 4096),
)
def test_whole_samples_add_up_and_weights_average_to_one(
    cards: list[tuple[float, float]], batch: int
) -> None:
    found = balance.split([member(str(at), *card) for at, card in enumerate(cards)])
    assert found is not None
    assert sum(one.batch for one in found.shares) == pytest.approx(1.0)
    counts = samples(found.shares, batch)
    assert sum(counts) == batch
    assert all(
        abs(count - one.batch * batch) < 1 for count, one in zip(counts, found.shares, strict=True)
    )
    weights = gradient_weights(counts)
    assert sum(weights) / len(weights) == pytest.approx(1.0)


def test_weighted_mean_of_ranks_is_the_mean_of_all_samples() -> None:
    parts = [[1.0, 2.0, 3.0], [10.0]]
    weights = gradient_weights([len(part) for part in parts])
    means = [sum(part) / len(part) for part in parts]
    averaged = sum(weight * mean for weight, mean in zip(weights, means, strict=True)) / 2
    assert averaged == pytest.approx((1 + 2 + 3 + 10) / 4)
    assert sum(means) / 2 != pytest.approx(averaged)


def test_communication_of_a_step() -> None:
    # 7e9 parameters x 4 bytes = 28 GB; 2 x 7/8 x 28 / 400 = 122.5 ms.
    cost = balance.communication(7_000_000_000, 8, 400e9)
    assert cost.gradient_bytes == 28e9
    assert cost.seconds == pytest.approx(0.1225)
    assert cost.share(0.1225) == pytest.approx(0.5)
    # 10 %: C / (k c + C) = 0.1 gives k c = 9 C.
    assert cost.micro_batches(0.1225) == 9
    assert cost.share(0.1225, 9) == pytest.approx(0.1)
    assert cost.enough_compute_seconds() == pytest.approx(9 * 0.1225)
    assert cost.micro_batches(2.0) == 1


@given(st.integers(1, 10**12), st.integers(2, 512), st.floats(1e6, 1e12), st.floats(1e-4, 100))
def test_the_advised_accumulation_is_the_least_that_is_enough(
    parameters: int, ranks: int, busbw: float, compute: float
) -> None:
    cost = balance.communication(parameters, ranks, busbw)
    count = cost.micro_batches(compute)
    assert cost.share(compute, count) <= 0.1 + 1e-6
    if count > 1:
        assert cost.share(compute, count - 1) > 0.1 - 1e-6
