"""Starts the driver in a thread of its own, and one worker for each GPU that it has."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from topsmon import events
from topsmon.devices import host, nvml, power_state, selection, startup
from topsmon.devices.gpu_worker import ASLEEP, GpuWorker, Setting
from topsmon.devices.stamp import stamp

if TYPE_CHECKING:
    from topsmon.devices.xid_events import XidEvents


class Gpus:
    """All GPUs of this machine. Everything but `_start` runs in the poller's main thread."""

    def __init__(
        self,
        setting: Setting,
        host_event: events.Host,
        counted: Callable[[int], None] | None = None,
    ) -> None:
        """`counted` is told the number of GPUs before any of them is asked for anything."""
        self.workers: list[GpuWorker] = []
        self.thread = threading.Thread(target=self._run, name="driver", daemon=True)
        self._setting = setting
        self._host = host_event
        self._watch = nvml.Watch(self._answered)
        self._enumerated = threading.Event()
        self._problem: str | None = None
        self._cause: str | None = None
        self._checked = False
        self._sleepers: set[int] = set()
        self._xids: XidEvents | None = None
        self._counted = counted

    @property
    def threads(self) -> list[threading.Thread]:
        """All threads that may be in the driver, as far as they run."""
        threads = [self.thread, *(worker.thread for worker in self.workers)]
        if self._xids is not None:
            threads.append(self._xids.thread)
        return [thread for thread in threads if thread.is_alive()]

    def join(self, deadline: float) -> None:
        """Wait for the threads to end, until the monotonic time `deadline` at the most."""
        self.thread.join(max(0.0, deadline - time.monotonic()))
        for thread in self.threads:  # some only run since the first has ended
            thread.join(max(0.0, deadline - time.monotonic()))

    # The driver's thread --------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._start()
        finally:
            self._enumerated.set()

    def _start(self) -> None:
        """Load and initialise NVML, again and again while that fails; then start the GPUs."""
        pace = self._setting.pace
        while not pace.ending:
            asleep = self._all_asleep()
            outcome = None if asleep else self._initialise()
            if isinstance(outcome, nvml.Driver):
                outcome = self._enumerate(outcome)
                if outcome is None:
                    return
            if outcome is not None:
                self._tell(outcome)
            self._enumerated.set()
            if self._setting.once:
                return
            pace.sleep(self._setting.asleep_seconds if asleep else self._setting.retry_seconds)

    def _all_asleep(self) -> bool:
        """True while every GPU is suspended: even to start the driver library would wake them."""
        if self._is_simulated():
            return False
        addresses = power_state.sleeping_gpus(self._setting.pci_root)
        for index, address in enumerate(addresses):
            if index not in self._sleepers:
                self._sleepers.add(index)
                self._emit_sleeper(index, address)
        return bool(addresses)

    def _is_simulated(self) -> bool:
        """True where sysfs says nothing: a simulated driver's GPUs are not there, others may be."""
        return "TOPSMON_SIMULATED" in os.environ and self._setting.pci_root == host.ROOT

    def _emit_sleeper(self, index: int, address: str) -> None:
        key = f"gpu-{index}"
        source = f"{self._setting.facts.hostname}/{key}"
        self._setting.emit(
            events.Device(
                **stamp(source),
                device=key,
                kind="gpu",
                index=index,
                name=f"NVIDIA GPU {index} (asleep)",
                pci_bus_id=address,
            )
        )
        self._setting.emit(
            events.DeviceStatus(
                **stamp(source),
                device=key,
                condition="asleep",
                detail=ASLEEP,
                since=time.monotonic(),
            )
        )

    def _initialise(self) -> nvml.Driver | startup.Trouble:
        binding = startup.load_binding()
        if isinstance(binding, startup.Trouble):
            needless = binding.code == startup.NO_LIBRARY and self._is_without_gpu()
            return startup.no_device() if needless else binding
        driver = nvml.Driver(binding)
        container = self._setting.facts.container
        trouble = startup.initialise(driver, self._watch, container=container)
        return driver if trouble is None else trouble

    def _is_without_gpu(self) -> bool:
        """True if no driver library is missed: no GPU is here and none was asked for.

        The GPUs of WSL, of a Jetson and of a simulation are not on the PCI bus.
        """
        facts = self._setting.facts
        off_bus = facts.wsl or facts.jetson or self._is_simulated()
        return not (
            off_bus
            or self._setting.selection.asks_for_gpus()
            or power_state.has_nvidia_device(self._setting.pci_root)
        )

    def _enumerate(self, driver: nvml.Driver) -> startup.Trouble | None:
        """Start a worker for each GPU. Return what makes that worth another try, None if done."""
        version, cuda = startup.driver_versions(driver, self._watch)
        stamped = stamp(self._setting.facts.hostname)
        self._setting.emit(
            msgspec.structs.replace(
                self._host, **stamped, driver_version=version, cuda_version=cuda
            )
        )
        count = driver.call(self._watch, "nvmlDeviceGetCount")
        if isinstance(count, nvml.Unavailable):
            return startup.trouble(count.code or nvml.UNKNOWN, container=False)
        if count == 0:
            self._tell(startup.no_gpu())
            return None
        self._clear_problem()
        if self._counted is not None:
            self._counted(count)
        self._setting = dataclasses.replace(
            self._setting, selection=self._setting.selection.within(count)
        )
        if not self._setting.once:
            from topsmon.devices.xid_events import XidEvents

            self._xids = XidEvents(driver, self._setting.pace, self._setting.emit, self._awake)
            self._xids.open(self._watch)
        workers = [
            GpuWorker(
                self._setting,
                driver,
                index,
                placeholder=index in self._sleepers,
                xids=self._xids,
            )
            for index in range(count)
            if self._setting.only_index in {None, index}
        ]
        for worker in workers:
            worker.thread.start()
        self.workers = workers
        return None

    def _awake(self) -> bool:
        return not all(worker.asleep for worker in self.workers)

    # Problems -------------------------------------------------------------------------------------

    def _tell(self, trouble: startup.Trouble, subject: str = "nvml") -> None:
        if subject == "nvml":
            if self._problem == trouble.code:
                return
            self._problem, self._cause = trouble.code, trouble.message
        self._setting.emit(
            events.Problem(
                **stamp(self._setting.facts.hostname),
                subject=subject,
                code=trouble.code,
                message=trouble.message,
                remedy=trouble.remedy,
            )
        )

    def _clear_problem(self) -> None:
        if self._problem is None:
            return
        self._problem = self._cause = None
        stamped = stamp(self._setting.facts.hostname)
        self._setting.emit(events.Problem(**stamped, subject="nvml", code=None, message=""))

    def _answered(self) -> None:
        if self._problem == "stalled":
            self._clear_problem()

    def answering(self, limit_seconds: float) -> bool:
        """True while somebody reads whose present call is out for less than the limit."""
        reading = [(self.thread, self._watch), *((one.thread, one.watch) for one in self.workers)]
        return any(
            thread.is_alive() and watch.waited() < limit_seconds for thread, watch in reading
        )

    def check(self, limit_seconds: float) -> None:
        """Report driver calls that have been out for longer than the limit."""

        def start_stalls(function: str, since: float) -> None:
            self._tell(startup.not_answering(function, time.monotonic() - since))

        self._watch.check(limit_seconds, start_stalls)
        for worker in self.workers:
            worker.check(limit_seconds)

    def check_selection(self) -> None:
        """Raise ValueError if a device was asked for that is not here, once that can be told."""
        if self._checked or not self._enumerated.is_set() or (self._sleepers and not self.workers):
            return
        if not all(worker.resolved.is_set() for worker in self.workers):
            return
        self._checked = True
        found = [worker.found for worker in self.workers]
        try:
            selection.check(self._setting.selection, found, self._cause)
        except ValueError as error:
            self._tell(startup.Trouble("unknown-device", str(error), ""), "selection")
            raise
        boards = {device.name for device in found}
        by_bus = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
        if self._setting.selection.visible_by_index() and len(boards) > 1 and not by_bus:
            self._tell(startup.order(), "CUDA_VISIBLE_DEVICES")
