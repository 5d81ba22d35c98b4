"""How large a case a probe dares to run."""

from __future__ import annotations

from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")

from lab2_boards import cpu, gpu  # noqa: E402
from lab_machine import Bench  # noqa: E402

from topsmon.probes.errors import NoMemoryError  # noqa: E402
from topsmon.probes.lab import sizing  # noqa: E402


class Job(NamedTuple):
    work: float
    needed_bytes: float = 1.0


class Runner:
    """A job that takes its work over the rate, on the machine's own clock."""

    def __init__(self, job, clock, rate, log) -> None:
        self.job, self._clock, self._rate, self._log = job, clock, rate, log

    def run(self):
        seconds = self.job.work / self._rate(self.job)
        self._log.append(seconds)
        self._clock.spend(seconds)


def pick(jobs, rate, machine=None, **options):
    machine = machine or gpu()
    log = []
    chosen = sizing.largest(
        Bench(machine, **options), jobs, lambda job: Runner(job, machine.clock, rate, log)
    )
    return chosen.job, log


TENFOLD = [Job(10.0**power) for power in range(1, 9)]


def test_the_largest_whose_call_is_short():
    # 5 ms at 1e6 a second: 5000.
    job, log = pick(TENFOLD, lambda job: 1e6)
    assert job.work == 1e3
    assert max(log) <= 0.005


def test_a_device_too_slow_for_the_smallest_runs_only_that():
    job, log = pick(TENFOLD, lambda job: 1.0)
    assert job.work == 10
    assert set(log) == {10.0}


def test_a_rate_that_grows_with_the_size_carries_further():
    def rate(job):
        return 1e6 * job.work**0.5

    job, log = pick(TENFOLD, rate)
    # 1e7 would take 3 ms; the rate of the size before it, 1e6 * 1e3, foretells 10 ms.
    assert job.work == 1e6
    assert max(log) <= 0.005


def test_what_does_not_fit_is_not_built():
    machine = gpu(free=100)
    jobs = [Job(1, 10), Job(2, 20), Job(3, 21)]
    assert pick(jobs, lambda job: 1e9, machine)[0] == Job(2, 20)
    with pytest.raises(NoMemoryError, match="too little"):
        pick([Job(1, 21)], lambda job: 1e9, machine)


def test_a_cpu_may_take_longer_and_less_time_makes_less_work():
    assert sizing.call_limit(Bench(gpu())) == 0.005
    assert sizing.call_limit(Bench(gpu(), time_scale=0.01)) == sizing.SHORTEST_CALL_SECONDS
    slow = cpu()
    slow.call_limit_seconds = 0.04
    assert sizing.call_limit(Bench(slow)) == 0.01


def test_a_stop_is_heard_before_each_case():
    def stop():
        raise InterruptedError

    log = []
    machine = gpu()
    with pytest.raises(InterruptedError):
        sizing.largest(
            Bench(machine, stop),
            TENFOLD,
            lambda job: Runner(job, machine.clock, lambda job: 1e6, log),
        )
    assert log == []
