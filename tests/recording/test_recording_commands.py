"""record, replay and report by hand: what they say, what they refuse, their exit codes."""

from __future__ import annotations

import json
import stat
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from recorded import HOST, UUIDS, stream

from topsmon import events
from topsmon.cli import root
from topsmon.cli.replay import _moment
from topsmon.recording import index as index_module
from topsmon.recording.reader import RecordingReader
from topsmon.recording.words import clock, size
from topsmon.recording.writer import RecordingWriter, WrongNameError, check_name

WRONG_USAGE = click.UsageError.exit_code
"""Which the program itself turns into 64."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(map(events.encode, stream(60))))
    return path


def topsmon(*words: object):
    return CliRunner().invoke(root, [*map(str, words)], obj=())


def test_without_a_terminal_the_last_snapshot_is_printed(path: Path) -> None:
    outcome = topsmon("replay", path)
    assert outcome.output.startswith("REPLAY of a.jsonl")
    assert HOST in outcome.output
    assert "LOST" in outcome.output
    assert outcome.exit_code == 2


def test_a_snapshot_of_an_earlier_moment(path: Path) -> None:
    outcome = topsmon("replay", path, "--at", "+20s")
    assert "LOST" not in outcome.output
    document = json.loads(topsmon("replay", path, "--at", "+20s", "--once", "--json").stdout)
    power = {one["device"]: one["sample"]["power_watts"] for one in document["devices"]}
    assert power == {UUIDS[0]: 320.0, UUIDS[1]: pytest.approx(319.01, abs=1.01)}
    assert [one["condition"] for one in document["devices"]] == ["ok", "ok"]


@pytest.mark.parametrize(
    ("at", "seconds"),
    [("+0s", 0), ("+90", 90), ("+1.5m", 90), ("+1h", 3600), ("{0}", 0), ("{30}", 30)],
)
def test_moments(path: Path, at: str, seconds: float) -> None:
    index = index_module.build(RecordingReader(path))
    if at.startswith("{"):
        at = time.strftime("%H:%M:%S", time.localtime(index.begin.wall + int(at[1:-1])))
    assert _moment(at, index) == pytest.approx(index.begin.now + seconds, abs=1)


@pytest.mark.parametrize("at", ["", "soon", "25:00", "12:61", "+x", "-5s", "{7200}", "{-7200}"])
def test_moments_that_are_none(path: Path, at: str) -> None:
    index = index_module.build(RecordingReader(path))
    if at.startswith("{"):
        at = time.strftime("%H:%M", time.localtime(index.begin.wall + int(at[1:-1])))
    with pytest.raises(click.UsageError, match="--at"):
        _moment(at, index)


def test_what_cannot_be_replayed_is_said_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("no recording\n")
    for command in ("replay", "report"):
        outcome = topsmon(command, tmp_path / "x.jsonl")
        assert outcome.exit_code == 3
        assert "is no recording" in outcome.output
        gone = topsmon(command, tmp_path / "gone")
        assert "no such file" in gone.output
        assert gone.exit_code == WRONG_USAGE


def test_losses_are_said(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])
    assert "the end is cut off" in topsmon("replay", path).output
    assert "the end is cut off" in topsmon("report", path).output


def test_a_report_in_a_file(path: Path, tmp_path: Path) -> None:
    outcome = topsmon("report", path, "-o", tmp_path / "r.md")
    assert outcome.exit_code == 0, outcome.output
    assert (tmp_path / "r.md").read_text().startswith("# topsmon")
    assert stat.S_IMODE((tmp_path / "r.md").stat().st_mode) == 0o600
    assert topsmon("report", path, "-o", tmp_path / "r.md").exit_code == WRONG_USAGE
    assert topsmon("report", path, "-o", tmp_path / "r.md", "--force").exit_code == 0
    topsmon("report", path, "-o", tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text().startswith("<!DOCTYPE html>")
    assert topsmon("report", path, "--html").stdout.startswith("<!DOCTYPE html>")


def test_a_report_is_redacted_unless_asked(path: Path) -> None:
    assert HOST not in topsmon("report", path).stdout
    assert "hunter2" not in topsmon("report", path).stdout
    assert HOST in topsmon("report", path, "--include-identifiers").stdout


def test_a_recording_that_is_there_is_not_written_over(path: Path) -> None:
    before = path.read_bytes()
    outcome = topsmon("record", path, "--seconds", "1", "--no-bench")
    assert outcome.exit_code == WRONG_USAGE
    assert "a.jsonl exists" in outcome.output
    assert path.read_bytes() == before


def test_a_report_does_not_write_over_its_recording(path: Path) -> None:
    before = path.read_bytes()
    outcome = topsmon("report", path, "-o", path, "--force")
    assert outcome.exit_code == WRONG_USAGE
    assert "is what is read" in outcome.output
    assert path.read_bytes() == before


def test_what_is_being_recorded_is_not_written_over(tmp_path: Path, path: Path) -> None:
    target = tmp_path / "live.jsonl"
    writer = RecordingWriter(target)
    try:
        with pytest.raises(WrongNameError, match="is being recorded"):
            check_name(target, force=True)
        outcome = topsmon("report", path, "-o", target, "--force")
        assert outcome.exit_code == WRONG_USAGE
        assert "is being recorded" in outcome.output
    finally:
        assert writer.close(60.0)
    assert check_name(target, force=True) == [target]
    assert RecordingReader(target).hello.role == "recording"


def test_the_wrong_words_are_told_before_anything_is_read(path: Path, tmp_path: Path) -> None:
    outcome = topsmon("record", "-")
    assert (outcome.exit_code, "topsmon stream" in outcome.output) == (WRONG_USAGE, True)
    outcome = topsmon("replay", path, "--theme", "bogus")
    assert outcome.exit_code == WRONG_USAGE
    assert "dusk" in outcome.output
    outcome = topsmon("record", tmp_path / "none" / "a.jsonl")
    assert outcome.exit_code == WRONG_USAGE
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.real
def test_a_device_that_is_not_here_leaves_the_old_recording(path: Path) -> None:
    before = path.read_bytes()
    outcome = topsmon("record", path, "--force", "--only", "99", "--no-bench")
    assert outcome.exit_code == WRONG_USAGE
    assert "no device '99'" in outcome.output
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "00:00"), (59.9, "00:59"), (249, "04:09"), (3600, "1:00:00")]
)
def test_positions(seconds: float, text: str) -> None:
    assert clock(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 kB"), (812_000, "812 kB"), (1_400_000, "1.4 MB"), (2e8, "200 MB")]
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text
