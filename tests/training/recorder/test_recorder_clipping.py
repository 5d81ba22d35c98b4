"""Clipping by a norm that the run has measured itself."""

from __future__ import annotations

import pytest
import torch

from topsmon.training.recorder import layout

pytestmark = pytest.mark.skipif(
    not hasattr(torch.nn.utils, "clip_grads_with_norm_"), reason="torch before 2.6"
)


@pytest.mark.parametrize("by_name", [False, True])
def test_clipping_with_a_given_norm_is_a_clip_call(written, net, by_name):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    limits, norms = [1e-3, 1e9, 1e-3], []
    for limit in limits:
        optimizer.zero_grad()
        model(torch.randn(8, 16)).pow(2).mean().backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        norms.append(norm.item())
        parameters = list(model.parameters())
        if by_name:
            torch.nn.utils.clip_grads_with_norm_(parameters, max_norm=limit, total_norm=norm)
        else:
            torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)
        optimizer.step()
    records = written.records
    assert [record.gradient_norm for record in records] == norms
    assert [record.clip_max_norm for record in records] == limits
    assert [bool(r.flags & layout.CLIPPED) for r in records] == [True, False, True]
    assert (records[-1].clip_calls, records[-1].clipped) == (3, 2)


def test_clip_grad_norm_is_one_call(written, net):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    model(torch.randn(8, 16)).pow(2).mean().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    optimizer.step()
    assert written.newest.clip_calls == written.newest.clipped == 1


def test_a_given_norm_of_scaled_gradients_is_told(written, net):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(model(torch.randn(8, 16)).pow(2).mean()).backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, norm)
    scaler.step(optimizer)
    scaler.update()
    (told,) = written.events("scaled-clip")
    assert told.values == {"norm": norm.item(), "max_norm": 1.0, "scale": 1024.0}
    assert written.newest.gradient_norm == norm.item() / 1024.0
