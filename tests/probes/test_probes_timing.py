"""The measuring itself, on clocks that are made up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topsmon.probes import timing
from topsmon.probes.timing import CallTimer, EventTimer, Plan, Usage


class World:
    """A clock that only calls move: the nth call takes the nth of `seconds`, then the last."""

    def __init__(self, *seconds: float, share: float = 1.0) -> None:
        self.now = 100.0
        self.cpu = 7.0
        self.calls = 0
        self._seconds = seconds
        self._share = share

    def clock(self) -> float:
        return self.now

    def cpu_clock(self) -> float:
        return self.cpu

    def call(self) -> None:
        taken = self._seconds[min(self.calls, len(self._seconds) - 1)]
        self.calls += 1
        self.now += taken
        self.cpu += taken * self._share


def measured(world: World, plan: Plan, timer=None, **options) -> timing.Burst:
    timer = timer or CallTimer(world.clock, world.cpu_clock)
    return timing.measure(world.call, timer, plan, clock=world.clock, **options)


def test_quartiles_by_hand():
    # 1..9: median 5, quartiles 3 and 7; of 1, 2, 3, 4: 2.5 and 1.75, 3.25 (linear).
    assert timing.spread([9, 1, 2, 8, 3, 7, 4, 6, 5]) == (5, 3, 7, 9)
    assert timing.spread([4, 1, 3, 2]) == (2.5, 1.75, 3.25, 4)
    assert timing.spread([2.0]) == (2.0, 2.0, 2.0, 1)


@given(st.lists(st.floats(1e-6, 10), min_size=2))
def test_the_median_lies_between_the_quartiles(seconds):
    spread = timing.spread(seconds)
    assert min(seconds) <= spread.lower <= spread.median <= spread.upper <= max(seconds)


def test_a_first_call_of_three_seconds_does_not_move_the_result():
    plan = Plan(warm_up=0.02, window=0.25, queue=0.0)
    cold = measured(World(3.0, 0.01), plan)
    warm = measured(World(0.01), plan)
    assert timing.spread(cold.seconds) == pytest.approx(timing.spread(warm.seconds))
    assert max(cold.seconds) == pytest.approx(0.01)


def test_the_first_call_does_not_count_as_warming_up():
    world = World(3.0, 0.05, 0.04, 0.03, 0.01)
    burst = measured(world, Plan(warm_up=0.1, window=0.05, queue=0.0))
    assert burst.seconds[0] == pytest.approx(0.01)  # 0.05 + 0.04 + 0.03 s of work came before


def test_the_window_ends_by_the_clock_but_not_before_three_calls():
    burst = measured(World(0.01), Plan(0.02, 0.25, 0.0))
    assert len(burst.seconds) == 25
    assert burst.window == pytest.approx(0.25)
    slow = measured(World(0.2), Plan(0.02, 0.25, 0.0))
    assert len(slow.seconds) == 3


def test_a_burst_can_be_abandoned_between_any_two_calls():
    world = World(0.01)

    class EnoughError(Exception):
        pass

    def checkpoint():
        if world.calls >= 5:
            raise EnoughError

    with pytest.raises(EnoughError):
        measured(world, Plan(0.02, 10.0, 0.0), checkpoint=checkpoint)
    assert world.calls == 5


def test_what_happens_between_calls_is_not_timed():
    world = World(0.01)

    def look():
        world.now += 0.005

    burst = measured(world, Plan(0.02, 0.15, 0.0), between=look)
    assert burst.seconds == pytest.approx([0.01] * 10)
    assert burst.usage.received == pytest.approx(1.0)


@pytest.mark.parametrize(("share", "threads", "received"), [(2.0, 2, 1.0), (1.24, 2, 0.62)])
def test_the_share_of_cpu_time_received(share, threads, received):
    burst = measured(World(0.01, share=share), Plan(0.02, 0.1, 0.0), threads=threads)
    assert burst.usage == Usage(pytest.approx(received), None)


def test_waiting_for_a_core_is_counted_over_the_window():
    world = World(0.01)
    waited = iter([0.0, 5.0, 5.05])
    timer = CallTimer(world.clock, world.cpu_clock, lambda: next(waited))
    burst = measured(world, Plan(0.02, 0.25, 0.0), timer, threads=2)
    assert burst.usage.waited == pytest.approx(0.05 / (0.25 * 2))


class FakeEvent:
    """Like a CUDA event with timing, in milliseconds of a world's clock."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.waited = 0

    def record(self) -> None:
        self.at = self._world.now

    def synchronize(self) -> None:
        self.waited += 1

    def elapsed_time(self, later: FakeEvent) -> float:
        return (later.at - self.at) * 1e3


def test_events_time_each_call_of_a_batch_but_the_first():
    world = World(0.005, 0.002, 0.003, 0.004)  # the first holds the launch
    made: list[FakeEvent] = []

    def new_event():
        made.append(FakeEvent(world))
        return made[-1]

    timer = EventTimer(new_event)
    assert timer.batch(world.call, 4) == pytest.approx([0.002, 0.003, 0.004])
    assert len(made) == 5
    assert [event.waited for event in made] == [0, 0, 0, 0, 1]
    assert timer.batch(world.call, 1) == pytest.approx([0.004])


def test_no_more_than_20_ms_of_work_waits_in_a_gpu_s_queue():
    world = World(0.0039)
    batches = []
    timer = EventTimer(lambda: FakeEvent(world))

    class Counting:
        reset = timer.reset
        usage = timer.usage

        def batch(self, run_call, count):
            batches.append(count)
            return timer.batch(run_call, count)

    measured(world, Plan(0.1, 0.25, 0.02), Counting())
    assert max(batches) == 5
    assert timing.batch_size(0.03, 0.02) == 1
    assert timing.batch_size(1e-6, 0.02) == timing.MAX_BATCH
