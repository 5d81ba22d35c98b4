"""topsmon attach: let the recorder into a training run that is running already."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from topsmon.cli.common import Failure

if TYPE_CHECKING:
    from topsmon.training.attach import Target

ANSWER_SECONDS = 10.0
STEP_SECONDS = 20.0
PAUSE_SECONDS = 0.2


@click.command()
@click.argument("pid", type=click.IntRange(1))
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def command(pid: int, yes: bool) -> None:
    """Record the training run that is process PID; watch it with `topsmon`.

    Python 3.14 or newer. A short script of topsmon's runs inside the process between two of its
    instructions, loads the recorder and hooks torch's GradScaler and optimizers.
    """
    from topsmon.training import attach

    try:
        target = attach.look_at(pid)
        if _rings_of(target):
            click.echo(f"PID {pid} is being recorded already; topsmon shows it")
            return
        if not yes:
            _ask(target)
        answer = attach.answer_of(target, attach.enter(target), ANSWER_SECONDS)
        if answer is None:
            click.echo(
                f"PID {pid} has not answered in {ANSWER_SECONDS:g} s: it is inside a call into C"
                " code, and the recorder comes in when that returns (a hung collective never does)"
            )
            return
        if answer != attach.SUCCESS:
            raise Failure(f"PID {pid}: the recorder did not get in: {answer}")
        click.echo(f"the recorder is in PID {pid}; waiting for an optimizer step")
        _wait_for_step(target)
    except attach.AttachError as error:
        raise Failure(str(error)) from error


def _ask(target: Target) -> None:
    version = ".".join(str(part) for part in target.version)
    click.echo(f"PID {target.pid}, user {target.user}, Python {version}: {target.command}")
    click.echo(
        "A script of topsmon's will run inside it (sys.remote_exec): it loads the recorder and\n"
        "hooks torch's GradScaler and optimizers until the process ends."
    )
    if not sys.stdin.isatty():
        raise Failure("nobody is there to be asked; --yes goes on without")
    click.confirm("Enter this process?", abort=True)


def _wait_for_step(target: Target) -> None:
    """Say when the run's ring appears."""
    from topsmon.training import attach

    deadline = time.monotonic() + STEP_SECONDS
    while not _rings_of(target):
        attach.demand_alive(target)
        if time.monotonic() >= deadline:
            click.echo("no optimizer step yet; topsmon will show the run from the first one on")
            return
        time.sleep(PAUSE_SECONDS)
    click.echo("recorded; topsmon shows it")


def _rings_of(target: Target) -> bool:
    """True if the process has a ring."""
    from topsmon.training import last_words

    return bool(last_words.rings_of_process(target.environment, target.pid, target.process_started))
