"""Nodes to check: machines whose GPUs were measured, as poller and probers tell it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topsmon import ceilings, events
from topsmon.checks import Moment, judge, select
from topsmon.laboratory import Observed
from topsmon.state import State

MOMENT = Moment(time=1_700_000_100.0, monotonic=100.0)

H100: dict[str, Any] = {
    "name": "NVIDIA H100 80GB HBM3",
    "pci_device_id": "2330",
    "pci_subsystem_id": "10DE:16C1",
    "compute_capability": "9.0",
    "sm_count": 132,
    "memory_total_bytes": 81559 * 2**20,
    "memory_bus_bits": 5120,
    "sm_clock_max_mhz": 1980,
    "memory_clock_max_mhz": 2619,
    "power_limit_default_watts": 700.0,
    "power_limit_max_watts": 700.0,
    "temperature_slowdown_celsius": 89,
}
A100 = {
    **H100,
    "name": "NVIDIA A100-SXM4-80GB",
    "pci_device_id": "20B2",
    "pci_subsystem_id": None,
    "compute_capability": "8.0",
    "sm_count": 108,
    "sm_clock_max_mhz": 1410,
    "memory_clock_max_mhz": 1593,
    "power_limit_default_watts": 400.0,
    "power_limit_max_watts": 400.0,
}
RTX_3090 = {
    **H100,
    "name": "NVIDIA GeForce RTX 3090",
    "pci_device_id": "2204",
    "pci_subsystem_id": None,
    "compute_capability": "8.6",
    "sm_count": 82,
    "memory_total_bytes": 24 * 2**30,
    "memory_bus_bits": 384,
    "sm_clock_max_mhz": 2100,
    "memory_clock_max_mhz": 9751,
    "power_limit_default_watts": 350.0,
    "power_limit_max_watts": 366.0,
}
RTX_5090 = {
    **RTX_3090,
    "name": "NVIDIA GeForce RTX 5090",
    "pci_device_id": "2B85",
    "compute_capability": "12.0",
    "sm_count": 170,
    "memory_total_bytes": 32 * 2**30,
    "memory_bus_bits": 512,
    "sm_clock_max_mhz": 3090,
    "memory_clock_max_mhz": 14001,
}
FUTURE_CARD = {
    **H100,
    "name": "NVIDIA FutureCard X1",
    "pci_device_id": "FFFE",
    "pci_subsystem_id": None,
    "compute_capability": "99.0",
    "sm_count": None,
}

H100_TERA = {
    "fp64": 53.4,
    "fp32": 51.9,
    "tf32": 402.2,
    "fp16": 760.0,
    "fp16_acc16": 758.0,
    "bf16": 794.5,
    "fp8": 1402.6,
    "int8": 1250.0,
}
"""Healthy rates: those that were published for this board, others near their ceiling's share."""

PROBES: dict[str, dict[str, float]] = {
    "memory": {
        "copy_bytes_per_second": 3.05e12,
        "triad_bytes_per_second": 3.02e12,
        "buffer_bytes": 2.0**31,
    },
    "transfer": {
        "h2d_pinned_bytes_per_second": 55.2e9,
        "d2h_pinned_bytes_per_second": 55.0e9,
        "h2d_pageable_bytes_per_second": 9.0e9,
        "pcie_generation": 5,
        "pcie_width": 16,
    },
    "launch": {"launch_seconds": 4.1e-6, "graph_gain_ratio": 2.6},
    "alignment": {
        "rate_4096_ops_per_second": 700e12,
        "rate_4104_ops_per_second": 560e12,
        "rate_4095_ops_per_second": 400e12,
        "rate_4160_ops_per_second": 702e12,
    },
    "overlap": {"overlap_ratio": 0.93},
    "sync_stall": {"stall_seconds": 12e-6},
}


def header(seconds: float = 90.0) -> dict[str, Any]:
    return {"time": 1_700_000_000.0 + seconds, "monotonic": seconds, "source": "node"}


def host(**changes: Any) -> events.Host:
    fields = {
        "hostname": "node",
        "system": "Linux",
        "driver_version": "580.95.05",
        "cuda_version": "13.0",
        **changes,
    }
    return events.Host(**header(0.0), **fields)


def identity(index: int = 0, board: Mapping[str, Any] = H100, **changes: Any) -> events.Device:
    fields = {
        "device": f"GPU-{index:04}",
        "kind": "gpu",
        "index": index,
        "uuid": f"GPU-{index:04}",
        "pci_bus_id": f"00000000:{0x17 + index:02X}:00.0",
        **board,
        **changes,
    }
    return events.Device(**header(1.0), **fields)


def sample(index: int = 0, seconds: float = 99.0, **changes: Any) -> events.DeviceSample:
    fields: dict[str, Any] = {
        "device": f"GPU-{index:04}",
        "busy_ratio": 0.9,
        "sm_clock_mhz": 1755.0,
        "memory_clock_mhz": 2619.0,
        "power_watts": 640.0,
        "power_limit_watts": 700.0,
        "temperature_celsius": 62.0,
        "performance_state": 0,
        "clock_event_mask": 0,
        "pcie_generation": 5,
        "pcie_generation_max": 5,
        "pcie_width": 16,
        "pcie_width_max": 16,
        "ecc_enabled": True,
        "ecc_uncorrected_volatile": 0,
        "ecc_uncorrected_aggregate": 0,
        "ecc_corrected_volatile": 0,
        "row_remap_pending": False,
        "row_remap_failed": False,
        **changes,
    }
    return events.DeviceSample(**header(seconds), **fields)


def rate(precision: str, tera: float | None, index: int = 0, **changes: Any) -> events.RateMeasured:
    fields: dict[str, Any] = {
        "device": f"GPU-{index:04}",
        "precision": precision,
        "rate_ops_per_second": None if tera is None else tera * 1e12,
        "shape": (4096, 4096, 4096),
        "correct": True,
        "relative_error": 1e-4,
        "error_limit": 1e-2,
        "held_clock_mhz": 1755.0,
        "clock_event_mask": 0,
        "power_watts": 640.0,
        **changes,
    }
    return events.RateMeasured(**header(95.0), **fields)


def probe(
    name: str, index: int = 0, values: Mapping[str, float | None] | None = None, **changes: Any
):
    fields: dict[str, Any] = {
        "device": f"GPU-{index:04}",
        "probe": name,
        "values": dict(PROBES[name] if values is None else values),
        "clock_event_mask": 0,
        **changes,
    }
    return events.ProbeResult(**header(96.0), **fields)


def healthy(
    index: int = 0,
    board: Mapping[str, Any] = H100,
    *,
    scale: float = 1.0,
    burst: Mapping[str, Any] | None = None,
    reading: Mapping[str, Any] | None = None,
) -> list[events.AnyEvent]:
    """A measured GPU; its rates times `scale`, its bursts and samples with changes."""
    device = identity(index, board)
    burst = burst or {}
    return [
        device,
        ceilings.for_device(device),
        *(sample(index, seconds, **(reading or {})) for seconds in (97.5, 98.0, 98.5, 99.0)),
        events.Processes(**header(), device=device.device, entries=()),
        events.ProberReady(
            **header(),
            device=device.device,
            torch_version="2.13.0",
            python="/usr/bin/python3",
            sm_count=board.get("sm_count"),
            memory_total_bytes=board["memory_total_bytes"],
            l2_bytes=50 * 2**20,
        ),
        *(rate(key, tera * scale, index, **burst) for key, tera in H100_TERA.items()),
        events.ProbeUnsupported(
            **header(), device=device.device, precision="fp4", reason="no FP4 Tensor Cores"
        ),
        *(probe(name, index) for name in PROBES),
    ]


def node(*groups: Any) -> State:
    """Fold events, or lists of them, in order."""
    state = State()
    state.apply(host(), 0.0)
    for group in groups:
        for event in group if isinstance(group, list) else [group]:
            state.apply(event, event.monotonic)
    return state


def check(
    state: State,
    *only: str,
    seen: Mapping[str, Observed] | None = None,
    quick: bool = False,
) -> tuple[events.CheckResult, ...]:
    return judge(state, MOMENT, select(only, quick=quick), seen)


def one(state: State, name: str, index: int = 0, **more: Any) -> events.CheckResult:
    """The result of one check on one GPU."""
    found = [
        result
        for result in check(state, name, **more)
        if result.check == name and result.device in (f"GPU-{index:04}", None, "cpu")
    ]
    assert len(found) == 1, found
    return found[0]


def states(results: tuple[events.CheckResult, ...], name: str) -> list[str]:
    return [result.state for result in results if result.check == name]
