"""Terminals as people have them: a plain locale, many GPUs in few rows, a window being dragged."""

import json
import re
import shutil
import time
from pathlib import Path

import pytest
from terminal import TOPSMON, Terminal

from topsmon.cli.common import has_plain_locale

needs_driver = [
    pytest.mark.real,
    pytest.mark.skipif(
        shutil.which("cc") is None and shutil.which("gcc") is None,
        reason="the simulated driver needs a C compiler",
    ),
]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    for variable in ("PYTHONUTF8", "PYTHONIOENCODING", "LC_ALL", "LC_CTYPE"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("environment", "plain"),
    [
        ({"LC_ALL": "C"}, True),
        ({"LC_ALL": "POSIX", "LANG": "en_US.UTF-8"}, True),
        ({"LANG": "C"}, True),
        # as Python changes it in its own process
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, True),
        ({"LANG": "C.UTF-8"}, False),
        ({"LANG": "C", "LC_CTYPE": "de_DE.UTF-8"}, False),
        ({"LANG": "C", "LC_ALL": "de_DE.UTF-8"}, False),
        # unset, as in many containers: nobody has said anything about the terminal
        ({}, False),
        ({"LANG": ""}, False),
        ({"LANG": "C", "PYTHONUTF8": "1"}, False),
        ({"LANG": "C", "PYTHONIOENCODING": "utf-8"}, False),
    ],
)
def test_which_locales_are_plain(environment: dict[str, str], plain: bool) -> None:
    assert has_plain_locale(environment) is plain


@pytest.mark.parametrize("environment", [{"LC_ALL": "C"}, {"LANG": "C"}], ids=["all", "lang"])
class TestPlainLocale:
    pytestmark = needs_driver

    def test_everything_is_ascii(self, home: Path, environment: dict[str, str]) -> None:
        terminal = Terminal(
            [*TOPSMON, "--simulate", "thermal", "--no-bench"], environment=environment, cwd=home
        )
        try:
            terminal.wait_for(lambda text: "HOT" in text and "GPU 5" in text)
            terminal.send("q")
            terminal.wait_for_end()
            assert terminal.output.isascii()
        finally:
            terminal.close()


HIDDEN_BELOW = "\N{DOWNWARDS ARROW}[0-9]+"
SIXTEEN = {"title": "16", "description": "16 GPUs", "expected": "ok", "extends": "h100-8"}


class TestManyDevices:
    pytestmark = needs_driver

    def test_sixteen_gpus_in_24_rows_while_the_window_is_dragged(self, home: Path) -> None:
        scenario = home / "sixteen.json"
        scenario.write_text(json.dumps({**SIXTEEN, "count": 16}))
        terminal = Terminal(
            [*TOPSMON, "--simulate", str(scenario), "--no-bench"], columns=80, rows=24, cwd=home
        )
        try:
            terminal.wait_for("16 devices")
            for step in range(40):
                terminal.resize(20 + 7 * (step % 11), 5 + 3 * (step % 7))
                time.sleep(0.01)
            terminal.resize(80, 24)
            # What does not fit is told of, and can be reached.
            terminal.wait_for(lambda text: re.search(HIDDEN_BELOW, text) is not None)
            for _ in range(15):
                terminal.send("j")
            terminal.wait_for("GPU 15")
            assert terminal.process.poll() is None
            terminal.send("q")
            assert terminal.wait_for_end() == 0
        finally:
            terminal.close()
