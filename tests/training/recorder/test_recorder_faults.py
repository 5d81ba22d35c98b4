"""The recorder's own faults, and devices that answer late: the run must not notice."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from topsmon.training.reader import RingReader
from topsmon.training.recorder import install, layout, scalers
from topsmon.training.recorder.losses import LossWatch


def amp_step(model, optimizer, scaler):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 16)).pow(2).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


@pytest.fixture
def broken(folder, monkeypatch):
    """A recorder whose look at losses always fails."""
    install.uninstall()

    def note(self, value, divisor=1.0):
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr(LossWatch, "note", note)
    recorder = install.install()
    yield recorder
    install.uninstall()


def test_after_twenty_errors_it_takes_itself_out(broken, net):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu")
    original = vars(torch.amp.GradScaler)["scale"].__wrapped__
    for _ in range(19):
        amp_step(model, optimizer, scaler)
    assert broken.errors == 19
    assert broken.on
    for _ in range(5):
        amp_step(model, optimizer, scaler)
    assert broken.errors == 20
    assert not broken.on
    assert vars(torch.amp.GradScaler)["scale"] is original
    assert broken.steps == 19
    assert scaler._get_growth_tracker() == 24
    words = broken.trouble
    assert words.startswith("switched itself off after 20 errors")
    assert "ZeroDivisionError: of ours (test_recorder_faults.py:" in words


def test_the_ring_tells_that_it_is_off(broken, net):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(20):
        amp_step(model, optimizer, scaler)
    reader = RingReader(Path(broken.ring.path))
    events = [happening for _, happening in reader.happenings()]
    assert [event.kind for event in events if event.kind == "recorder"] == ["recorder"]
    assert reader.window()[-1].errors == 19


def test_without_a_folder_nothing_is_hooked(folder, monkeypatch, net):
    install.uninstall()
    monkeypatch.setenv("TOPSMON_DIR", str(folder / "not" / "there"))
    recorder = install.install()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    amp_step(model, optimizer, torch.amp.GradScaler("cpu"))
    assert not recorder.on
    assert "not" in recorder.trouble
    assert not hasattr(vars(torch.amp.GradScaler)["scale"], "__wrapped__")
    install.uninstall()


def test_off_by_environment(folder, monkeypatch):
    install.uninstall()
    monkeypatch.setenv("TOPSMON_OFF", "1")
    assert install.install() is None
    install.watch()
    assert not hasattr(vars(torch.amp.GradScaler)["scale"], "__wrapped__")


def test_nothing_is_written_before_the_process_trains(folder, net):
    install.uninstall()
    recorder = install.install()
    net()(torch.randn(8, 16)).mean().backward()
    with torch.autocast("cpu", torch.bfloat16):
        pass
    assert recorder.ring is None
    assert list(folder.iterdir()) == []
    torch.amp.GradScaler("cpu").scale(torch.ones(()))
    assert len(list(folder.iterdir())) == 1
    install.uninstall()


class Late:
    """In place of Slots: what is read arrives when the test says so."""

    def __init__(self):
        self.waiting = []
        self.dropped = 0
        self.full = False

    @property
    def pending(self):
        return len(self.waiting)

    def read(self, tensors, then):
        if self.full:
            self.dropped += 1
            return False
        values = [float(tensor) for tensor in tensors]
        self.waiting.append((values, then))
        return True

    def can_read(self, tensor):
        return True

    def poll(self):
        pass

    def arrive(self):
        values, then = self.waiting.pop(0)
        then(values)


@pytest.fixture
def late(written, monkeypatch):
    """The written recorder, for which the host's memory is a far device."""
    slots = Late()
    written.recorder.slots = slots

    monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    return slots


def run_fused(net, steps, late, arrive):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.001, fused=True)
    scaler = torch.amp.GradScaler("cpu", growth_interval=3)
    truth = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 16)).pow(2).mean()
        scaler.scale(loss).backward()
        if step in {2, 3}:
            model[0].weight.grad[0, 0] = math.inf
        scaler.step(optimizer)
        scaler.update()
        truth.append((loss.item(), scaler._scale.item(), int(scaler._growth_tracker.item())))
        arrive(step)
    return truth


def test_answers_of_a_device_complete_their_records(written, late, net):
    def arrive(step):
        while late.waiting and step >= 1 and len(late.waiting) > 1:
            late.arrive()

    truth = run_fused(net, 10, late, arrive)
    records = written.records
    assert records[-1].flags & layout.PENDING
    assert math.isnan(records[-1].loss)
    while late.waiting:
        late.arrive()
    written.recorder.deliver()
    records = written.records
    assert not any(record.flags & layout.PENDING for record in records)
    assert [(r.loss, r.scale, r.growth_tracker) for r in records] == [
        pytest.approx(one) for one in truth
    ]
    assert [r.step for r in records if r.flags & layout.SKIPPED] == [3, 4]
    assert records[-1].skipped == records[-1].backoffs == 2
    assert records[-1].longest_skip_streak == 2
    assert records[-1].growths == 2


def test_a_read_that_is_dropped_leaves_the_step_unknown(written, late, net):
    late.full = True
    run_fused(net, 3, late, lambda step: None)
    records = written.records
    assert len(records) == 3
    assert all(record.flags & layout.PENDING for record in records)
    assert all(math.isnan(record.loss) and math.isnan(record.scale) for record in records)
    assert records[-1].dropped >= 3


def test_with_an_ordinary_optimizer_the_host_knows_without_asking(written, late, net):
    """Scale and skip come from the mirror; only the loss is read."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    scaler = torch.amp.GradScaler("cpu", growth_interval=3)
    asked = []
    read = late.read
    late.read = lambda tensors, then: asked.append(len(tensors)) or read(tensors, then)
    for step in range(8):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(8, 16)).mean()).backward()
        if step == 4:
            model[0].weight.grad[0, 0] = math.nan
        scaler.step(optimizer)
        scaler.update()
        while late.waiting:
            late.arrive()
        written.recorder.deliver()
        record = written.newest
        assert record.scale == scaler._scale.item()
        assert record.growth_tracker == int(scaler._growth_tracker.item())
    assert asked.count(1) >= 8 - 2
    assert written.newest.skipped == 1


def test_a_state_dict_loaded_on_a_device_is_known_from_the_host(written, late, net):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    scaler = torch.amp.GradScaler("cpu")
    amp_step(model, optimizer, scaler)
    scaler.load_state_dict({**scaler.state_dict(), "scale": 777.0, "_growth_tracker": 9})
    watched = written.recorder.scalers.known[id(scaler)]
    assert (watched.scale, watched.tracker) == (777.0, 9)
    amp_step(model, optimizer, scaler)
    assert (watched.scale, watched.tracker) == (777.0, 10)


def test_a_scale_changed_on_a_device_is_asked_for_once(written, late, net):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    scaler = torch.amp.GradScaler("cpu")
    watched = None
    for step in range(4):
        if step == 1:
            scaler._scale.fill_(5000.0)
        amp_step(model, optimizer, scaler)
        watched = written.recorder.scalers.known[id(scaler)]
        assert (watched.scale is None) is (step == 1)
        while late.waiting:
            late.arrive()
        written.recorder.deliver()
    assert [record.scale for record in written.records] == [65536.0, 5000.0, 5000.0, 5000.0]
    assert written.newest.backoffs == 0


def test_a_scaler_that_is_gone_is_forgotten(written):
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    known = written.recorder.scalers.known
    assert len(known) == 1
    del scaler
    assert known == {}
    assert math.isnan(scalers.Watched(None).scale_now())
