"""The two kinds of device behind one face: where tensors go, how calls are timed, what held."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from . import cpu_clock, machine, nvml
from .precisions import DeviceFacts, Gemm
from .schedule import CPU_SHAPES, GPU_SHAPES, Shape
from .timing import CallTimer, EventTimer, Plan, Timer


class DeviceUnavailableError(Exception):
    """This torch cannot use the device, and why."""


class Watch(Protocol):
    """Watches clock and power during the timed calls of one burst."""

    def begin(self) -> None:
        """Called before the first timed call: idle and ramping clocks do not count."""
        ...

    def between(self) -> None:
        """Called between timed calls."""
        ...

    def finish(self) -> nvml.Held:
        """End; returns what was seen."""
        ...


class ProbeDevice(Protocol):
    """What a burst needs of a device."""

    facts: DeviceFacts
    place: Any
    shapes: tuple[Shape, ...]
    explore_from: int
    call_limit_seconds: float
    quick_plan: Plan
    plan: Plan
    cache_bytes: int
    threads: int | None
    quota: float | None
    timing_words: str
    driver: nvml.Nvml | None

    def one_thread(self) -> AbstractContextManager[None]:
        """Let calls run on one thread only, where threads matter."""
        ...

    def timer(self) -> Timer:
        """A fresh timer."""
        ...

    def watch(self) -> Watch:
        """A fresh watch."""
        ...

    def free_bytes(self) -> int | None:
        """Memory that is free now."""
        ...

    def release(self) -> None:
        """Give back what the allocator keeps."""
        ...

    def emulation(self, gemm: Gemm) -> str | None:
        """Why a precision is emulated here, None where it is native."""
        ...

    def remarks(self, gemm: Gemm) -> tuple[str, ...]:
        """What else to know about a precision here."""
        ...

    def ready(self) -> dict[str, Any]:
        """Fields of the prober-ready event."""
        ...


class CpuDevice:
    """The processor, with one thread a usable core."""

    call_limit_seconds = 0.04
    quick_plan = Plan(warm_up=0.01, window=0.1, queue=0.0)
    plan = Plan(warm_up=0.02, window=0.25, queue=0.0)
    timing_words = "timed by the monotonic clock"
    cache_bytes = 0
    shapes = CPU_SHAPES
    driver: nvml.Nvml | None = None
    explore_from = 64

    def __init__(self) -> None:
        self._flags = machine.cpu_flags()
        self._cpus = machine.read_cpus()
        self._default_threads = torch.get_num_threads()
        plan = machine.plan_threads(self._default_threads, self._cpus, os.environ)
        if plan.threads != self._default_threads:
            torch.set_num_threads(plan.threads)
        self.threads: int | None = plan.threads
        self.quota = self._cpus.quota
        self.place = torch.device("cpu")
        self.facts = DeviceFacts("cpu", machine.cpu_name() or "CPU")
        self._notes = [*plan.notes, *machine.isa_notes(os.environ)]
        self._clock: cpu_clock.CpuClock | None = None
        try:
            self._clock = cpu_clock.CpuClock(cpu_clock.native_loop())
        except cpu_clock.ClockUnavailableError as error:
            self._notes.append(f"held clock not measured: {error}")

    @contextlib.contextmanager
    def one_thread(self) -> Iterator[None]:
        """Let calls run on one thread only."""
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(self.threads or 1)

    def timer(self) -> Timer:
        """A fresh timer."""
        return CallTimer(wait_clock=machine.seconds_waited)

    def watch(self) -> Watch:
        """A fresh watch."""
        wide = "avx512f" in self._flags
        return _CpuWatch(self._clock, wide)

    def free_bytes(self) -> int | None:
        """Memory that is free now."""
        return machine.free_memory_bytes()

    def release(self) -> None:
        """Nothing: the CPU allocator keeps nothing large."""

    def emulation(self, gemm: Gemm) -> str | None:
        """Why a precision is emulated here, None where it is native."""
        return machine.emulation(gemm.key, self._flags)

    def remarks(self, gemm: Gemm) -> tuple[str, ...]:  # noqa: ARG002 - other devices need it
        """What else to know about a precision here."""
        return ()

    def ready(self) -> dict[str, Any]:
        """Fields of the prober-ready event."""
        return {
            "name": machine.cpu_name(),
            "threads": self.threads,
            "default_threads": self._default_threads,
            "usable_cpus": self._cpus.usable_logical,
            "notes": self._notes,
        }


class _CpuWatch:
    def __init__(self, clock: cpu_clock.CpuClock | None, wide_vectors: bool) -> None:
        self._sampler = cpu_clock.ClockSampler(clock.sample) if clock is not None else None
        self._wide = wide_vectors

    def begin(self) -> None:
        """Nothing: it looks between calls only."""

    def between(self) -> None:
        if self._sampler is not None:
            self._sampler.between()

    def finish(self) -> nvml.Held:
        clock = self._sampler.median() if self._sampler is not None else None
        if clock is None:
            return nvml.Held()
        note = "held clock is an upper bound under AVX-512" if self._wide else ""
        return nvml.Held(clock, cpu_clock.SOURCE, note=note)


class CudaDevice:
    """One GPU: number `index` of those that this process sees, a prober's only one."""

    call_limit_seconds = 0.02
    quick_plan = Plan(warm_up=0.05, window=0.1, queue=0.02)
    plan = Plan(warm_up=0.1, window=0.25, queue=0.02)
    timing_words = "timed by CUDA events"
    shapes = GPU_SHAPES
    explore_from = 256  # block-scaled types want more than a tile, and all GPUs do that in no time
    threads: int | None = None
    quota: float | None = None

    def __init__(self, uuid: str, index: int = 0) -> None:
        _require_cuda(uuid)
        self.place = torch.device("cuda", index)
        self._properties = torch.cuda.get_device_properties(index)
        capability = (int(self._properties.major), int(self._properties.minor))
        self.facts = DeviceFacts("gpu", str(self._properties.name), capability)
        self.cache_bytes = int(getattr(self._properties, "L2_cache_size", 0) or 0)
        self._notes: list[str] = []
        self.driver: nvml.Nvml | None = None
        try:
            self.driver = nvml.Nvml(uuid)
        except OSError as error:
            self._notes.append(f"clock and power not read: {error}")
        override = os.environ.get("NVIDIA_TF32_OVERRIDE")
        if override is not None:
            self._notes.append(
                f"NVIDIA_TF32_OVERRIDE={override} decides over TF32 in all libraries"
            )

    def one_thread(self) -> AbstractContextManager[None]:
        """Nothing: a GPU has no threads."""
        return contextlib.nullcontext()

    def timer(self) -> Timer:
        """A fresh timer."""
        return EventTimer(lambda: torch.cuda.Event(enable_timing=True))

    def watch(self) -> Watch:
        """A fresh watch."""
        return _GpuWatch(self.driver.read if self.driver is not None else None)

    def free_bytes(self) -> int | None:
        """Memory that is free now."""
        return int(torch.cuda.mem_get_info(self.place)[0])

    def release(self) -> None:
        """Give back what the allocator keeps."""
        torch.cuda.empty_cache()

    def emulation(self, gemm: Gemm) -> str | None:
        """Why a precision is emulated here, None where it is native."""
        if gemm.key == "bf16" and (self.facts.capability or (0, 0)) < (8, 0):
            return f"no native BF16 on {self.facts.name}: it begins with compute capability 8.0"
        return None

    def remarks(self, gemm: Gemm) -> tuple[str, ...]:
        """What else to know about a precision here."""
        if gemm.key.startswith("fp16") and "GTX 16" in self.facts.name:
            return ("GTX 16 boards have no tensor cores",)
        return ()

    def ready(self) -> dict[str, Any]:
        """Fields of the prober-ready event."""
        kilohertz = getattr(self._properties, "clock_rate", None)
        return {
            "name": self.facts.name,
            "sm_count": int(self._properties.multi_processor_count),
            "clock_rate_mhz": kilohertz / 1e3 if kilohertz else None,
            "l2_bytes": self.cache_bytes or None,
            "memory_total_bytes": int(self._properties.total_memory),
            "notes": self._notes,
        }


class _GpuWatch:
    def __init__(self, read: Callable[[], nvml.Reading] | None) -> None:
        self._read = read
        self._sampler: nvml.Sampler | None = None

    def begin(self) -> None:
        if self._read is not None:
            self._sampler = nvml.Sampler(self._read)
            self._sampler.start()

    def between(self) -> None:
        """Nothing: a thread looks by itself."""

    def finish(self) -> nvml.Held:
        return self._sampler.finish() if self._sampler is not None else nvml.Held()


def _require_cuda(uuid: str) -> None:
    """Raise `DeviceUnavailableError` with the reason that torch gives, if CUDA does not work."""
    if not torch.backends.cuda.is_built():
        raise DeviceUnavailableError(
            f"torch {torch.__version__} is built without CUDA: install a CUDA build, "
            "or name another interpreter with --python"
        )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        usable = torch.cuda.is_available() and torch.cuda.device_count() > 0
    if not usable:
        reasons = [str(warning.message).splitlines()[0] for warning in caught]
        because = f": {reasons[0]}" if reasons else ""
        raise DeviceUnavailableError(
            f"torch {torch.__version__} (CUDA {torch.version.cuda}) finds no device {uuid}{because}"
        )


def open_device(key: str) -> ProbeDevice:
    """The device of a key: "cpu" or the UUID of a GPU. Raises `DeviceUnavailableError`."""
    return CpuDevice() if key == "cpu" else CudaDevice(key)
