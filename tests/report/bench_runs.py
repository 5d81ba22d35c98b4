"""Benchmarks for the tests: machines as poller and prober describe them, and plain documents."""

from __future__ import annotations

from typing import Any

from topsmon import ceilings, events
from topsmon.report.bench import model
from topsmon.state import State

WALL = 1_700_000_000.0
STAMP: dict[str, Any] = {"time": WALL, "monotonic": 1.0, "source": "node"}
CUBE, SMALL, LONG = (8192,) * 3, (4096,) * 3, (2048, 2048, 13312)
METHOD = "torch.mm, random normal inputs, median of 200 calls timed by CUDA events"

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
UNKNOWN = {**H100, "name": "NVIDIA FutureCard X1", "pci_device_id": "FFFE", "sm_count": None}
UNKNOWN |= {"pci_subsystem_id": None, "compute_capability": "99.0"}


def gpu(board: dict[str, Any], index: int = 0) -> list[events.AnyEvent]:
    key = f"GPU-{index}"
    device = events.Device(**STAMP, device=key, kind="gpu", index=index, uuid=key, **board)
    ready = events.ProberReady(**STAMP, device=key, torch_version="2.7.1", python="python3")
    limit = board["power_limit_default_watts"]
    sample = events.DeviceSample(
        **STAMP, device=key, power_limit_watts=limit, temperature_celsius=62.0
    )
    return [device, ceilings.for_device(device), ready, sample]


def cpu() -> list[events.AnyEvent]:
    device = events.Device(**STAMP, device="cpu", kind="cpu", index=0, name="AMD EPYC 7543")
    # 2 cores x 32 FP32 operations a clock x 3.1 GHz
    ceiling = events.Ceiling(
        precision="fp32",
        ops_per_second=198.4e9,
        origin="computed",
        source="2 cores x 32 ops a clock",
        ops_per_clock=64.0,
        rated_clock_mhz=3100.0,
    )
    ready = events.ProberReady(
        **STAMP, device="cpu", torch_version="2.13.0+cpu", python="python3", threads=2
    )
    rates = events.Ceilings(
        **STAMP, device="cpu", rates=(ceiling,), absent={"bf16": "AVX2 has no BF16 products"}
    )
    return [device, rates, ready]


def rate(precision: str, tera: float | None, **changes: Any) -> events.RateMeasured:
    """A burst whose quartiles are 0.3 % below and above the median."""
    ops = None if tera is None else tera * 1e12
    fields: dict[str, Any] = {
        "device": "GPU-0",
        "precision": precision,
        "rate_ops_per_second": ops,
        "rate_low_ops_per_second": None if ops is None else 0.997 * ops,
        "rate_high_ops_per_second": None if ops is None else 1.003 * ops,
        "calls": 200,
        "shape": CUBE,
        "burst_seconds": 0.25,
        "correct": True,
        "relative_error": 2.1e-4,
        "error_limit": 2e-3,
        "method": METHOD,
        "torch_version": "2.7.1",
    }
    return events.RateMeasured(**STAMP, **{**fields, **changes})


def probe(name: str, values: dict[str, float | None], **changes: Any) -> events.ProbeResult:
    fields: dict[str, Any] = {"device": "GPU-0", "correct": True, **changes}
    return events.ProbeResult(**STAMP, probe=name, values=values, **fields)


def refused(key: str, reason: str) -> events.ProbeUnsupported:
    return events.ProbeUnsupported(**STAMP, device="GPU-0", precision=key, reason=reason)


def state(*groups: Any) -> State:
    """Fold events or lists of them."""
    found = State()
    host = events.Host(
        **STAMP, hostname="node17", system="Linux", driver_version="570.86", cuda_version="12.8"
    )
    for group in (host, *groups):
        for event in group if isinstance(group, list) else [group]:
            found.apply(event, 1.0)
    return found


# Documents ----------------------------------------------------------------------------------------


def burst(ops: float | None, iqr: float | None = 0.006, **changes: Any) -> model.Burst:
    """A burst with quartiles half of `iqr` below and above the median."""
    known = ops is not None and iqr is not None
    fields: dict[str, Any] = {
        "shape": CUBE,
        "rate_low_ops_per_second": ops * (1 - iqr / 2) if known else None,
        "rate_high_ops_per_second": ops * (1 + iqr / 2) if known else None,
        "calls": 200,
        "correct": True,
    }
    return model.Burst(rate_ops_per_second=ops, **{**fields, **changes})


def precision(key: str, *bursts: model.Burst, **changes: Any) -> model.PrecisionResult:
    best = max(bursts, key=lambda one: one.rate_ops_per_second or 0.0)
    fields: dict[str, Any] = {"label": key.upper(), "unit": "TFLOPS", "best": best}
    return model.PrecisionResult(precision=key, bursts=bursts, **{**fields, **changes})


def device(*precisions: model.PrecisionResult, **changes: Any) -> model.BenchDevice:
    fields: dict[str, Any] = {
        "device": "GPU-0",
        "kind": "gpu",
        "index": 0,
        "label": "GPU 0",
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": "GPU-0",
    }
    return model.BenchDevice(precisions=precisions, **{**fields, **changes})


def run(*devices: model.BenchDevice, **changes: Any) -> model.BenchDocument:
    fields: dict[str, Any] = {
        "schema_version": 1,
        "topsmon_version": "0.1.0",
        "time_unix_seconds": WALL,
        "driver_version": "570.86",
        **changes,
    }
    return model.BenchDocument(devices=devices, **fields)
