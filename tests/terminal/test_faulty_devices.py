"""Eight GPUs at 10 Hz in a real terminal, one hanging and one lost: keys answer, `q` ends it."""

import json
import shutil
from pathlib import Path

import pytest
from terminal import TOPSMON, Terminal, gone

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        shutil.which("cc") is None and shutil.which("gcc") is None,
        reason="the simulated driver needs a C compiler",
    ),
]

FAULTY = {
    "title": "One hangs, one is lost",
    "description": "Eight H100s; a call on GPU 1 never returns after 2 s, GPU 5 is lost after 3 s",
    "expected": "LOST",
    "extends": "h100-8",
    "faults": [
        {"call": "nvmlDeviceGetUtilizationRates", "device": 1, "hang": True, "start": 2},
        {"call": ["nvmlDevice*", "prober"], "device": 5, "return": "GpuIsLost", "start": 3},
    ],
}


def test_keys_answer_and_quitting_leaves_no_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    scenario = tmp_path / "faulty.json"
    scenario.write_text(json.dumps(FAULTY))
    terminal = Terminal([*TOPSMON, "--simulate", str(scenario), "-i", "0.1"], cwd=tmp_path)
    try:
        terminal.wait_for(
            lambda text: all(words in text for words in ("LOST", "STALE", "GPU 5  lost since"))
        )
        children = terminal.wait_for_children(2)
        for key, shown in (
            ("2", lambda text: "FLOP/byte" in text),
            ("?", lambda text: "keys and words" in text),
            ("\x1b", lambda text: "keys and words" not in text),
            ("1", lambda text: "8 devices" in text),
        ):
            assert not shown(terminal.text())
            terminal.send(key)
            terminal.wait_for(shown)
        terminal.wait_for(lambda text: all(word in text for word in ("LOST", "STALE")))
        terminal.send("q")
        assert terminal.wait_for_end() == 0
        assert not gone(children)
        assert terminal.restored()
    finally:
        terminal.close()
