"""What probes share: budgets, windows, how disturbed they were, comparisons of data."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from lab_machine import Bench, Clock, Machine  # noqa: E402

from topsmon.probes import lab, timing, verdict  # noqa: E402
from topsmon.probes.lab import context  # noqa: E402
from topsmon.probes.lab.context import Disturbance  # noqa: E402

GIB = 1 << 30


@pytest.fixture
def clock():
    return Clock()


def test_a_fifth_of_the_free_memory_at_most_four_gib_and_the_limit(clock):
    assert Bench(Machine(clock, free=10 * GIB)).budget_bytes() == pytest.approx(2 * GIB)
    assert Bench(Machine(clock, free=100 * GIB)).budget_bytes() == 4 * GIB
    assert Bench(Machine(clock, free=None)).budget_bytes() == 4 * GIB
    limited = Bench(Machine(clock, free=10 * GIB), memory_limit=GIB)
    assert limited.budget_bytes() == GIB
    assert Bench(Machine(clock, free=10 * GIB), memory_scale=0.5).budget_bytes() == GIB


def test_a_gpu_without_a_known_cache_has_none_not_zero(clock):
    assert Bench(Machine(clock, cache=0)).last_level_bytes() is None
    assert Bench(Machine(clock, cache=50 << 20)).last_level_bytes() == 50 << 20


def test_a_window_by_hand(clock):
    calls = []

    def call() -> None:
        calls.append(1)
        clock.spend(0.01)

    spread = Bench(Machine(clock)).measure(call, 0.1)
    assert spread.median == pytest.approx(0.01)
    assert 10 <= spread.calls <= 11


def test_a_shorter_plan_shortens_the_window(clock):
    bench = Bench(Machine(clock), time_scale=0.5)
    assert 5 <= bench.measure(lambda: clock.spend(0.01), 0.1).calls <= 6


def test_every_window_can_be_stopped(clock):
    class StopError(Exception):
        pass

    def checkpoint() -> None:
        if clock() > 1000.05:
            raise StopError

    bench = Bench(Machine(clock), checkpoint)
    with pytest.raises(StopError):
        bench.measure(lambda: clock.spend(0.01), 10.0)
    assert clock() < 1000.08
    with pytest.raises(StopError):
        bench.rest(10.0)
    with pytest.raises(StopError):
        bench.random(10)


def test_calls_that_are_compared_take_turns(clock):
    order = []

    def call(name, seconds):
        def run() -> None:
            if order[-1:] != [name]:
                order.append(name)
            clock.spend(seconds)

        return run

    times = Bench(Machine(clock)).compare({"a": call("a", 0.001), "b": call("b", 0.002)}, 0.03)
    assert order == ["a", "b"] * 3
    assert times["a"].median == pytest.approx(0.001)
    assert times["b"].median == pytest.approx(0.002)
    assert times["a"].calls >= 27


def test_a_rest_lasts_and_looks(clock):
    looks = []
    Bench(Machine(clock), time_scale=0.5).rest(1.0, lambda: looks.append(clock()))
    assert clock() == pytest.approx(1000.5, abs=0.03)
    assert 25 <= len(looks) <= 26


def test_the_conditions_of_all_windows_together(clock):
    machine = Machine(clock)
    bench = Bench(machine)
    bench.measure(lambda: clock.spend(0.01))
    fields = bench.conditions()
    assert fields["held_clock_mhz"] == 1755.0
    assert fields["clock_event_mask"] == 0x4
    assert fields["power_watts"] == 312.5
    assert fields["torch_version"] == torch.__version__


def test_no_window_no_conditions(clock):
    fields = Bench(Machine(clock)).conditions()
    assert (fields["held_clock_mhz"], fields["cpu_share"], fields["threads"]) == (None, None, None)


def test_a_cpu_that_others_use_is_complained_of(clock):
    machine = Machine(clock, "cpu", threads=2)
    machine.share, machine.waited = 0.5, 0.5
    bench = Bench(machine)
    bench.measure(lambda: clock.spend(0.01))
    fields = bench.conditions()
    assert fields["cpu_share"] == pytest.approx(0.5)
    assert fields["invalid_reason"] == "only 50 % of CPU time received: other processes are running"


def test_work_of_one_thread_is_held_against_one(clock):
    machine = Machine(clock, "cpu", threads=2)
    machine.share = 0.5
    bench = Bench(machine)
    bench.measure(lambda: clock.spend(0.01), threads=1)
    fields = bench.conditions()
    assert (fields["cpu_share"], fields["threads"]) == (pytest.approx(1.0), 1)
    assert fields["invalid_reason"] == ""


def test_a_short_disturbance_spoils_nothing_and_a_long_one_all():
    fine = verdict.CpuUse(0.99, 2)
    held_up = verdict.CpuUse(0.4, 2, "held up")
    share, threads, complaint = context.sum_up(
        [Disturbance(fine, 0.95), Disturbance(held_up, 0.05)]
    )
    assert share == pytest.approx(0.99 * 0.95 + 0.4 * 0.05)
    assert (threads, complaint) == (2, "")
    assert context.sum_up([Disturbance(fine, 0.5), Disturbance(held_up, 0.5)])[2] == "held up"
    assert context.sum_up([]) == (None, None, "")


def test_random_numbers_are_normal_and_fill_the_shape(clock):
    numbers = Bench(Machine(clock)).random(3, 1 << 20)
    assert numbers.shape == (3, 1 << 20)
    assert float(numbers.std()) == pytest.approx(1.0, abs=0.01)
    assert float(numbers.mean()) == pytest.approx(0.0, abs=0.01)
    assert Bench(Machine(clock)).random(8, dtype=torch.bfloat16).dtype == torch.bfloat16


def test_no_eight_bytes_are_alike_and_the_fill_repeats_itself(clock):
    bench = Bench(Machine(clock))
    one = torch.empty(16 << 20, dtype=torch.uint8)
    other = torch.empty_like(one)
    context.fill_distinct(bench, one)
    context.fill_distinct(bench, other)
    words = one.view(torch.int64)
    assert words.unique().numel() == words.numel()
    assert context.same(bench, one, other)
    other[-1] += 1
    assert not context.same(bench, one, other)
    # Every byte value is as common as any other, within 5 %.
    counts = torch.bincount(one.int(), minlength=256).double() / one.numel() * 256
    assert float(counts.min()) > 0.95
    assert float(counts.max()) < 1.05


def test_relative_errors_by_hand():
    expected = torch.tensor([3.0, 4.0])
    assert context.relative_error(torch.tensor([3.0, 4.5]), expected) == pytest.approx(0.1)
    assert context.relative_error(expected, expected) == 0
    assert math.isnan(context.relative_error(torch.tensor([math.nan, 4.0]), expected))
    assert math.isnan(context.relative_error(torch.tensor([math.inf, 4.0]), expected))
    assert context.relative_error(expected, torch.zeros(2)) == math.inf
    assert context.judged(math.nan, 1.0)["correct"] is False


def test_rates_with_their_quartiles():
    spread = timing.Spread(0.5, 0.4, 0.8, 9)
    assert context.per_second("copy_bytes", 8.0, spread) == {
        "copy_bytes_per_second": 16.0,
        "copy_low_bytes_per_second": 10.0,
        "copy_high_bytes_per_second": 20.0,
        "copy_calls": 9.0,
    }


@pytest.mark.parametrize("name", lab.PROBES)
def test_every_probe_says_what_it_is(name):
    probe = lab.load(name)
    assert name == probe.NAME
    assert 0 < probe.SECONDS <= (12 if name == "sustained" else 180 if probe.OPT_IN else 5)
    assert probe.OPT_IN is (name in {"fusion", "sustained"})
    assert callable(probe.run)


class Stopwatch:
    """Calls of 10 ms, served by the CPU as told."""

    def __init__(self, clock, usage) -> None:
        self._clock = clock
        self._usage = usage

    def reset(self) -> None:
        pass

    def batch(self, run_call, count):
        self._clock.spend(0.01 * count)
        return [0.01] * count

    def usage(self, threads):
        return self._usage


def test_waiting_for_a_gpu_takes_no_cpu_and_waiting_for_a_cpu_is_complained_of(clock):
    def complaint(received, waited):
        bench = Bench(Machine(clock))
        bench.measure(lambda: None, timer=Stopwatch(clock, timing.Usage(received, waited)))
        return bench.conditions()["invalid_reason"]

    assert complaint(0.1, 0.0) == ""
    assert complaint(0.1, None) == ""
    assert complaint(0.5, 0.4) == "only 50 % of CPU time received: other processes are running"
