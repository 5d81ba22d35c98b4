"""topsmon run: start a training command watched, without a change to its code."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import click

from topsmon.cli.common import Common, Number, remembering_state
from topsmon.training import foreground, launch, places
from topsmon.training.memory_kills import Kills
from topsmon.training.recorder import given
from topsmon.units import plain

LOOK_SECONDS = 30.0
"""By then a training program has imported torch: the time to say that the recorder is not in it."""
HINT = "`import topsmon; topsmon.watch()` in the script gets in where `topsmon run` cannot"
NO_STEP = (
    "no optimizer step of torch was seen (python -I, -E, -S and a wiped environment keep the "
    "recorder out)"
)
_COUNT = Number(given.COUNT_LEAST, given.COUNT_MOST)


def _flops(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Let "sample" and a number through."""
    if value is None or value == "sample":
        return value
    return repr(Number(*given.limits(given.FLOPS)).convert(value, parameter, context))


@click.command(
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
    epilog="The exit code is the command's own; 127: it was not found, 126: it is no program.",
)
@click.option(
    "--flops",
    callback=_flops,
    metavar="sample|N",
    help="FLOPs per optimizer step and rank, for MFU; 'sample' counts one step (eager models).",
)
@click.option("--tokens-per-step", type=_COUNT, metavar="N", help="Tokens a step and rank.")
@click.option("--samples-per-step", type=_COUNT, metavar="N", help="Samples a step and rank.")
@click.option("--profile-step", type=click.IntRange(1), metavar="N", help="Profile this step.")
@click.option("--summary/--no-summary", default=True, help="At the end, one summary on stderr.")
@click.argument("words", metavar="[--] COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_obj
def command(
    common: Common,
    flops: str | None,
    tokens_per_step: float | None,
    samples_per_step: float | None,
    profile_step: int | None,
    summary: bool,
    words: tuple[str, ...],
) -> None:
    """Run a training COMMAND and record its steps; watch it with `topsmon` in another terminal.

    Terminal, signals and exit code are the command's own. Options after its first word are its own.
    """
    options = launch.Options(
        flops, tokens_per_step, samples_per_step, profile_step, debug=common.debug
    )
    raise click.exceptions.Exit(start(common, words, options, summary=summary))


def start(common: Common, words: tuple[str, ...], options: launch.Options, *, summary: bool) -> int:
    """Run a command watched to its end; return its exit code, or end by its signal."""
    name, began = launch.new_launch(), time.time()
    environment = launch.environment(os.environ, name, options)
    killed_before = Kills.read()
    told: list[str] = []

    def look(pid: int) -> None:
        with contextlib.suppress(Exception):  # the command still has to be waited for
            from topsmon.training import unseen

            reason = unseen.reason(pid)
            if reason is not None and not told:
                _tell(reason, told)

    try:
        program = foreground.find(words)
        obstacle = launch.shut_out(words, program.path, os.environ)
        if obstacle is not None:
            _tell(obstacle, told)
        else:
            _tell_of_folder(environment, told)
        pid, ended = foreground.run(program, environment, look=look, look_seconds=LOOK_SECONDS)
    except foreground.StartError as error:
        _say(f"topsmon: {error}\n")
        return error.exit_code
    try:
        from topsmon.training import last_words

        rings = last_words.rings(name, environment, began)
        last_words.write(rings, pid, ended, Kills.read().words_since(killed_before))
        if summary and rings:
            _summarise(common, rings, options.profile_step)
        elif summary and not told:
            _tell_of_folder(environment, told)
            if not told:
                _tell(NO_STEP, told)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  the command's own end counts
        _say(f"topsmon: no summary: {type(error).__name__}: {error}\n")
    return foreground.end_like(ended)


def _tell(obstacle: str, told: list[str], hint: str = f"; {HINT}") -> None:
    """Say once why nothing is recorded; a progress bar may stand on the terminal's line."""
    told.append(obstacle)
    start = "\n" if sys.stderr is not None and sys.stderr.isatty() else ""
    _say(f"{start}topsmon: not recorded: {obstacle}{hint}\n")


def _tell_of_folder(environment: Mapping[str, str], told: list[str]) -> None:
    """Say if there is no folder that the run can be recorded in."""
    with contextlib.suppress(Exception):  # the command starts and ends whatever this finds
        obstacle = places.obstacle(environment)
        if obstacle is not None:
            _tell(plain(obstacle), told, hint="")


def _summarise(common: Common, rings: list[Path], profile_step: int | None) -> None:
    """Print how the runs of a launch went, against this machine's ceilings."""
    from topsmon.report import profile_lines, training
    from topsmon.training.life import Here
    from topsmon.training.watched import WatchedRun

    # Not in a simulation: that would start this program anew.
    state, here = remembering_state(dataclasses.replace(common, simulate=None)), Here.read()
    keys = []
    for path in rings:
        run = WatchedRun(path, os.geteuid(), socket.gethostname(), here)
        keys.append(run.key)
        for event in run.poll():
            state.apply(event, time.monotonic())
        run.close()
    runs = [state.runs[key] for key in keys]
    ascii_only = common.ascii_for(sys.stderr)
    text = training.summary(runs, state, time.monotonic(), ascii_only=ascii_only)
    missed = profile_lines.never_reached(runs, profile_step)
    _say(f"\n{text}{missed}")


def _say(text: str) -> None:
    # The command's end counts, whatever has become of our stderr.
    with contextlib.suppress(OSError):
        click.echo(text, err=True, nl=False)
