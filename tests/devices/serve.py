"""A poller with short times, for the tests: options are a JSON object in the first argument."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import threading
from pathlib import Path

from topsmon.devices import gpu, host, mig, pipes, xid_events
from topsmon.devices.gpu_worker import Setting
from topsmon.devices.pace import Pace
from topsmon.devices.poller import Poller
from topsmon.devices.processes import Family, ProcessTable
from topsmon.devices.selection import select


def main() -> int:
    options = json.loads(sys.argv[1])
    pace = Pace(options.pop("interval", 0.1))
    only = tuple(options.pop("only", ()))
    visible = options.pop("only_visible", False)
    wsl = options.pop("wsl", False)
    total = options.pop("memory_total_bytes", None)
    foreign = options.pop("foreign_pids", False)
    gpu.PROCESS_SECONDS = options.pop("process_seconds", gpu.PROCESS_SECONDS)
    mig.LOOK_SECONDS = options.pop("mig_seconds", mig.LOOK_SECONDS)
    xid_events.WAIT_SECONDS = options.pop("wait_seconds", xid_events.WAIT_SECONDS)
    facts = dataclasses.replace(host.read_facts(), wsl=wsl, container=False)
    if total is not None:
        facts = dataclasses.replace(facts, memory_total_bytes=total)
    root = Path(options.pop("root", "/"))
    setting = Setting(
        emit=pipes.Writer(pace).emit,
        pace=pace,
        selection=select(only, visible, os.environ),
        facts=facts,
        table=ProcessTable(Family(os.getpid(), os.getppid()), foreign_pids=foreign),
        root=root,
        **options,
    )
    threading.Thread(target=pipes.obey, args=(pace,), daemon=True).start()
    poller = Poller(setting)
    code = poller.serve()
    poller.end()
    os._exit(code)


if __name__ == "__main__":
    main()
