"""topsmon export: numbers for other programs, of a recording or of this machine as it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from topsmon.cli.common import Common, Number, common_options

PATH = click.Path(dir_okay=False, path_type=Path)
OF_A_RECORDING = ("csv", "parquet", "trace")
PACKAGED = {"print_dashboard": "grafana-dashboard.json", "print_alerts": "alert-rules.yml"}


@click.command()
@click.argument("recording", required=False, type=PATH)
@click.option("--csv", type=PATH, metavar="OUT", help="Samples, rates and runs as tables.")
@click.option("--parquet", type=PATH, metavar="OUT", help="As --csv (needs topsmon[parquet]).")
@click.option("--trace", type=PATH, metavar="OUT", help="Counters for Perfetto and Chrome.")
@click.option("--force", is_flag=True, help="Write over files that are there.")
# Of this machine as it runs, for Prometheus:
@click.option(
    "--prometheus",
    is_flag=False,
    flag_value="",
    metavar="[ADDR:PORT]",
    help="Serve metrics over HTTP (default 127.0.0.1:18677, path /metrics).",
)
@click.option(
    "--textfile", type=PATH, metavar="FILE", help="Write them for node_exporter; - is stdout."
)
@click.option("--once", is_flag=True, help="With --textfile: write once and end.")
@click.option(
    "--every",
    type=Number(1.0, 3600.0),
    default=15.0,
    show_default=True,
    metavar="SECONDS",
    help="How often --textfile is written and --check-file is read.",
)
@click.option("--bench", is_flag=True, help="Measure rates in short bursts where nobody computes.")
@click.option(
    "--check-file", type=PATH, metavar="FILE", help="Add the verdicts of topsmon check --cached."
)
@click.option(
    "--runs",
    type=click.IntRange(0, 1024),
    default=32,
    show_default=True,
    help="Training runs exported at a time.",
)
@click.option("--tls-cert", type=PATH, metavar="PEM", help="Serve HTTPS with this certificate.")
@click.option("--tls-key", type=PATH, metavar="PEM", help="Key of the certificate.")
@click.option("--tls-client-ca", type=PATH, metavar="PEM", help="Let in only its clients.")
@click.option(
    "--auth-file", type=PATH, metavar="FILE", help="Ask for USER:PASSWORD, the file's one line."
)
@click.option("--print-dashboard", is_flag=True, help="Print a Grafana dashboard.")
@click.option("--print-alerts", is_flag=True, help="Print alert rules for Prometheus.")
@common_options
def command(
    common: Common,
    recording: Path | None,
    csv: Path | None,
    parquet: Path | None,
    trace: Path | None,
    force: bool,
    **live: Any,
) -> None:
    """Turn a RECORDING into CSV, Parquet or a trace; "-" as OUT is the standard output.

    topsmon export RECORDING --csv OUT

    Or give Prometheus the numbers of this machine as it runs:

    topsmon export --prometheus
    """
    wanted = {"csv": csv, "parquet": parquet, "trace": trace}
    chosen = {name: path for name, path in wanted.items() if path is not None}
    printed = [file for option, file in PACKAGED.items() if live.pop(option)]
    if printed or live["prometheus"] is not None or live["textfile"] is not None:
        from topsmon.cli import export_live

        if recording is not None or chosen or len(printed) > 1:
            raise click.UsageError(
                "a RECORDING with --csv, --parquet or --trace, this machine with --prometheus "
                "or --textfile, --print-dashboard, --print-alerts: one of these at a time"
            )
        if printed:
            export_live.print_file(printed[0])
            return
        raise click.exceptions.Exit(export_live.export(common, export_live.LiveOptions(**live)))
    from topsmon.cli import export_recording

    export_recording.export(recording, chosen, force=force)
