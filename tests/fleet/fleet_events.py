"""Events of invented hosts, and fleets of them."""

from __future__ import annotations

from topsmon import events
from topsmon.fleet.state import FleetState

NOW = 1_000.0
WALL = 1_780_000_000.0
CEILING = 989.4e12


def stamp(host: str, at: float = NOW) -> dict:
    return {"time": WALL + at, "monotonic": at + 50_000.0, "source": host}


def hello(host: str, role: str = "poller") -> events.Hello:
    return events.Hello(**stamp(host), version="1", schema=1, role=role, pid=7)


def gpu(host: str, index: int, name: str = "NVIDIA H100 80GB HBM3", **changes) -> events.Device:
    values = {"memory_total_bytes": 80 * 2**30, "sm_count": 132} | changes
    key = f"GPU-{host}-{index}"
    return events.Device(
        **stamp(host), device=key, kind="gpu", index=index, name=name, uuid=key, **values
    )


def cpu(host: str) -> events.Device:
    return events.Device(**stamp(host), device="cpu", kind="cpu", index=0, name="a processor")


def sample(host: str, index: int | str, **changes) -> events.DeviceSample:
    key = index if isinstance(index, str) else f"GPU-{host}-{index}"
    return events.DeviceSample(**stamp(host), device=key, **changes)


def ceilings(host: str, index: int, rate: float = CEILING) -> events.Ceilings:
    one = events.Ceiling(precision="bf16", ops_per_second=rate, origin="published", source="sheet")
    return events.Ceilings(
        **stamp(host), device=f"GPU-{host}-{index}", rates=(one,), absent={"fp4": "not on sm_90"}
    )


def rate(host: str, index: int, value: float | None, **changes) -> events.RateMeasured:
    values = {"shape": (8192, 8192, 8192), "correct": True, "precision": "bf16"} | changes
    return events.RateMeasured(
        **stamp(host), device=f"GPU-{host}-{index}", rate_ops_per_second=value, **values
    )


def status(host: str, index: int, condition: str, detail: str = "") -> events.DeviceStatus:
    return events.DeviceStatus(
        **stamp(host),
        device=f"GPU-{host}-{index}",
        condition=condition,
        detail=detail,
        since=NOW,
    )


def fleet_of(*found: events.AnyEvent, now: float = NOW) -> FleetState:
    """A fleet that has received these, each from the host in its source."""
    fleet = FleetState()
    for event in found:
        fleet.receive(event.source, event, now)
    return fleet
