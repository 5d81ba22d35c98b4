"""What tests of other machines share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fake_ssh import FakeSsh


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSsh:
    """An ssh of ours, first on PATH."""
    folder = tmp_path / "ssh"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("TOPSMON_SSH", raising=False)
    return FakeSsh(folder)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that use it start real processes."""
    here = Path(__file__).parent
    for item in items:
        if item.path.parent == here and "ssh" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.real)
