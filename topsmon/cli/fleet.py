"""topsmon fleet: many machines at once, from a Prometheus server that already scrapes them."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from topsmon.cli.common import (
    Common,
    Failure,
    Number,
    common_options,
    has_screen,
    width,
    write_bytes,
    write_text,
)

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
@common_options
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
    from topsmon.exporters.query import QueryError, Server

    matchers = match.strip().removeprefix("{").removesuffix("}")
    try:
        server = Server(url, ca=ca, timeout=timeout)
        if not (once or as_json) and has_screen():
            raise click.exceptions.Exit(_screen(common, server, matchers))
        reading = fleet_reading.read(server.instant, matchers, time.time())
    except QueryError as error:
        raise Failure(f"--prometheus {error}") from error
    if as_json:
        write_bytes(fleet_summary.to_json(reading, server.url, worst=worst))
        return
    shown = fleet_summary.text(reading, server.url, worst=worst, width=max(width(), 80))
    write_text(shown.encode("ascii", "replace").decode() if common.ascii_for(sys.stdout) else shown)


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
