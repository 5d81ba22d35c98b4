"""topsmon check: verdicts with evidence and remedy, and an exit code for schedulers."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

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
) -> None:
    """Quick sanity check of every device: a table, verdicts, remedies, an exit code.

    Exit codes: 0 OK, 1 WARN, 2 FAIL, 3 UNKNOWN (could not be measured), 64 wrong usage,
    130 interrupted.
    """
    if as_json + junit + nagios > 1:
        raise click.UsageError("--json, --junit and --nagios exclude each other")
    enter_simulation(common)
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
    raise click.exceptions.Exit(run(options))
