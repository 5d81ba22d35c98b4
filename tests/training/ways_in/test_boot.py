"""The sitecustomize of `topsmon run`: it chains, waits for torch's leaves, and harms nobody."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from topsmon.training.launch import BOOT

pytestmark = pytest.mark.real

PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
OTHERS = sorted(path for path in PYENV.glob("*/bin/python") if path.exists())
LEAVES = {
    "torch/__init__.py": "from torch import amp, optim\n",
    "torch/amp/__init__.py": "from torch.amp.grad_scaler import GradScaler\n",
    "torch/amp/grad_scaler.py": "class GradScaler:\n    pass\n",
    "torch/optim/__init__.py": "from torch.optim import optimizer as _o\ndel optimizer\n",
    "torch/optim/optimizer.py": "class Optimizer:\n    pass\n",
}
REPORT_CALLS = """
import sys
import _topsmon_boot
seen = []
(finder,) = [f for f in sys.meta_path if type(f).__name__ == "LeafFinder"]
finder._done = lambda: seen.append([n for n in _topsmon_boot.LEAVES if n in sys.modules])
del finder
import torch
print(seen)
print([type(f).__name__ for f in sys.meta_path if type(f).__name__ == "LeafFinder"])
print(type(torch.amp.__spec__.loader).__name__, "exec_module" in vars(torch.amp.__spec__.loader))
print("exec_module" in vars(sys.modules["torch.amp.grad_scaler"].__loader__))
"""


@pytest.fixture
def python(recordings: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(
        *arguments: str, program: str = sys.executable, path: str = "", **more: str
    ) -> subprocess.CompletedProcess[str]:
        search = f"{BOOT}{os.pathsep}{path}" if path else BOOT
        environment = {**os.environ, "PYTHONPATH": search, "PYTHONDONTWRITEBYTECODE": "1", **more}
        return subprocess.run(
            [program, *arguments],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def folder_of(tmp_path: Path, files: dict[str, str]) -> str:
    folder = tmp_path / "theirs"
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return str(folder)


def test_the_shadowed_sitecustomize_runs_and_takes_its_place(python, tmp_path: Path) -> None:
    theirs = folder_of(tmp_path, {"sitecustomize.py": "value = 42\nprint(__name__)\n"})
    result = python("-c", "import sitecustomize; print(sitecustomize.value)", path=theirs)
    assert result.stdout == "sitecustomize\n42\n"
    assert result.stderr == ""


@pytest.mark.parametrize("text", ["raise ValueError('theirs')", "import no_such_module_of_theirs"])
def test_trouble_in_the_shadowed_one_is_told_as_without_us(python, tmp_path: Path, text) -> None:
    theirs = folder_of(tmp_path, {"sitecustomize.py": text})
    without = subprocess.run(
        [sys.executable, "-c", "print(1)"],
        env={**os.environ, "PYTHONPATH": theirs},
        capture_output=True,
        text=True,
        check=False,
    )
    result = python("-c", "print(1)", path=theirs)
    assert (result.stdout, result.stderr) == (without.stdout, without.stderr)
    assert "sitecustomize" in result.stderr


def test_the_search_path_is_the_users_own(python, tmp_path: Path) -> None:
    theirs = folder_of(tmp_path, {"mine.py": "pass"})
    code = "import sys, os; print(sys.path); print(os.environ['PYTHONPATH'])"
    without = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": theirs},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    result = python("-c", code, path=theirs).stdout.splitlines()
    assert result[0] == without[0]
    assert result[1] == f"{BOOT}{os.pathsep}{theirs}"


def test_a_program_without_torch_loads_no_recorder(python) -> None:
    code = "import sys, json, email; print([m for m in sys.modules if m == '_topsmon_recorder'])"
    assert python("-c", code).stdout == "[]\n"


def test_both_leaves_are_seen_executed_and_nothing_is_left_behind(python, tmp_path: Path) -> None:
    result = python("-c", REPORT_CALLS, path=folder_of(tmp_path, LEAVES))
    lines = result.stdout.splitlines()
    assert result.stderr == ""
    assert lines[0] == (
        "[['torch.amp.grad_scaler'], ['torch.amp.grad_scaler', 'torch.optim.optimizer']]"
    )
    assert lines[1:] == ["[]", "SourceFileLoader False", "False"]


def test_a_recorder_that_cannot_start_is_silent(python, tmp_path: Path) -> None:
    theirs = folder_of(tmp_path, LEAVES)
    result = python("-c", "import torch; print(torch.amp.GradScaler.__name__)", path=theirs)
    assert (result.stdout, result.stderr, result.returncode) == ("GradScaler\n", "", 0)


def test_an_error_of_torchs_own_passes_through(python, tmp_path: Path) -> None:
    broken = {**LEAVES, "torch/amp/grad_scaler.py": "raise OSError('libcudart')\n"}
    result = python("-c", "import torch", path=folder_of(tmp_path, broken))
    assert result.returncode == 1
    assert result.stderr.rstrip().endswith("OSError: libcudart")
    assert "_topsmon" not in result.stderr.splitlines()[-2]


def test_switched_off(python) -> None:
    code = "import sys; print('_topsmon_boot' in sys.modules, [p for p in sys.path if 'boot' in p])"
    assert python("-c", code, TOPSMON_OFF="1").stdout == "False []\n"
    assert python("-c", code).stdout == "True []\n"


@pytest.mark.skipif(not OTHERS, reason="no other Pythons here")
@pytest.mark.parametrize("program", OTHERS, ids=lambda path: path.parts[-3])
def test_no_python_is_harmed(python, tmp_path: Path, program: Path) -> None:
    theirs = folder_of(tmp_path, {"sitecustomize.py": "import sys\nsys.stdout.write('theirs ')\n"})
    result = python("-c", "print(7)", program=str(program), path=theirs)
    assert (result.stdout, result.stderr, result.returncode) == ("theirs 7\n", "", 0)
    alone = python("-c", "print(7)", program=str(program))
    assert (alone.stdout, alone.stderr, alone.returncode) == ("7\n", "", 0)
