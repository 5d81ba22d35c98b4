"""GPUs of the simulated driver, read through the real nvidia-ml-py at scenario times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from screen_demo import NOW, WALL, eight, host, stamp

from topsmon import ceilings, events
from topsmon.simulated import SimulationError, prepare, scenario, table
from topsmon.simulated.build import compiler
from topsmon.state import State

READ_GPU = Path(__file__).parent.parent / "devices" / "read_gpu.py"


def read(
    wanted: str | dict[str, Any], folder: Path, seconds: Sequence[float]
) -> list[events.AnyEvent]:
    """All that the poller tells of the first GPU of a scenario at these times."""
    try:
        compiler()
    except SimulationError as error:
        pytest.skip(f"no simulated driver: {error}")
    if isinstance(wanted, dict):
        path = folder / "given.json"
        path.write_text(json.dumps(wanted))
        wanted = str(path)
    variables = prepare(wanted, folder)
    table.write(scenario.load(wanted), folder / "table")
    table.set_clock(folder / "clock", seconds[0])
    for name in ("table", "clock", "log"):
        variables[f"TOPSMON_SIMULATED_{name.upper()}"] = str(folder / name)
    request = {
        "variables": variables,
        "folder": str(folder),
        "options": {"seconds": list(seconds), "counters": True},
    }
    done = subprocess.run(
        [sys.executable, str(READ_GPU)],
        input=json.dumps(request) + "\n",
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "0", (folder / "errors").read_text()
    decoder = events.LineDecoder()
    lines = (folder / "events").read_bytes().splitlines()
    return [event for line in lines if (event := decoder.decode(line)) is not None]


def machine(told: Sequence[events.AnyEvent]) -> State:
    """A machine whose last reading was just now."""
    state = State()
    state.interval = 1.0
    state.apply(host(), NOW)
    last = max(event.monotonic for event in told)
    for event in told:
        at = NOW + event.monotonic - last
        moved = msgspec.structs.replace(event, monotonic=at, time=WALL + at - NOW)
        state.apply(moved, at)
        if isinstance(event, events.Device):
            state.apply(ceilings.for_device(event), at)
    return state


MEMORY = {
    "graphics_active_ratio": 1.0,
    "sm_active_ratio": 0.97,
    "sm_occupancy_ratio": 0.71,
    "tensor_active_ratio": 0.23,
    "dram_active_ratio": 0.91,
    "fp64_active_ratio": 0.01,
    "fp32_active_ratio": 0.12,
    "fp16_active_ratio": 0.03,
    "integer_active_ratio": 0.1,
}


def bound_by_memory(count: int = 1, **changes: object) -> State:
    """GPUs whose counters were read four times: DRAM at 91 %."""
    state = eight(ticks=20, capped=None, count=count)
    for turn in range(4):
        for device in list(state.gpus()):
            assert device.sample is not None
            shares = {**MEMORY, "integer_active_ratio": 0.1 + turn / 1000, **changes}
            counters = events.GpuCounters(seconds=1.0, **shares)
            told = msgspec.structs.replace(
                device.sample, **stamp(at=NOW - 3 + turn), counters=counters
            )
            state.apply(told, NOW)
    return state
