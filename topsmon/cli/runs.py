"""topsmon runs: the training runs that have been recorded here, one line each."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterable
from typing import Any

import click

from topsmon.cli.common import UNKNOWN, Common, common_options, width, write_bytes, write_text
from topsmon.diagnosis.training.words import number_text, seconds_text
from topsmon.run_state import RunState, started_as
from topsmon.units import NOT_AVAILABLE, command_words, duration, plain

SCHEMA = "topsmon.runs/1"
HEADS = ("STATE", "PID", "RANK", "STEP", "STEP TIME", "LOSS", "SCALE", "LAST STEP", "COMMAND")
_RIGHT = frozenset({"PID", "STEP", "STEP TIME", "LOSS", "SCALE", "LAST STEP"})


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--all", "everything", is_flag=True, help="Runs that ended more than a day ago too.")
@click.option("--clean", is_flag=True, help="Remove the records of all runs that have ended.")
@common_options
def command(common: Common, as_json: bool, everything: bool, clean: bool) -> None:
    """List training runs: those that live and those that ended within a day.

    The records of ended runs are kept for 7 days, of the newest 200 at most (fewer where the
    folder's file system is small). Exit code 3 where a folder of records cannot be trusted or read.
    """
    del common
    from topsmon.training import discovery
    from topsmon.training.life import Here

    if clean:
        removed = discovery.clean(discovery.places(), Here.read(), everything=True)
        ended = f"{len(removed)} ended run{'' if len(removed) == 1 else 's'}"
        click.echo(f"removed the records of {ended}", err=as_json)
    runs, problems, older = _read(everything=everything)
    if as_json:
        write_bytes(_document(runs, problems, older))
    elif runs:
        columns = max(width(), 80) if sys.stdout.isatty() else None
        write_text("\n".join(line[:columns] for line in lines(runs, time.time())))
    elif not problems and not older:
        write_text("no training runs seen; start one with: topsmon run -- python train.py")
    if older and not as_json:
        verb = "run that" if older == 1 else "runs that"
        write_text(f"and {older} {verb} ended more than a day ago: topsmon runs --all")
    for problem in problems if not as_json else ():
        click.echo(f"topsmon: {plain(problem)}", err=True)
    if problems:
        raise click.exceptions.Exit(UNKNOWN)


def lines(runs: Iterable[RunState], now: float) -> list[str]:
    """Return a heading and one line a run. `now` is wall-clock time in s."""
    rows = [HEADS, *(_row(run, now) for run in runs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADS) - 1)]
    found = []
    for row in rows:
        cells = [
            cell.rjust(size) if head in _RIGHT else cell.ljust(size)
            for head, cell, size in zip(HEADS, row, widths, strict=False)
        ]
        found.append("  ".join([*cells, row[-1]]).rstrip())
    return found


def _row(run: RunState, now: float) -> tuple[str, ...]:
    identity, sample, status = run.identity, run.sample, run.status
    rank = "-" if identity.rank is None else str(identity.rank)
    if identity.world_size is not None:
        rank += f"/{identity.world_size}"
    started = " ".join(started_as(identity.command)) if run.demonstrates else identity.command
    words = command_words(started, 200) or identity.hostname
    detail = plain(status.detail, 200) if status is not None else ""
    return (
        "interrupted" if run.interrupted else run.condition,
        str(identity.pid),
        rank,
        NOT_AVAILABLE if sample is None else str(sample.step),
        NOT_AVAILABLE if sample is None else seconds_text(sample.window.step_seconds),
        _loss(run),
        NOT_AVAILABLE if sample is None or sample.scale is None else _scale(sample.scale),
        NOT_AVAILABLE if sample is None else f"{duration(now - sample.stepped_at)} ago",
        f"{detail} - {words}" if detail else words,
    )


def _loss(run: RunState) -> str:
    sample = run.sample
    if sample is not None and sample.loss_finite is False:
        return "NaN/Inf"
    return NOT_AVAILABLE if sample is None or sample.loss is None else number_text(sample.loss)


def _scale(scale: float) -> str:
    return f"{scale:g}" if scale < 1 or scale >= 1e7 else f"{scale:.0f}"


def _read(*, everything: bool) -> tuple[list[RunState], list[str], int]:
    """All runs in order of their start, what could not be read in words, how many are too old."""
    from topsmon.training.source import TrainingRuns

    source = TrainingRuns(socket.gethostname(), everything=everything, most=None)
    runs: dict[str, RunState] = {}
    try:
        for event in source.poll():
            _fold(runs, event)
        problems, older = source.problems(), source.left_out()
    finally:
        source.close()
    order = sorted(runs.values(), key=lambda run: (run.identity.started, run.key))
    return order, problems, older


def _fold(runs: dict[str, RunState], event: Any) -> None:
    from topsmon import events

    if isinstance(event, events.Run):
        runs[event.run] = RunState(event)
    elif not isinstance(event, events.Problem):
        runs[event.run].apply(event, event.monotonic)


def _document(runs: Iterable[RunState], problems: list[str], older: int) -> bytes:
    import msgspec

    from topsmon import __version__

    document = {
        "schema": SCHEMA,
        "version": __version__,
        "runs": [
            {
                "identity": run.identity,
                "status": run.status,
                "sample": run.sample,
                "events": list(run.happened),
            }
            for run in runs
        ],
        "problems": problems,
        "older_runs": older,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
