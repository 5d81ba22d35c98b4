"""Devices for the roofline tests, from events. Figures of the H100 SXM are those of its data sheet:
989.4 TFLOPS dense BF16, 66.9 TFLOPS FP32; its memory: 2619 MHz x 2 x 5120 bit / 8 = 3352 GB/s."""

from __future__ import annotations

from typing import Any

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.state import State

GPU = "GPU-0"
H100_BF16, H100_FP32, H100_INT8, H100_MEMORY = 989.4e12, 66.9e12, 1978.9e12, 3.352e12
STAMP: dict[str, Any] = {"time": 1.0, "monotonic": 1.0, "source": "here"}


def ceiling(precision: str, rate: float, clock: float | None = 1830.0, **changes: Any):
    values: dict[str, Any] = {
        "precision": precision,
        "ops_per_second": rate,
        "origin": "published",
        "source": "data sheet",
        "rated_clock_mhz": clock,
        "ops_per_clock": None if clock is None else rate / clock / 1e6,
    }
    return events.Ceiling(**{**values, **changes})


def rate(precision: str, value: float | None, shape=(8192, 8192, 8192), device=GPU, **changes: Any):
    values: dict[str, Any] = {"correct": True, "held_clock_mhz": 1755.0}
    return events.RateMeasured(
        **STAMP,
        device=device,
        precision=precision,
        rate_ops_per_second=value,
        shape=shape,
        **{**values, **changes},
    )


def probe(name: str, values: dict[str, float | None], device: str = GPU, **changes: Any):
    return events.ProbeResult(**STAMP, device=device, probe=name, values=values, **changes)


def device(*more: events.AnyEvent, kind: str = "gpu", ceilings: events.Ceilings | None = None):
    """A device that has seen these events."""
    key = GPU if kind == "gpu" else "cpu"
    state = State()
    state.apply(
        events.Device(**STAMP, device=key, kind=kind, index=0, name="NVIDIA H100 80GB HBM3"), 0.0
    )
    if ceilings is not None:
        state.apply(ceilings, 0.0)
    for event in more:
        state.apply(event, 0.0)
    return state.devices[key]


def h100(*more: events.AnyEvent, **changes: Any) -> DeviceState:
    values: dict[str, Any] = {
        "rates": (
            ceiling("bf16", H100_BF16),
            ceiling("fp32", H100_FP32),
            ceiling("int8", H100_INT8),
        ),
        "memory_bandwidth_bytes_per_second": H100_MEMORY,
        "memory_bandwidth_source": "data sheet",
    }
    return device(*more, ceilings=events.Ceilings(**STAMP, device=GPU, **{**values, **changes}))


def measured_h100() -> DeviceState:
    """An H100 with everything that a roofline can show."""
    return h100(
        rate("bf16", 735e12),
        rate("bf16", 520e12, (2048, 2048, 2048)),
        rate("bf16", 90e12, (8192, 64, 8192)),
        rate("fp32", 52e12),
        rate("int8", 1429e12),
        probe("memory", {"copy_bytes_per_second": 2.90e12, "triad_bytes_per_second": 3.02e12}),
        probe("cache", {"l2_bytes_per_second": 6.1e12}),
        probe(
            "convolution",
            {"rate_ops_per_second": 310e12, "intensity_flops_per_byte": 402.0},
            labels={"precision": "bf16"},
        ),
        probe("attention_decode", {"rate_ops_per_second": 2.6e12, "intensity_flops_per_byte": 1.0}),
    )


def processor(*more: events.AnyEvent, **changes: Any) -> DeviceState:
    """A CPU of 199 GFLOPS, as all CPUs without a rated bandwidth."""
    values: dict[str, Any] = {
        "rates": (ceiling("fp32", 199e9, 3100.0), ceiling("fp64", 99.5e9, 3100.0)),
        "memory_bandwidth_source": "none: the memory channels cannot be read",
    }
    return device(
        *more, kind="cpu", ceilings=events.Ceilings(**STAMP, device="cpu", **{**values, **changes})
    )
