"""Rules about a run's life: ended badly, silent, and the recorder's own trouble."""

from __future__ import annotations

from collections.abc import Iterator

from topsmon import events
from topsmon.diagnosis.training.exceptions import exception_text
from topsmon.diagnosis.training.watched import Watched, found
from topsmon.diagnosis.training.words import counted
from topsmon.units import duration, plain

SILENT_SECONDS = 600.0
"""torch.distributed gives up on NCCL after 10 minutes: shorter silence is a checkpoint or a
validation, longer may be a hang."""
ASKED_TO_END = frozenset({130, 143})
"""Exit codes after SIGINT and SIGTERM: someone ended it."""
KILLED = 137


def ended_badly(watched: Watched) -> Iterator[events.Finding]:
    """The last words of a run that failed, was killed, or is gone."""
    status = watched.run.status
    if status is None or status.condition not in {"failed", "killed", "gone"}:
        return
    step = watched.sample.step if watched.sample is not None else 0
    at = f" after {counted(step, 'step')}" if step else " before its first step"
    asked = status.exit_code in ASKED_TO_END
    gone = status.condition == "gone"
    last = _last_exception(watched)
    detail = plain(status.detail, 200) or (exception_text(last) if last is not None else "")
    verb = {"failed": "failed", "killed": "was killed"}.get(status.condition, "is gone")
    memory = last is not None and "out of memory" in last.message.lower()
    yield found(
        watched,
        rests_on=status,
        code=f"run-{status.condition}",
        severity="info" if asked or gone else "fail",
        word="FAIL",
        title=f"the run {verb}{at}" + (f": {detail}" if detail else ""),
        cause=_cause(status, asked=asked, memory=memory),
        evidence=(exception_text(last),) if last is not None else (),
        remedy=_remedy(status, memory=memory),
        command="sudo dmesg -T | grep -i -E 'out of memory|oom'" if _sigkill(status) else "",
        basis="exit status of the process",
    )


def _last_exception(watched: Watched) -> events.RunEvent | None:
    happened = watched.happened("exception")
    ended_by = [event for event in happened if not event.values.get("handled")]
    return ended_by[-1] if ended_by else None


def _sigkill(status: events.RunStatus) -> bool:
    return status.condition == "killed" and (
        status.exit_code == KILLED or "SIGKILL" in status.detail
    )


def _cause(status: events.RunStatus, *, asked: bool, memory: bool) -> str:
    if asked:
        return "someone asked it to end (SIGINT or SIGTERM)"
    if memory:
        return "the device's memory was full"
    if _sigkill(status):
        return "SIGKILL comes from a person, the scheduler, or the kernel when memory is full"
    if status.condition == "gone":
        return "it ended without a word, or cannot be seen from here"
    return ""


def _remedy(status: events.RunStatus, *, memory: bool) -> str:
    if memory:
        return (
            "Lower the batch size and accumulate gradients, checkpoint activations, or shard the "
            "model."
        )
    if _sigkill(status):
        return "See whether the kernel was out of memory, or ask the scheduler."
    return ""


def silent(watched: Watched) -> Iterator[events.Finding]:
    """Alive, but no step for long."""
    status, sample = watched.run.status, watched.sample
    if status is None or status.condition != "silent" or watched.run.status_seen is None:
        return
    waited = watched.now - watched.run.status_seen + max(0.0, status.time - status.since)
    usual = sample.window.step_seconds if sample is not None else None
    evidence = [f"a step took {duration(usual)} before"] if usual is not None else []
    yield found(
        watched,
        rests_on=status,
        code="run-silent",
        severity="warn" if waited > SILENT_SECONDS else "info",
        word="WAIT",
        title=f"no step for {duration(waited)}",
        cause="a checkpoint, a validation, a wait for another rank, or a hang",
        evidence=tuple(evidence),
        remedy="See where it is; compare the ranks: the one in another place holds up the others.",
        command=f"py-spy dump --nonblocking --pid {watched.identity.pid}"
        if watched.identity.local
        else "",
        basis="torch.distributed gives up on NCCL after 10 minutes",
    )


def recorder_trouble(watched: Watched) -> Iterator[events.Finding]:
    """What the recorder could not do: then numbers are missing, and nothing else is wrong."""
    event = watched.run.latest("recorder")
    if event is None:
        return
    yield found(
        watched,
        rests_on=event,
        code="recorder",
        severity="info",
        word="note",
        title=f"recorder: {plain(event.message, 160)}",
        cause="the run goes on as it would without it; what is shown may be incomplete",
    )
