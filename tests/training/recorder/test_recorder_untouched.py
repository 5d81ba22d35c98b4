"""With the recorder a run is the same run: weights to the bit, random numbers, exceptions."""

from __future__ import annotations

import traceback
import warnings

import pytest
import torch

from topsmon.training.recorder import install


def train(kind: str):
    """A short run of some kind; returns all that it has computed."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.Dropout(0.1), torch.nn.ReLU(), torch.nn.Linear(32, 4)
    )
    other = torch.nn.Linear(4, 2)
    fused = {"fused": True} if kind == "fused" else {}
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, **fused)
    second = torch.optim.SGD(other.parameters(), 0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    scaled = kind not in {"plain", "bf16"}
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=4, enabled=scaled)
    autocast_type = torch.bfloat16 if kind == "bf16" else torch.float16
    seen = []
    for step in range(24):
        optimizer.zero_grad()
        second.zero_grad()
        for _ in range(2 if kind == "accumulation" else 1):
            batch = torch.randn(8, 16)
            if step == 9:
                batch[0, 0] = float("inf")
            with torch.autocast("cpu", autocast_type, enabled=kind != "plain"):
                output = model(batch)
            loss = other(output.float()).pow(2).mean()
            scaler.scale(loss).backward()
        if kind == "clip":
            scaler.unscale_(optimizer)
            seen.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5))
        scaler.step(optimizer)
        if kind == "two":
            scaler.step(second)
        scaler.update()
        scheduler.step()
        seen.append(loss.detach())
    state = [*model.parameters(), *other.parameters(), *seen, torch.get_rng_state()]
    state += [torch.tensor(scaler.get_scale()), torch.tensor(scheduler.get_last_lr())]
    return [tensor.detach().clone() for tensor in state]


@pytest.mark.parametrize("kind", ["amp", "clip", "accumulation", "two", "fused", "bf16", "plain"])
def test_weights_are_the_same_to_the_bit(folder, kind):
    install.uninstall()
    without = train(kind)
    recorder = install.install()
    recorded = train(kind)
    assert recorder.steps == 24
    assert recorder.errors == 0
    install.uninstall()
    after = train(kind)
    for one, other, third in zip(without, recorded, after, strict=True):
        assert bits(one) == bits(other) == bits(third)


def bits(tensor):
    return bytes(tensor.reshape(-1).view(torch.uint8).tolist())


def unscale_twice():
    scaler = torch.amp.GradScaler("cpu")
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler.scale(model(torch.ones(1, 2)).mean()).backward()
    scaler.unscale_(optimizer)
    scaler.unscale_(optimizer)


def step_without_gradients():
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    scaler.step(torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), 0.1))


def update_first():
    torch.amp.GradScaler("cpu").update()


def backward_twice():
    loss = torch.ones((), requires_grad=True).exp()
    loss.backward()
    loss.backward()


def backward_of_no_graph():
    torch.ones(()).backward()


def scale_of_nothing():
    torch.amp.GradScaler("cpu").scale(3)


def norm_not_finite():
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.tensor([float("nan"), 1.0])
    torch.nn.utils.clip_grad_norm_([parameter], 1.0, error_if_nonfinite=True)


def optimizer_raises():
    class Bad(torch.optim.SGD):
        def step(self, closure=None):
            raise KeyError("mine")

    model = torch.nn.Linear(2, 1)
    model(torch.ones(1, 2)).mean().backward()
    Bad(model.parameters(), 0.1).step()


MISTAKES = [
    unscale_twice,
    step_without_gradients,
    update_first,
    backward_twice,
    backward_of_no_graph,
    scale_of_nothing,
    norm_not_finite,
    optimizer_raises,
]


def raised_by(mistake):
    """Type, text and the functions that an exception came through."""
    try:
        mistake()
    except BaseException as error:  # noqa: BLE001 - compared as it is
        frames = traceback.extract_tb(error.__traceback__)
        return type(error), str(error), [frame.name for frame in frames], error.__context__
    pytest.fail(f"{mistake.__name__} raised nothing")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_exceptions_are_the_same(written, mistake):
    kind, text, frames, context = raised_by(mistake)
    install.uninstall()
    expected_kind, expected_text, expected_frames, _ = raised_by(mistake)
    assert (kind, text, context) == (expected_kind, expected_text, None)
    ours = [name for name in frames if name not in expected_frames]
    assert len(frames) - len(expected_frames) <= 1
    assert len(ours) <= 1


def test_no_warning_is_added(written):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train("clip")
    texts = {str(warning.message) for warning in caught}
    install.uninstall()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train("clip")
    assert texts == {str(warning.message) for warning in caught}


def test_uninstall_puts_everything_back(folder):
    install.uninstall()

    def patched():
        scaler = torch.amp.GradScaler
        return (
            *(vars(scaler)[name] for name in ("scale", "unscale_", "step", "update")),
            torch.autograd.backward,
            torch.nn.utils.clip_grad_norm_,
            torch.nn.utils.clip_grad.clip_grad_norm_,
            torch.optim.Optimizer.__init__,
            torch.optim.lr_scheduler.LRScheduler.__init__,
            torch.autocast.__enter__,
            torch.compile,
        )

    before = patched()
    install.install()
    during = patched()
    install.install()
    assert patched() == during
    assert not any(one is other for one, other in zip(before, during, strict=True))
    install.uninstall()
    assert patched() == before


def test_uninstall_ends_a_look_at_the_forward_pass(folder):
    install.uninstall()
    original = torch.nn.Module.__call__
    install.install()
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.full((1, 2), float("nan"))).mean().backward()
    optimizer.step()
    assert torch.nn.Module.__call__ is not original
    install.uninstall()
    assert torch.nn.Module.__call__ is original


def test_a_scaler_is_pickled_without_a_trace(written):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu")
    before = set(vars(scaler))
    scaler.scale(model(torch.ones(1, 2)).mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert set(vars(scaler)) == before
    assert "topsmon" not in repr(scaler.__getstate__())


@pytest.mark.parametrize("what", ["autocast", "clip"])
def test_what_compiles_in_one_graph_still_does(folder, what):
    model = torch.nn.Linear(4, 4)
    model(torch.ones(1, 4)).mean().backward()

    def autocast():
        with torch.autocast("cpu", torch.bfloat16):
            return model(torch.ones(1, 4))

    def clip():
        return torch.nn.utils.clip_grad_norm_(list(model.parameters()), 1.0)

    def compiled():
        torch._dynamo.reset()
        return torch.compile(functions[what], backend="eager", fullgraph=True)()

    functions = {"autocast": autocast, "clip": clip}
    install.uninstall()
    try:
        without = compiled()
    except torch._dynamo.exc.Unsupported as error:
        pytest.skip(f"this torch cannot do so by itself: {str(error)[:60]}")
    install.install()
    recorded = compiled()
    install.uninstall()
    assert recorded.dtype == without.dtype


def test_a_compiled_training_step_is_recorded(written):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu")

    @torch.compile(backend="eager")
    def train(batch):
        optimizer.zero_grad()
        loss = model(batch).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        losses = [train(torch.full((2, 4), float(step))).item() for step in range(4)]
    assert not [str(one.message) for one in caught if "Dynamo" in str(one.message)]
    assert [record.loss for record in written.records] == losses
    assert written.records[-1].growth_tracker == 4


def test_scripted_autocast_still_compiles(written):
    @torch.jit.script
    def forward(batch):
        with torch.autocast("cpu", torch.bfloat16):
            return batch.mm(batch)

    assert forward(torch.ones(2, 2)).dtype == torch.bfloat16
