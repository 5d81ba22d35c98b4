"""The recorder of one process: gathers steps, counts them, writes them, and minds its own faults.

No hook may change, delay or break the run. Each hook's body is timed, its
exceptions are counted, and after `ERRORS_MAX` of them all patches are taken out. Values that only
a device knows are copied in the background and complete their record a step or two later.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from . import (
    autocasting,
    calls,
    clipping,
    endings,
    foreign_scalers,
    given,
    keeping,
    layout,
    losses,
    names,
    scalers,
    steps,
    tracing,
)
from .batched_ring import BatchedRing
from .examiner import Examiner
from .patches import Patches
from .process import identity_of_process
from .records import FLAGS, LOSS, NAN, NORM, Step, Totals, values_of
from .ring import RingError, RingWriter
from .settling import settle
from .shapes import Shapes
from .slots import Slots

ERRORS_MAX = 20
EVENTS_FREE, EVENTS_APART = 16, 100
"""Events of a kind that are always told; after them there is one in so many steps."""
MEMORY_EVERY, QUIET_EVERY = 50, 64
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")


class Installer:
    """What puts hooks in place, itself called from hooks."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def patch_again(self, *_args: Any) -> None:
        """Put all hooks in place whose modules the run has imported by now."""
        recorder = self.recorder
        # The first of torch's leaves comes before torch.nn.
        if "torch.nn.modules.module" in sys.modules:
            recorder.patches.once("modules", _note_modules)
        for part in (
            tracing,
            scalers,
            foreign_scalers,
            steps,
            losses,
            clipping,
            autocasting,
            endings,
        ):
            part.patch(recorder)
        recorder.shapes.install()

    def given(self, numbers: Any, model: Any, optimizers: Any, all_scalers: Any) -> None:
        """What the user has named to be watched."""
        recorder = self.recorder
        shapes = recorder.shapes
        shapes.tokens = numbers["tokens_per_step"] or shapes.tokens
        shapes.samples = numbers["samples_per_step"] or shapes.samples
        if numbers["flops_per_step"]:
            recorder.identify(flops_per_step=numbers["flops_per_step"], flops_source="given")
        if model is not None:
            recorder.examiner.set_model(model)
        for optimizer in optimizers:
            recorder.optimizers.meet(optimizer)
        for scaler in all_scalers:
            recorder.scalers.meet(scaler)


class Recorder:
    """All state of the recorder in this process. `trouble` says why there is no ring."""

    def __init__(self) -> None:
        self.torch = sys.modules["torch"]
        self.on = True
        self.patches = Patches()
        self.end_patches = Patches()
        self.identity: dict[str, Any] = {}
        self.schedulers = steps.Schedulers()
        self.installer = Installer(self)
        self.tracing = tracing.Tracing()
        self._abandoned: list[Any] = []
        self.shapes = Shapes(_number("TOKENS_PER_STEP"), _number("SAMPLES_PER_STEP"))
        self.scalers = scalers.ScalerWatch()
        self.foreign = foreign_scalers.ForeignWatch()
        self.optimizers = steps.StepWatch()
        self.losses = losses.LossWatch()
        self.clips = clipping.ClipWatch()
        self.examiner = Examiner()
        self.endings = endings.Endings()
        self.keeper = keeping.Keeper()
        self._parts: tuple[Any, ...] = (
            self.scalers,
            self.foreign,
            self.optimizers,
            self.losses,
            self.clips,
            self.examiner,
            self.endings,
            self.keeper,
        )
        self._begin()

    def _begin(self) -> None:
        """State of one run. Parts are begun anew in place, because hooks hold their methods."""
        self.ring: RingWriter | None = None
        self.opened = False
        self.trouble = ""
        self.errors = 0
        self.seconds = 0.0
        self.steps = 0
        self.step = Step()
        self.totals = Totals()
        self.queue: deque[Step] = deque()
        self.autocast = 0
        self.device: Any = None
        self._clock = NAN
        self._memory = (NAN, NAN)
        self._batch: Any = None
        self._batch_backwards = -1
        self._told: dict[str, tuple[int, int]] = {}
        self.slots = Slots()
        for part in self._parts:
            part.begin(self)

    def forked(self) -> None:
        """Begin anew in a fork's child: it is another run, if it trains at all."""
        # Not freed here: CUDA's events and pinned memory belong to the parent.
        self._abandoned.append((self.slots, self.queue, self.step, self.examiner.norms))
        self._begin()

    # Guarding -------------------------------------------------------------------------------------

    def call(self, body: Callable[..., Any], *args: Any) -> Any:
        """Call one of the recorder's own functions from the run: timed, and never raising."""
        if not self.on:
            return None
        start = perf_counter()
        try:
            return body(*args)
        except Exception as error:  # noqa: BLE001 - nothing may reach the run
            self.failed(error)
            return None
        finally:
            self.seconds += perf_counter() - start

    def patch(self) -> None:
        """Put all hooks in place whose modules the run has imported by now."""
        self.installer.patch_again()

    def failed(self, error: Exception) -> None:
        """Count one of the recorder's own errors; switch off after too many."""
        self.errors += 1
        if self.errors >= ERRORS_MAX:
            place = _place(error)
            self.off(
                f"switched itself off after {self.errors} errors, the last of them "
                f"{type(error).__name__}: {error}{place}"
            )

    def off(self, reason: str) -> None:
        """Take all patches out; the end of the run is still told."""
        if self.on:
            self.on = False
            self.trouble = self.trouble or reason
            try:
                self.patches.remove()
                self.shapes.uninstall()
            except Exception as error:  # noqa: BLE001 - as above
                reason += f"; patches left behind: {error}"
            self.event("recorder", reason)

    def close(self) -> None:
        """Leave this process for good, without a word about how the run ends."""
        self.on = False
        self.patches.remove()
        self.end_patches.remove()
        self.shapes.uninstall()
        if self.ring is not None:
            self.ring.close()

    # The ring -------------------------------------------------------------------------------------

    def open(self) -> None:
        """Make the ring, once: this process trains."""
        if self.opened:
            return
        self.opened = True
        identity = identity_of_process()
        identity["torch_version"] = str(self.torch.__version__)
        identity.update(self.examiner.given())
        identity.update(self.identity)
        try:
            ring = BatchedRing.create(identity)
        except RingError as error:
            self.off(str(error))
            return
        self.ring = ring
        self.schedulers.begin()
        self.examiner.open_profile(ring.path)

    def identify(self, **changes: Any) -> None:
        """Add to the run's identity, now or when there is a ring."""
        if self.ring is not None:
            self.ring.identify(**changes)
        else:
            self.identity.update(changes)

    def event(
        self,
        kind: str,
        message: str = "",
        names: Iterable[str] = (),
        values: Mapping[str, float] | None = None,
        step: int | None = None,
    ) -> None:
        """Write an event of this step. Of a kind that repeats itself only some are written."""
        if self.ring is None:
            return
        number = self.steps + 1 if step is None else step
        count, last = self._told.get(kind, (0, 0))
        if count >= EVENTS_FREE and number - last < EVENTS_APART:
            return
        self._told[kind] = count + 1, number
        self.ring.event(kind, number, message, names, values)

    # Steps ----------------------------------------------------------------------------------------

    def deliver(self) -> None:
        """Take in what devices have answered since; never waits."""
        self.slots.poll()
        while self.queue and not self.queue[0].waiting:
            settle(self, self.queue.popleft())

    def finish(self) -> None:
        """Close the step that is being gathered: number it, settle it or wait for its readings."""
        step, scalers, examiner = self.step, self.scalers, self.examiner
        self.step = Step()
        self.steps = step.number = number = self.steps + 1
        step.time = time.time()
        clock = perf_counter()
        step.seconds = clock - self._clock
        self._clock = clock
        step.flags |= self.autocast
        self.autocast = 0
        if step.backwards != self._batch_backwards or not self.shapes.idle(number):
            self._batch = self.shapes.take(number, step.backwards, examiner.model())
            self._batch_backwards = step.backwards
        step.samples, step.tokens, step.wait, _ = self._batch
        if number % MEMORY_EVERY == 1:
            self._memory = self._measure_memory()
        step.memory, step.peak = self._memory
        self.optimizers.take(step)
        # Scaled losses without a backward pass are past.
        scalers.outstanding = 0
        scalers.pending = scalers.awaited = False
        if step.loss_count:
            step.loss = step.loss_sum
        if step.away:
            self._ask(step, _tensors_of(step))
        if step.waiting or self.queue:
            self.queue.append(step)
            self.deliver()
        else:
            settle(self, step)
        if examiner.busy:
            examiner.step_ended(step)
        if clock >= self.keeper.due:
            self.keeper.look()
        if number % QUIET_EVERY == 0 and self.ring is not None and self.ring.quiet:
            self.off(f"the ring cannot be written: {self.ring.failure}")

    def sampled_norm(self, step: Step, norm: float) -> None:
        """Note the recorder's own sample of a step's gradient norm, also after it was written."""
        step.norm = norm if norm == norm else float("inf")  # noqa: PLR0124 - NaN
        step.flags |= layout.NORM_SAMPLED
        if step.values is not None and self.ring is not None:
            step.values[NORM] = step.norm
            step.values[FLAGS] |= layout.NORM_SAMPLED
            self.ring.write(step.values)

    def _ask(self, step: Step, tensors: list[Any]) -> None:
        step.waiting = True
        if not self.slots.read(tensors, partial(self._arrived, step)):
            step.waiting = False
            step.flags |= layout.PENDING
            step.loss = NAN
        elif step.waiting:
            values = values_of(step, self)
            values[FLAGS] |= layout.PENDING
            if step.device_losses:
                values[LOSS] = NAN
            if self.ring is not None:
                self.ring.write(values)

    def _arrived(self, step: Step, values: list[float]) -> None:
        step.waiting = False
        answers = iter(values)
        if step.device_losses:
            step.loss_sum += sum(next(answers) for _ in step.device_losses)
            step.loss = step.loss_sum
        for _ in step.found or ():
            step.skipped |= next(answers) > 0.0
        if step.scale_tensors is not None:
            step.scale, step.tracker = next(answers), int(next(answers))
            self.scalers.arrived(step)
        for _, max_norm, divisor in step.device_clips or ():
            step.clipped_at(next(answers), max_norm, divisor)
        if step.device_rate is not None:
            step.rate = next(answers)

    def _measure_memory(self) -> tuple[float, float]:
        device = self.device
        if device is not None and device.type == "cuda":
            stats = self.torch.cuda.memory_stats(device)
            return (
                float(stats["allocated_bytes.all.current"]),
                float(stats["allocated_bytes.all.peak"]),
            )
        try:
            handle = os.open("/proc/self/statm", os.O_RDONLY)
            try:
                resident = int(os.read(handle, 128).split()[1]) * _PAGE_BYTES
            finally:
                os.close(handle)
        except (OSError, IndexError, ValueError):
            return NAN, NAN
        # getrusage(2): kilobytes on Linux, where there is a /proc.
        return float(resident), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def _note_modules() -> Callable[[], None]:
    names.note_modules()

    def leave() -> None:
        names.forget_modules()
        calls.release_all()

    return leave


def _tensors_of(step: Step) -> list[Any]:
    """All that a step waits for, in the order in which `_arrived` takes it."""
    tensors = [*(step.device_losses or ()), *(step.found or ()), *(step.scale_tensors or ())]
    tensors.extend(norm for norm, _, _ in step.device_clips or ())
    if step.device_rate is not None:
        tensors.append(step.device_rate)
    return tensors


def _number(name: str) -> float | None:
    """The number in the environment's TOPSMON_`name`, None without a possible one."""
    try:
        return given.number(name.lower(), float(os.environ.get(f"TOPSMON_{name}", "")))
    except ValueError:
        return None


def _place(error: Exception) -> str:
    """Where in the recorder an error came from: file and line."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    return f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})"
