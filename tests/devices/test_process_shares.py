"""Shares of time per process: the newest sample, nothing made of nonsense, no news is no 0."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from poller_process import Simulate

from topsmon.devices.nvml import Capabilities, Driver, GpuLostError, Watch
from topsmon.devices.process_shares import ProcessShares, Share

NEW, OLD = "nvmlDeviceGetProcessesUtilizationInfo", "nvmlDeviceGetProcessUtilization"


def sample(pid: int, stamp: int, sm: int = 50, memory: int = 25) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, timeStamp=stamp, smUtil=sm, memUtil=memory)


class Told:
    """A driver that answers in turn; an int is an error code. `asked` holds the time stamps."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[int] = []

    def __call__(self, handle: object, since: int) -> Any:
        self.asked.append(since)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, int):
            raise pynvml.NVMLError(answer)
        return answer


def reader(**functions: Told) -> Any:
    """Return a function that reads at a time, and the shares behind it."""
    binding = SimpleNamespace(
        NVMLError=pynvml.NVMLError,
        NVMLLibraryMismatchError=pynvml.NVMLLibraryMismatchError,
        **functions,
    )
    driver, watch = Driver(binding), Watch()
    shares, capabilities = ProcessShares(driver, watch), Capabilities(driver, watch)
    return (lambda now: shares.read(capabilities, "handle", now)), shares


def test_the_newest_sample_of_each_process_counts() -> None:
    told = Told([sample(7, 10, 90), sample(8, 11, 4, 1), sample(7, 12, 30, 15)])
    read, _ = reader(**{NEW: told})
    assert read(0.0) == {7: Share(0.3, 0.15), 8: Share(0.04, 0.01)}


def test_only_newer_samples_are_asked_for() -> None:
    told = Told([sample(7, 10)], [sample(7, 20)], [sample(7, 30)])
    read, _ = reader(**{NEW: told})
    for now in range(3):
        read(float(now))
    assert told.asked == [0, 10, 20]


@pytest.mark.parametrize(
    ("sm", "memory", "share"),
    [
        (0, 100, Share(0.0, 1.0)),
        (101, 34, Share(None, 0.34)),
        (250, 4294967295, Share(None, None)),
    ],
)
def test_shares_above_one_are_not_told(sm: int, memory: int, share: Share) -> None:
    read, _ = reader(**{NEW: Told([sample(7, 10, sm, memory)])})
    assert read(0.0) == {7: share}


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NOT_FOUND, 0])
def test_no_samples_are_no_error_and_no_zero(code: int) -> None:
    """NotFound, and SUCCESS to the size query, which nvidia-ml-py raises as NVMLError(0)."""
    read, shares = reader(**{NEW: Told([sample(7, 10)], code)})
    assert read(0.0) == {7: Share(0.5, 0.25)}
    for now in range(1, 12):
        assert read(2.0 * now) == {}
    assert shares.reason is None


def test_the_older_call_stands_in_and_the_newer_is_not_asked_again() -> None:
    new, old = Told(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND), Told([sample(7, 10)], [sample(7, 20)])
    read, _ = reader(**{NEW: new, OLD: old})
    assert read(0.0) == read(2.0) == {7: Share(0.5, 0.25)}
    assert (len(new.asked), len(old.asked)) == (1, 2)


def test_a_device_that_does_not_sample_is_asked_once_and_says_why() -> None:
    refusing = Told(pynvml.NVML_ERROR_NOT_SUPPORTED)
    read, shares = reader(**{NEW: refusing, OLD: refusing})
    assert read(0.0) == read(60.0) == {}
    assert len(refusing.asked) == 2
    assert "not supported" in shares.reason


def test_a_clock_that_goes_back_silences_nobody_for_long() -> None:
    """The driver finds nothing newer than the last sample: then it is asked for all there is."""

    class Backwards(Told):
        def __call__(self, handle: object, since: int) -> Any:
            self.asked.append(since)
            now = 1000 if len(self.asked) == 1 else 100 + len(self.asked)
            if now <= since:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
            return [sample(7, now)]

    read, _ = reader(**{NEW: Backwards([])})
    answers = [bool(read(float(now))) for now in range(7)]
    assert answers == [True, False, False, False, True, True, True]


def test_an_idle_process_is_not_shown_an_old_sample_again() -> None:
    class Idle(Told):
        def __call__(self, handle: object, since: int) -> Any:
            self.asked.append(since)
            if since >= 10:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
            return [sample(7, 10)]

    idle = Idle([])
    read, _ = reader(**{NEW: idle})
    assert [bool(read(float(now))) for now in range(8)] == [True] + [False] * 7
    assert 0 in idle.asked[1:]


def test_a_lost_gpu_is_lost_here_too() -> None:
    read, _ = reader(**{NEW: Told(pynvml.NVML_ERROR_GPU_IS_LOST)})
    with pytest.raises(GpuLostError):
        read(0.0)


def test_shares_reach_the_stream(simulate: Simulate) -> None:
    entries = simulate("every-signal").processes().entries
    assert entries is not None
    told = {
        one.pid: (one.name, one.kind, one.sm_ratio, one.memory_busy_ratio, one.memory_bytes)
        for one in entries
    }
    assert told == {
        4193951: ("python3", "compute", 0.57, 0.23, 40961 << 20),
        4193952: (None, "graphics", 0.04, 0.03, 118 << 20),
    }


def test_nonsense_does_not_reach_the_stream(simulate: Simulate) -> None:
    poller = simulate("utilisation-nonsense")
    first, second, third = (poller.processes(index).entries for index in range(3))
    assert None not in (first, second, third)
    assert [(one.sm_ratio, one.memory_busy_ratio) for one in first] == [(None, None), (0.61, 0.34)]
    assert [one.sm_ratio for one in (*second, *third)] == [None, None]
