"""Exports, read by other readers than ours."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import stat
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from recorded import UUIDS, WALL, at, sample, stream

from topsmon import events
from topsmon.cli import root
from topsmon.recording import outputs
from topsmon.recording.export.columns import TABLES
from topsmon.recording.export.trace import QUARTER_SECONDS

WRONG_USAGE = click.UsageError.exit_code
"""Which the program itself turns into 64."""


class FullDisk(io.BufferedWriter):
    """A file on a disk with room for 2000 bytes."""

    def __init__(self, raw: io.FileIO) -> None:
        super().__init__(raw)
        self._room = 2000

    def write(self, data: bytes) -> int:
        self._room -= len(data)
        if self._room < 0:
            raise OSError(28, "No space left on device", self.raw._shown)
        return super().write(data)


PARQUET = pytest.param(
    "--parquet",
    marks=pytest.mark.skipif(
        importlib.util.find_spec("pyarrow") is None, reason="pyarrow is an optional extra"
    ),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(map(events.encode, stream(30))))
    return path


def export(*words: object):
    return CliRunner().invoke(root, ["export", *map(str, words)], obj=())


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_csv_samples(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    outcome = export(path, "--csv", out)
    assert outcome.exit_code == 0, outcome.output
    found = rows(out)
    expected = [event for event in stream(30) if isinstance(event, events.DeviceSample)]
    assert len(found) == len(expected)
    for row, event in zip(found, expected, strict=True):
        assert float(row["time_unix_seconds"]) == event.time
        assert row["device"] == event.device
        assert float(row["power_watts"]) == event.power_watts
        assert int(row["memory_used_bytes"]) == event.memory_used_bytes
        assert row["fan_ratio"] == ""
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


def test_csv_of_the_other_tables(path: Path, tmp_path: Path) -> None:
    export(path, "--csv", tmp_path / "o.csv")
    names = {one.name for one in tmp_path.glob("o*.csv")}
    assert names == {
        "o.csv", "o-host.csv", "o-rates.csv", "o-runs.csv", "o-run-events.csv", "o-devices.csv",
    }  # fmt: skip
    assert [float(row["rate_ops_per_second"]) for row in rows(tmp_path / "o-rates.csv")] == [
        601e12,
        602e12,
    ]
    runs = rows(tmp_path / "o-runs.csv")
    assert int(runs[-1]["totals_steps"]) == 290
    assert float(runs[-1]["scale"]) == 32768.0
    assert [row["kind"] for row in rows(tmp_path / "o-run-events.csv")] == ["skip", "skip"]


def test_what_was_not_measured_is_empty_and_counters_have_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    counters = events.GpuCounters(seconds=1.0, tensor_active_ratio=0.5)
    found = [
        *stream(2),
        sample(3, UUIDS[0], power_watts=None, counters=counters, throttle_ratios={"power": 0.1}),
    ]
    path.write_bytes(b"".join(map(events.encode, found)))
    export(path, "--csv", tmp_path / "o.csv")
    last = rows(tmp_path / "o.csv")[-1]
    assert last["power_watts"] == ""
    assert last["counters_tensor_active_ratio"] == "0.5"
    assert last["counters_during_burst"] == "false"
    assert last["throttle_power_ratio"] == "0.1"
    assert last["throttle_thermal_ratio"] == ""


def test_no_cell_is_a_formula(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    evil = events.RunEvent(
        **at(1), run="=cmd|'/c calc'!A1", number=1, kind="skip", step=1, message="\x1b[31m\nred"
    )
    path.write_bytes(b"".join(map(events.encode, [*stream(2), evil])))
    export(path, "--csv", tmp_path / "o.csv")
    row = rows(tmp_path / "o-run-events.csv")[-1]
    assert row["run"] == "'=cmd|'/c calc'!A1"
    assert "\x1b" not in row["message"]


def test_csv_to_the_standard_output(path: Path) -> None:
    outcome = export(path, "--csv", "-")
    lines = list(csv.DictReader(outcome.stdout.splitlines()))
    assert len(lines) == len([one for one in stream(30) if isinstance(one, events.DeviceSample)])


@pytest.mark.parametrize("option", ["--csv", "--trace", PARQUET])
def test_nothing_is_written_over_unasked(path: Path, tmp_path: Path, option: str) -> None:
    out = tmp_path / "out.file"
    out.write_text("precious")
    outcome = export(path, option, out)
    assert outcome.exit_code == WRONG_USAGE
    assert "out.file exists; name another file, or use --force" in outcome.output
    assert out.read_text() == "precious"
    assert export(path, option, out, "--force").exit_code == 0
    assert out.read_bytes() != b"precious"


def test_a_link_is_not_written_through(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / "out.json").symlink_to(target)
    assert export(path, "--trace", tmp_path / "out.json", "--force").exit_code == WRONG_USAGE
    assert target.read_text() == "precious"


@pytest.mark.parametrize("option", ["--csv", "--trace", PARQUET])
def test_the_recording_itself_is_never_written_over(
    path: Path, tmp_path: Path, option: str
) -> None:
    before = path.read_bytes()
    (tmp_path / "hard.jsonl").hardlink_to(path)
    for out in (path, tmp_path / "hard.jsonl"):
        outcome = export(path, option, out, "--force")
        assert outcome.exit_code == WRONG_USAGE
        assert "is what is read; name another file" in outcome.output
        assert path.read_bytes() == before


def test_two_documents_do_not_share_the_standard_output(path: Path) -> None:
    outcome = export(path, "--csv", "-", "--trace", "-")
    assert outcome.exit_code == WRONG_USAGE
    assert outcome.stdout == ""
    assert "--csv and --trace do not fit into one standard output" in outcome.output


@pytest.mark.parametrize("option", ["--csv", "--trace"])
@pytest.mark.parametrize("taken", [False, True])
def test_a_full_disk_is_named_and_leaves_what_was_there(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, taken: bool
) -> None:
    out = tmp_path / "made" / "out.file"
    out.parent.mkdir()
    if taken:
        out.write_text("precious")

    monkeypatch.setattr(outputs.io, "BufferedWriter", FullDisk)
    outcome = export(path, option, out, "--force")
    assert outcome.exit_code == 3
    assert f"{out}: cannot be written: No space left on device" in outcome.output
    assert [one.name for one in out.parent.iterdir()] == (["out.file"] if taken else [])
    assert not taken or out.read_text() == "precious"


def test_parquet_says_the_same_as_csv(path: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    outcome = export(path, "--parquet", tmp_path / "o.parquet", "--csv", tmp_path / "o.csv")
    assert outcome.exit_code == 0, outcome.output
    for table in ("", "-rates", "-runs", "-host"):
        found = parquet.read_table(tmp_path / f"o{table}.parquet").to_pylist()
        text = rows(tmp_path / f"o{table}.csv")
        assert len(found) == len(text)
        for row, line in zip(found, text, strict=True):
            for name, value in row.items():
                if isinstance(value, float):
                    assert float(line[name]) == value
                elif value is None:
                    assert line[name] == ""


def test_parquet_without_pyarrow_says_what_to_install(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    outcome = export(path, "--parquet", tmp_path / "o.parquet")
    assert outcome.exit_code == 3
    assert not (tmp_path / "o.parquet").exists()


def test_trace(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    assert export(path, "--trace", out).exit_code == 0
    document = json.loads(out.read_text())
    base = document["baseTimeNanoseconds"]
    assert base % (QUARTER_SECONDS * 10**9) == 0
    counters = [one for one in document["traceEvents"] if one["ph"] == "C"]
    power = [one for one in counters if one["name"] == "GPU 0 power W"]
    assert [one["args"]["W"] for one in power] == [300.0 + second for second in range(1, 30)]
    assert base / 1e9 + power[0]["ts"] / 1e6 == pytest.approx(WALL + 1, abs=1e-4)
    assert any(one["name"] == "train.py loss" for one in counters)
    bursts = [one for one in document["traceEvents"] if one["ph"] == "X"]
    assert [one["name"] for one in bursts] == ["BF16 burst"] * 2
    assert bursts[0]["dur"] == pytest.approx(0.2e6)
    marks = [one["name"] for one in document["traceEvents"] if one["ph"] == "i"]
    assert marks[0].startswith("train.py step 100: skip")
    names = [one["args"]["name"] for one in document["traceEvents"] if one["ph"] == "M"]
    assert names == ["topsmon", "GPU 0", "GPU 1"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name what to write"),
        (("--csv", "x.csv"), "name the RECORDING"),
        (("gone.jsonl", "--csv", "x.csv"), "no such file"),
    ],
)
def test_what_is_missing_is_said(words: tuple[str, ...], said: str) -> None:
    outcome = export(*words)
    assert outcome.exit_code in {2, 3}
    assert said in outcome.output


def test_a_cut_recording_is_exported_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(map(events.encode, stream(30)))[:-20])
    outcome = export(path, "--csv", tmp_path / "o.csv")
    assert outcome.exit_code == 0
    assert "the end is cut off" in outcome.output


def test_columns_have_units_and_are_unique() -> None:
    for table in TABLES:
        names = [column.name for column in table.columns]
        assert len(names) == len(set(names))
        assert names[:2] == ["time_unix_seconds", "monotonic_seconds"]
