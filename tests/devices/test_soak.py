"""An hour at 1 Hz in half a minute of polling: neither memory nor descriptors grow."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from topsmon.simulated import SimulationError, prepare

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

PROCESSES = [
    {"pid": 4000000 + n, "memory_mib": 10, "start": n, "end": n + 40} for n in range(0, 3600, 12)
]
"""Each lives for 40 s; none is a process of this machine."""
SCENARIO = {
    "title": "Soak",
    "description": "Two H100s, the second one in MIG mode now and then; processes come and go",
    "expected": "SHARED",
    "extends": "h100-8",
    "count": 2,
    "devices": {
        "0": {"processes": PROCESSES},
        "1": {"mig_mode": {"steps": [[n, n // 60 % 2] for n in range(0, 3600, 60)][:15]}},
        "2": {
            "parent": 1, "name": "MIG 3g.40gb", "sm_count": 60, "gpu_instance": 1,
            "compute_instance": 0, "memory_total_mib": 40320, "memory_used_mib": 20214,
        },
    },
}  # fmt: skip

SCRIPT = r"""
import gc, json, os, sys, threading, time
from pathlib import Path
from topsmon import events
from topsmon.devices import host, nvml
from topsmon.devices.cpu import CpuMonitor
from topsmon.devices.gpu import Gpu
from topsmon.devices.process_lookup import own_family
from topsmon.devices.processes import ProcessTable
from topsmon.devices.startup import load_binding
from topsmon.diagnosis import diagnose
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
decoder = events.LineDecoder()


def fold(event):
    # As it comes to the screen: through a line of JSON.
    if event is not None:
        state.apply(decoder.decode(events.encode(event)), now)


cpu = CpuMonitor(facts, table)
fold(cpu.identity())
cpu.prime()
for device in devices:
    device.acquire()
    device.key = device.find().uuid
    fold(device.identity())


def usage():
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "resident": pages * os.sysconf("SC_PAGESIZE"),
        "objects": sys.getallocatedblocks(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "gpus": len(list(state.gpus())),
    }


told = []
for tick in range(ticks):
    now += 1.0
    clock_file.write_text(f"{now}\n")
    for device in devices:
        if device.mig_switched(now):
            fold(device.identity())
        fold(device.processes(now))
        fold(device.sample(now, counters=True))
        fold(device.slices())
    for event in cpu.sample():
        fold(event)
    diagnose(state, now)
    if tick % 300 == 299:
        told.append(usage())
print(json.dumps(told))
"""


def test_an_hour_changes_nothing(tmp_path: Path) -> None:
    try:
        path = tmp_path / "soak.json"
        path.write_text(json.dumps(SCENARIO))
        environment = prepare(str(path), tmp_path / "build")
    except SimulationError as error:
        pytest.skip(str(error))
    clock = tmp_path / "clock"
    clock.write_text("0\n")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(clock), "3600"],
        env={**os.environ, **environment, "TOPSMON_SIMULATED_CLOCK": str(clock)},
        capture_output=True,
        check=False,
        timeout=550,
    )
    assert done.returncode == 0, done.stderr.decode()
    told = json.loads(done.stdout)
    # The histories are full after 8 minutes.
    early, late = told[3], told[-1]
    assert late["gpus"] == 2
    # A look at processes may be under way at either moment.
    assert late["descriptors"] - early["descriptors"] < 5
    assert late["threads"] - early["threads"] < 5
    # 200 more processes were met, of each of which a name is kept; less than one object a tick.
    assert late["objects"] - early["objects"] < 2000
    assert late["resident"] - early["resident"] < 1 << 20
