"""The prober of a simulated device: `python -m topsmon.simulated.prober --device UUID`.

It speaks the protocol of the real prober (events as JSON lines on stdout, commands as JSON lines on
stdin, EOF ends it) but multiplies nothing: rates come from the scenario and scale with the SM clock
that the simulated driver reports at that moment, as do throttle reasons and power.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, NoReturn

import msgspec

from topsmon import __version__, events
from topsmon.simulated import lab
from topsmon.simulated import scenario as scenarios
from topsmon.simulated.build import LIBRARY
from topsmon.simulated.scenario import Rate, Scenario
from topsmon.simulated.values import SimulationError
from topsmon.units import PRECISIONS, plain

BURST_SECONDS = 0.08
FIRST_REST_SECONDS = 0.02
"""Rest between the bursts of the first round, so that every precision soon has a number."""
CLOCK_READINGS = 3
NOISE = 0.004
"""Half width of the spread from burst to burst, relative."""
QUARTILE = 0.003
SHAPES: tuple[tuple[tuple[int, int, int] | None, float], ...] = ((None, 1.0), ((4096,) * 3, 0.962))
"""Shapes in turn (None: the scenario's own) and their share of the scenario's rate."""
ERRORS: dict[str, tuple[float, float]] = {
    "fp64": (4e-16, 1e-12),
    "fp32": (2.5e-7, 1e-5),
    "tf32": (2.6e-4, 3e-3),
    "fp16": (2.1e-4, 2e-3),
    "fp16_acc16": (8.7e-3, 3e-2),
    "bf16": (1.7e-3, 1e-2),
    "fp8": (1.8e-3, 1e-2),
    "int8": (0.0, 0.0),
    "fp4": (1.9e-3, 1e-2),
}
"""Relative error that is reported, and its limit, per precision."""

EXIT_USAGE = 64
EXIT_DEVICE_ERROR = 70
PR_SET_PDEATHSIG = 1
GPU_IDLE = 0x1
"""The clocks event reason that cannot hold during a burst."""


class Control:
    """What the parent has asked for; `changed` wakes the measuring thread."""

    def __init__(self, duty: float, paused: str | None) -> None:
        self.changed = threading.Condition()
        self.duty = duty
        self.paused = paused
        self.precisions: tuple[str, ...] = tuple(PRECISIONS)
        self.choices = 0

    def obey(self, command: dict[str, Any]) -> bool:
        """Carry out one command; False when it says stop. ValueError: it makes no sense."""
        with self.changed:
            match command:
                case {"command": "stop"}:
                    return False
                case {"command": "resume"}:
                    self.paused = None
                case {"command": "pause"}:
                    self.paused = str(command.get("reason") or "paused")
                case {"command": "duty", "value": int() | float() as duty} if 0 < duty <= 1:
                    self.duty = float(duty)
                case {"command": "precisions", "keys": list(keys)}:
                    self.precisions = tuple(key for key in PRECISIONS if key in keys)
                    self.choices += 1
                case _:
                    raise ValueError(f"unknown command {command}")
            self.changed.notify_all()
        return True

    def rest(self, seconds: float) -> None:
        """Wait, but not longer than until the next command."""
        with self.changed:
            self.changed.wait(seconds)


class Gpu:
    """A simulated device, read through the driver library."""

    def __init__(self, scenario: Scenario, uuid: str) -> None:
        uuids = [device.texts.get("uuid") for device in scenario.devices]
        if uuid not in uuids:
            raise SimulationError(f"scenario {scenario.name} has no device {uuid}")
        self.uuid = uuid
        self.scenario = scenario
        self.index = uuids.index(uuid)
        try:
            self._library = ctypes.CDLL(LIBRARY)
            self._number = self._library.topsmon_simulated_number
        except (OSError, AttributeError) as error:
            raise SimulationError(f"the simulated driver is not loaded: {error}") from None

    def number(self, *fields: str) -> float | None:
        """The first of the fields that the device has, at the present scenario time."""
        value = ctypes.c_double()
        for field in fields:
            if self._number(self.index, field.encode(), ctypes.byref(value)):
                return value.value
        return None

    def whole(self, *fields: str) -> int | None:
        """The same as an integer, as NVML gives it."""
        value = self.number(*fields)
        return None if value is None else round(value)

    def work(self) -> int:
        """What a CUDA call would meet: 0, or the code of a fault on the call "prober"."""
        return int(self._library.topsmon_simulated_prober(self.index))


class Prober:
    """The measuring thread."""

    def __init__(self, gpu: Gpu, control: Control) -> None:
        self._gpu = gpu
        self._control = control
        self._random = {key: random.Random(f"{gpu.uuid}/{key}") for key in PRECISIONS}  # noqa: S311 - noise for show
        self._bursts = 0

    def run(self) -> None:
        """Introduce ourselves, then measure in turn until the process ends."""
        self._hello()
        self._work()
        self._introduce()
        told = -1
        measured: set[str] = set()
        turn = 0
        while True:
            control = self._control
            if told != control.choices:
                told = control.choices
                self._tell_unsupported(control.precisions)
            keys = [key for key in control.precisions if key in self._gpu.scenario.rates.measured]
            if control.paused is not None or not keys:
                self._idle(control.paused or "no precision to measure", told)
                continue
            key, cycle = keys[turn % len(keys)], turn // len(keys)
            turn += 1
            if self._burst(key, cycle):
                first_round = key not in measured
                measured.add(key)
                rest = BURST_SECONDS * (1 / control.duty - 1)
                control.rest(min(rest, FIRST_REST_SECONDS) if first_round else rest)

    def run_plan(self, keys: Sequence[str]) -> NoReturn:
        """Measure precisions and laboratory probes once, in order, and end the process."""
        self._hello()
        self._work()
        self._introduce()
        scenario = self._gpu.scenario
        for key in keys:
            if key in scenario.rates.measured:
                for cycle in range(len(SHAPES)):
                    self._burst(key, cycle)
            elif key in PRECISIONS:
                self._tell_unsupported((key,))
            else:
                self._probe(key)
        os._exit(0)

    def _probe(self, name: str) -> None:
        """One laboratory probe."""
        self._emit(events.ProbeStarted, device=self._gpu.uuid, precision=name)
        found = self._gpu.scenario.lab.get(name)
        if found is None:
            self._refuse(name, "the scenario has no result for it")
            return
        self._work()
        time.sleep(BURST_SECONDS)
        mask = self._gpu.whole("clock_event_mask")
        self._emit(
            events.ProbeResult,
            device=self._gpu.uuid,
            probe=name,
            values=lab.values(self._gpu, name, found),
            labels=found.labels,
            unavailable=found.unavailable,
            correct=True,
            seconds=BURST_SECONDS,
            clock_event_mask=_combined([mask]),
            method="simulated",
            torch_version="simulated",
            note=f"simulated; {found.source}",
        )

    def _hello(self) -> None:
        self._emit(
            events.Hello,
            version=__version__,
            schema=events.SCHEMA_VERSION,
            role="prober",
            pid=os.getpid(),
            simulated=self._gpu.scenario.name,
        )

    def _introduce(self) -> None:
        total = self._gpu.number("memory_total_mib")
        name = self._gpu.scenario.devices[self._gpu.index].texts.get("name")
        self._emit(
            events.ProberReady,
            device=self._gpu.uuid,
            torch_version="simulated",
            python=sys.executable,
            name=None if name is None else plain(name),
            sm_count=self._gpu.whole("sm_count"),
            clock_rate_mhz=self._gpu.number("sm_clock_max_mhz"),
            memory_total_bytes=None if total is None else int(total * 2**20),
            notes=("simulated: nothing is multiplied",),
        )

    def _tell_unsupported(self, keys: Sequence[str]) -> None:
        rates = self._gpu.scenario.rates
        for key in keys:
            if key not in rates.measured:
                self._refuse(key, rates.unsupported.get(key, "the scenario has no rate for it"))

    def _refuse(self, key: str, reason: str) -> None:
        self._emit(events.ProbeUnsupported, device=self._gpu.uuid, precision=key, reason=reason)

    def _idle(self, reason: str, choices: int) -> None:
        """Say once why nothing is measured and wait for another state of affairs.

        `choices` counts those already seen: one may come while the reason is being said.
        """
        self._emit(events.ProberIdle, device=self._gpu.uuid, reason=reason)
        control = self._control
        with control.changed:
            control.changed.wait_for(
                lambda: (
                    (control.paused or "no precision to measure") != reason
                    or control.choices != choices
                )
            )

    def _burst(self, key: str, cycle: int) -> bool:
        """Measure once; False when a pause came in between."""
        self._emit(events.ProbeStarted, device=self._gpu.uuid, precision=key)
        clocks, masks, powers = [], [], []
        for _ in range(CLOCK_READINGS):
            self._work()
            clocks.append(self._gpu.whole("burst_clock_mhz", "sm_clock_mhz"))
            masks.append(self._gpu.whole("clock_event_mask"))
            powers.append(self._gpu.number("burst_power_watts", "power_watts"))
            time.sleep(BURST_SECONDS / CLOCK_READINGS)
            if self._control.paused is not None:
                return False
        rate = self._gpu.scenario.rates.measured[key]
        shape, share = SHAPES[cycle % len(SHAPES)]
        self._emit_rate(
            key,
            rate,
            shape or rate.shape,
            share,
            _median(clocks),
            _combined(masks),
            _median(powers),
        )
        return True

    def _emit_rate(
        self,
        key: str,
        rate: Rate,
        shape: tuple[int, int, int],
        share: float,
        clock: float | None,
        mask: int | None,
        power: float | None,
    ) -> None:
        scale = 1.0 if clock is None else clock / self._gpu.scenario.rates.clock_mhz
        noise = 1 + self._random[key].uniform(-NOISE, NOISE)
        achieved = rate.tera * 1e12 * scale * share * noise
        error, limit = ERRORS[key]
        rows, columns, depth = shape
        self._emit(
            events.RateMeasured,
            device=self._gpu.uuid,
            precision=key,
            rate_ops_per_second=achieved,
            rate_low_ops_per_second=achieved * (1 - QUARTILE),
            rate_high_ops_per_second=achieved * (1 + QUARTILE),
            calls=max(3, int(BURST_SECONDS * achieved / (2 * rows * columns * depth))),
            shape=shape,
            burst_seconds=BURST_SECONDS,
            correct=True,
            relative_error=error,
            error_limit=limit,
            emulated=rate.emulated,
            held_clock_mhz=clock,
            held_clock_source="" if clock is None else "SM clock of the simulated driver",
            clock_event_mask=mask,
            power_watts=power,
            method="simulated",
            torch_version="simulated",
            note=f"simulated; rate: {rate.source}",
        )

    def _work(self) -> None:
        code = self._gpu.work()
        if code != 0:
            _give_up(EXIT_DEVICE_ERROR, f"device error {code} (simulated): {self._gpu.uuid}")

    def _emit(self, kind: type[events.Event], **fields: Any) -> None:
        event = kind(time=time.time(), monotonic=time.monotonic(), source=self._gpu.uuid, **fields)
        line = events.encode(event)
        try:
            while line:
                line = line[os.write(1, line) :]
        except OSError:  # nobody reads us any more
            os._exit(0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a prober until stdin closes or it is told to stop; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m topsmon.simulated.prober")
    parser.add_argument("--device", required=True)
    parser.add_argument("--duty", type=float, default=0.03)
    parser.add_argument("--memory-limit", type=int)
    parser.add_argument("--paused", action="store_true")
    parser.add_argument("--plan", help="measure these once, in order: fp32,memory,...")
    parser.add_argument("--seconds", type=float, help="of the plan; a simulation takes less")
    options = parser.parse_args(arguments)
    if not 0 < options.duty <= 1:
        parser.error(f"--duty must be above 0 and at most 1, not {options.duty}")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent()
    control = Control(options.duty, "paused" if options.paused else None)
    try:
        gpu = Gpu(scenarios.load_prepared(), options.device)
    except SimulationError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_USAGE
    # A simulated hang holds this thread for ever; as a daemon it cannot keep the process alive.
    prober = Prober(gpu, control)
    if options.plan is None:
        measuring = threading.Thread(target=prober.run, daemon=True)
    else:
        keys = [key for key in options.plan.split(",") if key]
        measuring = threading.Thread(target=prober.run_plan, args=(keys,), daemon=True)
    threading.excepthook = _end_with
    measuring.start()
    for line in sys.stdin.buffer:
        try:
            if not control.obey(msgspec.json.decode(line, type=dict[str, Any])):
                break
        except (ValueError, msgspec.DecodeError) as error:
            sys.stderr.write(f"ignored a command: {error}\n")
    return 0


def _die_with_parent() -> None:
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _end_with(failure: threading.ExceptHookArgs) -> None:
    """An error of ours in the measuring thread ends the process, which nobody would see else."""
    _give_up(EXIT_DEVICE_ERROR, f"{failure.exc_type.__name__}: {failure.exc_value} (simulated)")


def _give_up(code: int, words: str) -> NoReturn:
    os.write(2, f"{words}\n".encode())
    os._exit(code)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _combined(masks: Sequence[int | None]) -> int | None:
    known = [mask for mask in masks if mask is not None]
    combined = 0
    for mask in known:
        combined |= mask & ~GPU_IDLE
    return combined if known else None


if __name__ == "__main__":
    sys.exit(main())
