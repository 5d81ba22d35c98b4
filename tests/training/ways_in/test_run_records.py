"""Real torch programs started by `topsmon run`, watched and demonstrated: recorded, unchanged."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

import topsmon
from topsmon.run_state import RunState
from topsmon.training.reader import Happening, Identity, RingReader

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

TOPSMON = [sys.executable, "-m", "topsmon"]
DEMO = str(Path(topsmon.__file__).parent / "demo" / "amp.py")
TRAIN = """
import gc, hashlib, os, sys
gc.disable()
import torch, torch._dynamo
gc.freeze()
gc.enable()
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


MAIN = "print(train(), sys.argv)\nsys.exit(3)\n"
ENDINGS = """
def child(end):
    pid = os.fork()
    if not pid:
        train()
        return end
    print(end, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
end = child("raise") or child("words") or child("multiprocessing")
if end == "raise":
    raise ValueError("of the run")
if end == "words":
    sys.exit("cannot go on")
if end is None:
    train()
    os.kill(os.getpid(), 9)
"""
SPAWN = """
import multiprocessing, sys
def child():
    import train
    train.train()
if __name__ == "__main__":
    for method in ("spawn", "forkserver"):
        process = multiprocessing.get_context(method).Process(target=child)
        process.start()
        process.join()
        print(process.exitcode)
"""
DEMONSTRATIONS = """
import gc, os, runpy, sys
gc.disable()
import torch, torch._dynamo
gc.freeze()
gc.enable()
def demonstrate(*words):
    pid = os.fork()
    if not pid:
        sys.argv = [sys.argv[1], "--fast", *words]
        os.environ["TOPSMON_DIR"] += "/" + words[1]
        os.mkdir(os.environ["TOPSMON_DIR"], 0o700)
        runpy.run_path(sys.argv[0], run_name="__main__")
        sys.exit()
    print(words[1], os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
for broken in ("forward", "scale", "backward", "clip"):
    demonstrate("--break", broken, "--break-step", "15", "--steps", "30", "--device", "cpu")
demonstrate("--device", "cuda:99", "--steps", "1", "--break", "clip")
"""
LAUNCHER = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, *sys.argv[1:]]))"


@dataclass(frozen=True)
class Launch:
    """A command that has ended, and the folder that its runs were recorded in."""

    folder: Path
    returncode: int
    stdout: str
    stderr: str


def start(folder: Path, *words: str) -> Launch:
    """Run a command to its end with a folder of its own for recordings."""
    recordings = folder / "recordings"
    recordings.mkdir(mode=0o700)
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "TOPSMON_DIR": str(recordings)}
    for name in ("TOPSMON_LAUNCH", "TOPSMON_ENTRY", "TOPSMON_OFF", "PYTHONPATH"):
        environment.pop(name, None)
    done = subprocess.run(
        words,
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    return Launch(recordings, done.returncode, done.stdout, done.stderr)


def run(*words: str) -> list[str]:
    return [*TOPSMON, "run", *words]


def commands() -> dict[str, tuple[str, list[str]]]:
    """Per launch, what its train.py does after its definitions, and its command.

    A start of torch takes seconds: as many ends of a run as can be are those of one launch. It is
    loaded, with what a first step would import, without the garbage collector: half of the time.
    """
    python = sys.executable
    torchrun = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    demo = ["demo", "amp", "--fast", "--device", "cpu", "--steps", "40"]
    watch = "import topsmon\ntopsmon.watch(flops_per_step=64.0)\nprint(train())\n"
    return {
        "torchrun": ("print(os.environ['RANK'], train())\n", run(*torchrun, "train.py")),
        "without": (MAIN, run(python, "-I", "train.py", "--lr", "1")),
        "with": (MAIN, run("--profile-step", "4", python, "train.py", "--lr", "1")),
        "endings": (ENDINGS, run("--profile-step", "99", python, "train.py")),
        "spawn": ("", run("--no-summary", python, "parent.py")),
        "launcher": (watch, run("--no-summary", python, "-c", LAUNCHER, "train.py")),
        "watch": (watch, [python, "train.py"]),
        "demo": ("", [*TOPSMON, *demo]),
        "broken": ("", run("--no-summary", python, "demonstrations.py", DEMO)),
    }


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Launch]]:
    """The launches of this file, begun together, a few at a time."""
    pool = ThreadPoolExecutor(max(2, min(4, os.cpu_count() or 2)))
    begun: dict[str, Future[Launch]] = {}
    for name, (after, words) in commands().items():
        folder = tmp_path_factory.mktemp(name)
        (folder / "train.py").write_text(TRAIN + after)
        (folder / "parent.py").write_text(SPAWN)
        (folder / "demonstrations.py").write_text(DEMONSTRATIONS)
        begun[name] = pool.submit(start, folder, *words)
    yield lambda name: begun[name].result()
    pool.shutdown(cancel_futures=True)


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


def test_the_same_weights_output_and_exit_code_with_and_without(launched) -> None:
    plain, watched = launched("without"), launched("with")
    assert (watched.returncode, watched.stdout) == (3, plain.stdout)
    assert plain.returncode == 3
    assert plain.stdout.endswith("['train.py', '--lr', '1']\n")
    ((identity, steps, happenings),) = rings(watched.folder)
    assert steps == 6
    assert identity.run.entry == "run"
    assert identity.run.launch
    assert identity.run.command.endswith(" train.py --lr 1")
    assert ("exit code 3", 3.0) in ends(happenings)
    assert "6, " in watched.stderr
    assert "exit code 3" in watched.stderr


def test_the_profiled_step_is_told_at_the_end(launched) -> None:
    watched = launched("with")
    (trace,) = watched.folder.glob("*.step4.trace.json.gz")
    table = json.loads(
        trace.with_name(trace.name.replace("trace.json.gz", "operators.json")).read_text()
    )
    told = re.sub(r"\s+", "", watched.stderr)
    assert re.sub(r"\s+", "", f"step 4 in {trace}") in told
    for row in table["operators"][:5]:
        assert re.sub(r"\s+", "", row["name"]) in told
    assert "was not profiled" not in watched.stderr


def test_what_the_recorder_cannot_enter_is_said(launched) -> None:
    result = launched("without")
    assert re.match(r"topsmon: not recorded: .*-I.*topsmon\.watch\(\)", result.stderr)
    assert result.stderr.count("topsmon:") == 1
    assert rings(result.folder) == []


def test_exceptions_and_last_words_are_what_they_were(launched) -> None:
    result = launched("endings")
    assert result.stdout.splitlines() == ["raise 1", "words 1", "multiprocessing 0"]
    errors = result.stderr.splitlines()
    assert "ValueError: of the run" in errors
    assert "cannot go on" in errors
    found = [(steps, ends(happenings)) for _, steps, happenings in rings(result.folder)]
    assert [steps for steps, _ in found] == [6] * 4
    told = [end for _, several in found for end in several]
    assert ("exit code 1", 1.0) in told
    assert ("exit code 1: cannot go on", 1.0) in told
    assert ("exit code 0", 0.0) in told


def test_a_killed_run_has_its_last_steps_and_words(launched) -> None:
    result = launched("endings")
    assert result.returncode == -signal.SIGKILL
    killed = [
        end
        for _, _, happenings in rings(result.folder)
        for end in ends(happenings)
        if end[0].startswith("signal SIGKILL")
    ]
    assert [code for _, code in killed] == [137]
    assert "SIGKILL" in result.stderr


def test_a_step_to_profile_that_never_came_is_told(launched) -> None:
    assert "step 99 was not profiled: the run ended at step 6\n" in launched("endings").stderr


def test_torchrun_records_both_ranks(launched) -> None:
    result = launched("torchrun")
    assert result.returncode == 0, result.stderr
    found = rings(result.folder)
    assert sorted(identity.run.rank for identity, _, _ in found) == [0, 1]
    assert {identity.run.world_size for identity, _, _ in found} == {2}
    assert len({identity.run.launch for identity, _, _ in found}) == 1
    assert [steps for _, steps, _ in found] == [6, 6]


def test_children_of_multiprocessing_are_recorded_under_their_scripts_name(launched) -> None:
    result = launched("spawn")
    assert result.stdout == "0\n0\n", result.stderr
    found = rings(result.folder)
    assert [steps for _, steps, _ in found] == [6, 6]
    for identity, _, _ in found:
        assert RunState(identity.run).name == "parent.py"


def test_a_launcher_that_starts_python_again(launched) -> None:
    """As accelerate, Lightning and deepspeed on one machine do; and `watch` in it enters once."""
    result = launched("launcher")
    assert result.returncode == 0, result.stderr
    ((identity, steps, _),) = rings(result.folder)
    assert (steps, identity.run.entry) == (6, "run")


def test_a_command_without_torch_is_untouched(tmp_path: Path) -> None:
    result = start(tmp_path, *run("sh", "-c", "echo out; exit 2"))
    assert (result.returncode, result.stdout) == (2, "out\n")
    assert re.fullmatch("topsmon: not recorded: no optimizer step .*\n", result.stderr)
    assert list(result.folder.iterdir()) == []


def test_a_folder_that_cannot_be_used_is_said_before_the_command_starts(tmp_path: Path) -> None:
    words = run("sh", "-c", "echo the command >&2")
    code = (
        "import os, sys; os.chmod(os.environ['TOPSMON_DIR'], 0o777);"
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    result = start(tmp_path, sys.executable, "-c", code, *words)
    assert result.returncode == 0
    first, second = result.stderr.splitlines()
    assert (
        first == f"topsmon: not recorded: {result.folder}: mode 0777 instead of 0700; chmod 700 it"
    )
    assert second == "the command"


def test_watch_in_the_script(launched) -> None:
    result = launched("watch")
    assert result.stdout == launched("launcher").stdout, result.stderr
    ((identity, steps, _),) = rings(result.folder)
    assert (steps, identity.run.entry, identity.run.flops_per_step) == (6, "watch", 64.0)


def test_watch_refuses_an_option_that_it_does_not_know() -> None:
    with pytest.raises(TypeError):
        topsmon.watch(steps=1)


def test_the_demonstration_is_recorded_and_healthy(launched) -> None:
    result = launched("demo")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1].startswith("step    40  loss ")
    ((identity, steps, happenings),) = rings(result.folder)
    assert steps == 40
    assert RunState(identity.run).name == "demo amp"
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
def test_the_demonstration_breaks_as_it_says(launched, broken, kind, name) -> None:
    result = launched("broken")
    assert f"{broken} 0" in result.stdout.splitlines(), result.stderr
    ((_, steps, happenings),) = rings(result.folder / broken)
    assert steps == 30
    seen = [happening for happening in happenings if happening.kind == kind]
    assert seen
    assert seen[0].step >= 15
    if name is not None:
        assert seen[0].names[0] == name


def test_the_demonstration_refuses_a_device_that_is_not_there(launched) -> None:
    result = launched("broken")
    assert "cuda:99 64" in result.stdout.splitlines()
    assert "--device cuda:99" in result.stderr
