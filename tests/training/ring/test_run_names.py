"""What a run is called: from its command line, however long that is."""

from __future__ import annotations

import pytest

from topsmon import events
from topsmon.run_state import RunState
from topsmon.training.recorder.process import COMMAND_LIMIT, _cut

LONG = "/opt/environments/training/lib/python3.11/site-packages/topsmon/demo/amp.py"


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (f"/usr/bin/python3.11 -W ignore:Failed {LONG} --fast", "amp.py"),
        (f"python /{'a' * 300}/{'b' * 200}/train.py --lr 1", "train.py"),
        ("python -m package.train", "package.train"),
        (f"python {'t' * 50}.py", "t" * 40),
        ("", "PID 7"),
    ],
    ids=["long", "very-long", "module", "long-name", "none"],
)
def test_the_scripts_own_name_is_shown(command: str, name: str) -> None:
    identity = events.Run(
        time=0.0,
        monotonic=0.0,
        source="h",
        run="r",
        pid=7,
        hostname="h",
        started=0.0,
        command=command,
    )
    assert RunState(identity).name == name


def test_a_command_is_cut_between_words() -> None:
    assert _cut(["python", "train.py", "a b"]) == "python train.py a b"
    fits = "x" * (COMMAND_LIMIT - len("python "))
    assert _cut(["python", fits]) == f"python {fits}"
    assert _cut(["python", fits, "y"]) == f"python {fits}"
    assert _cut(["python", fits + "x"]) == "python"
    assert _cut(["z" * 5000]) == "z" * COMMAND_LIMIT
