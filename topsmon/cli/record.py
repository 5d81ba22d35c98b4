"""topsmon record: the session without the screen, into a file."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from topsmon.cli.common import (
    OK,
    UNKNOWN,
    USAGE,
    WARN,
    Common,
    Failure,
    Number,
    common_options,
    prepare_simulation,
)

if TYPE_CHECKING:
    from topsmon.recording.recorder import Recorder
    from topsmon.recording.writer import Limits
    from topsmon.session import Session

WRONG_USAGE = f"exit code {USAGE}: topsmon: "
"""So begins what a poller says that was asked for what is not there."""
FIRST_READING_SECONDS = 5.0
FIRST_LOOK_SECONDS = 0.05
LOOK_SECONDS = 0.5
FIRST_LINE_SECONDS = 5.0
LINE_SECONDS = 60.0
MEBIBYTE = 1 << 20


@click.command()
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option("-s", "--seconds", type=Number(0.1), help="End after so many seconds.")
@click.option("-i", "--interval", type=Number(0.1, 60.0), help="Seconds between samples.")
@click.option("--bench/--no-bench", default=True, help="Measure rates in short bursts meanwhile.")
@click.option(
    "--max-size",
    type=Number(0.1, 1 << 20),
    default=64.0,
    show_default=True,
    metavar="MiB",
    help="Begin a new file at this size.",
)
@click.option(
    "--keep",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help="Files to keep; the oldest go.",
)
@click.option("--force", is_flag=True, help="Write over a recording that is there.")
@common_options
def command(
    common: Common,
    file: Path | None,
    seconds: float | None,
    interval: float | None,
    bench: bool,
    max_size: float,
    keep: int,
    force: bool,
) -> None:
    """Record what the screen would show, and training runs, until Ctrl-C or SIGTERM.

    FILE is NAME.topsmon.jsonl.zst, or NAME.jsonl for text that is not compressed; without FILE a
    name with the time in the state directory. Read it with topsmon replay, report and export.

    Exit code 1 where lines of it were lost, or the disk takes nothing at the end.
    """
    if file is not None and str(file) == "-":
        raise click.UsageError(
            "record -: a recording goes into a file; topsmon stream writes lines to the standard "
            "output, which topsmon replay reads too"
        )
    environment = prepare_simulation(common.simulate)
    from topsmon import results
    from topsmon.recording.writer import Limits, RecordingError, WrongNameError
    from topsmon.session import Session, SessionOptions

    session = Session(
        SessionOptions(
            interval=interval or common.interval,
            only=common.only,
            only_visible=common.only_visible,
            simulated=common.simulate,
            environment=environment,
            python=common.python,
            benchmarks=bench,
            remember=results.default_path(),
        )
    )
    limits = Limits(max_bytes=int(max_size * MEBIBYTE), keep=keep)
    try:
        code = asyncio.run(_record(session, file, limits, force=force, seconds=seconds))
    except WrongNameError as error:
        raise click.UsageError(str(error)) from error
    except RecordingError as error:
        raise Failure(str(error)) from error
    raise click.exceptions.Exit(code)


async def _record(
    session: Session, file: Path | None, limits: Limits, *, force: bool, seconds: float | None
) -> int:
    """Record until told to end; return the exit code."""
    from topsmon.recording.names import completed
    from topsmon.recording.recorder import Recorder, in_state_directory
    from topsmon.recording.writer import check_name

    path = in_state_directory() if file is None else completed(file)
    check_name(path, force=force)
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, ending.set)
    recorder, whole = None, True
    try:
        await session.start()
        await _first_reading(ending, session)
        if not ending.is_set():
            recorder = Recorder(session, path, limits, force=force)
            click.echo(f"topsmon: recording into {path}; Ctrl-C ends it", err=True)
            await _until(ending, session, recorder, seconds)
    except click.ClickException:
        if recorder is not None and not _has_read(session):
            recorder.close()
            path.unlink(missing_ok=True)
        raise
    finally:
        await session.stop()
        whole = recorder is None or recorder.close()
    if recorder is None:
        click.echo(f"topsmon: ended before anything was read: there is no {path}", err=True)
        return UNKNOWN
    condition = recorder.condition
    click.echo(f"topsmon: {_line(session, recorder)}", err=True)
    if not whole or condition.problem is not None or condition.lost_lines:
        click.echo(f"topsmon: not all was recorded: {condition.problem or 'see above'}", err=True)
        return WARN
    return OK


async def _first_reading(ending: asyncio.Event, session: Session) -> None:
    """Wait for something to record, so that what cannot be read leaves no file behind."""
    deadline = time.monotonic() + FIRST_READING_SECONDS
    while not ending.is_set() and time.monotonic() < deadline:
        _raise_if_refused(session)
        if _has_read(session):
            return
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(ending.wait(), FIRST_LOOK_SECONDS)


def _has_read(session: Session) -> bool:
    """True once there is a sample of a device."""
    return any(device.sample is not None for device in session.state.devices.values())


async def _until(
    ending: asyncio.Event, session: Session, recorder: Recorder, seconds: float | None
) -> None:
    """Look at the session twice a second; say how it goes once a minute, and trouble at once."""
    deadline = None if seconds is None else time.monotonic() + seconds
    line_due = time.monotonic() + FIRST_LINE_SECONDS
    told: str | None = None
    while not ending.is_set():
        now = time.monotonic()
        if deadline is not None and now >= deadline:
            return
        wait = LOOK_SECONDS if deadline is None else min(LOOK_SECONDS, deadline - now)
        try:
            await asyncio.wait_for(ending.wait(), wait)
        except asyncio.TimeoutError:
            recorder.look(session.findings())
        _raise_if_refused(session)
        problem = recorder.condition.problem
        if problem != told:
            told = problem
            click.echo(f"topsmon: {recorder.path}: {problem or 'written again'}", err=True)
        if time.monotonic() >= line_due:
            line_due = time.monotonic() + LINE_SECONDS
            click.echo(f"topsmon: {_line(session, recorder)}", err=True)


def _raise_if_refused(session: Session) -> None:
    """End where the poller gave up: there is nothing to record."""
    worker = session.state.workers.get("poller")
    if worker is not None and worker.condition == "failed":
        from topsmon.units import plain

        detail = plain(worker.detail, 300)
        if detail.startswith(WRONG_USAGE):
            raise click.UsageError(detail.removeprefix(WRONG_USAGE))
        raise Failure(f"nothing can be read: {detail}")


def _line(session: Session, recorder: Recorder) -> str:
    """How the recording goes, in a line."""
    from topsmon.recording.words import size
    from topsmon.units import duration, plain

    state, condition = session.state, recorder.condition
    passed = duration(time.monotonic() - recorder.began)
    parts = [
        f"recorded {passed}"
        if condition.problem is None
        else f"recorded {_written(recorder)} of {passed}",
        size(condition.size),
        f"{len(state.devices)} devices" if len(state.devices) != 1 else "1 device",
    ]
    if state.runs:
        parts.append(f"{len(state.runs)} training runs" if len(state.runs) != 1 else "1 run")
    if condition.lost_lines:
        parts.append(f"{condition.lost_lines} lines lost")
    findings = [finding for finding in session.findings() if finding.severity != "info"]
    if findings:
        parts.append(plain(f"{findings[0].word}: {findings[0].title}", 100))
    return ", ".join(parts)


def _written(recorder: Recorder) -> str:
    """How much of the recording is on a disk that takes no more."""
    from topsmon.units import duration

    written = recorder.condition.written
    seconds = 0.0 if written is None else max(written - recorder.began, 0.0)
    return duration(seconds)
