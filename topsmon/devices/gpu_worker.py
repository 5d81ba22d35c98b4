"""One daemon thread per GPU: finds it, samples it, reports what becomes of it.

The driver sees at most one call per GPU at a time. A call that does not return costs this thread
alone; the watchdog, in another thread, says so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from topsmon import ceilings, events
from topsmon.devices import nvml
from topsmon.devices.host import ROOT, HostFacts, shown_root
from topsmon.devices.pace import Pace
from topsmon.devices.power_state import is_asleep
from topsmon.devices.processes import ProcessTable
from topsmon.devices.selection import Found, Selection

if TYPE_CHECKING:
    from topsmon.devices.xid_events import XidEvents

EXIT_DRIVER_RELOADED = 75
"""The handles became void in mid-run: only a new process can go on."""
ASLEEP = "suspended to save power; not read, so as not to wake it"
REPEAT_SECONDS = 5.0
"""A stall is told again after this time, with its new duration."""


@dataclass(frozen=True)
class Setting:
    """What the threads of a poller share.

    A call that is out for `stall_seconds` is reported. A lost GPU is searched for every
    `search_seconds`, a driver that does not start tried again every `retry_seconds`, GPUs that all
    sleep are looked at every `asleep_seconds`. `claims` maps the UUID of each GPU to the index of
    the worker that has it: when a GPU leaves, the driver may give its index to another one.
    `only_index` is the one GPU to read, None for all.
    """

    emit: Callable[[events.AnyEvent], None]
    pace: Pace
    selection: Selection
    facts: HostFacts
    table: ProcessTable
    once: bool = False
    only_index: int | None = None
    stall_seconds: float = 5.0
    search_seconds: float = 10.0
    retry_seconds: float = 10.0
    asleep_seconds: float = 2.0
    root: Path = ROOT
    claims: dict[str, int] = field(default_factory=dict)

    @property
    def pci_root(self) -> Path:
        """Root of the files that show PCI devices."""
        return shown_root() if self.root == ROOT else self.root


class GpuWorker:
    """`found` is known, and `resolved` set, once the GPU has told what it is or refused to."""

    def __init__(
        self,
        setting: Setting,
        driver: nvml.Driver,
        index: int,
        *,
        placeholder: bool = False,
        xids: XidEvents | None = None,
    ) -> None:
        """`placeholder`: the screen knows this GPU by its index already, so it keeps that key."""
        # Only where there is a GPU: a machine without one starts faster.
        from topsmon.devices.gpu import Gpu

        self.found = Found(index, None)
        self.resolved = threading.Event()
        self.watch = nvml.Watch(self._answered)
        self.thread = threading.Thread(target=self._run, name=f"gpu-{index}", daemon=True)
        self._setting = setting
        self._xids = xids
        self._gpu = Gpu(driver, self.watch, index, setting.facts, setting.table, setting.pci_root)
        self._lock = threading.RLock()
        self._announced = placeholder
        self._wanted = True
        self._condition: tuple[events.DeviceCondition, str] | None = None
        self._since = 0.0
        self._before_stall: tuple[events.DeviceCondition, str] = ("ok", "")
        self._stall_told = float("-inf")

    @property
    def asleep(self) -> bool:
        """True while the GPU is suspended."""
        condition = self._condition
        return condition is not None and condition[0] == "asleep"

    # The thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._setting.pace.ending:
                self._live()
                if self._setting.once or not self._wanted:
                    return
                self._setting.pace.sleep(self._setting.search_seconds)
        except nvml.DriverGoneError as gone:
            if self._announced:
                self._report("error", gone.answer.reason)
            if not self._setting.once:
                self._setting.pace.leave(EXIT_DRIVER_RELOADED)
        finally:
            self.resolved.set()

    def _live(self) -> None:
        """Find the GPU and sample it until it is lost or the poller ends."""
        try:
            if self._find():
                self._poll()
        except nvml.GpuLostError as lost:
            self._lose("lost", str(lost))
        except nvml.HandleRefusedError as refused:
            condition: events.DeviceCondition = (
                "error" if refused.answer.kind == "permission" else "lost"
            )
            self._lose(condition, refused.answer.reason)
        except nvml.DriverGoneError:
            raise
        except Exception as error:  # noqa: BLE001 - one GPU's surprise must not end in silence
            self._lose("error", f"topsmon cannot read this GPU: {type(error).__name__}: {error}")
        finally:
            self.resolved.set()

    def _find(self) -> bool:
        """Get a handle and tell who the GPU is. False if it is not wanted."""
        self._gpu.acquire()
        self.found = self._gpu.find()
        self._claim()
        with self._lock:
            if not self._announced and self.found.uuid is not None:
                self._gpu.key = self.found.uuid
        self.resolved.set()
        self._wanted = self._setting.selection.wants(self.found)
        if not self._wanted:
            return False
        self._introduce()
        self._report("ok", "")
        return True

    def _claim(self) -> None:
        """Refuse a handle that another worker has under another index."""
        uuid, index = self.found.uuid, self._gpu.index
        if uuid is not None and self._setting.claims.setdefault(uuid, index) != index:
            self._gpu.uuid = None
            self.found = Found(index, None)
            raise nvml.HandleRefusedError(
                nvml.Unavailable(
                    f"GPU not found: the driver gives index {index} to another GPU now",
                    nvml.GPU_NOT_FOUND,
                    "lost",
                )
            )

    def _introduce(self) -> None:
        """Tell who the GPU is and what it could do."""
        identity = self._gpu.identity()
        reason = self._listen()
        if reason is not None:
            reasons = {**identity.unavailable, "xid": reason}
            identity = msgspec.structs.replace(identity, unavailable=reasons)
        self._announced = True
        self._setting.emit(identity)
        self._setting.emit(ceilings.for_device(identity))

    def _listen(self) -> str | None:
        """Ask for the GPU's XID errors; return why they will not be told."""
        if self._xids is None:
            return None
        gpu = self._gpu
        answer = self._xids.register(self.watch, gpu.reader.handle, gpu.key, gpu.stamp()["source"])
        return None if answer is None else answer.reason

    def _poll(self) -> None:
        pace = self._setting.pace
        tick = time.monotonic()
        while True:
            if not pace.paused and not self._sleeps():
                self._read(time.monotonic())
            if self._setting.once:
                return
            due = None
            while due is None:
                if pace.ending:
                    return
                due = pace.next_tick(tick)
            tick = due

    def _read(self, now: float) -> None:
        if self._gpu.mig_switched(now):
            self._introduce()
            self._setting.emit(events.Slices(**self._gpu.stamp(), device=self._gpu.key, slices=()))
        processes = self._gpu.processes(now)
        self._setting.emit(self._gpu.sample(now, counters=self._setting.pace.counters))
        slices = self._gpu.slices()
        for event in (slices, processes):
            if event is not None:
                self._setting.emit(event)

    def _sleeps(self) -> bool:
        """True while the GPU is suspended; then the driver must not be called at all."""
        if is_asleep(self._gpu.pci_bus_id, self._setting.pci_root):
            self._report("asleep", ASLEEP)
            return True
        self._report("ok", "")
        return False

    # Condition ------------------------------------------------------------------------------------

    def _lose(self, condition: events.DeviceCondition, detail: str) -> None:
        """Drop the handle. What the screen has never seen gets a row by its index."""
        self._gpu.drop()
        if self._announced or self._setting.selection.may_want(self.found):
            self._announce()
            self._report(condition, detail)
        else:
            self._wanted = self.found.uuid is None

    def _announce(self) -> None:
        with self._lock:
            if self._announced:
                return
            self._announced = True
            index = self._gpu.index
            self._setting.emit(
                events.Device(
                    **self._gpu.stamp(),
                    device=self._gpu.key,
                    kind="gpu",
                    index=index,
                    name=self.found.name or f"NVIDIA GPU {index} (name unknown)",
                    uuid=self.found.uuid,
                )
            )

    def _report(
        self, condition: events.DeviceCondition, detail: str, since: float | None = None
    ) -> None:
        """Emit a status event if the condition has changed."""
        with self._lock:
            if self._condition == (condition, detail):
                return
            if self._condition is None or self._condition[0] != condition:
                self._since = time.monotonic() if since is None else since
            self._condition = (condition, detail)
            self._setting.emit(
                events.DeviceStatus(
                    **self._gpu.stamp(),
                    device=self._gpu.key,
                    condition=condition,
                    detail=detail,
                    since=self._since,
                )
            )

    # The watchdog's side --------------------------------------------------------------------------

    def check(self, limit_seconds: float) -> None:
        """Report the driver's silence if a call has been out for longer than the limit."""
        self.watch.check(limit_seconds, self._stalled)

    def _stalled(self, function: str, since: float) -> None:
        now = time.monotonic()
        with self._lock:
            if not self._announced and not self._setting.selection.may_want(self.found):
                return
            self._announce()
            stalled = self._condition is not None and self._condition[0] == "stalled"
            if stalled and now - self._stall_told < REPEAT_SECONDS:
                return
            if not stalled:
                self._before_stall = self._condition or ("ok", "")
            self._stall_told = now
            detail = f"driver not answering: {function}, {now - since:.0f} s"
            self._report("stalled", detail, since)

    def _answered(self) -> None:
        with self._lock:
            if self._condition is not None and self._condition[0] == "stalled":
                self._report(*self._before_stall)
