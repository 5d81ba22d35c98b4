"""The prober process: bursts on one device, rests between them, events out, commands in.

It dies with its parent, by whichever comes first: the end of stdin, or the kernel's word that the
parent is gone. It works at the lowest priority and, out of memory, is the first to be killed.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from . import plan, verdict
from .control import BurstAbandoned, Control, StopRequested, read_commands
from .errors import NoMemoryError, UnsupportedError
from .schedule import ORDER, Schedule
from .wire import Writer, private_stdout

if TYPE_CHECKING:
    from .bursts import Bench

EXIT_OK = 0
EXIT_USAGE = 64
EXIT_NO_TORCH = 69
"""There is no torch, or none that can use the device: starting again would not help."""
EXIT_DEVICE_ERROR = 70
"""The device's context is spoilt, or memory ran out twice: a fresh process may work."""

DEFAULT_DUTY = 0.03
FIRST_ROUND_DUTY = 0.5
"""Until every precision has one number; a few seconds in all."""
BANDWIDTHS = ("memory", "cache")
BANDWIDTHS_SECONDS = 1.0
NO_MEMORY_PAUSE_SECONDS = 10.0
PR_SET_PDEATHSIG = 1


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"topsmon prober: {message}", file=sys.stderr)
        sys.exit(EXIT_USAGE)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line; wrong usage ends the process with 64."""
    parser = _Parser(prog="topsmon prober", description="Measure one device in short bursts.")
    parser.add_argument("--device", required=True, help='UUID of a GPU, or "cpu"')
    parser.add_argument("--duty", type=float, default=DEFAULT_DUTY, help="share of time to work")
    parser.add_argument("--memory-limit", type=int, help="bytes for operands, at most")
    parser.add_argument("--paused", action="store_true", help="wait for a resume command")
    parser.add_argument("--size", type=int, action="append", default=[], help="N of N x N x N only")
    parser.add_argument("--plan", type=_keys, help="measure these once, in order: fp32,memory,...")
    parser.add_argument("--seconds", type=float, help="of the whole plan, at most")
    options = parser.parse_args(arguments)
    if not 0 < options.duty <= 1:
        parser.error(f"--duty {options.duty:g} is not over 0 and up to 1")
    if any(size < 32 for size in options.size):
        parser.error("--size is under 32")
    if options.plan is not None:
        if not options.plan:
            parser.error("--plan has no key")
        unknown = plan.unknown_keys(options.plan)
        if unknown:
            parser.error(
                f"--plan has keys of neither a precision nor a probe: {', '.join(unknown)}"
            )
    if options.seconds is not None and (options.plan is None or not options.seconds > 0):
        parser.error("--seconds is for --plan, and over 0")
    return options


def _keys(text: str) -> tuple[str, ...]:
    return tuple(key for key in text.split(",") if key)


def main(arguments: Sequence[str]) -> int:
    """Run until told to stop. Does not return where torch may be loaded: see `_leave`."""
    options = parse(arguments)
    writer = Writer(options.device, private_stdout())
    writer.hello()
    behave()
    control = Control(options.duty, ORDER, "paused" if options.paused else None)
    threading.Thread(target=read_commands, args=(control,), daemon=True).start()
    try:
        # A paused prober loads nothing: a CUDA context costs memory and wakes a sleeping GPU.
        control.wait_while_paused(lambda reason: writer.emit("prober-idle", reason=reason))
        code = _measure(options, writer, control)
    except StopRequested:
        code = EXIT_OK
    _leave(code)


def behave() -> None:
    """Be the least important process there is, and never outlive the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(19)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    parent = os.getppid()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(EXIT_OK)


def _leave(code: int) -> NoReturn:
    """End at once: tearing down torch and a CUDA context takes longer than a stop may."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code)


def _complain(message: str) -> None:
    print(f"topsmon prober: {message}", file=sys.stderr, flush=True)


def _measure(options: argparse.Namespace, writer: Writer, control: Control) -> int:
    """Load torch, say what it knows of the device, and measure until something ends it."""
    # Before torch looks: the prober of a GPU sees no other, that of the CPU none.
    os.environ["CUDA_VISIBLE_DEVICES"] = "" if options.device == "cpu" else options.device
    warnings.simplefilter("ignore")
    gc.disable()  # it would look through all that torch loads, again and again
    try:
        import torch
    except Exception as error:  # noqa: BLE001 - an installation can be broken in any way
        _complain(f"{sys.executable} cannot load torch: {verdict.in_one_line(error)}")
        return EXIT_NO_TORCH
    finally:
        gc.freeze()
        gc.enable()
    from . import bursts, devices

    control.wait_while_paused(lambda reason: writer.emit("prober-idle", reason=reason))
    try:
        device = devices.open_device(options.device)
    except devices.DeviceUnavailableError as error:
        _complain(str(error))
        return EXIT_NO_TORCH
    except RuntimeError as error:
        _complain(f"{options.device}: {verdict.in_one_line(error)}")
        return EXIT_DEVICE_ERROR
    writer.emit(
        "prober-ready",
        torch_version=str(torch.__version__),
        python=sys.executable,
        **device.ready(),
    )
    bench = bursts.Bench(device, control.checkpoint, options.memory_limit, tuple(options.size))
    from .lab.context import Context

    def new_context(time_scale: float, memory_scale: float) -> Context:
        return Context(
            device,
            control.checkpoint,
            time_scale=time_scale,
            memory_limit=options.memory_limit,
            memory_scale=memory_scale,
        )

    plan_run = plan.PlanRun(writer, control, bench, new_context)
    if options.plan is None:
        return Prober(writer, control, bench, plan_run).run()
    return plan_run.run(options.plan, options.seconds)


class Prober:
    """The loop: whose turn it is, one burst, its event, the rest that the duty cycle asks for."""

    def __init__(
        self, writer: Writer, control: Control, bench: Bench, plan_run: plan.PlanRun
    ) -> None:
        self._writer = writer
        self._control = control
        self._bench = bench
        self._plan_run = plan_run
        self._bandwidths_due = True
        self._schedule = Schedule(tuple(bench.gemms))
        self._memory_failures = 0

    def run(self) -> int:
        """Measure until the device fails; returns the exit code. Raises `StopRequested`."""
        code: int | None = None
        while code is None:
            self._control.wait_while_paused(self._tell_idle)
            with contextlib.suppress(BurstAbandoned):
                code = self._turn()
        return code

    def _tell_idle(self, reason: str) -> None:
        self._writer.emit("prober-idle", reason=reason)

    def _turn(self) -> int | None:
        control = self._control
        seen = control.changes
        key = self._schedule.following(control.chosen)
        if key is None:
            self._tell_idle("none of the chosen precisions can run on this device")
            control.wait_for_change(seen)
            return None
        quick = self._schedule.first_round(control.chosen)
        if self._bandwidths_due and not quick:
            return self._bandwidths()
        self._writer.emit("probe-started", precision=key)
        began = time.monotonic()
        try:
            code = self._burst(key, quick)
        except NoMemoryError as shortage:
            self._schedule.passed_over(key)
            self._tell_idle(str(shortage))
            control.wait_for_change(seen, NO_MEMORY_PAUSE_SECONDS)
            return None
        if code is None:
            control.rest(time.monotonic() - began, FIRST_ROUND_DUTY if quick else 0.0)
        return code

    def _bandwidths(self) -> int | None:
        """Measure memory and caches once: the roofline's slanted lines."""
        self._bandwidths_due = False
        began = time.monotonic()
        code = self._plan_run.run(BANDWIDTHS, BANDWIDTHS_SECONDS)
        if code != EXIT_OK:
            return code
        self._control.rest(time.monotonic() - began)
        return None

    def _burst(self, key: str, quick: bool) -> int | None:
        """One burst and its event. Returns an exit code if this process cannot go on."""
        self._control.measuring = key
        try:
            fields = self._bench.burst(key, self._schedule.rounds(key), quick=quick)
        except UnsupportedError as refusal:
            self._refuse(key, str(refusal))
        except (RuntimeError, MemoryError, TypeError, AttributeError, ValueError) as error:
            return self._failed(key, error)
        else:
            self._memory_failures = 0
            self._schedule.measured(key)
            self._writer.emit("rate", **fields)
        finally:
            self._control.measuring = None
        return None

    def _refuse(self, key: str, reason: str) -> None:
        self._schedule.drop(key)
        self._writer.emit("unsupported", precision=key, reason=reason)

    def _failed(self, key: str, error: Exception) -> int | None:
        kind = verdict.kind_of_failure(error)
        message = verdict.in_one_line(error)
        if kind == "library":
            self._refuse(key, message)
            return None
        _complain(f"{key}: {message}")
        if kind == "memory" and not self._memory_failures:
            self._memory_failures += 1
            self._bench.memory_scale /= 2
            self._schedule.passed_over(key)
            return None
        return EXIT_DEVICE_ERROR
