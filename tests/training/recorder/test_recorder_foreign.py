"""Scalers of other frameworks, by stand-ins with the fields and methods that theirs have."""

from __future__ import annotations

import math
import sys
import types

import pytest
import torch

from topsmon.training.recorder import foreign_scalers, install, layout


class LossScalerBase:
    def __init__(self, cur_scale):
        self.cur_scale = cur_scale

    def update_scale(self, overflow):
        pass

    def backward(self, loss):
        (loss * self.cur_scale).backward()


class DynamicLossScaler(LossScalerBase):
    """Halves at an overflow, doubles after a window of steps without."""

    def __init__(self, init_scale, window):
        super().__init__(init_scale)
        self.cur_iter, self.last_overflow_iter, self.window = 0, -1, window

    def update_scale(self, overflow):
        if overflow:
            self.cur_scale /= 2
            self.last_overflow_iter = self.cur_iter
        elif (self.cur_iter - self.last_overflow_iter) % self.window == 0:
            self.cur_scale *= 2
        self.cur_iter += 1


class MegatronGradScaler:
    def __init__(self, initial_scale):
        self._scale = torch.tensor([initial_scale])


class DynamicGradScaler(MegatronGradScaler):
    """Backs off after `hysteresis` overflows in a row."""

    def __init__(
        self, initial_scale, min_scale, growth_factor, backoff_factor, growth_interval, hysteresis
    ):
        super().__init__(initial_scale)
        self.min_scale = torch.tensor([min_scale])
        self.growth_factor = torch.tensor([growth_factor])
        self.backoff_factor = torch.tensor([backoff_factor])
        self.growth_interval, self.hysteresis = growth_interval, hysteresis
        self._growth_tracker, self._hysteresis_tracker = 0, hysteresis

    def update(self, found_inf):
        if found_inf:
            self._growth_tracker = 0
            self._hysteresis_tracker -= 1
            if self._hysteresis_tracker <= 0:
                self._scale = torch.max(self._scale * self.backoff_factor, self.min_scale)
            return
        self._growth_tracker += 1
        if self._growth_tracker == self.growth_interval:
            self._growth_tracker = 0
            self._hysteresis_tracker = self.hysteresis
            self._scale = self._scale * self.growth_factor

    def load_state_dict(self, state):
        self._scale = state["scale"]


@pytest.fixture
def frameworks(monkeypatch, written):
    """Both frameworks, imported by the run after the recorder came in."""
    for name, kinds in (
        (foreign_scalers.DEEPSPEED, (LossScalerBase, DynamicLossScaler)),
        (foreign_scalers.MEGATRON, (MegatronGradScaler, DynamicGradScaler)),
    ):
        module = types.ModuleType(name)
        vars(module).update({kind.__name__: kind for kind in kinds})
        monkeypatch.setitem(sys.modules, name, module)
    install.install()
    return written


def run(model, optimizer, scaler, overflows, scale_of, update):
    truth = []
    for overflow in overflows:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 16)).mean()
        (loss * scale_of(scaler)).backward()
        for parameter in model.parameters():
            parameter.grad /= scale_of(scaler)
        update(scaler, overflow)
        if not overflow:
            optimizer.step()
        truth.append((loss.item(), scale_of(scaler)))
    return truth


def test_deepspeeds_scaler(frameworks, net):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = DynamicLossScaler(2.0**16, 4)
    overflows = [True, True, False, False, False, False, False, True, False]
    truth = run(
        model,
        optimizer,
        scaler,
        overflows,
        lambda one: one.cur_scale,
        lambda one, overflow: one.update_scale(overflow),
    )
    records = frameworks.records
    assert [bool(r.flags & layout.SKIPPED) for r in records] == overflows
    assert [r.scale for r in records] == [scale for _, scale in truth]
    assert [r.loss for r in records] == pytest.approx([loss for loss, _ in truth], rel=1e-5)
    assert records[-1].backoffs == 3
    assert records[-1].growths == 1
    assert all(r.flags & layout.HAS_SCALER for r in records)
    assert records[-1].bypasses == 0
    identity = frameworks.reader.identity().run
    assert (identity.scaler.kind, identity.scaler.init_scale) == ("DynamicLossScaler", 65536.0)


def test_megatrons_scaler(frameworks, net):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = DynamicGradScaler(2.0**16, 1.0, 1.7, 0.3, 3, 2)
    overflows = [True, True, True, False, False, False, True, False, False, False, False]
    truth = run(
        model,
        optimizer,
        scaler,
        overflows,
        lambda one: float(one._scale),
        lambda one, overflow: one.update(overflow),
    )
    records = frameworks.records
    assert [bool(r.flags & layout.SKIPPED) for r in records] == overflows
    assert [r.scale for r in records] == [scale for _, scale in truth]
    assert [r.loss for r in records] == pytest.approx([loss for loss, _ in truth], rel=1e-5)
    assert records[-1].growth_tracker == scaler._growth_tracker
    identity = frameworks.reader.identity().run
    assert (identity.scaler.min_scale, identity.scaler.growth_interval) == (1.0, 3)


def test_megatrons_scale_is_unknown_once_it_was_loaded(frameworks, net):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = DynamicGradScaler(2.0**16, 1.0, 2.0, 0.5, 3, 2)
    scaler.load_state_dict({"scale": torch.tensor([8.0])})
    run(
        model,
        optimizer,
        scaler,
        [False, False],
        lambda one: float(one._scale),
        lambda one, overflow: one.update(overflow),
    )
    assert all(math.isnan(record.scale) for record in frameworks.records)
