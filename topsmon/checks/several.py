"""`topsmon check --nproc`: ranks started or joined, judged, shown; one exit code for all."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from topsmon import __version__, events, interpreter
from topsmon.checks.collective import Surroundings, judge
from topsmon.checks.command import CheckOptions, complain, render
from topsmon.checks.context import Moment
from topsmon.checks.model import Check, UnknownCheckError, select_ranks
from topsmon.checks.outcome import USAGE, exit_code, status
from topsmon.checks.ranks_advice import advise
from topsmon.distributed import environment, faults
from topsmon.laboratory.progress_line import ProgressLine
from topsmon.launcher import ALONE, Job, LaunchError, measure
from topsmon.launcher.document import RankReport, Ranks
from topsmon.launcher.torchrun import Nodes
from topsmon.report.check_document import CheckDocument, CheckedDevice, Selection
from topsmon.state import State
from topsmon.units import plain

UNKNOWN = 3
CPU_RANKS = 2
RANKS_PER_CPU = 4
"""More ranks than that on one processor wait for each other and measure nothing."""
MOST_STAGE_SECONDS = 30.0


@dataclass(frozen=True)
class RanksOptions:
    """What the command line asks for. `nproc` None: as many ranks as there are GPUs.

    `parameters` and `step_seconds` describe the model that advice is about: its size, and one
    micro-batch without communication.
    """

    check: CheckOptions
    nproc: int | None = None
    nodes: Nodes = ALONE
    parameters: int | None = None
    step_seconds: float | None = None
    largest_bytes: int | None = None


class _UsageError(ValueError):
    pass


def run(options: RanksOptions) -> int:
    """Measure over several ranks, write the result to stdout where rank 0 is; the exit code."""
    started = time.time()
    try:
        checks = select_ranks(options.check.only, options.check.skip)
        if not checks:
            raise UnknownCheckError("no check is left: --only and --skip exclude them all")
        faults.fault_of(0, os.environ)
        place = environment.detect(os.environ, os.getppid(), options.nodes.meeting)
        state = _machine(options)
        job = _job(options, place, state, checks, started)
    except (ValueError, environment.PlacementError) as error:
        complain(str(error).replace("--only: no device", "--device: no device"))
        return USAGE
    except LaunchError as error:
        complain(str(error))
        return UNKNOWN
    try:
        outcome = measure(job)
    except LaunchError as error:
        complain(str(error))
        return UNKNOWN
    if not job.leads and outcome.words:
        complain(f"no verdict from rank 0: {plain(outcome.words, 300)}")
    return outcome.exit_code


def _machine(options: RanksOptions) -> State:
    """What the driver shows here, for the number of ranks. ValueError: no such device."""
    from topsmon.devices import poller

    asked = options.check
    state = State()
    for event in poller.snapshot(2.0, asked.devices, asked.only_visible):
        state.apply(event, time.monotonic())
    return state


def _job(
    options: RanksOptions,
    place: environment.Placement | None,
    state: State,
    checks: Sequence[Check],
    started: float,
) -> Job:
    asked = options.check
    cpu_asked = "cpu" in (word.lower() for word in asked.devices)
    gpus = [] if cpu_asked else [gpu for gpu in state.gpus() if gpu.condition == "ok"]
    ranks_here = _ranks_here(options, place, len(gpus))
    around = Surroundings(gpus_here=len(gpus), cpu_asked=cpu_asked)
    leads = place is None or place.rank == 0
    show = _Progress() if asked.progress and leads else None

    def shown(document: Ranks, interrupted: bool) -> int:
        if show is not None:
            show.end()
        moment = Moment(time.time(), time.monotonic())
        results = judge(document, moment, checks, source=socket.gethostname(), surroundings=around)
        told = _document(options, document, results, started, interrupted=interrupted)
        sys.stdout.flush()
        sys.stdout.buffer.write(render(told, asked))
        sys.stdout.flush()
        return told.exit_code

    return Job(
        python=_python(asked.python),
        ranks_here=ranks_here,
        judge=shown,
        nodes=options.nodes,
        place=place,
        device="cpu" if cpu_asked else "auto",
        devices=_visible(options, place, [gpu.key for gpu in gpus]),
        threads=_threads(ranks_here, place),
        largest_bytes=options.largest_bytes,
        limit_seconds=asked.limit_seconds,
        spent_seconds=time.time() - started,
        stage_seconds=min(MOST_STAGE_SECONDS, max(asked.limit_seconds / 3, 1.0)),
        progress=show if show is not None else lambda _: None,
        environment=asked.environment,
    )


def _ranks_here(options: RanksOptions, place: environment.Placement | None, gpus: int) -> int:
    """How many ranks this machine has. Raises LaunchError, or _UsageError for what cannot be."""
    nproc = options.nproc
    if place is not None:
        if nproc is not None and nproc != place.local_world_size:
            raise _UsageError(
                f"--nproc {nproc}: {place.launcher} has started {place.local_world_size} ranks "
                "here; leave --nproc auto"
            )
        if options.nodes.machines > 1:
            raise _UsageError(
                f"--nnodes: {place.launcher} has started the ranks already; leave it out"
            )
        return place.local_world_size
    if nproc is None:
        if gpus == 1 and options.nodes.machines == 1:
            raise _UsageError(
                "--nproc auto: one GPU here, and two ranks need two devices; "
                "check it without --nproc, or the processor with --nproc 2 --device cpu"
            )
        return gpus or CPU_RANKS
    usable = _usable_cpus()
    if nproc > usable * RANKS_PER_CPU and not gpus:
        raise _UsageError(
            f"--nproc {nproc}: {usable} CPUs are usable here, for at most "
            f"{usable * RANKS_PER_CPU} ranks"
        )
    if nproc * options.nodes.machines < 2:
        raise _UsageError(f"--nproc {nproc}: at least two ranks are needed")
    if gpus and nproc > gpus:
        raise _UsageError(
            f"--nproc {nproc}: {gpus} GPUs here; NCCL wants one rank a GPU "
            "(--device cpu measures ranks on the processor)"
        )
    return nproc


def _visible(
    options: RanksOptions, place: environment.Placement | None, keys: Sequence[str]
) -> tuple[str, ...]:
    """UUIDs of the GPUs to use, none where the ranks' environment says so already."""
    if place is not None or not (options.check.devices or options.check.only_visible):
        return ()
    return tuple(keys)


def _threads(ranks_here: int, place: environment.Placement | None) -> int | None:
    """Threads of a rank on the processor: torchrun would give one to each."""
    if place is not None:
        return None
    return max(1, _usable_cpus() // ranks_here)


def _usable_cpus() -> int:
    """Logical processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _python(asked: str | None) -> str:
    """The interpreter with torch. Raises LaunchError."""
    import asyncio

    found = asyncio.run(interpreter.find(asked, os.environ))
    if found.path is None:
        raise LaunchError(found.problem)
    return found.path


class _Progress:
    """One line on stderr: which stage each rank of this machine is in."""

    def __init__(self) -> None:
        self._line = ProgressLine()

    def __call__(self, notes: Mapping[int, RankReport]) -> None:
        stages = dict.fromkeys(note.stage for note in notes.values() if note.stage)
        self._line.show(f"{len(notes)} ranks: {', '.join(stages) or 'starting'}")

    def end(self) -> None:
        self._line.end()


# The document -------------------------------------------------------------------------------------


def _document(
    options: RanksOptions,
    ranks: Ranks,
    results: tuple[events.CheckResult, ...],
    started: float,
    *,
    interrupted: bool,
) -> CheckDocument:
    asked = options.check
    code = exit_code(
        results, fail_on=asked.fail_on, unknown_ok=asked.unknown_ok, interrupted=interrupted
    )
    return CheckDocument(
        version=__version__,
        host=socket.gethostname(),
        started_unix_seconds=started,
        duration_seconds=round(time.time() - started, 3),
        status=status(results),
        exit_code=code,
        interrupted=interrupted,
        selection=Selection(only=asked.only, skip=asked.skip, devices=asked.devices),
        devices=tuple(_device(report) for report in ranks.ranks if report.device is not None),
        checks=results,
        ranks=ranks,
        balance=advise(ranks, options.parameters, options.step_seconds),
    )


def _device(report: RankReport) -> CheckedDevice:
    device = report.device
    assert device is not None
    return CheckedDevice(
        device=report.label,
        label=report.label,
        kind=device.kind,
        index=device.index,
        name=device.name,
        uuid=device.uuid,
    )
