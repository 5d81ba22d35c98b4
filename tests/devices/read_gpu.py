"""Reads one simulated GPU through the real nvidia-ml-py, at given scenario times: no time passes.

Each line of input is a request, carried out in a fork of its own, since a driver library stays
loaded: `variables` of the environment, `folder` for the files `events` and `errors`, and `options`:
`seconds`, a list of times; `counters`: read GPM; `facts` and `root` as the poller has them. The
fork's exit code is the answer.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any, BinaryIO

import pynvml  # noqa: F401 - once for all forks

from topsmon import events
from topsmon.devices import host, nvml, startup
from topsmon.devices.gpu import Gpu
from topsmon.devices.processes import Family, ProcessTable
from topsmon.simulated import table


class Clock:
    """The scenario's clock and the reader's are one."""

    def __init__(self) -> None:
        self.now = 0.0

    def set(self, seconds: float) -> None:
        self.now = seconds
        table.set_clock(Path(os.environ["TOPSMON_SIMULATED_CLOCK"]), seconds)

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.set(self.now + seconds)


def read(options: dict[str, Any], out: BinaryIO) -> None:
    facts = dataclasses.replace(
        host.read_facts(), wsl=False, container=False, **options.get("facts", {})
    )
    binding = startup.load_binding()
    driver = nvml.Driver(binding)
    watch = nvml.Watch()
    assert startup.initialise(driver, watch, container=False) is None
    clock = Clock()
    clock.set(options["seconds"][0])
    family = ProcessTable(Family(os.getpid(), os.getppid()), foreign_pids=False)
    root = Path(options.get("root", "/"))
    gpu = Gpu(driver, watch, 0, facts, family, root, clock=clock, sleep=clock.sleep)
    gpu.acquire()
    gpu.find()
    out.write(events.encode(gpu.identity()))
    counters = options.get("counters", True)
    for seconds in options["seconds"]:
        clock.set(seconds)
        try:
            if gpu.mig_switched(seconds):
                out.write(events.encode(gpu.identity()))
            out.write(events.encode(gpu.sample(seconds, counters=counters)))
        except (nvml.GpuLostError, nvml.HandleRefusedError) as error:
            print(f"lost: {error}", file=sys.stderr)
            break
        slices = gpu.slices()
        if slices is not None:
            out.write(events.encode(slices))


def carry_out(request: dict[str, Any]) -> int:
    """In the fork: load the driver of this request by its path, then it has its name."""
    os.environ.update(request["variables"])
    folder = Path(request["folder"])
    os.dup2(os.open(folder / "errors", os.O_WRONLY | os.O_CREAT), 2)
    library = os.environ["LD_LIBRARY_PATH"].partition(os.pathsep)[0]
    ctypes.CDLL(str(Path(library) / startup.LIBRARY))
    try:
        with (folder / "events").open("wb") as out:
            read(request["options"], out)
    except BaseException:  # noqa: BLE001 - told by the exit code
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os._exit(carry_out(json.loads(line)))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
