"""Samples, tokens and time waited for data."""

from __future__ import annotations

import copy
import math
import time
from collections import UserDict
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from topsmon.training.recorder.shapes import EVERY, Shapes, sizes_of


@pytest.fixture
def shapes() -> Iterator[Shapes]:
    one = Shapes()
    one.install()
    yield one
    one.uninstall()


def hooks() -> int:
    return len(torch_module._global_forward_pre_hooks)


@pytest.mark.parametrize(
    ("batch", "samples", "tokens"),
    [
        (torch.zeros(4, 7, dtype=torch.int64), 4, 28),
        ((torch.zeros(4, 3, 8, 8), torch.zeros(4, dtype=torch.int64)), 4, math.nan),
        ({"labels": torch.zeros(4, 9), "input_ids": torch.zeros(4, 7, dtype=torch.int32)}, 4, 28),
        (({"input_ids": torch.zeros(2, 5, dtype=torch.int64)},), 2, 10),
        ([1.0, [torch.tensor(3.0), torch.zeros(6, 2)]], 6, math.nan),
        (torch.zeros(4, 7, dtype=torch.bool), 4, math.nan),
        (torch.tensor(1.0), math.nan, math.nan),
        ("text", math.nan, math.nan),
        (UserDict({"x": torch.zeros(3, 2, dtype=torch.int64)}), 3, 6),
    ],
)
def test_sizes_of_a_batch(batch: Any, samples: float, tokens: float) -> None:
    assert sizes_of(batch) == pytest.approx((samples, tokens), nan_ok=True)


def test_batches_of_a_step_are_summed(shapes: Shapes) -> None:
    loader = iter(DataLoader(TensorDataset(torch.zeros(10, 5, dtype=torch.int64)), batch_size=4))
    next(loader), next(loader)
    first = shapes.take(1, 2, None)
    assert (first.samples, first.tokens, first.workers) == (8, 40, 0)
    next(loader)
    assert shapes.take(2, 1, None)[:2] == (2, 10)
    assert math.isnan(shapes.take(3, 1, None).samples)
    assert shapes.batches_seen == 3


def test_validation_batches_do_not_count(shapes: Shapes) -> None:
    data = DataLoader(TensorDataset(torch.zeros(8, 2)), batch_size=4)
    next(iter(data))
    with torch.no_grad():
        for _ in data:
            pass
    assert shapes.take(1, 1, None).samples == 4


class Slow(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.01)
        return torch.zeros(3)


def test_waiting_for_data_is_timed(shapes: Shapes) -> None:
    for _ in DataLoader(Slow(), batch_size=2):
        pass
    waited = shapes.take(1, 1, None).data_wait_seconds
    # Four sleeps of 10 ms each, none of which can be shorter.
    assert waited >= 0.04
    assert shapes.take(2, 1, None).data_wait_seconds == 0


def test_without_a_loader_the_wait_is_not_known(shapes: Shapes) -> None:
    assert math.isnan(shapes.take(1, 1, None).data_wait_seconds)
    assert shapes.take(2, 1, None).workers is None


def test_a_loader_inside_a_loader_counts_once(shapes: Shapes) -> None:
    class Inner(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            for (part,) in DataLoader(TensorDataset(torch.zeros(4, 2)), batch_size=2):
                yield part

    list(DataLoader(Inner(), batch_size=None))
    batch = shapes.take(1, 1, None)
    assert batch.samples == 4
    assert shapes.batches_seen == 2


def test_exceptions_of_the_data_pass_through(shapes: Shapes) -> None:
    class Broken(Slow):
        def __getitem__(self, index: int) -> torch.Tensor:
            raise OSError("disk gone")

    loader = iter(DataLoader(Broken(), batch_size=2))
    with pytest.raises(OSError, match="disk gone"):
        next(loader)
    with pytest.raises(StopIteration):
        next(iter(DataLoader(TensorDataset(torch.zeros(0, 1)))))


def test_uninstalling_restores_the_original() -> None:
    from torch.utils.data import dataloader

    original = dataloader._BaseDataLoaderIter.__next__
    one = Shapes()
    one.install()
    one.install()
    assert dataloader._BaseDataLoaderIter.__next__ is not original
    one.uninstall()
    assert dataloader._BaseDataLoaderIter.__next__ is original


def test_the_models_arguments_tell_where_no_loader_does() -> None:
    model = nn.Sequential(nn.Embedding(9, 2))
    shapes = Shapes()
    ids = torch.zeros(3, 5, dtype=torch.int64)
    model(ids)
    assert math.isnan(shapes.take(1, 1, model).tokens)
    for _ in range(4):
        model(ids)
    assert shapes.take(2, 4, model)[:2] == (12, 60)
    assert hooks() == 0


def test_forward_passes_count_however_often_backward_is_called() -> None:
    model, shapes = nn.Identity(), Shapes()
    shapes.take(1, 1, model)
    for samples in (2, 3):  # two forward passes, one backward pass
        model(torch.zeros(samples, 4, dtype=torch.int64))
    assert shapes.take(2, 1, model)[:2] == (5, 20)
    assert shapes.take(3, 1, model)[:2] == (5, 20)
    shapes.uninstall()
    other = Shapes()
    other.take(1, 2, model)
    model(torch.zeros(3, 4, dtype=torch.int64))  # one forward pass, two backward passes
    assert other.take(2, 2, model)[:2] == (3, 12)
    assert other.take(3, 1, model)[:2] == (1.5, 6)  # half a step as it was seen


def test_what_checkpointing_computes_again_does_not_count() -> None:
    inner = nn.Linear(2, 2)
    root, shapes = nn.ModuleDict({"net": inner}), Shapes()
    shapes.take(1, 1, root)
    start = torch.zeros(6, 2, requires_grad=True)
    torch.utils.checkpoint.checkpoint(inner, start, use_reentrant=False).sum().backward()
    assert shapes.take(2, 1, root).samples == 6


def test_batches_fetched_in_evaluation_mode_do_not_count(shapes: Shapes) -> None:
    """Most loops switch gradients off only around the forward pass."""
    model = nn.Linear(2, 1)
    data = TensorDataset(torch.zeros(8, 2))
    next(iter(DataLoader(data, batch_size=4)))
    assert shapes.take(1, 1, model).samples == 4
    model.eval()
    for _ in DataLoader(data, batch_size=2):
        pass
    model.train()
    next(iter(DataLoader(data, batch_size=4)))
    assert shapes.take(2, 1, model).samples == 4


def test_arguments_by_name_are_found() -> None:
    class Named(nn.Module):
        def forward(self, labels: Any = None, input_ids: Any = None) -> torch.Tensor:
            return torch.zeros(1)

    model, shapes = Named(), Shapes()
    shapes.take(1, 1, model)
    model(labels=torch.zeros(2, 9), input_ids=torch.zeros(2, 7, dtype=torch.int64))
    assert shapes.take(2, 1, model)[:2] == (2, 14)


def test_a_module_inside_a_root_that_is_never_called_tells() -> None:
    root = nn.ModuleDict({"net": nn.Identity()})
    shapes = Shapes()
    shapes.take(1, 1, root)
    root["net"](torch.zeros(6, 2))
    assert shapes.take(2, 1, root).samples == 6


def test_other_models_and_passes_without_gradients_do_not_tell() -> None:
    model, teacher, shapes = nn.Identity(), nn.Identity(), Shapes()
    shapes.take(1, 1, model)
    teacher(torch.zeros(9, 1))
    with torch.no_grad():
        model(torch.zeros(8, 1))
    model(torch.zeros(7, 1))
    assert shapes.take(2, 1, model).samples == 7


def test_batches_without_tensors_leave_it_to_the_models_arguments(shapes: Shapes) -> None:
    model = nn.Identity()
    texts = iter(DataLoader(["some", "text"] * 4, batch_size=4))  # type: ignore[arg-type]
    shapes.take(1, 1, model)
    next(texts)
    model(torch.zeros(4, 6, dtype=torch.int64))
    assert shapes.take(2, 1, model)[:2] == (4, 24)


def test_given_numbers_win(shapes: Shapes) -> None:
    given = Shapes(tokens=100.0, samples=5.0)
    next(iter(DataLoader(TensorDataset(torch.zeros(8, 2)), batch_size=4)))
    assert given.take(1, 1, None)[:2] == (5.0, 100.0)


def test_one_look_in_a_hundred_steps() -> None:
    model, shapes = nn.Identity(), Shapes()
    armed = []
    for step in range(1, 2 * EVERY + 3):
        model(torch.zeros(1, 1))
        shapes.take(step, 1, model)
        if hooks():
            armed.append(step)
    shapes.uninstall()
    assert armed == [1, 1 + EVERY, 1 + 2 * EVERY]


def test_a_look_that_sees_nothing_is_taken_away_and_tried_less_often() -> None:
    model, shapes = nn.Identity(), Shapes()
    armed = [step for step in range(1, 3000) if shapes.take(step, 1, model) and hooks()]
    assert armed == [1, 2 + 4 * EVERY, 3 + 20 * EVERY]
    assert hooks() == 0


def test_a_compiled_model_gets_no_hook() -> None:
    model = nn.Sequential(nn.Linear(1, 1))
    model.compile()
    Shapes().take(1, 1, model)
    assert hooks() == 0


def test_a_model_may_be_copied_while_a_look_is_armed() -> None:
    model, shapes = nn.Sequential(nn.Linear(1, 1)), Shapes()
    shapes.take(1, 1, model)
    copied = copy.deepcopy(model)
    assert not copied._forward_pre_hooks
    assert not model._forward_pre_hooks
    shapes.uninstall()
    assert hooks() == 0
