"""A private folder for recordings, and the terminal harness of tests/terminal."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "terminal"))


@pytest.fixture
def recordings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "recordings"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("TOPSMON_DIR", str(folder))
    for name in ("TOPSMON_LAUNCH", "TOPSMON_ENTRY", "TOPSMON_OFF", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    return folder
