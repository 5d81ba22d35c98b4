"""What counts as a step, and what a record says of it."""

from __future__ import annotations

import math

import pytest
import torch

from topsmon.training.recorder import install, layout
from topsmon.training.recorder.records import calibration_steps


def plain_step(model, optimizer, batch=None):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 16) if batch is None else batch).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def amp_step(model, optimizer, scaler, bad=False):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 16)).pow(2).mean()
    scaler.scale(loss).backward()
    if bad:
        model[0].weight.grad[0, 0] = math.inf
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


def test_without_a_scaler_each_optimizer_step_is_one(written, net):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    losses = [plain_step(model, optimizer) for _ in range(5)]
    records = written.records
    assert [record.loss for record in records] == losses
    assert [record.step for record in records] == [1, 2, 3, 4, 5]
    assert all(record.learning_rate == 0.01 for record in records)
    assert all(
        record.backward_calls == 1 and record.flags & ~layout.NORM_SAMPLED == 0
        for record in records
    )
    assert math.isnan(records[0].step_seconds)
    assert all(record.step_seconds > 0 for record in records[1:])
    assert records[-1].memory_bytes > 1e6
    assert records[-1].memory_peak_bytes >= records[-1].memory_bytes * 0.9


def test_a_disabled_scaler_is_none(written, net):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    losses = [amp_step(model, optimizer, scaler) for _ in range(3)]
    assert [record.loss for record in written.records] == losses
    assert not any(record.flags & layout.HAS_SCALER for record in written.records)
    assert written.reader.identity().run.scaler.enabled is False


def test_the_loss_of_several_micro_batches_is_what_their_gradients_add_up_to(written, net):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu")
    losses = []
    for _ in range(4):
        loss = model(torch.randn(8, 16)).pow(2).mean()
        losses.append(loss.item())
        scaler.scale(loss / 4).backward()
    scaler.step(optimizer)
    scaler.update()
    (record,) = written.records
    assert record.backward_calls == 4
    assert record.loss == pytest.approx(sum(losses) / 4)


def test_found_inf_of_one_optimizer_is_that_of_the_step(written, net):
    models = net(), net()
    optimizers = [torch.optim.SGD(model.parameters(), 0.01) for model in models]
    scaler = torch.amp.GradScaler("cpu")
    for step in range(4):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(8, 16)).mean()).backward()
        if step == 2:
            models[1][2].bias.grad[0] = math.nan
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
    records = written.records
    assert [bool(r.flags & layout.SKIPPED) for r in records] == [False, False, True, False]
    assert records[-1].scale == scaler.get_scale() == 32768.0
    assert records[-1].growth_tracker == scaler._get_growth_tracker() == 1
    assert written.reader.identity().run.optimizers == ("SGD", "SGD")


@pytest.mark.parametrize("seed", range(6))
def test_scale_and_tracker_are_the_scalers_own(written, net, seed):
    """Skips, growths, state dicts, scales set by hand and factors changed, in any order."""
    torch.manual_seed(seed)
    dice = torch.Generator().manual_seed(seed)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    scaler = torch.amp.GradScaler("cpu", growth_interval=3, growth_factor=1.7, backoff_factor=0.3)
    growths = backoffs = 0
    for step in range(150):
        before = scaler.get_scale()
        choice = int(torch.randint(0, 40, (), generator=dice))
        if choice == 0:
            scaler.load_state_dict({**scaler.state_dict(), "scale": 3.3e4, "_growth_tracker": 1})
        elif choice == 1 and step:
            scaler.update(12345.6)
        elif choice == 2 and step:
            scaler.update(torch.tensor(7.7e5))
        elif choice == 3:
            scaler.set_growth_interval(2 + step % 3)
        elif choice == 4 and step:
            scaler._scale = torch.full((), 1e4)
        elif choice == 5 and step:
            scaler._growth_tracker.fill_(1)
        by_hand = scaler.get_scale() != before
        start = scaler.get_scale()
        amp_step(model, optimizer, scaler, bad=choice > 34)
        record = written.newest
        assert (record.scale, record.growth_tracker) == (
            scaler.get_scale(),
            scaler._get_growth_tracker(),
        )
        if not by_hand:
            growths += record.scale > start
            backoffs += record.scale < start
    assert record.step == 150
    assert record.growths >= growths
    assert record.backoffs >= backoffs
    assert written.recorder.scalers.known[id(scaler)].mirrored


def test_a_scaler_with_an_update_of_its_own_is_read(written, net):
    class Floor(torch.amp.GradScaler):
        def update(self, new_scale=None):
            super().update(new_scale)
            self._scale.clamp_(min=30000.0)

    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    scaler = Floor("cpu")
    for _ in range(3):
        amp_step(model, optimizer, scaler, bad=True)
    amp_step(model, optimizer, scaler)
    assert written.newest.scale == scaler.get_scale() == 30000.0


def test_growths_are_counted_and_told(written, net):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    scaler = torch.amp.GradScaler("cpu", growth_interval=5)
    for _ in range(11):
        amp_step(model, optimizer, scaler)
    record = written.newest
    assert record.growths == 2
    assert record.last_growth_step == 10
    assert [r.step for r in written.records if r.flags & layout.GREW] == [5, 10]
    events = written.events("growth")
    assert [(event.step, event.values["scale"]) for event in events] == [
        (5, 131072.0),
        (10, 262144.0),
    ]


def test_the_scale_may_start_with_a_state_dict(written, net):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    scaler = torch.amp.GradScaler("cpu", growth_interval=7)
    state = {**scaler.state_dict(), "scale": 123.0, "_growth_tracker": 5}
    scaler.load_state_dict(state)
    for _ in range(2):
        amp_step(model, optimizer, scaler)
    records = written.records
    assert [(r.scale, r.growth_tracker) for r in records] == [(123.0, 6), (246.0, 0)]
    assert records[-1].growths == 1


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_deprecated_names_are_the_same_class(written, net):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    scaler = torch.cpu.amp.GradScaler()
    amp_step(model, optimizer, scaler)
    assert written.newest.growth_tracker == 1
    assert torch.cuda.amp.GradScaler().is_enabled() is torch.cuda.is_available()


def test_two_scalers_share_the_counters(written, net):
    for _ in range(2):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.001)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        amp_step(model, optimizer, scaler, bad=True)
        amp_step(model, optimizer, scaler)
    record = written.newest
    assert (record.step, record.skipped, record.backoffs, record.scale) == (4, 2, 2, 512.0)


def test_schedulers_are_counted_by_what_they_have_counted(written, net):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    parts = [torch.optim.lr_scheduler.ConstantLR(optimizer, 0.5, 2) for _ in range(2)]
    scheduler = torch.optim.lr_scheduler.ChainedScheduler(parts, optimizer)
    for _ in range(6):
        plain_step(model, optimizer)
        scheduler.step()
    plain_step(model, optimizer)
    record = written.newest
    assert record.scheduler_steps == 6
    assert record.learning_rate == scheduler.get_last_lr()[0]


def test_a_scheduler_that_was_there_before_is_found(folder, net):
    install.uninstall()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    recorder = install.install()
    for _ in range(4):
        plain_step(model, optimizer)
        scheduler.step()
    assert recorder.totals.scheduler_steps == 3
    install.uninstall()


def test_a_learning_rate_in_a_tensor(written, net):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), torch.tensor(0.25), foreach=False)
    plain_step(model, optimizer)
    assert written.newest.learning_rate == 0.25


def test_without_clipping_the_norm_is_sampled(written, net):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    scaler = torch.amp.GradScaler("cpu")
    norms = []
    for _ in range(8):
        amp_step(model, optimizer, scaler)
        grads = torch.cat([p.grad.flatten() for p in model.parameters()])
        norms.append(float(grads.norm()))
    sampled = [r for r in written.records if r.flags & layout.NORM_SAMPLED]
    assert sampled
    for record in sampled:
        assert record.gradient_norm == pytest.approx(norms[record.step - 1])
    assert all(
        math.isnan(r.gradient_norm) for r in written.records if not r.flags & layout.NORM_SAMPLED
    )


def test_with_a_fused_optimizer_the_sampled_norm_is_unscaled(written, net):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.001, fused=True)
    scaler = torch.amp.GradScaler("cpu")
    norms = []
    for _ in range(4):
        amp_step(model, optimizer, scaler)
        norms.append(float(torch.cat([p.grad.flatten() for p in model.parameters()]).norm()))
    (record, *_) = [r for r in written.records if r.flags & layout.NORM_SAMPLED]
    # SGD's fused kernel writes the unscaled gradients back.
    assert record.gradient_norm == pytest.approx(norms[record.step - 1], rel=1e-4)


def test_clip_ratio(written, net):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    limits = [1e9, 1e-9, 1e9, math.inf]
    for limit in limits:
        optimizer.zero_grad()
        model(torch.randn(8, 16)).pow(2).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
    records = written.records
    assert [bool(r.flags & layout.CLIPPED) for r in records] == [False, True, False, False]
    assert (records[-1].clip_calls, records[-1].clipped) == (4, 1)
    assert [r.clip_max_norm for r in records] == limits


def test_clipping_a_second_model_after_unscale_is_right(written, net):
    models = net(), net()
    optimizers = [torch.optim.SGD(model.parameters(), 0.01) for model in models]
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(3):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(8, 16)).mean()).backward()
        scaler.unscale_(optimizers[0])
        torch.nn.utils.clip_grad_norm_(models[0].parameters(), 1.0)
        torch.nn.utils.clip_grad_norm_(list(models[1].parameters()), 1.0)
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
    # The second model's gradients are still scaled each time it is clipped; the first step cannot
    # know whose they are.
    assert written.newest.scaled_clips == 2
    assert written.newest.clip_calls == 6


def test_an_optimizer_that_calls_its_parent_steps_once(written, net):
    class Twice(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    model = net()
    torch.optim.SGD(model.parameters(), 0.1)
    optimizer = Twice(model.parameters(), 0.1)
    for _ in range(3):
        plain_step(model, optimizer)
    assert len(written.records) == 3


def test_a_step_that_raised_is_not_counted_nor_missed_afterwards(written, net):
    class Fragile(torch.optim.SGD):
        broken = False

        def step(self, closure=None):
            if self.broken:
                raise RuntimeError("not now")
            return super().step(closure)

    model = net()
    optimizer = Fragile(model.parameters(), 0.1)
    plain_step(model, optimizer)
    optimizer.broken = True
    with pytest.raises(RuntimeError, match="not now"):
        plain_step(model, optimizer)
    optimizer.broken = False
    plain_step(model, optimizer)
    assert len(written.records) == 2


def test_the_first_optimizer_counts_and_is_succeeded(written, net):
    models = net(), net()
    first, second = (torch.optim.SGD(model.parameters(), 0.1) for model in models)
    for _ in range(3):
        plain_step(models[0], first)
        plain_step(models[1], second)
    assert len(written.records) == 3
    for _ in range(40):
        plain_step(models[1], second)
    assert len(written.records) > 20


def test_a_scaler_that_is_no_longer_used_is_forgotten(written, net):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(3):
        amp_step(model, optimizer, scaler)
    for _ in range(30):
        plain_step(model, optimizer)
    records = written.records
    assert records[-1].step >= 3 + 30 - 16
    assert not records[-1].flags & layout.HAS_SCALER


def test_a_patched_step_method_hides_the_hooks(written, net):
    """As accelerate does: then the scaler's own finding is read."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    inner = torch.optim.SGD.step.__wrapped__
    optimizer.step = lambda *args: inner(optimizer, *args)
    scaler = torch.amp.GradScaler("cpu")
    for step in range(4):
        amp_step(model, optimizer, scaler, bad=step == 1)
    assert [bool(r.flags & layout.SKIPPED) for r in written.records] == [False, True, False, False]


def test_watch_names_what_the_user_knows(written, net):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    install.watch(model, optimizer, flops_per_step=1e9, tokens_per_step=64, samples_per_step=8)
    plain_step(model, optimizer)
    plain_step(model, optimizer)
    run = written.reader.identity().run
    assert (run.flops_per_step, run.flops_source, run.entry) == (1e9, "given", "watch")
    assert run.model == "Sequential"
    assert run.parameters == 16 * 32 + 32 + 32 + 1
    assert run.torch_version == torch.__version__
    last = written.newest
    assert (last.tokens, last.samples, last.tokens_total) == (64, 8, 128)


def test_watch_refuses_a_useless_number(written):
    with pytest.raises(ValueError, match="tokens_per_step is -1"):
        install.watch(tokens_per_step=-1)


def test_calibration_allows_for_a_high_first_scale():
    assert calibration_steps(65536.0) == 25
    assert calibration_steps(2.0**32) == 37
    assert calibration_steps(0.0) == calibration_steps(math.inf) == 25


def test_a_loop_without_a_data_loader_has_its_samples_from_the_third_step(written, net):
    """The first step makes the model known, the arguments of the second tell the sizes."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(5):
        model(torch.ones(8, 16)).mean().backward()
        optimizer.step()
    assert [record.samples for record in written.records][2:] == [8.0, 8.0, 8.0]


def test_of_closures_that_are_called_again_the_first_loss_counts(written, net):
    """LBFGS tries several points a step; the first one is where the weights are."""
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    tried = []

    def closure():
        optimizer.zero_grad()
        loss = (model(torch.ones(8, 16)) - 1).pow(2).mean()
        loss.backward()
        tried[-1].append(loss.item())
        return loss

    for _ in range(3):
        tried.append([])
        optimizer.step(closure)
    assert all(len(losses) > 1 for losses in tried)
    records = written.records
    assert [r.loss for r in records] == [losses[0] for losses in tried]
    assert [r.backward_calls for r in records] == [1, 1, 1]


def test_the_last_micro_batch_may_be_a_closure(written, net):
    """As in Lightning: those before it run alone, the last one inside the optimizer's step."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def micro_batch():
        loss = model(torch.ones(8, 16)).pow(2).mean() / 2
        loss.backward()
        losses.append(loss.item())
        return loss

    for _ in range(2):
        losses: list[float] = []
        micro_batch()
        optimizer.step(micro_batch)
        assert written.records[-1].loss == pytest.approx(sum(losses))
        assert written.records[-1].backward_calls == 2
