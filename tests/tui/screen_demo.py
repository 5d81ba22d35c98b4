"""States of invented machines, built from events, and a session that plays them to the screen."""

from __future__ import annotations

import math
from collections.abc import Iterable

from topsmon import events
from topsmon.state import State
from topsmon.units import PRECISIONS

NOW = 1_000.0
"""This process's monotonic clock in all states here, s."""
WALL = 1_780_000_000.0
GIB = 2**30

H100 = {
    "fp64_tensor": 66.9e12,
    "fp32": 66.9e12,
    "tf32": 494.7e12,
    "fp16_acc32": 989.4e12,
    "bf16": 989.4e12,
    "fp8_acc32": 1978.9e12,
    "int8": 1978.9e12,
}
RTX4090 = {
    "fp64": 1.29e12,
    "fp32": 82.6e12,
    "tf32": 82.6e12,
    "fp16_acc32": 165.2e12,
    "fp16_acc16": 330.3e12,
    "bf16": 165.2e12,
    "fp8_acc32": 330.3e12,
    "int8": 660.6e12,
}
CPU = {"fp64": 96e9, "fp32": 192e9}


def stamp(source: str = "ml-node-07", at: float = NOW) -> dict:
    return {"time": WALL + at - NOW, "monotonic": at, "source": source}


def host(**changes) -> events.Host:
    values = {
        "hostname": "ml-node-07",
        "system": "Linux 6.8",
        "cpu_name": "AMD EPYC 7B13",
        "memory_total_bytes": 512 * GIB,
        "driver_version": "580.65.06",
        "cuda_version": "13.0",
    }
    return events.Host(**stamp(), **{**values, **changes})


def gpu(index: int, name: str = "NVIDIA H100 80GB HBM3", **changes) -> events.Device:
    values = {
        "device": f"GPU-{index:08d}",
        "kind": "gpu",
        "index": index,
        "name": name,
        "uuid": f"GPU-{index:08d}",
        "pci_bus_id": f"00000000:{index + 0x17:02X}:00.0",
        "compute_capability": "9.0",
        "architecture": "Hopper",
        "sm_count": 132,
        "memory_total_bytes": 80 * GIB,
        "sm_clock_max_mhz": 1980,
        "power_limit_default_watts": 700.0,
        "power_limit_max_watts": 700.0,
    }
    return events.Device(**stamp(), **{**values, **changes})


def cpu(**changes) -> events.Device:
    values = {
        "device": "cpu",
        "kind": "cpu",
        "index": 0,
        "name": "AMD EPYC 7B13 64-Core Processor",
        "memory_total_bytes": 16 * GIB,
        "unavailable": {"sm_clock_max_mhz": "no cpufreq on this machine (virtual machine?)"},
    }
    return events.Device(**stamp(), **{**values, **changes})


def ceilings(device: str, rates: dict[str, float], clock: float = 1830.0, **changes):
    values = {
        "board": "h100-sxm5-80gb",
        "matched_by": "PCI id",
        "clock_source": "boost clock 1830 MHz",
        "rates": tuple(
            events.Ceiling(
                precision=key,
                ops_per_second=value,
                origin="published",
                source="data sheet",
                ops_per_clock=value / clock / 1e6,
                rated_clock_mhz=clock,
            )
            for key, value in rates.items()
        ),
        "absent": {"fp4": "not on sm_90", "fp16_acc16": "same rate as FP32 accumulate"},
        "memory_bandwidth_bytes_per_second": 3.35e12,
        "l2_bytes": 50 * 2**20,
    }
    return events.Ceilings(**stamp(), device=device, **{**values, **changes})


def sample(device: str, at: float = NOW, **changes) -> events.DeviceSample:
    values = {
        "busy_ratio": 0.9,
        "memory_busy_ratio": 0.45,
        "memory_used_bytes": int(50.2 * GIB),
        "memory_total_bytes": 80 * GIB,
        "sm_clock_mhz": 1755.0,
        "power_watts": 650.0,
        "power_limit_watts": 700.0,
        "temperature_celsius": 62.0,
        "clock_event_mask": 0x4,
        "pcie_generation": 5,
        "pcie_generation_max": 5,
        "pcie_width": 16,
        "pcie_width_max": 16,
    }
    return events.DeviceSample(**stamp(at=at), device=device, **{**values, **changes})


def rate(device: str, precision: str, value: float | None, age: float = 4.0, **changes):
    values = {
        "shape": (8192, 8192, 8192),
        "correct": True,
        "held_clock_mhz": 1755.0,
        "calls": 40,
        "method": "torch.mm",
        "torch_version": "2.13.0",
    }
    return events.RateMeasured(
        **stamp(at=NOW - age),
        device=device,
        precision=precision,
        rate_ops_per_second=value,
        **{**values, **changes},
    )


def ready(device: str, **changes) -> events.ProberReady:
    values = {"torch_version": "2.13.0+cu130", "python": "/usr/bin/python3"}
    return events.ProberReady(**stamp(), device=device, **{**values, **changes})


def capped_finding(device: str = "GPU-00000003") -> events.Finding:
    return events.Finding(
        **stamp(),
        code="power-limit-low",
        severity="warn",
        word="SLOW",
        device=device,
        title="GPU 3  BF16 412 of 989 TFLOPS (41.6%)",
        cause="power limit is set to 350 W (default 700 W)",
        evidence=("342 W now", "clocks event reasons: SW power cap"),
        remedy="restore the default limit, then press b to measure again.",
        command="sudo nvidia-smi -i 3 -pl 700",
        basis="enforced limit against the board's own limits (NVML)",
    )


def lost_finding() -> events.Finding:
    return events.Finding(
        **stamp(),
        code="device-lost",
        severity="fail",
        word="LOST",
        device="GPU-00000001",
        title="GPU 1  LOST since 14:03:59: NVIDIA H100 80GB HBM3",
        cause="the GPU fell off the bus (NVML GpuIsLost)",
        remedy="Look for an Xid in the kernel log; reseat or power-cycle.",
        command="sudo dmesg | grep -iE 'nvrm|xid'",
    )


def fold(source: Iterable[events.AnyEvent], now: float = NOW) -> State:
    state = State()
    for event in source:
        state.apply(event, now)
    return state


def _load(index: int, tick: int) -> float:
    """A load that moves, the same at each run."""
    return 0.9 + 0.08 * math.sin(tick / 7 + index) + 0.02 * math.sin(tick * 1.7 + index * 3)


def eight(ticks: int = 300, capped: int | None = 3, count: int = 8) -> State:
    """Eight H100s under load, one of them at half its power limit."""
    source: list[events.AnyEvent] = [
        events.Hello(**stamp(), version="0.1.0", schema=1, role="poller", pid=1),
        host(),
        events.HostSample(**stamp(), cpu_busy_ratio=0.12, memory_used_bytes=120 * GIB),
    ]
    for index in range(count):
        device = gpu(index)
        source += [device, ceilings(device.device, H100), ready(device.device)]
        source.append(events.Processes(**stamp(), device=device.device, entries=()))
        for burst in range(40):
            slow = 0.565 if index == capped else 1.0
            wave = slow * (1 + 0.01 * math.sin(burst + index))
            for key, share in MEASURED.items():
                value = share * wave * _h100_ceiling(key)
                clock = 1155.0 if index == capped else 1755.0
                source.append(rate(device.device, key, value, held_clock_mhz=clock))
        source.append(
            events.ProbeUnsupported(
                **stamp(), device=device.device, precision="fp4", reason="not on sm_90"
            )
        )
        source += [
            moving_sample(device.device, index, tick, ticks, index == capped)
            for tick in range(ticks)
        ]
    return fold(source)


MEASURED = {
    "fp64": 0.918,
    "fp32": 0.779,
    "tf32": 0.789,
    "fp16": 0.743,
    "bf16": 0.736,
    "fp8": 0.701,
    "int8": 0.715,
}


def _h100_ceiling(precision: str) -> float:
    return next(H100[key] for key in PRECISIONS[precision].ceilings if key in H100)


def moving_sample(device: str, index: int, tick: int, ticks: int, slow: bool):
    load = _load(index, tick)
    at = NOW - (ticks - 1 - tick) * 0.5
    if slow:
        return sample(
            device,
            at,
            busy_ratio=load * 0.68,
            power_watts=340.0 + 10 * load,
            power_limit_watts=350.0,
            temperature_celsius=84.0,
            sm_clock_mhz=1155.0,
            memory_busy_ratio=0.3,
        )
    return sample(
        device,
        at,
        busy_ratio=load,
        power_watts=560.0 + 100 * load,
        temperature_celsius=61.0 + index % 4,
        memory_used_bytes=int((50 + 2 * index) * GIB),
        memory_busy_ratio=0.45 + 0.02 * math.sin(tick / 5),
        clock_event_mask=0,
    )


def cpu_only(ticks: int = 200) -> State:
    """A machine without a GPU, in the middle of a disturbed measurement."""
    device = cpu()
    source: list[events.AnyEvent] = [
        events.Hello(**stamp(), version="0.1.0", schema=1, role="poller", pid=1),
        host(hostname="laptop", driver_version=None, cuda_version=None),
        events.HostSample(**stamp(), cpu_busy_ratio=0.62, memory_used_bytes=6 * GIB),
        device,
        ceilings(
            "cpu",
            CPU,
            3000.0,
            board=None,
            matched_by="instruction sets",
            clock_source="nominal clock 3000 MHz",
            absent={
                "tf32": "no TF32 on CPUs",
                "fp16": "no FP16 arithmetic in AVX2",
                "bf16": "no BF16 arithmetic in AVX2",
                "fp8": "no FP8 on CPUs",
                "int8": "no INT8 dot product in AVX2",
                "fp4": "no FP4 on CPUs",
            },
            memory_bandwidth_bytes_per_second=None,
            l2_bytes=None,
        ),
        ready("cpu", torch_version="2.13.0+cpu", threads=2, usable_cpus=2),
        events.Processes(**stamp(), device="cpu", entries=()),
        rate("cpu", "fp64", 71e9, 42, held_clock_mhz=None, cpu_share=0.98, shape=(1024,) * 3),
        rate(
            "cpu",
            "fp32",
            118e9,
            2,
            held_clock_mhz=None,
            cpu_share=0.62,
            valid=False,
            invalid_reason="got 62 % of the CPU time",
            shape=(2048, 2048, 2048),
        ),
        rate("cpu", "bf16", 4e9, 130, emulated=True, held_clock_mhz=None, shape=(512,) * 3),
        rate("cpu", "int8", 6e9, 75, emulated=True, held_clock_mhz=None, shape=(512,) * 3),
        events.ProbeUnsupported(
            **stamp(), device="cpu", precision="tf32", reason="no TF32 on CPUs"
        ),
        events.ProbeUnsupported(**stamp(), device="cpu", precision="fp8", reason="no FP8 on CPUs"),
        events.ProbeUnsupported(**stamp(), device="cpu", precision="fp4", reason="no FP4 on CPUs"),
        events.ProbeUnsupported(
            **stamp(), device="cpu", precision="fp16_acc16", reason="no choice of accumulator here"
        ),
    ]
    source += [
        events.DeviceSample(
            **stamp(at=NOW - (ticks - 1 - tick) * 0.5),
            device="cpu",
            busy_ratio=0.55 + 0.2 * math.sin(tick / 9),
            memory_used_bytes=6 * GIB,
            memory_total_bytes=16 * GIB,
            sm_clock_mhz=2445.0,
            unavailable={"power_watts": "no permission for RAPL"},
        )
        for tick in range(ticks)
    ]
    return fold(source)


class FakeSession:
    """A session without children: it records what the screen asks of it."""

    def __init__(self, state: State, findings: tuple[events.Finding, ...] = ()) -> None:
        self.state = state
        self.interval = 0.5
        self.precisions = tuple(PRECISIONS)
        self.paused = False
        self.torch_problem: str | None = None
        self.given = findings
        self.calls: list[tuple] = []
        self.listeners: list = []
        self.asked: set[str] = set()
        self.counters: list[bool] = []

    async def start(self) -> None:
        self.calls.append(("start",))

    async def stop(self) -> None:
        self.calls.append(("stop",))

    def findings(self) -> tuple[events.Finding, ...]:
        return self.given

    def set_interval(self, seconds: float) -> None:
        self.calls.append(("interval", seconds))
        self.interval = seconds

    def pause(self, paused: bool) -> None:
        self.calls.append(("pause", paused))
        self.paused = paused

    def set_counters(self, on: bool) -> None:
        self.counters.append(on)

    def benchmark(self, device_key: str | None, on: bool) -> None:
        self.calls.append(("benchmark", device_key, on))
        (self.asked.add if on else self.asked.discard)(device_key or "")

    def benchmarking(self, device_key: str) -> bool:
        return device_key in self.asked

    def choose_precisions(self, keys: tuple[str, ...]) -> None:
        self.calls.append(("precisions", keys))
        self.precisions = keys
