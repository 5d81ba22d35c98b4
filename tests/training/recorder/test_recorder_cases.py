"""Typical broken and healthy AMP loops: what is recorded of each."""

from __future__ import annotations

import math

import pytest
import torch

from topsmon.training.recorder import layout


def amp_step(model, optimizer, scaler, batch):
    optimizer.zero_grad()
    loss = model(batch).pow(2).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss


def test_a_forward_nan_collapses_the_scale(written, net):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu")
    for step in range(220):
        batch = torch.randn(8, 16)
        if step < 200:
            batch[0, 0] = math.nan
        amp_step(model, optimizer, scaler, batch)
    records = written.records
    assert [record.step for record in records] == list(range(1, 221))
    assert records[16].scale == 0.5
    assert records[165].scale == 0.0
    assert records[164].scale == 2.0**-149
    assert all(record.flags & layout.SKIPPED for record in records[:200])
    # The dead scale lets the first clean batch through, which ruins the weights.
    assert not records[200].flags & layout.SKIPPED
    last = records[-1]
    assert last.longest_skip_streak == 200
    assert last.backoffs == 166
    assert last.scale_lowest == 0.0
    assert last.backward_overflows == 0
    assert last.calibration_skips == 25
    assert last.first_nonfinite_loss_step == 1
    assert written.events("nonfinite-loss")[0].step == 1
    assert "input" in written.events("nonfinite-output")[0].message
    assert written.events("skip")[0].step == 1
    assert written.events("nonfinite-weights")[0].step == 201


def test_calibration_ends_by_itself(written, net):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.0001)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    skipped = []
    for step in range(40):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            output = model(torch.randn(8, 16))
        loss = (output.float() - 1).pow(2).mean()
        before = [parameter.detach().clone() for parameter in model.parameters()]
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if all(
            torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True)
        ):
            skipped.append(step + 1)
    records = written.records
    assert [r.step for r in records if r.flags & layout.SKIPPED] == skipped
    assert len(skipped) > 3
    assert records[-1].skipped == records[-1].calibration_skips == len(skipped)
    assert records[-1].scale == scaler.get_scale()
    assert records[-1].growth_tracker == scaler._get_growth_tracker()
    assert all(record.flags & layout.AUTOCAST_FP16 for record in records)
    # log2(2**24) + 5 = 29 steps are allowed for.
    assert written.recorder.totals.backward_overflows == len(skipped)


@pytest.mark.parametrize("unscale", [False, True])
def test_clipping_scaled_gradients(written, net, unscale):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu")
    norms = []
    for _ in range(20):
        optimizer.zero_grad()
        batch = torch.randn(64, 16)
        loss = (model(batch) - batch.sum(1, keepdim=True)).pow(2).mean()
        scaler.scale(loss).backward()
        if unscale:
            scaler.unscale_(optimizer)
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        scaler.step(optimizer)
        scaler.update()
    records = written.records
    assert records[-1].clip_calls == records[-1].clipped == 20
    assert records[-1].scaled_clips == (0 if unscale else 20)
    divisor = 1.0 if unscale else 65536.0
    assert [record.gradient_norm for record in records] == pytest.approx(
        [norm / divisor for norm in norms]
    )
    assert all(record.clip_max_norm == 1.0 for record in records)
    events = written.events("scaled-clip")
    assert bool(events) is not unscale
    if events:
        assert events[0].values == {"norm": norms[0], "max_norm": 1.0, "scale": 65536.0}


def test_unscale_twice_is_told_and_raised(written, net):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(2):
        scaler.scale(model(torch.randn(8, 16)).mean()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="already been called on this optimizer") as raised:
        scaler.unscale_(optimizer)
    (event,) = written.events("exception")
    assert event.names == ("RuntimeError",)
    assert event.message == str(raised.value)
    assert event.values == {"handled": 1.0}
    assert written.records == ()


def test_an_optimizer_without_gradients_is_told(written, net):
    model, other = net(), net()
    optimizer = torch.optim.SGD(other.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.randn(8, 16)).mean()).backward()
    with pytest.raises(AssertionError, match="No inf checks"):
        scaler.step(optimizer)
    (event,) = written.events("exception")
    assert "No inf checks were recorded for this optimizer" in event.message


def test_bf16_parameters_with_a_scaler(written, net):
    model = net().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu")
    amp_step(model, optimizer, scaler, torch.randn(8, 16).bfloat16())
    identity = written.reader.identity().run
    assert set(identity.parameter_types) == {"bfloat16"}
    assert identity.scaler.kind == "GradScaler"
    assert identity.scaler.init_scale == 65536.0
    (record,) = written.records
    assert record.flags & layout.HAS_SCALER
    assert not record.flags & layout.SKIPPED


def test_a_fused_optimizer_hides_its_skip_from_hooks(written, net):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, fused=True)
    scaler = torch.amp.GradScaler("cpu")
    for step in range(3):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(8, 16)).mean()).backward()
        if step == 1:
            model[0].weight.grad[0, 0] = math.inf
        scaler.step(optimizer)
        scaler.update()
    records = written.records
    assert [bool(r.flags & layout.SKIPPED) for r in records] == [False, True, False]
    assert [r.scale for r in records] == [65536.0, 32768.0, 32768.0]
    (event,) = written.events("nonfinite-gradients")
    assert event.names == ("0.weight",)
    assert event.values == {"parameters": 4.0, "bad": 1.0}


def test_a_backward_overflow_names_the_parameters(written, net):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    with torch.autocast("cpu", torch.float16):
        output = model(torch.randn(8, 16) * 50)
    loss = (output.float() * 30).pow(2).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    (event,) = written.events("nonfinite-gradients")
    assert event.names == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert event.message == "2"
    (record,) = written.records
    assert record.loss == pytest.approx(float(loss.detach()))
    assert record.backward_overflows == 1
    assert not record.flags & layout.NONFINITE_LOSS


def test_a_direct_step_with_scaled_gradients_is_a_bypass(written, net):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.randn(8, 16)).mean()).backward()
    optimizer.step()
    with pytest.raises(AssertionError, match="prior to update"):
        scaler.update()
    (record,) = written.records
    assert record.flags & layout.BYPASS
    assert record.bypasses == 1
    assert written.events("bypass")[0].names == ("SGD",)
    assert written.events("exception")[0].names == ("AssertionError",)


def test_a_second_optimizer_without_scaler_is_no_bypass(written, net):
    one, other = net(), net()
    first = torch.optim.SGD(one.parameters(), 0.01)
    second = torch.optim.SGD(other.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(6):
        first.zero_grad()
        second.zero_grad()
        scaler.scale(one(torch.randn(8, 16)).mean()).backward()
        scaler.step(first)
        other(torch.randn(8, 16)).mean().backward()
        second.step()
        scaler.update()
    assert written.records[-1].bypasses == 0
    assert len(written.records) == 6


def test_a_second_optimizer_that_forgets_the_scaler_is_a_bypass(written, net):
    one, other = net(), net()
    first = torch.optim.SGD(one.parameters(), 0.01)
    second = torch.optim.SGD(other.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(3):
        first.zero_grad()
        second.zero_grad()
        scaler.scale(one(torch.randn(8, 16)).mean() + other(torch.randn(8, 16)).mean()).backward()
        scaler.step(first)
        second.step()
        scaler.update()
    assert written.records[-1].bypasses == 3


def test_unscaled_by_hand_is_no_bypass(written, net):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu")
    for step in range(4):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(8, 16)).mean()).backward()
        if step == 2:
            model[2].bias.grad[0] = math.inf
        scaler.unscale_(optimizer)
        if all(bool(p.grad.isfinite().all()) for p in model.parameters()):
            optimizer.step()
        scaler.update()
    records = written.records
    assert records[-1].bypasses == 0
    assert [bool(r.flags & layout.SKIPPED) for r in records] == [False, False, True, False]
    assert records[-1].scale == scaler.get_scale() == 32768.0


def test_fp16_gradients_that_are_all_zero(written, net):
    seen = []
    for scale in (1.0, 65536.0):
        torch.manual_seed(0)
        model = net()
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        with torch.autocast("cpu", torch.float16):
            output = model(torch.randn(64, 16))
        scaler.scale(output.float().mean() * 1e-06).backward()
        seen.append([int((p.grad == 0).sum()) for p in model.parameters()])
        del model
    values = [event.values for event in written.events("gradient-zeros")]
    assert values == [{"ratio": 1.0, "scale": 1.0}, {"ratio": 0.0, "scale": 65536.0}]
    assert sum(seen[1]) == 0


def test_one_nan_batch_without_a_scaler_ruins_the_weights(written, net):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for step in range(5):
        optimizer.zero_grad()
        batch = torch.randn(8, 16)
        batch[0, 0] = math.nan if step == 2 else 1.0
        with torch.autocast("cpu", torch.bfloat16):
            output = model(batch)
        output.float().mean().backward()
        optimizer.step()
    records = written.records
    assert [bool(r.flags & layout.NONFINITE_LOSS) for r in records] == [False] * 2 + [True] * 3
    assert all(r.flags & layout.AUTOCAST_BF16 and not r.flags & layout.HAS_SCALER for r in records)
    assert math.isnan(records[0].scale)
    assert written.events("nonfinite-loss")[0].step == 3
    event = written.events("nonfinite-weights")[0]
    assert event.step == 3
    bad = {name for name, p in model.named_parameters() if not p.isfinite().all()}
    assert set(event.names) <= bad
    assert set(written.events("nonfinite-weights")[-1].names) == bad


class BadThird(torch.nn.Module):
    """NaN in each third of four calls."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return x * math.nan if self.calls % 4 == 3 else x


def test_a_nan_in_a_later_micro_batch_is_named(written, net):
    model = torch.nn.Sequential(net(), BadThird())
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    for _ in range(3):
        for _ in range(4):
            model(torch.randn(8, 16)).mean().backward()
        # The gradients are not finite: the weights stay as they are.
        optimizer.zero_grad()
        optimizer.step()
    event = written.events("nonfinite-output")[0]
    assert (event.step, event.names, event.message) == (2, ("1",), "BadThird")


@pytest.mark.parametrize("second", [False, True])
def test_a_finite_pass_exonerates_only_what_was_watched(written, net, second):
    models = [net(), torch.nn.Linear(1, 1)][: 1 + second]
    parameters = [parameter for model in models for parameter in model.parameters()]
    optimizer = torch.optim.SGD(parameters, 0.0)
    for _ in range(3):
        (models[0](torch.randn(8, 16)).mean() * math.nan).backward()
        optimizer.zero_grad()
        optimizer.step()
    event = written.events("nonfinite-output")[0]
    assert event.step == 2
    if second:
        assert event.message == (
            "no output of Sequential's modules was bad in the forward pass watched; "
            "what else is trained was not watched"
        )
    else:
        assert event.message == (
            "every module's output is finite: look at the loss function and at the labels"
        )
