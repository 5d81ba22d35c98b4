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


class FP16Optimizer:
    """Scales by itself, in its own backward(); `config` holds the fields since DeepSpeed 0.19."""

    def __init__(self, optimizer, config=None, **fields):
        self.optimizer = optimizer
        self.dynamic_loss_scale, self.cur_iter, self.last_overflow_iter = True, 0, -1
        self.cur_scale, self.scale_factor, self.scale_window = 2.0**16, 2.0, 4
        self.min_loss_scale = 1.0
        vars(self).update(fields)
        if config is not None:
            vars(config).update({key: vars(self).pop(key) for key in SCALING})
            self.loss_scale_config = config

    def backward(self, loss):
        (loss * self.scaling.cur_scale).backward()

    @property
    def scaling(self):
        return getattr(self, "loss_scale_config", self)

    def _update_scale(self, skip):
        scaling = self.scaling
        if skip:
            scaling.cur_scale = max(scaling.cur_scale / scaling.scale_factor, 1.0)
            scaling.last_overflow_iter = scaling.cur_iter
        else:
            stable = scaling.cur_iter - scaling.last_overflow_iter - 1
            if stable > 0 and stable % scaling.scale_window == 0:
                scaling.cur_scale *= scaling.scale_factor
        scaling.cur_iter += 1

    def step(self, overflow):
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad /= self.scaling.cur_scale
        self._update_scale(overflow)
        if not overflow:
            self.optimizer.step()


SCALING = (
    *("dynamic_loss_scale", "cur_iter", "last_overflow_iter", "cur_scale", "scale_factor"),
    *("scale_window", "min_loss_scale"),
)


OWN = ("__init__", "backward", "_update_scale")
FP16_Optimizer, FP16_UnfusedOptimizer = (
    type(name, (FP16Optimizer,), {method: vars(FP16Optimizer)[method] for method in OWN})
    for name in ("FP16_Optimizer", "FP16_UnfusedOptimizer")
)


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
        (foreign_scalers.DEEPSPEED_FUSED, (FP16_Optimizer,)),
        (foreign_scalers.DEEPSPEED_UNFUSED, (FP16_UnfusedOptimizer,)),
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


@pytest.mark.parametrize("kind", ["FP16_Optimizer", "FP16_UnfusedOptimizer"])
@pytest.mark.parametrize("apart", [False, True], ids=["own-fields", "fields-apart"])
def test_deepspeeds_optimizer_without_zero(frameworks, net, kind, apart):
    model = net()
    inner = torch.optim.SGD(model.parameters(), 0.01)
    module = (
        foreign_scalers.DEEPSPEED_FUSED if "Un" not in kind else (foreign_scalers.DEEPSPEED_UNFUSED)
    )
    made = getattr(sys.modules[module], kind)
    optimizer = made(inner, types.SimpleNamespace() if apart else None)
    overflows = [True, False, False, False, False, False, True, False]
    losses, scales = [], []
    for overflow in overflows:
        inner.zero_grad()
        loss = model(torch.ones(2, 16)).mean()
        optimizer.backward(loss)
        optimizer.step(overflow)
        losses.append(loss.item())
        scales.append(optimizer.scaling.cur_scale)
    records = frameworks.records
    assert [bool(r.flags & layout.SKIPPED) for r in records] == overflows
    # 65536 is halved, doubled once four good steps are past, halved again.
    assert scales == [32768.0] * 5 + [65536.0, 32768.0, 32768.0]
    assert [r.scale for r in records] == scales
    assert [r.loss for r in records] == pytest.approx(losses, rel=1e-5)
    assert [r.growth_tracker for r in records] == [0, 1, 2, 3, 4, 5, 0, 1]
    scaler = frameworks.reader.identity().run.scaler
    assert (scaler.kind, scaler.growth_interval, scaler.enabled) == (kind, 4, True)


def test_a_loss_that_deepspeeds_optimizer_has_not_scaled_is_as_it_is(frameworks, net):
    """DeepSpeed 0.19 calls backward() on the loss itself where there is no ZeRO."""
    model = net()
    inner = torch.optim.SGD(model.parameters(), 0.01)
    made = sys.modules[foreign_scalers.DEEPSPEED_UNFUSED].FP16_UnfusedOptimizer
    optimizer = made(inner)
    loss = model(torch.ones(2, 16)).mean()
    loss.backward()
    optimizer.step(overflow=False)
    assert frameworks.records[0].loss == pytest.approx(loss.item())


@pytest.mark.parametrize("kind", ["static", "fp16-optimizer", "megatron"])
def test_a_static_scale_of_1_is_no_scaler(frameworks, net, kind):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    if kind == "static":
        scaler = LossScalerBase(1)
    elif kind == "fp16-optimizer":
        fused = sys.modules[foreign_scalers.DEEPSPEED_FUSED].FP16_Optimizer
        scaler = fused(optimizer, dynamic_loss_scale=False, cur_scale=1.0)
    else:
        scaler = MegatronGradScaler(1.0)
    model(torch.ones(2, 16)).mean().backward()
    if kind == "static":
        scaler.update_scale(overflow=False)
    optimizer.step()
    (record,) = frameworks.records
    assert not record.flags & layout.HAS_SCALER
    assert math.isnan(record.scale)
    assert frameworks.reader.identity().run.scaler is None


def test_the_model_of_an_optimizer_of_copies_is_the_one_that_is_wrapped(frameworks, net):
    class DeepSpeedEngine(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, batch):
            return self.module(batch)

    other = net()
    engine = DeepSpeedEngine(net().bfloat16())
    copies = [item.detach().float().requires_grad_() for item in engine.parameters()]
    optimizer = torch.optim.SGD(copies, 0.01)
    engine(torch.ones(2, 16, dtype=torch.bfloat16)).mean().backward()
    optimizer.step()
    run = frameworks.reader.identity().run
    assert run.model == type(other).__name__
    assert set(run.parameter_types) == {"bfloat16"}
    assert run.parameters == sum(item.numel() for item in copies)


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
