"""A made-up device: tensors are real and live on the CPU, but time passes as the test prices it."""

from __future__ import annotations

import contextlib

import torch
from torch.overrides import TorchFunctionMode

from topsmon.probes import nvml, timing
from topsmon.probes.lab.context import Context
from topsmon.probes.precisions import DeviceFacts


class Clock:
    """Seconds that pass only when somebody spends them."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


class Priced(TorchFunctionMode):
    """While entered, every call of torch takes the seconds that `price(name, args)` says."""

    def __init__(self, clock: Clock, price) -> None:
        super().__init__()
        self._clock = clock
        self._price = price
        self.record = None
        self.scale = 1.0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        self._clock.spend(self.scale * (self._price(name, args) or 0.0))
        if self.record is not None:
            self.record.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


class Watch:
    """Says what was held in turn: a list, the last of which repeats."""

    def __init__(self, helds) -> None:
        self._helds = helds

    def begin(self) -> None:
        pass

    def between(self) -> None:
        pass

    def finish(self):
        return self._helds.pop(0) if len(self._helds) > 1 else self._helds[0]


class Machine:
    """The device; `kind` "gpu" or "cpu". Memory is small so that tests are quick."""

    call_limit_seconds = 0.02
    quick_plan = timing.Plan(0.0, 0.0, 0.0)
    plan = timing.Plan(0.0, 0.0, 0.0)
    timing_words = "timed by hand"
    shapes = ((64, 64, 64),)
    quota = None
    driver = None
    place = torch.device("cpu")

    def __init__(self, clock, kind="gpu", *, free=64 << 20, cache=1 << 20, threads=None) -> None:
        self.clock = clock
        self.facts = DeviceFacts(kind, "Made Up", (9, 0) if kind == "gpu" else None)
        self.free = free
        self.cache_bytes = cache
        self.threads = threads
        self.waited = 0.0
        self.share = 1.0
        self.helds = [nvml.Held(1755.0, "NVML, median of the burst", 0x4, 312.5)]
        self.released = 0

    def one_thread(self):
        return contextlib.nullcontext()

    def timer(self):
        return timing.CallTimer(
            self.clock,
            lambda: self.clock() * self.share * (self.threads or 1),
            lambda: self.clock() * self.waited * (self.threads or 1),
        )

    def watch(self):
        return Watch(self.helds)

    def free_bytes(self):
        return self.free

    def release(self) -> None:
        self.released += 1


class Bench(Context):
    """A context on a made-up machine that rests in no time."""

    def __init__(self, machine, checkpoint=lambda: None, **options) -> None:
        super().__init__(
            machine, checkpoint, clock=machine.clock, sleep=machine.clock.spend, **options
        )

    def host_budget_bytes(self):
        return 3 * self.budget_bytes()

    def synchronize(self) -> None:
        """All is done at once."""


def nbytes(tensor) -> int:
    return tensor.numel() * tensor.element_size()


def touched(tensor) -> int:
    """Bytes that a view really covers: dimensions with stride 0 repeat the same ones."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride else 1
    return count * tensor.element_size()


def run(probe, machine, price=lambda name, args: 1e-4, **options):
    """Run a probe with priced calls; returns its fields and its context."""
    bench = Bench(machine, **options)
    with Priced(machine.clock, price):
        return probe.run(bench), bench
