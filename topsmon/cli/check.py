"""topsmon check: verdicts with evidence and remedy, and an exit code for schedulers."""

from __future__ import annotations

import dataclasses
import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from topsmon.cli.common import (
    Common,
    Number,
    common_options,
    enter_simulation,
    shows_progress,
    split_list,
    width,
)

if TYPE_CHECKING:
    from topsmon.launcher.torchrun import Nodes

RANKS_SECONDS = 120.0
"""The usual time limit over several ranks: torch, CUDA and NCCL take their time to start."""
MOST_RANKS = 4096


@click.command()
@click.option("--quick", is_flag=True, help="Driver readings alone: no torch, under 2 s.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--junit", is_flag=True, help="Print JUnit XML.")
@click.option("--nagios", is_flag=True, help="Print one Nagios line with performance data.")
@click.option(
    "--only", "checks", multiple=True, callback=split_list, metavar="CHECK", help="Only these."
)
@click.option("--skip", multiple=True, callback=split_list, metavar="CHECK", help="Not these.")
@click.option("--force", is_flag=True, help="Measure devices that others use too.")
@click.option(
    "--timeout",
    type=Number(2.0, 3600.0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="End after this long with what is known.",
)
@click.option(
    "--fail-on",
    type=click.Choice(["warn", "fail"]),
    default="warn",
    show_default=True,
    help="The mildest verdict that makes the exit code non-zero.",
)
@click.option("--unknown-ok", is_flag=True, help="What could not be measured is no failure.")
@click.option(
    "--cached",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Answer from this file while it is fresh, else check and write it.",
)
@click.option(
    "--max-age",
    type=Number(0.0),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a cached verdict is fresh.",
)
@click.option(
    "--nproc",
    metavar="auto|N",
    help="Measure N devices together: all-reduce and more under torchrun (auto: every GPU).",
)
@click.option("--nnodes", type=click.IntRange(1, 4096), metavar="N", help="So many machines.")
@click.option(
    "--node-rank", type=click.IntRange(0), metavar="R", help="This machine's number, from 0."
)
@click.option(
    "--rendezvous", metavar="HOST:PORT", help="Where the machines meet: a free port of machine 0."
)
@click.option(
    "--parameters",
    type=Number(1.0, 1e15),
    metavar="COUNT",
    help="Trainable parameters that advice on communication is about (1.3e9).",
)
@click.option(
    "--step-seconds",
    type=Number(1e-9, 1e6),
    metavar="S",
    help="Computing of one micro-batch on one device, for the same advice.",
)
@click.option(
    "--largest",
    type=click.IntRange(4096),
    metavar="BYTES",
    help="The largest payload (1 GiB on GPUs, 64 MiB on processors); below it are measured "
    "32 KiB and 1, 16, 64, 256 MiB.",
)
@functools.partial(common_options, devices="--device")
def command(
    common: Common,
    quick: bool,
    as_json: bool,
    junit: bool,
    nagios: bool,
    checks: tuple[str, ...],
    skip: tuple[str, ...],
    force: bool,
    timeout: float,
    fail_on: Any,
    unknown_ok: bool,
    cached: Path | None,
    max_age: float,
    nproc: str | None,
    nnodes: int | None,
    node_rank: int | None,
    rendezvous: str | None,
    parameters: float | None,
    step_seconds: float | None,
    largest: int | None,
) -> None:
    """Quick sanity check of every device: a table, verdicts, remedies, an exit code.

    Exit codes: 0 OK, 1 WARN, 2 FAIL, 3 UNKNOWN (could not be measured), 64 wrong usage,
    130 interrupted.
    """
    if as_json + junit + nagios > 1:
        raise click.UsageError("--json, --junit and --nagios exclude each other")
    enter_simulation(common, one_look=quick)
    from topsmon.checks.command import CheckOptions, run

    terminal = sys.stdout.isatty()
    options = CheckOptions(
        format="json" if as_json else "junit" if junit else "nagios" if nagios else "text",
        quick=quick,
        only=checks,
        skip=skip,
        devices=common.only,
        only_visible=common.only_visible,
        python=common.python,
        force=force,
        limit_seconds=timeout,
        fail_on=fail_on,
        unknown_ok=unknown_ok,
        cached=cached,
        max_age_seconds=max_age,
        simulated=common.simulate,
        ascii_only=common.ascii_for(sys.stdout),
        colour=terminal and common.color,
        width=width() if terminal else None,
        progress=shows_progress(),
    )
    several = _several(nproc, nnodes, node_rank, rendezvous)
    if several is None:
        if parameters is not None or step_seconds is not None or largest is not None:
            raise click.UsageError("--parameters, --step-seconds and --largest go with --nproc")
        _hint_at_ranks()
        raise click.exceptions.Exit(run(options))
    if quick or cached is not None or common.simulate is not None:
        raise click.UsageError("--nproc goes without --quick, --cached and --simulate")
    from topsmon.checks.several import RanksOptions
    from topsmon.checks.several import run as run_ranks

    source = click.get_current_context().get_parameter_source("timeout")
    if source is click.core.ParameterSource.DEFAULT:
        options = dataclasses.replace(options, limit_seconds=RANKS_SECONDS)
    asked = RanksOptions(
        check=options,
        nproc=several.ranks,
        nodes=several.nodes,
        parameters=None if parameters is None else round(parameters),
        step_seconds=step_seconds,
        largest_bytes=largest,
    )
    raise click.exceptions.Exit(run_ranks(asked))


def _hint_at_ranks() -> None:
    """Say once where a launcher has started several of us, each of which checks by itself."""
    import os

    from topsmon.checks.command import complain
    from topsmon.distributed.environment import PlacementError, detect

    try:
        place = detect(os.environ, os.getppid())
    except PlacementError:
        return
    if place is not None and place.rank == 0:
        complain(
            f"{place.launcher} has started {place.world_size} ranks, and each checks this machine "
            f"by itself; {TOGETHER[place.launcher == 'torchrun']} measures them together"
        )


TOGETHER = {
    False: "topsmon check --nproc auto",
    # torchrun takes the beginning of any word for an option of its own, but not after "--".
    True: "torchrun --nproc-per-node N --no-python -- topsmon check --nproc auto",
}


class _Several(NamedTuple):
    """Ranks on this machine, None: one a GPU; and the machines."""

    ranks: int | None
    nodes: Nodes


def _several(
    nproc: str | None, nnodes: int | None, node_rank: int | None, rendezvous: str | None
) -> _Several | None:
    """How many ranks and machines, None for a check of each device alone."""
    if nproc is None and nnodes is None:
        if node_rank is not None or rendezvous is not None:
            raise click.UsageError("--node-rank and --rendezvous go with --nnodes")
        return None
    from topsmon.distributed.environment import PlacementError, parse_meeting
    from topsmon.launcher.torchrun import Nodes

    ranks = None
    if nproc not in (None, "auto"):
        if not nproc.isascii() or not nproc.isdigit() or not 0 < int(nproc) <= MOST_RANKS:
            raise click.UsageError(f"--nproc {nproc}: neither auto nor a number from 1 on")
        ranks = int(nproc)
    if rendezvous is not None:
        try:
            parse_meeting(rendezvous)
        except PlacementError as error:
            raise click.UsageError(f"--{error}") from error
    count = nnodes or 1
    if count > 1 and (node_rank is None or rendezvous is None):
        raise click.UsageError(
            "--nnodes also wants --node-rank R and --rendezvous HOST:PORT, the same on all machines"
        )
    if (node_rank or 0) >= count:
        raise click.UsageError(f"--node-rank {node_rank}: machines are numbered 0 to {count - 1}")
    return _Several(ranks, Nodes(count, node_rank or 0, rendezvous or ""))
