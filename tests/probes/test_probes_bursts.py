"""Whole bursts on a made-up device whose tensors live on the CPU."""

from __future__ import annotations

import contextlib
import json

import pytest

torch = pytest.importorskip("torch")

from probe_children import decode  # noqa: E402

from topsmon import events  # noqa: E402
from topsmon.probes import bursts, nvml, timing, wire  # noqa: E402
from topsmon.probes.errors import NoMemoryError, UnsupportedError  # noqa: E402
from topsmon.probes.precisions import DeviceFacts  # noqa: E402


class FakeTimer:
    """Makes the calls and says that each took a millisecond."""

    def __init__(self, usage=None) -> None:
        self._usage = usage or timing.Usage()

    def reset(self) -> None:
        pass

    def batch(self, run_call, count):
        for _ in range(count):
            run_call()
        return [1e-3] * count

    def usage(self, threads):
        return self._usage


class FakeWatch:
    def __init__(self, log, held) -> None:
        self._log = log
        self._held = held

    def begin(self) -> None:
        self._log.append("begin")

    def between(self) -> None:
        self._log.append("between")

    def finish(self):
        self._log.append("finish")
        return self._held


class FakeDevice:
    """A GPU by its words, a CPU by its tensors."""

    call_limit_seconds = 0.02
    quick_plan = timing.Plan(0.002, 0.0, 0.0)
    plan = timing.Plan(0.002, 0.0, 0.0)
    timing_words = "timed by hand"
    explore_from = 64
    shapes = ((64, 64, 64), (64, 128, 64), (128, 128, 128))
    threads = None
    quota = None
    cache_bytes = 0
    place = torch.device("cpu")

    def __init__(self, *, free=1 << 34, usage=None, capability=(9, 0)) -> None:
        self.facts = DeviceFacts("gpu", "Fake Board", capability)
        self.free = free
        self.log = []
        self._usage = usage
        self.held = nvml.Held(1755.0, "NVML, median of the burst", 0x4, 312.5)

    def one_thread(self):
        return contextlib.nullcontext()

    def timer(self):
        return FakeTimer(self._usage)

    def watch(self):
        return FakeWatch(self.log, self.held)

    def free_bytes(self):
        return self.free

    def release(self) -> None:
        self.log.append("release")

    def emulation(self, gemm):
        return "no native FP64 here" if gemm.key == "fp64" else None

    def remarks(self, gemm):
        return ()

    def ready(self):
        return {}


def as_event(fields) -> events.RateMeasured:
    """What the parent gets of a burst's fields."""
    lines = []
    wire.Writer("GPU-1", lines.append).emit("rate", **fields)
    return decode(lines[0])


def test_a_burst_by_hand():
    device = FakeDevice()
    event = as_event(bursts.Bench(device).burst("fp32", 2))
    assert event.shape == (128, 128, 128)
    assert event.rate_ops_per_second == 2 * 128**3 / 1e-3
    assert event.rate_low_ops_per_second == event.rate_high_ops_per_second
    assert event.calls == 3
    assert event.correct is True
    assert event.valid
    assert 1e-8 < event.relative_error < event.error_limit == 1e-5
    assert (event.held_clock_mhz, event.clock_event_mask, event.power_watts) == (1755.0, 4, 312.5)
    assert "random normal inputs" in event.method
    assert "column-major" in event.method
    assert event.torch_version == str(torch.__version__)


def test_clocks_are_watched_only_while_calls_are_timed():
    device = FakeDevice()
    bench = bursts.Bench(device)
    bench.burst("fp32", 0)  # explores
    device.log.clear()
    bench.burst("fp32", 0)
    assert device.log == ["begin", "between", "between", "between", "finish", "release"]


def test_each_turn_takes_the_next_shape():
    bench = bursts.Bench(FakeDevice())
    shapes = [tuple(bench.burst("fp32", turn)["shape"]) for turn in range(3)]
    assert shapes == [(64, 64, 64), (64, 128, 64), (128, 128, 128)]


def test_a_wrong_result_is_told_and_keeps_its_rate(monkeypatch):
    bench = bursts.Bench(FakeDevice())
    gemm = bench.gemms["bf16"]
    right = gemm.run

    def wrong(operands):
        result = right(operands)
        result[:, 3] += 1000
        return result

    monkeypatch.setattr(gemm, "run", wrong)
    event = as_event(bench.burst("bf16", 0))
    assert event.correct is False
    assert event.valid is False
    assert event.rate_ops_per_second > 0
    assert "wrong result" in event.invalid_reason


def test_a_result_that_is_no_number_has_no_error_figure(monkeypatch):
    bench = bursts.Bench(FakeDevice())
    gemm = bench.gemms["fp32"]
    right = gemm.run
    monkeypatch.setattr(gemm, "run", lambda operands: right(operands).fill_(float("nan")))
    event = as_event(bench.burst("fp32", 0))
    assert event.correct is False
    assert event.relative_error is None


def test_a_disturbed_burst_is_invalid():
    device = FakeDevice(usage=timing.Usage(0.62, 0.3))
    device.threads = 2
    event = as_event(bursts.Bench(device).burst("fp32", 0))
    assert event.cpu_share == 0.62
    assert event.valid is False
    assert event.correct is True
    assert "only 62 % of CPU time received: other processes are running" in event.invalid_reason


def test_emulation_is_said():
    event = as_event(bursts.Bench(FakeDevice()).burst("fp64", 0))
    assert event.emulated
    assert "no native FP64 here" in event.note


def test_a_size_of_the_user_s_own_gets_a_remark():
    event = as_event(bursts.Bench(FakeDevice(), sizes=(129,)).burst("fp32", 0))
    assert event.shape == (129, 129, 129)
    assert "129x129x129 has an odd size" in event.note


def test_several_sets_of_operands_take_turns_beyond_the_cache(monkeypatch):
    device = FakeDevice()
    device.cache_bytes = 3 * 64 * 64 * 4  # a set of 64^3 FP32: two times the cache needs three
    bench = bursts.Bench(device)
    bench.burst("fp32", 0)  # explores
    gemm = bench.gemms["fp32"]
    right, seen = gemm.run, []

    def recording(operands):
        seen.append(operands.a.data_ptr())
        return right(operands)

    monkeypatch.setattr(gemm, "run", recording)
    bench.burst_of("fp32", (64, 64, 64))
    assert len(set(seen)) == 3
    assert seen[:3] == seen[3:6]


def test_memory_is_five_percent_of_what_is_free_now_and_at_most_two_gibibytes():
    device = FakeDevice(free=10 * 2**30)
    bench = bursts.Bench(device)
    assert bench.budget_bytes() == 0.5 * 2**30
    device.free = 80 * 2**30
    assert bench.budget_bytes() == 2 * 2**30
    assert bursts.Bench(device, memory_limit=2**20).budget_bytes() == 2**20


def test_without_memory_there_is_no_burst_and_it_says_so():
    with pytest.raises(NoMemoryError, match="MiB"):
        bursts.Bench(FakeDevice(free=2**20)).burst("fp32", 0)


def test_what_the_device_cannot_is_refused():
    with pytest.raises(UnsupportedError, match=r"8\.9"):
        bursts.Bench(FakeDevice(capability=(8, 0))).burst("fp8", 0)


def test_a_burst_can_be_abandoned_and_gives_memory_back():
    device = FakeDevice()

    class EnoughError(Exception):
        pass

    def checkpoint():
        if "between" in device.log:
            raise EnoughError

    with pytest.raises(EnoughError):
        bursts.Bench(device, checkpoint).burst("fp32", 0)
    assert device.log[-2:] == ["finish", "release"]


def test_int8_is_named_as_what_it_is():
    event = as_event(bursts.Bench(FakeDevice()).burst("int8", 0))
    assert "torch._int_mm, random INT8 inputs (-128..127)" in event.method
    assert event.relative_error == 0


def test_fields_are_plain_json():
    fields = bursts.Bench(FakeDevice()).burst("fp32", 0)
    assert json.loads(json.dumps(fields)) == fields
