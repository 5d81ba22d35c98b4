"""topsmon fleet: many machines at once, from a Prometheus server that already scrapes them."""

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
    has_screen,
    output_options,
    width,
    write_bytes,
    write_text,
)
from topsmon.units import plain

if TYPE_CHECKING:
    from topsmon.exporters.query import Server


@click.command()
@click.option(
    "--prometheus",
    "url",
    required=True,
    metavar="URL",
    help="The server: https://HOST:PORT; name and password in it or in ~/.netrc.",
)
@click.option("--match", default="", metavar="MATCHERS", help='Only series with: job="gpu",...')
@click.option(
    "--worst",
    type=click.IntRange(0, 1000),
    default=5,
    show_default=True,
    metavar="N",
    help="How many of the worst devices are named.",
)
@click.option("-1", "--once", is_flag=True, help="Print once instead of the screen.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, once.")
@click.option(
    "--timeout",
    type=Number(0.1, 300.0),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Give an answer up after this long.",
)
@click.option(
    "--ca",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PEM",
    help="Trust these certificates instead of the system's.",
)
@output_options
def command(
    common: Common,
    url: str,
    match: str,
    worst: int,
    once: bool,
    as_json: bool,
    timeout: float,
    ca: Path | None,
) -> None:
    """Distribution and worst devices of a fleet, from the metrics that a server has.

    Reads what `topsmon export --prometheus`, dcgm-exporter and nvidia_gpu_exporter export.
    """
    from topsmon.exporters import fleet_reading, fleet_summary
    from topsmon.exporters.query import AddressError, QueryError, Server

    if common.only or common.only_visible or common.simulate:
        raise click.UsageError(
            "--only, --only-visible and --simulate are about devices of this machine; "
            "--match chooses series of the server"
        )
    matchers = match.strip().removeprefix("{").removesuffix("}")
    try:
        server = Server(url, ca=ca, timeout=timeout)
        if not (once or as_json) and has_screen():
            raise click.exceptions.Exit(_screen(common, server, matchers))
        reading = fleet_reading.read(server.instant, matchers, time.time())
    except AddressError as error:
        raise click.UsageError(
            str(error) if str(error).startswith("--") else f"--prometheus {_shown(url)}: {error}"
        ) from error
    except QueryError as error:
        raise _failure(str(error), server.url, match) from error
    if as_json:
        write_bytes(fleet_summary.to_json(reading, server.url, worst=worst))
    else:
        _print(common, fleet_summary.text(reading, server.url, worst=worst, width=max(width(), 80)))
    if not reading.gpus and not reading.findings:
        raise click.exceptions.Exit(UNKNOWN)


def _shown(url: str) -> str:
    """The address as it was given, without name and password."""
    return re.sub(r"//[^/]*@", "//", plain(url, 200))


def _print(common: Common, shown: str) -> None:
    if common.ascii_for(sys.stdout):
        shown = shown.replace("°C", "C").encode("ascii", "replace").decode()
    write_text(shown)


def _failure(problem: str, server: str, match: str) -> Failure:
    """The error under the option that is to blame: matchers that the server cannot read."""
    if match and ("parse error" in problem or "bad_data" in problem):
        reason = problem.removeprefix(f"{server}: ")
        return Failure(f'--match {plain(match, 200)}: write LABEL="VALUE",...: {reason}')
    return Failure(f"--prometheus {problem}")


def _screen(common: Common, server: Server, match: str) -> int:
    from topsmon.exporters.fleet_session import PrometheusSession
    from topsmon.tui import ScreenOptions, run

    options = ScreenOptions(
        ascii_only=common.ascii_for(sys.__stderr__),
        color=common.color,
        readonly=True,
        debug=common.debug,
    )
    return run(PrometheusSession(server, match, common.interval), options)
