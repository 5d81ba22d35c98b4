"""An invented machine with two GPUs and a training run, as events; and states as plain values."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable
from typing import Any

import msgspec

from topsmon import events
from topsmon.state import State

START = 5_000.0
WALL = 1_780_000_000.0
UUIDS = ("GPU-11111111-2222-3333-4444-555555555555", "GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee")
SECRET_COMMAND = "/usr/bin/python3 train.py --token hunter2 --data /home/bob/private"
HOST = "node17.example"
RATE = 600e12
CEILING = 989.4e12


def at(seconds: float, source: str = HOST) -> dict[str, Any]:
    return {"time": WALL + seconds, "monotonic": START + seconds, "source": source}


def identities() -> list[events.AnyEvent]:
    found: list[events.AnyEvent] = [
        events.Hello(**at(0), version="0.1.0", schema=1, role="poller", pid=10),
        events.Host(
            **at(0), hostname=HOST, system="Linux 6.1", cpu_name="EPYC", driver_version="580.65.06"
        ),
    ]
    for index, uuid in enumerate(UUIDS):
        found += [
            events.Device(
                **at(0, f"{HOST}/{uuid}"),
                device=uuid,
                kind="gpu",
                index=index,
                name="NVIDIA H100 80GB HBM3",
                uuid=uuid,
                pci_bus_id=f"00000000:0{index}:00.0",
            ),
            events.Ceilings(
                **at(0, f"{HOST}/{uuid}"),
                device=uuid,
                rates=(
                    events.Ceiling(
                        precision="bf16", ops_per_second=CEILING, origin="published", source="sheet"
                    ),
                ),
            ),
            events.DeviceStatus(**at(0), device=uuid, condition="ok", since=START),
        ]
    return found


def sample(seconds: float, device: str, **values: Any) -> events.DeviceSample:
    defaults = {
        "busy_ratio": 0.5,
        "memory_used_bytes": 10 << 30,
        "memory_total_bytes": 80 << 30,
        "power_watts": 300.0 + seconds,
        "power_limit_watts": 700.0,
        "temperature_celsius": 60.0,
        "sm_clock_mhz": 1980.0,
        "clock_event_mask": 0,
    }
    return events.DeviceSample(**at(seconds), device=device, **{**defaults, **values})


def rate(seconds: float, device: str, value: float, **values: Any) -> events.RateMeasured:
    return events.RateMeasured(
        **at(seconds),
        device=device,
        precision="bf16",
        rate_ops_per_second=value,
        shape=(8192, 8192, 8192),
        correct=True,
        burst_seconds=0.2,
        **values,
    )


def run_sample(seconds: float, step: int, scale: float) -> events.RunSample:
    return events.RunSample(
        **at(seconds),
        run="r-1",
        step=step,
        stepped_at=WALL + seconds,
        loss=1.0 / step,
        loss_finite=True,
        scale=scale,
        window=events.RunWindow(steps=step, step_seconds=0.1),
        totals=events.RunTotals(steps=step, scale_lowest=scale, scale_highest=65536.0),
    )


def stream(seconds: int = 60) -> list[events.AnyEvent]:
    """`seconds` of two GPUs at 1 Hz; GPU 1 is lost from the middle on; a run trains on GPU 0."""
    found = identities()
    found += [
        events.Run(
            **at(0.1),
            run="r-1",
            pid=77,
            hostname=HOST,
            started=WALL - 5,
            command=SECRET_COMMAND,
            device_uuid=UUIDS[0],
        ),
        events.Processes(
            **at(0.2),
            device=UUIDS[0],
            entries=(
                events.ProcessEntry(pid=77, name="python3", user="bob", command=SECRET_COMMAND),
            ),
        ),
    ]
    middle = seconds // 2
    for second in range(1, seconds):
        found.append(events.HostSample(**at(second), cpu_busy_ratio=0.25))
        found.append(sample(second, UUIDS[0]))
        if second < middle:
            found.append(sample(second + 0.01, UUIDS[1], busy_ratio=0.0))
        elif second == middle:
            found.append(
                events.DeviceStatus(
                    **at(second), device=UUIDS[1], condition="lost", since=START + second
                )
            )
        found.append(run_sample(second + 0.02, second * 10, 65536.0 if second < 20 else 32768.0))
        if second % 10 == 0:
            found.append(rate(second + 0.5, UUIDS[0], RATE + second * 1e11))
            found.append(
                events.RunEvent(
                    **at(second + 0.6),
                    run="r-1",
                    number=second // 10,
                    kind="skip",
                    step=second * 10,
                )
            )
            found.append(
                events.RunHistory(
                    **at(second + 0.7),
                    run="r-1",
                    stride=10,
                    buckets=tuple(
                        events.HistoryBucket(
                            first_step=1 + 10 * place,
                            steps=10,
                            skipped=1,
                            scale_lowest=32768.0,
                            scale_highest=65536.0,
                            loss_mean=1.0 / (1 + place),
                        )
                        for place in range(second)
                    ),
                )
            )
    return sorted(found, key=lambda event: event.monotonic)


def fold(found: Iterable[events.AnyEvent]) -> State:
    state = State()
    for event in found:
        state.apply(event, event.monotonic)
    return state


def plain_values(value: Any) -> Any:
    """A state, or a part of it, as plain values that can be compared; without its version."""
    if isinstance(value, State):
        return {name: plain_values(item) for name, item in vars(value).items() if name != "version"}
    if dataclasses.is_dataclass(value):
        return {
            field.name: plain_values(getattr(value, field.name))
            for field in dataclasses.fields(value)
        }
    if isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value)
    if isinstance(value, dict):
        return {key: plain_values(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, deque)):
        return [plain_values(item) for item in value]
    return value
