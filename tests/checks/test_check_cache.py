"""Kept verdicts: when they answer, and when the check must be made anew."""

import dataclasses
from pathlib import Path

import msgspec
import pytest
from test_check_reports import document, result

from topsmon.checks import cache, command
from topsmon.checks.command import CheckOptions
from topsmon.files import NotReplacedError
from topsmon.report.check_document import CheckDocument, Selection, to_json

NOW = 1_700_000_000.0
KEPT = CheckDocument(
    version="0.1.0",
    host="node",
    started_unix_seconds=NOW - 100,
    duration_seconds=14.0,
    status="OK",
    exit_code=0,
)


def read(path: Path, **changes) -> CheckDocument:
    asked = {
        "max_age_seconds": 300.0,
        "now": NOW,
        "selection": Selection(),
        "host": "node",
        **changes,
    }
    return cache.read(path, **asked)


def test_a_fresh_verdict_of_this_host_and_selection_answers(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    cache.write(path, KEPT)
    assert read(path) == KEPT


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_age_seconds": 99.0}, "100 s old"),
        ({"now": NOW - 200}, "-100 s old"),  # the clock was set back
        ({"host": "other"}, "of host node"),
        ({"selection": Selection(quick=True)}, "another selection"),
    ],
)
def test_others_do_not(tmp_path: Path, changes: dict, words: str) -> None:
    path = tmp_path / "verdict.json"
    cache.write(path, KEPT)
    with pytest.raises(cache.StaleError, match=words):
        read(path, **changes)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\x00\xff", to_json(KEPT)[:-40]])
def test_damaged_files_do_not(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "verdict.json"
    path.write_bytes(content)
    with pytest.raises(cache.StaleError):
        read(path)
    with pytest.raises(cache.StaleError, match="No such file"):
        read(tmp_path / "none")


def test_a_file_of_another_user_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "verdict.json"
    cache.write(path, KEPT)
    monkeypatch.setattr("os.geteuid", lambda: path.stat().st_uid + 1)
    if path.stat().st_uid == 0:
        assert read(path) == KEPT  # root may write what others read
    else:
        with pytest.raises(cache.StaleError, match="another user"):
            read(path)


def test_writing_leaves_nothing_behind_when_it_fails(tmp_path: Path) -> None:
    target = tmp_path / "taken"
    target.mkdir()
    with pytest.raises(NotReplacedError, match="no regular file"):
        cache.write(target, KEPT)
    assert list(tmp_path.iterdir()) == [target]


def test_the_exit_code_of_a_kept_verdict_follows_the_options_of_today(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    path = tmp_path / "verdict.json"
    warned = document(result(), result(check="fp16", state="WARN"))
    warned = msgspec.structs.replace(warned, started_unix_seconds=NOW - 1)
    cache.write(path, warned)
    monkeypatch.setattr("time.time", lambda: NOW)
    monkeypatch.setattr("socket.gethostname", lambda: "node")
    monkeypatch.setattr(command, "_new", lambda *_: pytest.fail("it must not measure"))
    options = CheckOptions(cached=path, format="nagios")
    assert command.run(options) == 1
    assert command.run(dataclasses.replace(options, fail_on="fail")) == 0
    lines = capsysbinary.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == [b"WARNING", b"OK"]


def test_a_verdict_that_cannot_be_kept_still_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(command, "_new", lambda *_: KEPT)
    monkeypatch.setattr(Path, "replace", full)
    assert command.run(CheckOptions(cached=tmp_path / "verdict.json", format="json")) == 0
    captured = capfd.readouterr()
    assert '"schema": "topsmon.check/1"' in captured.out
    assert "cannot be written: No space left on device" in captured.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["other file", "other JSON", "link", "folder", "nowhere"])
def test_nothing_else_is_written_over_or_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    path = tmp_path / "kept" / "verdict.json"
    precious = tmp_path / "precious"
    precious.write_text("root:x:0:0:root:/root:/bin/bash\n")
    if kind != "nowhere":
        path.parent.mkdir()
    if kind == "other file":
        path.write_bytes(precious.read_bytes())
    elif kind == "other JSON":
        path.write_text('{"schema": "topsmon.bench/1"}')
    elif kind == "link":
        path.symlink_to(precious)
    elif kind == "folder":
        path.mkdir()
    before = sorted(tmp_path.rglob("*"))
    content = path.read_bytes() if path.is_file() else b""
    monkeypatch.setattr(command, "_new", lambda *_: pytest.fail("it must not measure"))
    assert command.run(CheckOptions(cached=path)) == 64
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith(f"topsmon: --cached {path}")
    assert sorted(tmp_path.rglob("*")) == before
    assert (path.read_bytes() if path.is_file() else b"") == content
    assert precious.read_text().startswith("root:x:0:0")


@pytest.mark.parametrize("content", [b"", b'{"schema": "topsmon.check/9"}'])
def test_an_empty_file_and_one_of_another_version_are_replaced(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "verdict.json"
    path.write_bytes(content)
    cache.write(path, KEPT)
    assert read(path) == KEPT
    assert path.stat().st_mode & 0o777 == 0o644
