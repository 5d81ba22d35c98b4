"""The counter as a program: one document on stdout, one line for an error, exit codes."""

from __future__ import annotations

import ast
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import topsmon.flops
from topsmon.flops.command import main

FOLDER = Path(topsmon.flops.__file__).parent
LINEAR = "torch.nn:Linear(8, 4)"


def run(*arguments: str) -> tuple[int, bytes]:
    output = io.BytesIO()
    return main(arguments, output), output.getvalue()


def test_one_document_with_everything() -> None:
    code, written = run(LINEAR, "--input", "3x8", "--training", "--input-grad")
    document = json.loads(written)
    assert code == 0
    assert written.count(b"\n") == 1
    assert document["schema"] == 1
    assert document["mode"] == "train"
    assert document["total"]["forward"]["flops"] == 2 * 3 * 8 * 4
    assert document["total"]["backward"]["flops"] == 4 * 3 * 8 * 4
    assert document["layers"] == [
        {
            "path": "",
            "class": "Linear",
            "calls": 1,
            "parameters": 36,
            "forward": document["total"]["forward"],
            "backward": document["total"]["backward"],
        }
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        ([LINEAR, "--input", "3y8"], 64, "--input 3y8: '3y8' is no size"),
        ([LINEAR, "--input", "3x8", "--dtype", "x"], 64, "'x' is no data type"),
        ([LINEAR], 64, "no inputs"),
        ([], 64, "MODULE:FACTORY"),
        ([LINEAR, "--inputs", "3x8"], 64, "--inputs"),
        (["torch.nn:Nope", "--input", "1"], 64, "torch.nn has no 'Nope'"),
        (["builtins:dict", "--input", "1"], 64, "returned dict"),
        ([LINEAR, "--input", "3x9"], 3, "RuntimeError"),
        (["builtins:exit", "--input", "1"], 3, "ended the program"),
    ],
)
def test_errors_are_one_line_with_an_exit_code(
    arguments: list[str], code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == (code, b"")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("topsmon flops: ")
    assert line in captured.err
    assert captured.err.count("\n") == 1


def test_debug_shows_where(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(LINEAR, "--input", "3x9", "--debug")[0] == 3
    assert "Traceback" in capsys.readouterr().err


MODEL = """
import random, types, os
print("a model that talks")
os.system("echo from a child too")
import torch
from torch import nn
def make():
    return torch.compile(nn.Sequential(nn.Linear(8, 4)))
"""


@pytest.mark.real
@pytest.mark.parametrize("start", [["-m", "topsmon.flops"], [str(FOLDER)]])
def test_as_a_program_from_anywhere(start: list[str], tmp_path: Path) -> None:
    (tmp_path / "talkative.py").write_text(MODEL)
    root = str(FOLDER.parent.parent)
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    if start[0] == "-m":
        environment["PYTHONPATH"] = root
    ended = subprocess.run(
        [sys.executable, *start, "talkative:make", "--input", "3x8"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr.decode()
    document = json.loads(ended.stdout)
    assert document["total"]["forward"]["flops"] == 2 * 3 * 8 * 4
    # What was compiled is counted and named as if it were not.
    assert [layer["path"] for layer in document["layers"]] == ["0"]
    assert b"talks" in ended.stderr
    assert b"child" in ended.stderr


def test_the_package_stands_alone_and_is_python_3_9() -> None:
    for file in FOLDER.glob("*.py"):
        source = ast.parse(file.read_text(), feature_version=(3, 9))
        imported = [
            name.name
            for node in ast.walk(source)
            if isinstance(node, ast.Import)
            for name in node.names
        ] + [
            str(node.module)
            for node in ast.walk(source)
            if isinstance(node, ast.ImportFrom) and node.level == 0
        ]
        roots = {name.split(".")[0] for name in imported}
        assert roots <= {*sys.stdlib_module_names, "torch"}, file
