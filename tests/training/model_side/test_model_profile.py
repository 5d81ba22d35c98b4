"""One profiled step beside the ring."""

from __future__ import annotations

import gzip
import json
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from topsmon.training.recorder.profile import HOT, OPERATORS, TRACE, StepProfile, hot_operators


def train(profile: StepProfile, steps: int) -> list[object]:
    model = nn.Linear(64, 64)
    told = [profile.at(0)]
    for step in range(1, steps + 1):
        model(torch.ones(4, 64)).sum().backward()
        told.append(profile.at(step))
    return told


def test_the_step_is_stored_privately(tmp_path: Path) -> None:
    profile = StepProfile("2", str(tmp_path / "1-2-0.ring"))
    told = train(profile, 4)
    assert told[:2] == [None, None]
    assert told[3:] == [None, None]
    path, names, shares = told[2]  # type: ignore[misc]
    assert not profile.trouble
    assert path == str(tmp_path / f"1-2-0.step2{TRACE}")
    table = Path(path.replace(TRACE, OPERATORS))
    for file in (Path(path), table):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    trace = json.loads(gzip.decompress(Path(path).read_bytes()))
    assert any(event.get("name") == "aten::addmm" for event in trace["traceEvents"])
    document = json.loads(table.read_text())
    assert (document["step"], document["side"]) == (2, "cpu")
    listed = [row["name"] for row in document["operators"]]
    assert list(names) == listed[:5]
    assert set(shares) == set(names)
    assert len(listed) <= HOT
    assert all(row["flops"] is None for row in document["operators"])


def test_the_first_step_can_be_profiled(tmp_path: Path) -> None:
    told = train(StepProfile("1", str(tmp_path / "a.ring")), 2)
    assert told[0] is None
    assert isinstance(told[1], tuple)


@pytest.mark.parametrize("setting", [None, "", "0", "-1", "two", "1.5"])
def test_other_settings_profile_nothing(setting: str | None, tmp_path: Path) -> None:
    profile = StepProfile(setting, str(tmp_path / "a.ring"))
    assert not profile.wanted
    assert train(profile, 3) == [None] * 4
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / f"a.step2{OPERATORS}").symlink_to(tmp_path / "victim")
    profile = StepProfile("2", str(tmp_path / "a.ring"))
    told = train(profile, 3)
    assert profile.trouble
    assert "step 2 was not profiled" in told[2][0]  # type: ignore[index]
    assert not (tmp_path / "victim").exists()


def test_a_step_that_has_passed_is_said_to_be(tmp_path: Path) -> None:
    profile = StepProfile("2", str(tmp_path / "a.ring"))
    told = profile.at(7)
    assert profile.trouble
    assert told is not None
    assert told[0] == "step 2 was not profiled: the run had passed it"
    assert profile.at(8) is None


def test_the_runs_own_profiler_is_left_alone(tmp_path: Path) -> None:
    profile = StepProfile("1", str(tmp_path / "a.ring"))
    with torch.autograd.profiler.profile():
        told = profile.at(0)
    assert told is not None
    assert "a profiler of its own" in told[0]


def test_shares_are_of_the_device_where_it_worked() -> None:
    rows = [
        SimpleNamespace(key="gemm", count=2, self_cpu_time_total=1.0, self_device_time_total=30.0),
        SimpleNamespace(key="copy", count=1, self_cpu_time_total=99.0, self_device_time_total=10.0),
    ]
    document = hot_operators(rows, 9)
    assert (document["side"], document["total_seconds"]) == ("device", pytest.approx(40e-6))
    assert [(row["name"], row["share"]) for row in document["operators"]] == [
        ("gemm", 0.75),
        ("copy", 0.25),
    ]


def test_no_time_at_all_has_no_shares() -> None:
    rows = [SimpleNamespace(key="x", count=1, self_cpu_time_total=0.0)]
    assert hot_operators(rows, 1)["operators"][0]["share"] is None
