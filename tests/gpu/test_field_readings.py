"""Readings of a real GPU: there, plausible, quick, and those of nvidia-smi. Skipped without one."""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest
from field_check import compare, query, time_calls
from nvml_trace import has_driver, record
from trace_scenario import convert

from topsmon.simulated import scenario

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        "TOPSMON_SIMULATED" in os.environ or not has_driver(), reason="needs a GPU and its driver"
    ),
]

MEDIAN_SECONDS = 0.1
SMI = shutil.which("nvidia-smi")


@pytest.fixture(scope="module")
def trace() -> dict[str, Any]:
    return record(3.0)


def test_every_gpu_tells_who_it_is_and_what_it_does(trace: dict[str, Any]) -> None:
    for identity in trace["identities"]:
        assert identity["name"]
        assert identity["uuid"]
    latest = {index: sample for _, index, sample in trace["samples"]}
    assert len(latest) == trace["devices"]
    for sample in latest.values():
        told = [name for name in ("power_watts", "sm_clock_mhz", "temperature_celsius")
                if sample[name] is not None]  # fmt: skip
        assert told or sample["unavailable"]
        for name in ("busy_ratio", "memory_busy_ratio"):
            assert sample[name] is None or 0 <= sample[name] <= 1


def test_what_is_missing_has_its_reason(trace: dict[str, Any]) -> None:
    for _, _, sample in trace["samples"]:
        for name, value in sample.items():
            if value is None:
                assert sample["unavailable"][name], name


def test_no_reading_is_implausible(trace: dict[str, Any]) -> None:
    reasons = [reason for _, _, one in trace["samples"] for reason in one["unavailable"].values()]
    assert [reason for reason in reasons if "implausible" in reason] == []


@pytest.mark.skipif(SMI is None, reason="no nvidia-smi here")
def test_nvidia_smi_says_the_same(trace: dict[str, Any]) -> None:
    assert SMI is not None
    assert compare(trace, query(SMI))[1] == []


def test_no_call_takes_long() -> None:
    slow = {
        name: one["median_seconds"]
        for name, one in time_calls().items()
        if one["median_seconds"] > MEDIAN_SECONDS
    }
    assert slow == {}


def test_the_trace_can_be_played(trace: dict[str, Any]) -> None:
    content, _ = convert(trace)
    played = scenario.parse(content, "recorded")
    assert len(played.devices) == trace["devices"]
