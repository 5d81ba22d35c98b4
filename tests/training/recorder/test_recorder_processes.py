"""Whole processes: how they end, what they fork, what their launchers start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from topsmon.training.reader import RingReader

pytestmark = pytest.mark.real

PREFACE = """
import gc, json, os, sys
gc.disable()  # with it torch takes twice as long, to load and to leave
import torch
from topsmon.training.recorder import install
recorder = install.install()
import torch._dynamo  # what a first step would import by itself
gc.freeze()
gc.enable()
torch.set_num_threads(1)

def train(steps=3):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(steps):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(2, 4)).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
"""


def run(script, path=None):
    """Run a script with the recorder in it; return what it printed."""
    text = PREFACE + textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *(["-c", text] if path is None else [str(path)])],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done


def rings(folder):
    return [RingReader(path) for path in sorted(Path(folder).glob("*.ring"))]


ENDINGS = {
    "sys.exit(3)": (3, {"exit_code": 3.0}, None),
    "sys.exit()": (0, {"exit_code": 0.0}, None),
    "sys.exit('words')": (1, {"exit_code": 1.0}, None),
    "pass": (0, {}, None),
    "os._exit(5)": (5, None, None),
    "raise ValueError('no such batch')": (1, {"exit_code": 1.0}, ("ValueError", "no such batch")),
    "raise KeyboardInterrupt": (None, {"exit_code": 130.0}, ("KeyboardInterrupt", "")),
    "caught_exit()": (0, {}, None),
    "another_hook()": (1, {"exit_code": 1.0}, ("KeyError", "'last'")),
}
"""Each with its exit code, the values of its "end", and the exception told."""


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """What was told of each ending, by how it ended; all are children of one process."""
    folder = tmp_path_factory.mktemp("endings")
    folder.chmod(0o700)
    script = f"""
        def caught_exit():
            try:
                sys.exit(9)
            except SystemExit:
                train(1)

        def another_hook():
            sys.excepthook = lambda kind, error, trace: print("mine", error, flush=True)
            raise KeyError("last")

        codes = {{}}
        for ending in {list(ENDINGS)!r}:
            child = os.fork()
            if child == 0:
                break
            codes[ending] = child, os.waitpid(child, 0)[1]
        else:
            print("codes", json.dumps(codes), flush=True)
            os._exit(0)
        train()
        exec(ending)
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOPSMON_DIR", str(folder))
        done = run(script)
    codes = json.loads(done.stdout.rpartition("codes ")[2])
    told = {}
    for reader in rings(folder):
        identity, step = reader.identity(), reader.window()[-1].step
        told[identity.run.pid] = step, [one for _, one in reader.happenings()]
    return {ending: (status, *told[pid]) for ending, (pid, status) in codes.items()}, done


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_ending_is_told_as_far_as_it_is_known(ended, ending):
    code, values, exception = ENDINGS[ending]
    status, step, happenings = ended[0][ending]
    if code is not None:
        assert os.waitstatus_to_exitcode(status) == code
    else:
        assert os.waitstatus_to_exitcode(status) in {-2, 130}
    assert step == (4 if ending == "caught_exit()" else 3)
    ends = [one for one in happenings if one.kind == "end"]
    assert [one.values for one in ends] == ([] if values is None else [values])
    exceptions = [one for one in happenings if one.kind == "exception"]
    assert [(*one.names, one.message) for one in exceptions] == ([exception] if exception else [])
    assert all(one.values == {"handled": 0.0} for one in exceptions)


def test_what_the_run_prints_is_its_own(ended):
    done = ended[1]
    assert "ValueError: no such batch" in done.stderr
    assert "words" in done.stderr
    assert "mine 'last'" in done.stdout
    assert "topsmon" not in done.stderr


def test_a_child_that_trains_makes_its_own_ring(folder):
    script = """
        train(5)
        child = os.fork()
        if child == 0:
            assert recorder.ring is None and recorder.steps == 0
            train(2)
            sys.exit(0)
        os.waitpid(child, 0)
        idle = os.fork()
        if idle == 0:
            sys.exit(0)
        os.waitpid(idle, 0)
        train(1)
    """
    run(script)
    readers = rings(folder)
    assert sorted(reader.window()[-1].step for reader in readers) == [2, 6]
    assert len({reader.identity().run.pid for reader in readers}) == 2


def test_loader_workers_open_no_ring(folder, tmp_path):
    script = """
        from torch.utils.data import DataLoader, TensorDataset
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for start in ("fork", "spawn"):
            data = DataLoader(
                TensorDataset(torch.ones(12, 4)), batch_size=3, num_workers=1,
                multiprocessing_context=start,
            )
            for batch, in data:
                optimizer.zero_grad()
                model(batch).mean().backward()
                optimizer.step()
    """
    main = "\ndef main():\n" + textwrap.indent(textwrap.dedent(script), "    ")
    path = tmp_path / "script.py"
    path.write_text(PREFACE + main + "\nif __name__ == '__main__':\n    main()\n")
    run("", path)
    (reader,) = rings(folder)
    records = reader.window()
    assert [record.samples for record in records] == [3.0] * 8
    assert all(record.data_wait_seconds > 0 for record in records)


def test_a_sharded_scaler_is_recorded(folder, tmp_path):
    script = f"""
        import torch.distributed as dist
        from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
        dist.init_process_group(
            "gloo", init_method="file://{tmp_path}/meeting", rank=0, world_size=1
        )
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scaler = ShardedGradScaler("cpu", growth_interval=3, growth_factor=1.7, backoff_factor=0.3)
        truth = []
        for step in range(12):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(2, 4)).mean()).backward()
            if step in (4, 5):
                model.bias.grad[0] = float("inf")
            scaler.step(optimizer)
            scaler.update()
            truth.append((scaler.get_scale(), scaler._get_growth_tracker()))
        dist.destroy_process_group()
        print(json.dumps(truth))
    """
    truth = [tuple(pair) for pair in json.loads(run(script).stdout)]
    (reader,) = rings(folder)
    records = reader.window()
    assert [(record.scale, record.growth_tracker) for record in records] == truth
    assert records[-1].skipped == records[-1].backoffs == 2
    assert reader.identity().run.scaler.kind == "ShardedGradScaler"
