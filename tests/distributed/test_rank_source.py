"""The rank program runs by path, under Python 3.9, with the standard library and torch alone."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import topsmon

FOLDER = Path(topsmon.__file__).parent / "distributed"
MODULES = sorted(FOLDER.glob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_syntax_and_imports(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))
    named = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
    whole = {alias.name.partition(".")[0] for node in named for alias in node.names}
    parts = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    whole |= {(node.module or "").partition(".")[0] for node in parts if node.level == 0}
    assert whole - set(sys.stdlib_module_names) <= {"torch"}
    above = {(node.module or "").partition(".")[0] for node in parts if node.level == 2}
    assert above <= {"probes"}


def test_started_by_path_without_a_launcher_it_says_what_is_missing(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(FOLDER), "--out", str(out)],
        capture_output=True,
        text=True,
        env={},
        timeout=60,
        check=False,
    )
    assert done.returncode == 64
    assert "torchrun, srun or mpirun" in done.stderr
    assert not out.exists()
