"""topsmon replay: a recording on the screen, or its last snapshot as text."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from topsmon.cli.common import (
    UNKNOWN,
    Common,
    Failure,
    Number,
    exit_code,
    has_screen,
    shows_progress,
    write_bytes,
    write_text,
)

if TYPE_CHECKING:
    from topsmon.recording.index import Index
    from topsmon.recording.reader import Lost, RecordingReader
    from topsmon.recording.replay import ReplaySession

_OF_DAY = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_AFTER = re.compile(r"\+(\d+(?:\.\d+)?)([smh]?)")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--speed", type=Number(0.01, 1e5), default=1.0, show_default=True, help="Times life.")
@click.option(
    "--at",
    metavar="TIME",
    help="Begin there: 14:03 (local time of day) or +90s, +5m, +1h from the beginning.",
)
@click.option("-1", "--once", is_flag=True, help="Print the snapshot at --at (the end) and exit.")
@click.option("--json", "as_json", is_flag=True, help="With --once: print it as JSON.")
@click.option("--theme", metavar="NAME", help="Colours of the screen.")
@click.option("--ascii", "ascii_only", is_flag=True, help="ASCII characters only.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.pass_obj
def command(
    common: Common,
    file: Path,
    speed: float,
    at: str | None,
    once: bool,
    as_json: bool,
    theme: str | None,
    ascii_only: bool,
    debug: bool,
) -> None:
    """Show a recording on the screen as it was; without a terminal its last snapshot as text.

    Keys: Space pauses, < and > change the speed, left and right go 10 s, n goes to the next
    finding. Nothing is measured and no process is touched.
    """
    if as_json and not once:
        raise click.UsageError("--json goes with --once (topsmon replay FILE --once --json)")
    if theme is not None:
        from topsmon.tui import themes

        known = themes.names()
        if theme not in known:
            raise click.UsageError(f"--theme {theme}: no such theme; there are: {', '.join(known)}")
    reader, index = opened(file)
    begin = None if at is None else _moment(at, index)
    from topsmon.recording.replay import ReplaySession

    if once or not has_screen():
        session = ReplaySession(reader, index, at=index.end.now if begin is None else begin)
        code = _snapshot(
            session, ascii_only=common.ascii_for(sys.stdout) or ascii_only, as_json=as_json
        )
        tell_losses(index.lost)
        raise click.exceptions.Exit(code)
    from topsmon.tui import ScreenOptions, replay

    options = ScreenOptions(
        theme=theme,
        ascii_only=ascii_only or common.ascii_for(sys.__stderr__),
        color=common.color,
        readonly=True,
        debug=common.debug or debug,
    )
    raise click.exceptions.Exit(
        replay(ReplaySession(reader, index, speed=speed, at=begin), options)
    )


def opened(file: Path) -> tuple[RecordingReader, Index]:
    """A recording and what it holds, with a line of progress for a long one."""
    from topsmon.recording import index
    from topsmon.recording.reader import RecordingReader
    from topsmon.recording.writer import RecordingError, WrongNameError

    shown = shows_progress()

    def progress(ratio: float) -> None:
        if shown:
            click.echo(f"\rreading {file.name}: {ratio:.0%}", nl=False, err=True)

    began = time.monotonic()
    try:
        reader = RecordingReader(file)
        found = index.build(reader, progress)
    except WrongNameError as error:
        raise click.UsageError(str(error)) from error
    except RecordingError as error:
        raise Failure(str(error)) from error
    finally:
        if shown and time.monotonic() - began > 0.5:
            click.echo("\r\x1b[K", nl=False, err=True)
    return reader, found


def tell_losses(lost: Lost) -> None:
    """Say on stderr what is missing of a recording."""
    for words in lost.words():
        click.echo(f"topsmon: {words}", err=True)


def _moment(text: str, index: Index) -> float:
    """The monotonic time that --at means."""
    later = _AFTER.fullmatch(text.strip())
    if later is not None:
        return index.begin.now + float(later[1]) * _SECONDS[later[2]]
    of_day = _OF_DAY.fullmatch(text.strip())
    if of_day is None:
        raise click.UsageError(f"--at {text}: give a time of day (14:03) or an offset (+90s, +5m)")
    hour, minute, second = (int(part or 0) for part in of_day.groups())
    if hour > 23 or minute > 59 or second > 59:
        raise click.UsageError(f"--at {text}: no time of day")
    begin = time.localtime(index.begin.wall)
    fields = (begin.tm_year, begin.tm_mon, begin.tm_mday, hour, minute, second, 0, 0, -1)
    wall = time.mktime(fields)
    if wall + 60 <= index.begin.wall:
        wall = time.mktime((*fields[:2], fields[2] + 1, *fields[3:]))
    if wall > index.end.wall:
        first, last = (
            time.strftime("%H:%M:%S", time.localtime(one.wall)) for one in (index.begin, index.end)
        )
        raise click.UsageError(f"--at {text}: the recording goes from {first} to {last}")
    return index.at_wall(wall)


def _snapshot(session: ReplaySession, *, ascii_only: bool, as_json: bool) -> int:
    """Print what was known at this moment; the exit code follows the worst finding."""
    from topsmon.report import once

    session.settle()
    (now, wall), findings = session.clock(), session.findings()
    if as_json:
        write_bytes(once.to_json(session.state, findings, now, wall=wall))
    else:
        when = time.strftime("%H:%M:%S", time.localtime(wall))
        words = "; ".join((f"REPLAY of {session.name}, {when}", *session.index.lost.words()))
        text = once.text(session.state, findings, now, ascii_only=ascii_only, wall=wall)
        write_text(f"{words}\n{text}")
    if not session.state.devices:
        return UNKNOWN
    return exit_code([finding.severity for finding in findings])
