"""What a run is called: from its command line, however long that is."""

from __future__ import annotations

import pytest

from topsmon import events
from topsmon.cli.runs import lines
from topsmon.run_state import RunState
from topsmon.training.recorder.process import COMMAND_LIMIT, _cut
from topsmon.tui.training.words import command_name

LONG = "/opt/environments/training/lib/python3.11/site-packages/topsmon/demo/amp.py"


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (f"/usr/bin/python3.11 -W ignore:Failed {LONG} --fast", "demo amp"),
        (f"python {LONG} --fast --break clip --break-step 7", "demo amp --break clip"),
        (f"python {LONG} --break backward", "demo amp --break backward"),
        ("python /home/me/demo/amp.py --break clip", "amp.py"),
        (f"python /{'a' * 300}/{'b' * 200}/train.py --lr 1", "train.py"),
        ("python -m package.train", "package.train"),
        (f"python {'t' * 50}.py", "t" * 40),
        ("", "PID 7"),
    ],
    ids=[
        "demo",
        "demo-clip",
        "demo-backward",
        "not-ours",
        "very-long",
        "module",
        "long-name",
        "none",
    ],
)
def test_the_scripts_own_name_is_shown(command: str, name: str) -> None:
    assert RunState(identity(command)).name == name


def identity(command: str) -> events.Run:
    return events.Run(
        time=0.0,
        monotonic=0.0,
        source="h",
        run="r",
        pid=7,
        hostname="h",
        started=0.0,
        command=command,
    )


def test_demonstrations_are_listed_by_what_they_were_started_as() -> None:
    demo = identity(f"/usr/bin/python3.11 -W ignore:Failed {LONG} --break clip --fast")
    assert command_name(demo, 80) == "demo amp --break clip --fast"
    assert lines([RunState(demo)], 0.0)[1].endswith("  demo amp --break clip --fast")
    other = identity("/usr/bin/python3.11 -u train.py --lr 1")
    assert command_name(other, 80) == "train.py --lr 1"
    assert lines([RunState(other)], 0.0)[1].endswith("  python3.11 -u train.py --lr 1")


def test_a_command_is_cut_between_words() -> None:
    assert _cut(["python", "train.py", "a b"]) == "python train.py a b"
    fits = "x" * (COMMAND_LIMIT - len("python "))
    assert _cut(["python", fits]) == f"python {fits}"
    assert _cut(["python", fits, "y"]) == f"python {fits}"
    assert _cut(["python", fits + "x"]) == "python"
    assert _cut(["z" * 5000]) == "z" * COMMAND_LIMIT
