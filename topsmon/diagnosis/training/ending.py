"""Rules about a run's life: ended badly, silent, and the recorder's own trouble."""

from __future__ import annotations

from collections.abc import Iterator

from topsmon import events
from topsmon.diagnosis.training.exceptions import exception_text
from topsmon.diagnosis.training.other_ranks import died_first, led_to_others, rank_word
from topsmon.diagnosis.training.watched import Watched, found
from topsmon.diagnosis.training.words import counted, seconds_text
from topsmon.units import duration, plain

SILENT_SECONDS = 600.0
"""torch.distributed gives up on NCCL after 10 minutes: shorter silence is a checkpoint or a
validation, longer may be a hang."""
KILLED = 137
VERBS = {"failed": "failed", "killed": "was killed", "gone": "is gone"}
STOPPED = "stopped"
"""So begins what is told of a process that takes no part in scheduling (state T)."""


def ended_badly(watched: Watched) -> Iterator[events.Finding]:
    """The last words of a run that failed, was killed, or is gone."""
    status = watched.run.status
    if status is None or status.condition not in {"failed", "killed", "gone"}:
        return
    step = watched.sample.step if watched.sample is not None else 0
    at = f" after {counted(step, 'step')}" if step else " before its first step"
    last = watched.run.last_error
    if watched.run.interrupted:
        yield found(
            watched,
            rests_on=status,
            code=f"run-{status.condition}",
            severity="info",
            word="FAIL",
            title=f"interrupted{at}",
            cause="someone asked it to end (Ctrl-C, SIGINT or SIGTERM)",
            basis="exit status of the process",
        )
        return
    first = died_first(watched.state, watched.run)
    gone = status.condition == "gone" and not led_to_others(watched.state, watched.run)
    detail = shortened(status.detail or (exception_text(last) if last is not None else ""))
    if first is not None:
        detail = f"{rank_word(first)} had ended before ({first.condition})"
    verb = VERBS[status.condition]
    memory = last is not None and "out of memory" in last.message.lower()
    yield found(
        watched,
        rests_on=status,
        code=f"run-{status.condition}",
        severity="info" if gone else "fail",
        word="FAIL",
        title=f"the run {verb}{at}" + (f": {detail}" if detail else ""),
        cause=(
            f"it lost its connection to {rank_word(first)}"
            if first is not None
            else _cause(status, memory=memory)
        ),
        evidence=(shortened(exception_text(last, 400)),) if last is not None else (),
        remedy=(
            f"See why {rank_word(first)} ended."
            if first is not None
            else _remedy(status, memory=memory)
        ),
        command="sudo dmesg -T | grep -i -E 'out of memory|oom'" if _sigkill(status) else "",
        basis="exit status of the process",
    )


def shortened(text: str, limit: int = 160) -> str:
    """Text that is safe to draw, cut after a word where it is too long."""
    whole = plain(text, 4 * limit)
    if len(whole) <= limit:
        return whole
    return whole[: limit - 3].rpartition(" ")[0].rstrip(" ,;:") + "..."


def _sigkill(status: events.RunStatus) -> bool:
    return status.condition == "killed" and (
        status.exit_code == KILLED or "SIGKILL" in status.detail
    )


def _cause(status: events.RunStatus, *, memory: bool) -> str:
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
    evidence = [f"a step took {seconds_text(usual)} before"] if usual is not None else []
    if status.detail.startswith(STOPPED):
        yield found(
            watched,
            rests_on=status,
            code="run-silent",
            severity="warn",
            word="WAIT",
            title=f"its process is stopped, no step for {duration(waited)}",
            cause="Ctrl-Z, or SIGSTOP",
            evidence=tuple(evidence),
            remedy="fg in its shell, or kill -CONT, goes on with it.",
            command=f"kill -CONT {watched.identity.pid}" if watched.identity.local else "",
            basis="state T of the process",
        )
        return
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
