"""Machines to export: a state from events by hand, and what a scrape of it holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from topsmon import events
from topsmon.exporters.prometheus import Exported, families, registry_of
from topsmon.state import State

WALL, NOW = 1_700_000_000.0, 100.0
GPU = "GPU-00000000-0000-0000-0000-000000000001"
RUN = "1699999500-4711-0"
LABELS = {"uuid": GPU, "gpu": "3"}

Series = tuple[str, tuple[tuple[str, str], ...]]


def stamp(seconds: float = NOW) -> dict[str, Any]:
    return {"time": WALL - NOW + seconds, "monotonic": seconds, "source": "node7"}


def gpu(**changes: Any) -> events.Device:
    fields: dict[str, Any] = {
        "device": GPU,
        "kind": "gpu",
        "index": 3,
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": GPU,
        "pci_bus_id": "00000000:1B:00.0",
        "compute_capability": "9.0",
        "architecture": "Hopper",
    }
    return events.Device(**stamp(), **{**fields, **changes})


def host() -> events.Host:
    return events.Host(
        **stamp(),
        hostname="node7",
        system="Linux",
        cpu_name="EPYC",
        memory_total_bytes=2**38,
        driver_version="580.95.05",
        cuda_version="13.0",
    )


def sample(seconds: float = NOW, **readings: Any) -> events.DeviceSample:
    return events.DeviceSample(**stamp(seconds), device=GPU, **readings)


def rate(precision: str = "bf16", value: float | None = 612e12, **more: Any) -> events.RateMeasured:
    return events.RateMeasured(
        **stamp(), device=GPU, precision=precision, rate_ops_per_second=value, **more
    )


def ceilings() -> events.Ceilings:
    bf16 = events.Ceiling(
        precision="bf16",
        ops_per_second=989.4e12,
        origin="published",
        source="NVIDIA",
        ops_per_clock=540672.0,
    )
    return events.Ceilings(
        **stamp(),
        device=GPU,
        board="h100-sxm",
        rates=(bf16,),
        memory_bandwidth_bytes_per_second=3.352e12,
    )


def run(key: str = RUN, **changes: Any) -> events.Run:
    fields: dict[str, Any] = {
        "run": key,
        "pid": 4711,
        "hostname": "node7",
        "started": WALL - 500.0,
        "command": "python /home/ada/train.py --amp",
        "rank": 0,
        "device_uuid": GPU,
        "scaler": events.Scaler(kind="torch.amp.GradScaler", init_scale=65536.0),
        "flops_per_step": 2e14,
        "flops_source": "given",
    }
    return events.Run(**stamp(), **{**fields, **changes})


def run_sample(key: str = RUN, **changes: Any) -> events.RunSample:
    fields: dict[str, Any] = {
        "run": key,
        "step": 1000,
        "stepped_at": WALL - 1.0,
        "loss": 2.5,
        "loss_finite": True,
        "scale": 32768.0,
        "skip_streak": 1,
        "autocast": "bf16",
        "window": events.RunWindow(steps=200, step_seconds=0.5, mean_step_seconds=0.5),
        "totals": events.RunTotals(
            steps=1000, skipped=3, growths=1, backoffs=3, nonfinite_losses=2, tokens=8_192_000.0
        ),
    }
    return events.RunSample(**stamp(), **{**fields, **changes})


def status(condition: events.RunCondition, key: str = RUN, since: float = WALL) -> events.RunStatus:
    return events.RunStatus(**stamp(), run=key, condition=condition, since=since)


def state(*more: events.AnyEvent, seen: float = NOW) -> State:
    """A machine with one GPU, and what else is told of it; everything arrived at `seen`."""
    made = State()
    made.interval = 1.0
    for event in (host(), gpu(), *more):
        made.apply(event, seen)
    return made


def scrape(made: State | Exported, now: float = NOW) -> dict[Series, float]:
    """Every series of a scrape of the text format, by name and labels."""
    exported = made if isinstance(made, Exported) else Exported(made)
    text = generate_latest(registry_of(lambda: families(exported, now))).decode()
    found: dict[Series, float] = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            key = (one.name, tuple(sorted(one.labels.items())))
            assert key not in found, f"{key} twice: Prometheus would refuse the scrape"
            found[key] = one.value
    return found


def named(series: dict[Series, float], name: str) -> dict[tuple[tuple[str, str], ...], float]:
    """The series of one name by their labels."""
    return {labels: value for (other, labels), value in series.items() if other == name}


def value(series: dict[Series, float], name: str, **labels: str) -> float | None:
    """The value of one series on the GPU, None where it is absent."""
    return series.get((name, tuple(sorted({**LABELS, **labels}.items()))))


def names(series: Iterable[Series]) -> set[str]:
    return {name for name, _ in series}
