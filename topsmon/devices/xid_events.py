"""Waits for XID errors of all GPUs in a thread of its own, which nobody waits for.

The workers register their handles; this thread only waits, so that a GPU that hangs while it is
registered costs its own worker. XID is NVIDIA's word for an error that the driver reports to the
kernel log.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

from topsmon import events
from topsmon.devices import nvml
from topsmon.devices.nvml import Unavailable
from topsmon.devices.pace import Pace
from topsmon.devices.stamp import stamp

XID_EVENT = 8
"""nvmlEventTypeXidCriticalError."""
WAIT_SECONDS = 2.0
REST_SECONDS = 1.0
"""Between two waits where the driver does not wait but answers at once."""


class XidEvents:
    """One event set for all GPUs. Only `_run` and what it calls belong to its own thread."""

    def __init__(
        self,
        driver: nvml.Driver,
        pace: Pace,
        emit: Callable[[events.AnyEvent], None],
        awake: Callable[[], bool],
    ) -> None:
        """`awake` is False while every GPU is suspended: then the driver is not called."""
        self.thread = threading.Thread(target=self._run, name="xid", daemon=True)
        self._driver = driver
        self._pace = pace
        self._emit = emit
        self._awake = awake
        self._set: Any = None
        self._refused: Unavailable | None = None
        self._keys: dict[object, tuple[str, str]] = {}
        self._starting = threading.Lock()
        self._started = False

    def open(self, watch: nvml.Watch) -> None:
        """Create the event set, in the thread that started the driver; may hang like that."""
        answer = self._driver.call(watch, "nvmlEventSetCreate")
        if isinstance(answer, Unavailable):
            self._refused = answer
        else:
            self._set = answer

    def register(self, watch: nvml.Watch, handle: Any, key: str, source: str) -> Unavailable | None:
        """Ask for the events of a device, in its own worker's thread; return why there are none."""
        if self._set is None:
            return self._refused or Unavailable("no event set")
        self._keys[_address(handle)] = key, source
        answer = self._driver.call(watch, "nvmlDeviceRegisterEvents", handle, XID_EVENT, self._set)
        if isinstance(answer, Unavailable):
            return answer
        self._start()
        return None

    def _start(self) -> None:
        """Start the thread once: several workers may come at the same time."""
        with self._starting:
            if not self._started:
                self._started = True
                self.thread.start()

    def _run(self) -> None:
        watch = nvml.Watch()
        while not self._pace.ending:
            if not self._awake():
                self._pace.sleep(REST_SECONDS)
                continue
            begun = time.monotonic()
            answer = self._driver.call(
                watch, "nvmlEventSetWait_v2", self._set, int(WAIT_SECONDS * 1000)
            )
            if not isinstance(answer, Unavailable):
                self._tell(watch, answer)
            elif answer.kind in {"unsupported", "permission", "restart"}:
                return
            elif time.monotonic() - begun < WAIT_SECONDS / 2:
                self._pace.sleep(REST_SECONDS)

    def _tell(self, watch: nvml.Watch, data: Any) -> None:
        if not data.eventType & XID_EVENT:
            return
        known = self._keys.get(_address(data.device))
        if known is None:
            uuid = self._driver.call(watch, "nvmlDeviceGetUUID", data.device)
            known = next((one for one in self._keys.values() if one[0] == uuid), None)
        if known is not None:
            key, source = known
            self._emit(events.Xid(**stamp(source), device=key, code=int(data.eventData)))


def _address(handle: Any) -> object:
    """Return what two copies of one handle have in common: the driver's own address."""
    try:
        return ctypes.cast(handle, ctypes.c_void_p).value
    except (ctypes.ArgumentError, TypeError):
        return handle
