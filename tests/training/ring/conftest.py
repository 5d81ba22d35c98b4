"""Fixtures: a folder of rings of its own for every test."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def rings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which runs are recorded; made by the first of them."""
    folder = tmp_path / "rings"
    monkeypatch.setenv("TOPSMON_DIR", str(folder))
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "TOPSMON_LAUNCH", "TOPSMON_ENTRY"):
        monkeypatch.delenv(name, raising=False)
    return folder
