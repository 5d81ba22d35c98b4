"""Norms, bad gradients and weights, zeros: right values, and no work where none is due."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from topsmon.training.recorder import gradients, names
from topsmon.training.recorder.gradients import (
    Budget,
    NormSampler,
    SkipNames,
    WeightsCheck,
    ZeroSampler,
    parameters_of,
)
from topsmon.training.recorder.slots import Slots


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Unread(Slots):
    """Fails the test if a value is read."""

    def read(self, tensors: Any, then: Any) -> bool:
        raise AssertionError("nothing should be read")


def with_gradient(*values: Any, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    parameters = []
    for value in values:
        gradient = torch.as_tensor(value, dtype=dtype)
        parameter = nn.Parameter(torch.zeros_like(gradient))
        parameter.grad = gradient
        parameters.append(parameter)
    return parameters


def test_the_norm_is_that_of_all_gradients_together() -> None:
    got: list[float] = []
    sampler = NormSampler(Slots())
    assert sampler.sample(2, with_gradient([3.0], [[0.0, 4.0]]), None, got.append)
    assert got == [5.0]


@pytest.mark.parametrize("scale", [65536.0, torch.tensor(65536.0)])
def test_scaled_gradients_are_divided_by_the_scale(scale: Any) -> None:
    got: list[float] = []
    scaled = with_gradient([3.0 * 65536], [4.0 * 65536])
    assert NormSampler(Slots()).sample(2, scaled, scale, got.append)
    assert got == [5.0]


def test_fp16_gradients_whose_norm_does_not_fit_fp16() -> None:
    got: list[float] = []
    large = with_gradient(torch.full((4,), 60000.0), dtype=torch.float16)
    assert NormSampler(Slots()).sample(2, large, None, got.append)
    # FP16 rounds 60000 to 59_998 + 2 = 60000 exactly (a multiple of 32), times sqrt(4).
    assert got == [120000.0]


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=20))
def test_the_norm_agrees_with_hypot(values: list[float]) -> None:
    got: list[float] = []
    NormSampler(Slots()).sample(2, with_gradient(*[[value] for value in values]), None, got.append)
    assert got[0] == pytest.approx(math.hypot(*values), rel=1e-6, abs=1e-30)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_norm_that_is_not_finite_is_told_as_it_is(bad: float) -> None:
    got: list[float] = []
    NormSampler(Slots()).sample(2, with_gradient([1.0], [bad]), None, got.append)
    assert not math.isfinite(got[0])


def test_sharded_and_sparse_gradients_have_no_norm_here() -> None:
    sampler = NormSampler(Unread())
    sampler.sharded = True
    assert not sampler.sample(2, with_gradient([1.0]), None, lambda norm: None)
    sparse = nn.Parameter(torch.zeros(3, 1))
    sparse.grad = torch.sparse_coo_tensor([[1]], [[2.0]], (3, 1))
    assert not NormSampler(Unread()).sample(2, [sparse], None, lambda norm: None)
    assert not NormSampler(Unread()).sample(2, [], None, lambda norm: None)


def test_samples_are_every_nth_step() -> None:
    sampler = NormSampler(Slots(), every=20, budget=Budget(clock=Clock()))
    taken = [
        step
        for step in range(1, 101)
        if sampler.due(step) and sampler.sample(step, with_gradient([1.0]), None, float)
    ]
    assert taken == [2, 22, 42, 62, 82]


def test_a_budget_holds_work_to_its_share() -> None:
    clock = Clock()
    budget = Budget(share=0.01, clock=clock)
    worked = 0.0
    for _ in range(100_000):
        clock.now += 0.001
        if budget.free():
            with budget.spend():
                clock.now += 0.004
            worked += 0.004
    assert worked / clock.now == pytest.approx(0.01, rel=0.02)


def test_a_budget_is_spent_even_if_the_work_fails() -> None:
    clock = Clock()
    budget = Budget(clock=clock)

    def fail() -> None:
        with budget.spend():
            clock.now = 1.0
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fail()
    assert not budget.free()
    clock.now = 100.0
    assert budget.free()


def test_bytes_on_a_device_cost_time_as_well() -> None:
    clock = Clock()
    budget = Budget(share=0.01, clock=clock)
    # 2e11 bytes at 2e11 bytes/s are one second, so 99 s of rest follow.
    with budget.spend([torch.empty(2 * 10**11, dtype=torch.uint8, device="meta")]):
        pass
    clock.now = 98.9
    assert not budget.free()
    clock.now = 99.1
    assert budget.free()


def test_an_unsampled_step_asks_neither_clock_nor_parameters() -> None:
    def no_clock() -> float:
        raise AssertionError("no clock")

    sampler = NormSampler(Unread(), budget=Budget(clock=no_clock))
    sampler._next = 22
    check = WeightsCheck(Unread(), budget=Budget(clock=no_clock))
    assert not any(sampler.due(step) or check.due(step) for step in range(3, 22))


def test_bad_gradients_are_found_by_id() -> None:
    parameters = with_gradient([1.0], [math.inf, 0.0], [math.nan], [-math.inf], [2.0])
    parameters.append(nn.Parameter(torch.zeros(1)))
    got: list[tuple[set[int], int]] = []
    assert SkipNames(Slots()).look(parameters, lambda bad, count: got.append((bad, count)))
    assert got == [({id(item) for item in parameters[1:4]}, 5)]


def test_bad_gradients_of_mixed_types_keep_their_owner() -> None:
    parameters = [
        *with_gradient([math.inf], dtype=torch.float16),
        *with_gradient([1.0]),
        *with_gradient([1.0], dtype=torch.float16),
        *with_gradient([math.nan], dtype=torch.bfloat16),
    ]
    got: list[set[int]] = []
    SkipNames(Slots()).look(parameters, lambda bad, count: got.append(bad))
    assert got == [{id(parameters[0]), id(parameters[3])}]


def test_names_after_a_backward_overflow() -> None:
    torch.manual_seed(0)
    names.note_modules()
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    inputs = torch.randn(8, 16) * 50
    with torch.autocast("cpu", torch.float16):
        output = model(inputs)
    loss = (output.float() * 30).pow(2).mean()
    scaler.scale(loss).backward()
    before = [item.detach().clone() for item in model.parameters()]
    scaler.step(optimizer)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    told: list[str] = []
    named = names.names_of(model.parameters())
    SkipNames(Slots()).look(
        parameters_of(optimizer),
        lambda bad, count: told.extend(name for key, name in named.items() if key in bad),
    )
    assert told == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert names.likely_origin(told) == "2"
    names.forget_modules()


def test_names_are_not_looked_for_at_every_skip_of_a_long_streak() -> None:
    look = SkipNames(Slots(), Budget(clock=Clock()))
    due = [streak for streak in range(1, 200) if look.due(streak, streak)]
    assert due == [1, 2, 3, 4, 8, 16, 32, 64, 128]


def test_an_optimizers_parameters_are_taken_once() -> None:
    shared = with_gradient([1.0])[0]
    optimizer = torch.optim.SGD([shared], lr=0.1)
    optimizer.param_groups.append({"params": [shared, nn.Parameter(torch.zeros(1))]})
    assert parameters_of(optimizer) == [shared]


def test_weights_are_looked_at_seldom_and_at_once_when_armed() -> None:
    check = WeightsCheck(Slots(), every=200, budget=Budget(clock=Clock()))
    weight = nn.Parameter(torch.tensor([1.0]))
    seen: list[int] = []
    for step in range(1, 700):
        if step == 300:
            check.arm()
        if check.due(step):
            check.look([weight], lambda bad, count: seen.append(len(bad)))
            seen.append(step)
    assert seen == [0, 200, 0, 300, 0, 500]


def test_an_armed_check_finds_the_ruined_weights() -> None:
    weights = [nn.Parameter(torch.tensor([1.0])), nn.Parameter(torch.tensor([math.nan, 1.0]))]
    check = WeightsCheck(Slots())
    check.arm()
    got: list[set[int]] = []
    assert check.due(3)
    check.look(weights, lambda bad, count: got.append(bad))
    assert got == [{id(weights[1])}]


def test_looks_at_weights_after_many_bad_losses_are_bounded() -> None:
    clock = Clock()
    check = WeightsCheck(Slots(), budget=Budget(clock=clock))
    looks = 0
    for step in range(1, 1000):
        clock.now += 0.001
        check.arm()
        if check.due(step):
            looks += 1
            check.look([nn.Parameter(torch.zeros(1))], lambda bad, count: None)
            check._budget._not_before = clock.now + 0.1
    assert looks <= gradients.FREE_LOOKS + 10


def test_the_share_of_zeros_of_a_tiny_loss_falls_with_the_scale() -> None:
    """No optimizer exists: the gradients are found through the models."""
    names.note_modules()
    told: list[tuple[float, float | None]] = []
    sampler = ZeroSampler(Slots())

    def run(scale: float) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        with torch.autocast("cpu", torch.float16):
            output = model(torch.randn(64, 16))
        scaler.scale(output.float().mean() * 1e-06).backward()
        assert sampler.due(int(scale), scale)
        sampler.sample(int(scale), None, scale, lambda *values: told.append(values))

    run(1.0)
    run(65536.0)
    assert told == [(1.0, 1.0), (0.0, 65536.0)]
    names.forget_modules()


def test_zeros_are_counted_exactly() -> None:
    told: list[float] = []
    ZeroSampler(Slots()).sample(
        1,
        with_gradient([0.0, 1.0], [[0.0, 0.0], [math.nan, 2.0]]),
        None,
        lambda ratio, _: told.append(ratio),
    )
    assert told == [0.5]


def test_rows_of_an_embedding_without_a_gradient_are_no_underflow() -> None:
    names.note_modules()
    model = nn.ModuleList([nn.Embedding(100, 2), nn.Linear(2, 1)])
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for parameter in model[1].parameters():
        parameter.grad = torch.ones_like(parameter)
    told: list[float] = []
    ZeroSampler(Slots()).sample(1, list(model.parameters()), 1.0, lambda r, _: told.append(r))
    assert told == [0.0]
    names.forget_modules()


def test_large_gradients_are_looked_at_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "ZERO_ELEMENTS", 100)
    gradient = torch.ones(50, 10)
    gradient[:5] = 0
    told: list[float] = []
    ZeroSampler(Slots()).sample(
        1, with_gradient(gradient.t().clone().t()), 1.0, lambda r, _: told.append(r)
    )
    assert told == [0.5]


def test_zeros_are_sampled_rarely_and_when_the_scale_has_moved() -> None:
    sampler = ZeroSampler(Slots())
    parameters = with_gradient([1.0])
    calls: list[int] = []
    for call in range(1, 2001):
        scale = 65536.0 if call < 100 else 1.0
        if sampler.due(7, scale):
            sampler.sample(7, parameters, scale, lambda ratio, _: None)
            calls.append(call)
    assert calls == [1, 100, 600, 1100, 1600]
    assert sampler.due(8, 65536.0)
