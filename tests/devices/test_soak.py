"""An hour at 1 Hz in half a minute of polling: neither memory nor descriptors grow."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from topsmon.simulated import SimulationError, prepare

pytestmark = pytest.mark.real

SCRIPT = r"""
import json, os, sys, threading, time
from pathlib import Path
from topsmon import events
from topsmon.devices import gpu as gpus, host, nvml
from topsmon.devices.gpu import Gpu
from topsmon.devices.process_lookup import own_family
from topsmon.devices.processes import ProcessTable
from topsmon.devices.startup import load_binding
from topsmon.state import State

clock_file, ticks = Path(sys.argv[1]), int(sys.argv[2])
now = 0.0
facts = host.read_facts()
driver = nvml.Driver(load_binding())
watch = nvml.Watch()
assert not isinstance(driver.call(watch, "nvmlInit"), nvml.Unavailable)
table = ProcessTable(own_family(child_of_screen=False))
devices = [
    Gpu(driver, watch, index, facts, table, clock=lambda: now, sleep=lambda _seconds: None)
    for index in range(2)
]
state = State()
for device in devices:
    device.acquire()
    device.key = device.find().uuid
    state.apply(device.identity(), now)


def usage():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "resident": pages * os.sysconf("SC_PAGESIZE"),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
    }


told = []
for tick in range(ticks):
    now += 1.0
    clock_file.write_text(f"{now}\n")
    for device in devices:
        state.apply(device.sample(now, counters=True), now)
        processes = device.processes(now)
        if processes is not None:
            state.apply(processes, now)
    if tick in (ticks // 3, ticks - 1):
        told.append(usage())
print(json.dumps(told))
"""


def test_an_hour_changes_nothing(tmp_path: Path) -> None:
    try:
        environment = prepare("h100-loaded", tmp_path / "build")
    except SimulationError as error:
        pytest.skip(str(error))
    clock = tmp_path / "clock"
    clock.write_text("0\n")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(clock), "3600"],
        env={**os.environ, **environment, "TOPSMON_SIMULATED_CLOCK": str(clock)},
        capture_output=True,
        check=False,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr.decode()
    early, late = json.loads(done.stdout)
    assert late["descriptors"] == early["descriptors"]
    assert late["threads"] == early["threads"]
    # The histories are full long before a third; an allocator may still round up by a little.
    assert late["resident"] - early["resident"] < 1 << 20
