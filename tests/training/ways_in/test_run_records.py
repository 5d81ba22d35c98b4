"""Real torch programs started by `topsmon run`, watched and demonstrated: recorded, unchanged."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from topsmon.training.reader import Happening, Identity, RingReader

pytestmark = pytest.mark.real

TOPSMON = [sys.executable, "-m", "topsmon"]
TRAIN = """
import hashlib, os, sys, torch
torch.set_num_threads(1)
def train(steps=6):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = model(torch.randn(16, 4)).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(bytes(parameter.detach().view(torch.uint8).flatten().tolist()))
    return digest.hexdigest()
"""


@pytest.fixture
def script(tmp_path: Path, recordings: Path):
    def write(after: str) -> str:
        path = tmp_path / "train.py"
        path.write_text(TRAIN + after)
        return str(path)

    return write


def start(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        env={**os.environ, "PYTHONWARNINGS": "ignore", **more},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def run(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return start(*TOPSMON, "run", *words, **more)


def rings(folder: Path) -> list[tuple[Identity, int, list[Happening]]]:
    """Identity, newest step and events of every ring."""
    found = []
    for path in sorted(folder.glob("*.ring")):
        with contextlib.closing(RingReader(path)) as reader:
            steps = reader.window()
            found.append(
                (
                    reader.identity(),
                    steps[-1].step if steps else 0,
                    [happening for _, happening in reader.happenings()],
                )
            )
    return found


def ends(happenings: list[Happening]) -> list[tuple[str, float | None]]:
    return [(h.message, h.values.get("exit_code")) for h in happenings if h.kind == "end"]


def test_the_same_weights_output_and_exit_code_with_and_without(script, recordings) -> None:
    path = script("print(train(), sys.argv)\nsys.exit(3)\n")
    plain = start(sys.executable, path, "--lr", "1")
    watched = run(sys.executable, path, "--lr", "1")
    assert (watched.returncode, watched.stdout) == (3, plain.stdout)
    assert plain.returncode == 3
    ((identity, steps, happenings),) = rings(recordings)
    assert steps == 6
    assert identity.run.entry == "run"
    assert identity.run.launch
    assert ("exit code 3", 3.0) in ends(happenings)
    assert "6, " in watched.stderr
    assert "exit code 3" in watched.stderr


def test_an_exception_is_what_it_was(script, recordings) -> None:
    path = script("train()\nraise ValueError('of the run')\n")
    watched = run("--no-summary", sys.executable, path)
    assert watched.returncode == 1
    assert watched.stderr.rstrip().endswith("ValueError: of the run")
    assert "topsmon" not in watched.stderr
    ((_, _, happenings),) = rings(recordings)
    assert ("exit code 1", 1.0) in ends(happenings)


def test_a_killed_run_has_its_last_steps_and_words(script, recordings) -> None:
    path = script("train()\nos.kill(os.getpid(), 9)\n")
    result = run(sys.executable, path)
    assert result.returncode == -signal.SIGKILL
    ((_, steps, happenings),) = rings(recordings)
    assert steps == 6
    ((words, code),) = ends(happenings)
    assert words.startswith("signal SIGKILL")
    assert code == 137
    assert "SIGKILL" in result.stderr


def test_torchrun_records_both_ranks(script, recordings) -> None:
    path = script("print(os.environ['RANK'], train())\n")
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    result = run(*torchrun, "--standalone", "--nproc-per-node", "2", path)
    assert result.returncode == 0, result.stderr
    found = rings(recordings)
    assert sorted(identity.run.rank for identity, _, _ in found) == [0, 1]
    assert {identity.run.world_size for identity, _, _ in found} == {2}
    assert len({identity.run.launch for identity, _, _ in found}) == 1
    assert [steps for _, steps, _ in found] == [6, 6]


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_multiprocessing(script, recordings, method: str) -> None:
    path = script(
        "import torch.multiprocessing as mp\n"
        "if __name__ == '__main__':\n"
        f"    child = mp.get_context('{method}').Process(target=train)\n"
        "    child.start()\n"
        "    child.join()\n"
        "    print(child.exitcode)\n"
    )
    result = run(sys.executable, path)
    assert result.stdout == "0\n", result.stderr
    assert [steps for _, steps, _ in rings(recordings)] == [6]


def test_a_launcher_that_starts_python_again(script, recordings) -> None:
    """As accelerate, Lightning and deepspeed on one machine do: subprocess with the environment."""
    path = script("print(train())\n")
    launcher = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, *sys.argv[1:]]))"
    assert run(sys.executable, "-c", launcher, path).returncode == 0
    assert [steps for _, steps, _ in rings(recordings)] == [6]


def test_what_the_recorder_cannot_enter_is_said(script, recordings) -> None:
    result = run(sys.executable, "-I", script("print(train())\n"))
    assert result.returncode == 0
    assert re.match(r"topsmon: not recorded: .*-I.*topsmon\.watch\(\)", result.stderr)
    assert result.stderr.count("topsmon:") == 1
    assert rings(recordings) == []


def test_a_command_without_torch_is_untouched(recordings) -> None:
    result = run("sh", "-c", "echo out; exit 2")
    assert (result.returncode, result.stdout) == (2, "out\n")
    assert re.fullmatch("topsmon: not recorded: no optimizer step .*\n", result.stderr)
    assert run("--no-summary", "sh", "-c", "echo out").stderr == ""
    assert list(recordings.iterdir()) == []


def test_watch_in_the_script(script, recordings) -> None:
    path = script("import topsmon\ntopsmon.watch(flops_per_step=64.0)\nprint(len(train()))\n")
    result = start(sys.executable, path)
    assert result.stdout == "64\n", result.stderr
    ((identity, steps, _),) = rings(recordings)
    assert (steps, identity.run.entry, identity.run.flops_per_step) == (6, "watch", 64.0)


def test_watch_under_run_records_once(script, recordings) -> None:
    path = script("import topsmon\ntopsmon.watch()\nprint(train())\n")
    assert run(sys.executable, path).returncode == 0
    ((identity, steps, _),) = rings(recordings)
    assert (steps, identity.run.entry) == (6, "run")


def test_watch_refuses_an_option_that_it_does_not_know() -> None:
    result = start(sys.executable, "-c", "import topsmon; topsmon.watch(steps=1)")
    assert "TypeError" in result.stderr


def demo(*words: str) -> subprocess.CompletedProcess[str]:
    return start(*TOPSMON, "demo", "amp", "--fast", "--device", "cpu", *words)


def test_the_demonstration_is_recorded_and_healthy(recordings) -> None:
    result = demo("--steps", "40")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1].startswith("step    40  loss ")
    ((identity, steps, happenings),) = rings(recordings)
    assert steps == 40
    assert identity.run.scaler is not None
    assert identity.run.scaler.growth_interval == 200
    assert not [h for h in happenings if h.kind.startswith("nonfinite")]


@pytest.mark.parametrize(
    ("broken", "kind", "name"),
    [
        ("forward", "nonfinite-output", "sharpness"),
        ("scale", "nonfinite-output", None),
        ("backward", "nonfinite-gradients", None),
        ("clip", "scaled-clip", None),
    ],
)
def test_the_demonstration_breaks_as_it_says(recordings, broken, kind, name) -> None:
    result = demo("--break", broken, "--break-step", "15", "--steps", "30")
    assert result.returncode == 0, result.stderr
    ((_, steps, happenings),) = rings(recordings)
    assert steps == 30
    seen = [happening for happening in happenings if happening.kind == kind]
    assert seen
    assert seen[0].step >= 15
    if name is not None:
        assert seen[0].names[0] == name


def test_the_demonstration_refuses_a_device_that_is_not_there(recordings) -> None:
    result = demo("--device", "cuda:99", "--steps", "1", "--break", "clip")
    assert result.returncode == 64
    assert "--device cuda:99" in result.stderr
