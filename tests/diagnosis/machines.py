"""Machines to diagnose, built from events as a poller and a prober would send them."""

from __future__ import annotations

from typing import Any

from topsmon import ceilings, events
from topsmon.diagnosis import diagnose
from topsmon.state import State

NOW = 100.0
"""Local monotonic time at which everything is judged, unless said otherwise."""
WALL = 1_700_000_000.0

H100 = {
    "name": "NVIDIA H100 80GB HBM3",
    "pci_device_id": "2330",
    "pci_subsystem_id": "10DE:16C1",
    "compute_capability": "9.0",
    "sm_count": 132,
    "memory_total_bytes": 80 * 2**30,
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
    "sm_clock_max_mhz": 2100,
    "memory_clock_max_mhz": 9751,
    "power_limit_default_watts": 350.0,
    "power_limit_max_watts": 366.0,
}
RTX_5090 = {
    **H100,
    "name": "NVIDIA GeForce RTX 5090",
    "pci_device_id": "2B85",
    "pci_subsystem_id": None,
    "compute_capability": "12.0",
    "sm_count": 170,
    "sm_clock_max_mhz": 3090,
    "power_limit_default_watts": 575.0,
    "power_limit_max_watts": 600.0,
}
LAPTOP_4070 = {
    **H100,
    "name": "NVIDIA GeForce RTX 4070 Laptop GPU",
    "pci_device_id": "2820",
    "pci_subsystem_id": None,
    "compute_capability": "8.9",
    "sm_count": 36,
    "memory_total_bytes": 8 * 2**30,
    "sm_clock_max_mhz": 3105,
    "power_limit_default_watts": 80.0,
    "power_limit_max_watts": 105.0,
}
FUTURE_CARD = {
    **H100,
    "name": "NVIDIA FutureCard X1",
    "pci_device_id": "FFFE",
    "pci_subsystem_id": None,
    "compute_capability": "99.0",
    "sm_count": None,
}


def header(seconds: float) -> dict[str, Any]:
    return {"time": WALL + seconds, "monotonic": seconds, "source": "node"}


def gpu(index: int = 0, board: dict[str, Any] = H100, **changes: Any) -> list[events.AnyEvent]:
    """Identity and ceilings of a GPU whose key and UUID are GPU-<index>."""
    key = f"GPU-{index}"
    device = events.Device(
        **header(1.0),
        **{
            "device": key,
            "kind": "gpu",
            "index": index,
            "uuid": key,
            "pci_bus_id": f"00000000:{0x17 + index:02X}:00.0",
            **board,
            **changes,
        },
    )
    return [device, ceilings.for_device(device)]


def cpu(**changes: Any) -> events.Device:
    fields = {"device": "cpu", "kind": "cpu", "index": 0, "name": "AMD EPYC", **changes}
    return events.Device(**header(1.0), **fields)


def sample(seconds: float, index: int = 0, **changes: Any) -> events.DeviceSample:
    """A healthy H100 under load."""
    fields: dict[str, Any] = {
        "device": f"GPU-{index}",
        "busy_ratio": 0.9,
        "memory_busy_ratio": 0.4,
        "memory_used_bytes": 50 * 2**30,
        "memory_total_bytes": 80 * 2**30,
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
    }
    return events.DeviceSample(**header(seconds), **{**fields, **changes})


def samples(index: int = 0, count: int = 4, **changes: Any) -> list[events.AnyEvent]:
    """Equal samples at 2 Hz, the last just before NOW."""
    return [sample(NOW - 0.1 - 0.5 * back, index, **changes) for back in reversed(range(count))]


def rate(precision: str, tera: float | None, index: int = 0, **changes: Any) -> events.RateMeasured:
    fields: dict[str, Any] = {
        "device": f"GPU-{index}",
        "precision": precision,
        "rate_ops_per_second": None if tera is None else tera * 1e12,
        "shape": (4096, 4096, 4096),
        "correct": True,
        "relative_error": 1e-4,
        "error_limit": 1e-2,
        "held_clock_mhz": 1755.0,
        "clock_event_mask": 0,
        "power_watts": 640.0,
    }
    return events.RateMeasured(**header(NOW - 5), **{**fields, **changes})


def status(condition: str, since: float, seconds: float, index: int = 0, detail: str = "") -> Any:
    return events.DeviceStatus(
        **header(seconds),
        device=f"GPU-{index}",
        condition=condition,
        since=since,
        detail=detail,
    )


def processes(*entries: events.ProcessEntry, device: str = "GPU-0") -> events.Processes:
    return events.Processes(**header(NOW - 1), device=device, entries=entries)


TRAINING = events.ProcessEntry(
    pid=4711, command="python train.py", memory_bytes=40 * 2**30, cpu_cores=1.5
)


def machine(*groups: Any) -> State:
    """Fold events (or lists of them); each arrives at its own monotonic time."""
    state = State()
    for group in groups:
        for event in group if isinstance(group, list) else [group]:
            state.apply(event, event.monotonic)
    return state


def codes(state: State, now: float = NOW) -> list[str]:
    return [finding.code for finding in diagnose(state, now)]


def only(state: State, now: float = NOW) -> events.Finding:
    """The one finding that there must be."""
    findings = diagnose(state, now)
    assert len(findings) == 1, [(finding.code, finding.title) for finding in findings]
    return findings[0]


def titles(state: State, now: float = NOW) -> list[str]:
    return [finding.title for finding in diagnose(state, now)]
