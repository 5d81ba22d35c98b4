"""topsmon demo: a small real training run, healthy or broken on purpose, to be watched."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import click

import topsmon
from topsmon.cli.common import Common, Failure, Number
from topsmon.training import launch

FOLDER = Path(topsmon.__file__).parent / "demo"
WORKLOADS = ("amp",)
BREAKS = ("forward", "backward", "clip", "scale")
BREAK_STEP = 100
"""The demonstration's own default."""
NO_NUMPY = "ignore:Failed"
"""Of "Failed to initialize NumPy", which torch says once where there is none."""


@click.command()
@click.argument("workload", type=click.Choice(WORKLOADS))
@click.option(
    "--break",
    "broken",
    type=click.Choice(BREAKS),
    help="forward: NaN in a layer; backward: gradients overflow FP16; clip: scaled gradients are"
    " clipped; scale: the loss scale collapses.",
)
@click.option(
    "--break-step",
    type=click.IntRange(1),
    default=BREAK_STEP,
    show_default=True,
    help="From this step on.",
)
@click.option("--steps", type=click.IntRange(1), help="End after so many steps.")
@click.option("--seconds", type=Number(0.1), help="End after this time.")
@click.option("--device", metavar="DEVICE", help="cpu or cuda:N (default: the first GPU, if any).")
@click.option("--fast", is_flag=True, help="As fast as it can instead of 20 steps/s.")
@click.option("--python", metavar="PATH", help="Interpreter whose torch trains.")
@click.pass_obj
def command(
    common: Common,
    workload: str,
    broken: str | None,
    break_step: int,
    steps: int | None,
    seconds: float | None,
    device: str | None,
    fast: bool,
    python: str | None,
) -> None:
    """Train a small transformer in mixed precision, until Ctrl-C; watch it with `topsmon`.

    FP16 autocast and GradScaler on any device, the CPU included: about 20 steps/s.
    """
    from topsmon import interpreter
    from topsmon.cli.run import start

    found = asyncio.run(interpreter.find(python or common.python, os.environ))
    if found.path is None:
        raise Failure(found.problem)
    words = [found.path, "-W", NO_NUMPY, str(FOLDER / f"{workload}.py")]
    # What is as ever is left out: the run is called by these words.
    words += ["--break", broken] if broken else []
    words += ["--break-step", str(break_step)] if broken and break_step != BREAK_STEP else []
    words += [*(["--steps", str(steps)] if steps else []), *(["--fast"] if fast else [])]
    words += ["--seconds", str(seconds)] if seconds else []
    words += ["--device", device] if device else []
    options = launch.Options(debug=common.debug)
    raise click.exceptions.Exit(start(common, tuple(words), options, summary=True))
