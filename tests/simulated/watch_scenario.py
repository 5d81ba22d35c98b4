"""Watches scenarios as the live screen does, at scenario times: no time passes; or takes snapshots.

Each line of input is a request, carried out in a fork of its own, since a driver library stays
loaded: `variables` of the environment, `folder` for the files `seen.json` and `errors`, `seconds`
to watch at 1 Hz. All GPUs are read through the real nvidia-ml-py and folded into one state. Without
`seconds` it is `topsmon --once --json`, and what that prints is the file `once.json`. The fork's
exit code is the answer.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import msgspec
import pynvml  # noqa: F401 - once for all forks

from topsmon import ceilings, cli, events
from topsmon.cli import screen  # noqa: F401 - this too, and the next two
from topsmon.devices import host, nvml, poller, startup  # noqa: F401
from topsmon.devices.gpu import Gpu
from topsmon.devices.processes import Family, ProcessTable
from topsmon.diagnosis import bound, device_word, diagnose
from topsmon.report import once  # noqa: F401
from topsmon.simulated import table
from topsmon.state import State
from topsmon.tui.device_rows import arrange
from topsmon.tui.view import View

WIDTH = 140


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


class Watcher:
    """Reads every GPU once a second and remembers each finding that there ever was."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.clock.set(0.0)
        self.state = State()
        self.state.interval = 1.0
        self.seen: dict[str, events.Finding] = {}
        facts = host.read_facts(host.shown_root())
        driver, watch = nvml.Driver(startup.load_binding()), nvml.Watch()
        assert startup.initialise(driver, watch, container=False) is None
        told = {"hostname": "box", "system": "Linux", "jetson": facts.jetson, "wsl": facts.wsl}
        self.apply(events.Host(time=0.0, monotonic=0.0, source="box", **told))
        processes = ProcessTable(Family(os.getpid(), os.getppid()), clock=self.clock)
        times: dict[str, Any] = {"clock": self.clock, "sleep": self.clock.sleep}
        root = host.shown_root()
        self.gpus = [
            Gpu(driver, watch, index, facts, processes, root, **times)
            for index in range(driver.call(watch, "nvmlDeviceGetCount"))
        ]

    def apply(self, event: events.AnyEvent | None) -> None:
        if event is not None:
            event = msgspec.structs.replace(event, monotonic=self.clock.now)
            self.state.apply(event, self.clock.now)

    def condition(self, gpu: Gpu, condition: events.DeviceCondition, detail: str = "") -> None:
        status = {"condition": condition, "detail": detail, "since": self.clock.now}
        self.apply(events.DeviceStatus(**gpu.stamp(), device=gpu.key, **status))

    def introduce(self, gpu: Gpu) -> None:
        identity = gpu.identity()
        self.apply(identity)
        self.apply(ceilings.for_device(identity))

    def look(self, gpu: Gpu) -> bool:
        """Read a GPU; False where it is lost."""
        try:
            self.read(gpu)
        except nvml.GpuLostError as lost:
            self.condition(gpu, "lost", str(lost))
            return False
        return True

    def read(self, gpu: Gpu) -> None:
        if gpu.mig_switched(self.clock.now):
            self.introduce(gpu)
        processes = gpu.processes(self.clock.now)
        self.apply(gpu.sample(self.clock.now, counters=True))
        self.apply(gpu.slices())
        self.apply(processes)

    def watch(self, seconds: int) -> None:
        living = list(self.gpus)
        for gpu in living:
            gpu.acquire()
            gpu.key = gpu.find().uuid or gpu.key
            self.introduce(gpu)
            self.condition(gpu, "ok")
        for second in range(seconds + 1):
            # No two ticks are exactly a second apart.
            self.clock.set(second + second % 7 / 1000)
            living = [gpu for gpu in living if self.look(gpu)]
            for finding in diagnose(self.state, self.clock.now):
                self.seen.setdefault(told(self.state, finding), finding)

    def report(self) -> dict[str, Any]:
        now = self.clock.now
        return {
            "words": {key: [one.severity, one.word] for key, one in self.seen.items()},
            "cards": cards(self.state, diagnose(self.state, now), now),
        }


def told(state: State, finding: events.Finding) -> str:
    device = state.devices.get(finding.device or "")
    return f"{device.label} {finding.code}" if device is not None else finding.code


def cards(
    state: State, findings: tuple[events.Finding, ...], now: float
) -> dict[str, dict[str, str]]:
    """What the row of each GPU says, by the heads of its columns, with what bounds it."""
    view = View(state, findings, now, 0.0, 1.0)
    devices = list(state.gpus())
    columns, _ = arrange(view, devices, WIDTH)
    return {
        str(device.identity.index): {
            "state": device_word(device, findings),
            "bound": bound.of_device(state, device, now).kind,
            **{one.head.strip(): one.cell(view, device).text.strip() for one in columns},
        }
        for device in devices
    }


def carry_out(request: dict[str, Any]) -> int:
    """In the fork: load the driver of this request by its path, then it has its name."""
    os.environ.update(request["variables"])
    folder = Path(request["folder"])
    os.dup2(os.open(folder / "errors", os.O_WRONLY | os.O_CREAT), 2)
    library = os.environ["LD_LIBRARY_PATH"].partition(os.pathsep)[0]
    ctypes.CDLL(str(Path(library) / startup.LIBRARY))
    try:
        if request["seconds"] is None:
            os.dup2(os.open(folder / "once.json", os.O_WRONLY | os.O_CREAT), 1)
            return cli.main(["--once", "--json"])
        watcher = Watcher()
        watcher.watch(request["seconds"])
        (folder / "seen.json").write_text(json.dumps(watcher.report()))
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
