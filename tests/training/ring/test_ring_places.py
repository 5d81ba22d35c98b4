"""Which folder is looked into, and why none can be used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from topsmon.training import places
from topsmon.training.recorder import layout


def obstacle(path: Path) -> str | None:
    return places.obstacle({"TOPSMON_DIR": str(path)})


def test_a_folder_that_can_be_used_is_made(tmp_path: Path) -> None:
    assert obstacle(tmp_path / "new") is None
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize("mode", [0o777, 0o755, 0o000])
def test_a_folder_with_another_mode(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(mode)
    found = obstacle(folder) or ""
    folder.chmod(0o700)
    assert found.startswith(f"{folder}: ")
    assert f"mode {mode:04o} instead of 0700" in found or "Permission denied" in found


def test_what_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").write_text("")
    assert "a symbolic link" in (obstacle(tmp_path / "link") or "")
    assert "not a directory" in (obstacle(tmp_path / "file") or "")
    missing = obstacle(tmp_path / "none" / "folder") or ""
    assert f"{tmp_path / 'none'} does not exist; make it first" in missing


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs(tmp_path)

    def with_free(count: int) -> None:
        fields = list(real)
        fields[0] = fields[1] = 1
        fields[4] = count
        monkeypatch.setattr(os, "fstatvfs", lambda _: os.statvfs_result(fields))

    with_free(layout.FILE_BYTES)
    assert obstacle(tmp_path / "new") is None
    with_free(102400)
    assert "100.0 KiB free, a recording takes 1.6 MiB" in (obstacle(tmp_path / "new") or "")


def test_one_folder_that_can_be_used_is_enough(tmp_path: Path) -> None:
    (tmp_path / "topsmon").write_text("in the way")
    assert places.obstacle({"XDG_RUNTIME_DIR": str(tmp_path)}) is None


def test_a_relative_folder_is_where_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert places.obstacle({"TOPSMON_DIR": "rings"}) is None
    (place,) = places.own_places({"TOPSMON_DIR": "rings"})
    assert place.path == str(tmp_path / "rings")
