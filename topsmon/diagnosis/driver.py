"""Rules about what topsmon itself stands on: the driver library and its own child processes."""

from __future__ import annotations

from collections.abc import Iterator

from topsmon import events
from topsmon.diagnosis.observe import POLLER
from topsmon.diagnosis.words import finding, joined
from topsmon.state import State
from topsmon.units import plain

PROBER_PREFIX = "prober "

_ESSENTIAL = frozenset({"nvml", POLLER})
"""Subjects without which no GPU is read: a problem of theirs is a failure unless known better."""
_UNREADABLE = frozenset({"permission", "binding", "no-gpu"})
"""Problems that say nothing bad about the machine: its devices just cannot be read from here."""
_STALLED = "stalled"
_NO_LIBRARY = "no-library"
_NO_DEVICE = "no-device"
"""No driver, and no device that would need one."""
_REMARKS = frozenset({"order"})
NO_DEVICE_CODE = f"nvml-{_NO_DEVICE}"


def driver_problem(state: State, _now: float) -> Iterator[events.Finding]:
    """A source that cannot work. A machine without a GPU needs no driver library: only a note."""
    for problem in state.problems.values():
        severity, word = _weight(state, problem)
        only_cpu = problem.code in {_NO_LIBRARY, _NO_DEVICE} and severity == "info"
        yield finding(
            problem,
            None,
            code=f"{problem.subject}-{problem.code}",
            severity=severity,
            word=word,
            title=plain(problem.message, 200).rstrip("."),
            cause="only the CPU is shown" if only_cpu else "",
            remedy=plain(problem.remedy, 400),
            basis="NVIDIA nvml.h, nvmlReturn_t",
        )


def _weight(state: State, problem: events.Problem) -> tuple[events.Severity, str]:
    """Severity and word of a problem; a code nobody knows weighs what its subject does."""
    code = problem.code
    if code in _REMARKS or code == _NO_DEVICE:
        return "info", "note"
    if code == _NO_LIBRARY and not any(state.gpus()):
        return "info", "note"
    if code in _UNREADABLE:
        return "warn", "N/A"
    if problem.subject not in _ESSENTIAL:
        return "warn", "note"
    return "fail", "STALE" if code == _STALLED else "FAIL"


def worker_trouble(state: State, _now: float) -> Iterator[events.Finding]:
    """A child process that crashed: restarted, or given up."""
    never_started: dict[str, list[events.Worker]] = {}
    for worker in state.workers.values():
        if worker.condition == "failed" and worker.restarts == 0 and worker.worker != POLLER:
            never_started.setdefault(worker.detail, []).append(worker)
        elif worker.condition == "failed":
            yield _given_up(state, worker)
        elif worker.restarts > 0:
            yield _restarted(state, worker)
    for detail, workers in never_started.items():
        names = [_name(state, worker) for worker in workers]
        yield finding(
            workers[0],
            None,
            code="benchmarks-off",
            severity="info",
            word="note",
            title=f"no benchmarks: {plain(detail, 120) or 'the worker could not be started'}",
            cause="monitoring goes on without them",
            evidence=(joined(names),),
            remedy="Name a Python that has torch: topsmon --python PATH",
        )


def _given_up(state: State, worker: events.Worker) -> events.Finding:
    poller = worker.worker == POLLER
    crashes = worker.restarts + 1
    return finding(
        worker,
        None,
        code="poller-failed" if poller else "prober-failed",
        severity="fail" if poller else "warn",
        word="FAIL" if poller else "N/A",
        title=f"{_name(state, worker)} crashed {crashes} {_times(crashes)} and was given up",
        cause=plain(worker.detail, 200),
        remedy=(
            "See the kernel log (dmesg | grep -iE 'nvrm|xid'), then start topsmon again."
            if poller
            else "See its last words above; press b to try again, or give --python PATH."
        ),
    )


def _restarted(state: State, worker: events.Worker) -> events.Finding:
    down = worker.condition == "restarted"
    return finding(
        worker,
        None,
        code="worker-restarted",
        severity="warn" if down else "info",
        word="note",
        title=f"worker restarted: {_name(state, worker)}, {worker.restarts} "
        f"{_times(worker.restarts)}",
        cause=plain(worker.detail, 200),
    )


def _times(count: int) -> str:
    return "time" if count == 1 else "times"


def _name(state: State, worker: events.Worker) -> str:
    if worker.worker == POLLER:
        return "device poller"
    key = worker.worker.removeprefix(PROBER_PREFIX)
    device = state.devices.get(key)
    return f"benchmarks of {device.label if device is not None else plain(key, 50)}"
