"""Folders and files that are not trusted, and disks that are full."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ring_runs import new_run

from topsmon.training.reader import RingReader, RingReadError
from topsmon.training.recorder import folder
from topsmon.training.recorder.ring import RingError

RECORDER = Path(importlib.import_module("topsmon.training.recorder").__file__ or "").parent
ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


def test_the_order_of_folders(tmp_path: Path) -> None:
    assert folder.candidates({"TOPSMON_DIR": "/x", "XDG_RUNTIME_DIR": "/run/user/7"}, 7) == ("/x",)
    found = folder.candidates({"XDG_RUNTIME_DIR": "/run/user/7"}, 7)
    assert found[0] == "/run/user/7/topsmon"
    assert found[-1] == "/tmp/topsmon-7"
    assert "relative/topsmon" not in folder.candidates({"XDG_RUNTIME_DIR": "relative"}, 7)


def test_a_symbolic_link_is_refused(rings: Path, tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir(mode=0o700)
    rings.symlink_to(real)
    with pytest.raises(RingError, match="symbolic link"):
        new_run()
    assert list(real.iterdir()) == []


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o777, 0o1777])
def test_a_folder_that_others_may_enter_is_refused(rings: Path, mode: int) -> None:
    rings.mkdir()
    rings.chmod(mode)
    with pytest.raises(RingError, match=r"instead of 0700; chmod 700"):
        new_run()


def test_a_file_in_the_folder_s_place_is_refused(rings: Path) -> None:
    rings.write_text("")
    with pytest.raises(RingError, match="not a directory"):
        new_run()


@pytest.mark.skipif(not ROOT, reason="only root can give files away")
def test_somebody_else_s_folder_is_refused_and_the_remedy_said(rings: Path) -> None:
    rings.mkdir(mode=0o700)
    os.chown(rings, 12345, 12345)
    with pytest.raises(RingError, match=r"belongs to user 12345, not to 0; .*--user 12345"):
        new_run()


def test_a_relative_folder_is_refused(rings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPSMON_DIR", "rings")
    with pytest.raises(RingError, match="absolute"):
        new_run()


def test_without_a_usable_folder_the_next_one_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = tmp_path / "bad", tmp_path / "good"
    bad.write_text("")
    monkeypatch.setattr(folder, "candidates", lambda *_: (str(bad), str(good)))
    assert Path(new_run().path).parent == good


def test_a_link_in_place_of_a_ring_is_not_followed(rings: Path) -> None:
    path = Path(new_run().path)
    link = rings / "link.ring"
    link.symlink_to(path)
    with pytest.raises(RingReadError, match=r"link\.ring: cannot be opened"):
        RingReader(link)


def test_a_pipe_in_place_of_a_ring_is_not_waited_for(rings: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.ring"
    os.mkfifo(pipe)
    with pytest.raises(RingReadError, match="regular"):
        RingReader(pipe)


@pytest.mark.skipif(not ROOT, reason="only root can give files away")
def test_somebody_else_s_ring_is_not_read(rings: Path) -> None:
    path = Path(new_run().path)
    os.chown(path, 12345, 12345)
    with pytest.raises(RingReadError, match="belongs to user 12345"):
        RingReader(path)
    assert RingReader(path, owner=12345).identity().process.pid == os.getpid()


STANDALONE = """
import importlib.util, json, resource, sys
limit, recorder = int(sys.argv[1]), sys.argv[2]
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
spec = importlib.util.spec_from_file_location(
    "_topsmon_recorder", recorder + "/__init__.py", submodule_search_locations=[recorder])
package = importlib.util.module_from_spec(spec)
sys.modules["_topsmon_recorder"] = package
spec.loader.exec_module(package)
ring = importlib.import_module("_topsmon_recorder.ring")
try:
    writer = ring.RingWriter.create(ring.identity_of_process())
    answer = writer.path
except ring.RingError as error:
    answer = str(error)
print(json.dumps([answer, sorted({name.split(".")[0] for name in sys.modules})]))
"""


def standalone(limit: int) -> tuple[str, list[str]]:
    code = STANDALONE.replace("import importlib.util,", "import importlib, importlib.util,")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(limit), str(RECORDER)],
        capture_output=True,
        check=True,
        env=dict(os.environ),
    )
    answer, modules = json.loads(done.stdout)
    return answer, modules


def test_the_writer_needs_nothing_but_the_standard_library(rings: Path) -> None:
    path, modules = standalone(0)
    assert Path(path).parent == rings
    assert set(modules) <= {*sys.stdlib_module_names, "_topsmon_recorder", "__main__"}


def test_a_full_disk_is_an_error_at_the_start_and_leaves_nothing_behind(rings: Path) -> None:
    """A limit on file size fails posix_fallocate as a full disk does, and needs no rights."""
    message, _ = standalone(100_000)
    assert message.startswith("no folder for the recording of this run: ")
    assert str(rings) in message
    assert "File too large" in message
    assert list(rings.iterdir()) == []


@pytest.mark.real
@pytest.mark.skipif(not ROOT, reason="only root can mount")
def test_a_file_system_without_room_is_an_error_at_the_start(rings: Path) -> None:
    rings.mkdir(mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", str(rings)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount here")
    try:
        with pytest.raises(RingError, match="No space left on device"):
            new_run()
        assert list(rings.iterdir()) == []
    finally:
        subprocess.run(["umount", str(rings)], check=True)
