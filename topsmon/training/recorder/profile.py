"""One step under torch.profiler, stored beside the ring: a Chrome trace and the hot operators.

The profiled step is slower, and torch's profiler waits for the device when it stops: it is only
done when asked for.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
from pathlib import Path
from typing import Any

from .tensors import torch_of_run

HOT = 15
NAMED = 5
"""Operators told in the event, which is small; the file has HOT of them."""
TRACE, OPERATORS = ".trace.json.gz", ".operators.json"


class StepProfile:
    """Profiles step N. `setting` is the number as text; not a number from 1 on: never."""

    def __init__(self, setting: str | None, ring_path: str) -> None:
        text = (setting or "").strip()
        self.step = int(text) if text.isdecimal() else 0
        self.wanted = self.step > 0
        self.trouble = False
        self._profiler: Any = None
        self.place(ring_path)

    def place(self, ring_path: str) -> None:
        """Put what comes of it beside this ring."""
        self._stem = Path(ring_path).with_suffix(f".step{self.step}")

    def at(self, step: int) -> tuple[str, tuple[str, ...], dict[str, float]] | None:
        """Tell that a step has ended (0: none has yet); once, what has come of the profile.

        The path of the trace, the hottest operators and their shares of all time; with `trouble`
        set, what went wrong instead of the path.
        """
        if not self.wanted:
            return None
        try:
            if self._profiler is not None:
                self.wanted = False
                return self._store()
            if step + 1 >= self.step:
                self._start(late=step + 1 > self.step)
        except Exception as error:  # noqa: BLE001  a profile must not end the run
            self.wanted, self.trouble, self._profiler = False, True, None
            return f"step {self.step} was not profiled: {error}", (), {}
        return None

    def _start(self, *, late: bool) -> None:
        torch = torch_of_run()
        if late:
            raise RuntimeError("the run had passed it")
        if torch.autograd._profiler_enabled():  # noqa: SLF001  torch has no public name for it
            raise RuntimeError("the run has a profiler of its own at work")
        profiler = importlib.import_module("torch.profiler")
        kinds = [profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            kinds.append(profiler.ProfilerActivity.CUDA)
        self._profiler = profiler.profile(activities=kinds)
        self._profiler.start()

    def _store(self) -> tuple[str, tuple[str, ...], dict[str, float]]:
        done, self._profiler = self._profiler, None
        done.stop()
        trace, table = f"{self._stem}{TRACE}", f"{self._stem}{OPERATORS}"
        document = hot_operators(done.key_averages(), self.step)
        _create(table, json.dumps(document).encode())
        _create(trace)
        try:
            done.export_chrome_trace(trace)
        except Exception:
            with contextlib.suppress(OSError):
                Path(trace).unlink()
            raise
        hottest = document["operators"][:NAMED]
        shares = {row["name"]: row["share"] for row in hottest if row["share"] is not None}
        return trace, tuple(row["name"] for row in hottest), shares


def hot_operators(averages: Any, step: int) -> dict[str, Any]:
    """The operators with most time of their own: on the device where there is any, else the CPU.

    Shares are of the time of all operators on that side. FLOPs are not known here.
    """
    rows = list(averages)
    on_device = any(getattr(row, "self_device_time_total", 0) > 0 for row in rows)
    kind = "self_device_time_total" if on_device else "self_cpu_time_total"
    times = [(float(getattr(row, kind)), row) for row in rows]
    total = sum(microseconds for microseconds, _ in times)
    times.sort(key=lambda pair: pair[0], reverse=True)
    return {
        "step": step,
        "side": "device" if on_device else "cpu",
        "total_seconds": total / 1e6,
        "operators": [
            {
                "name": str(row.key),
                "calls": int(row.count),
                "self_seconds": microseconds / 1e6,
                "share": microseconds / total if total else None,
                "flops": None,
            }
            for microseconds, row in times[:HOT]
        ],
    }


def _create(path: str, content: bytes = b"") -> None:
    """A new file that only its owner may read; FileExistsError rather than follow a link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
