"""topsmon doctor: what works here and what not, why, and what to do."""

from __future__ import annotations

import time
from pathlib import Path

import click

from topsmon.cli.common import (
    FAIL,
    OK,
    SNAPSHOT_SECONDS,
    WARN,
    Common,
    Failure,
    common_options,
    enter_simulation,
    width,
    write_bytes,
    write_text,
)

EXIT = {"ok": OK, "warn": WARN, "fail": FAIL}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--bundle",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also write everything into a .tar.gz for a bug report, redacted.",
)
@click.option("--include-identifiers", is_flag=True, help="With --bundle: redact nothing.")
@click.option("--force", is_flag=True, help="With --bundle: write over a file that is there.")
@common_options
def command(
    common: Common, as_json: bool, bundle: Path | None, include_identifiers: bool, force: bool
) -> None:
    """What works here and what does not, and why: driver, torch, terminal, permissions, recorder.

    Exit code 0 if all works, 1 if something is limited, 2 if something does not work.
    """
    if include_identifiers and bundle is None:
        raise click.UsageError("--include-identifiers goes with --bundle FILE")
    if force and bundle is None:
        raise click.UsageError("--force goes with --bundle FILE")
    enter_simulation(common, one_look=True)
    from topsmon.doctor import bundle as bundles
    from topsmon.files import NotReplacedError

    if bundle is not None:
        try:
            bundles.check(bundle, force=force)
        except NotReplacedError as error:
            raise click.UsageError(f"--bundle {error}") from error
    from topsmon import doctor
    from topsmon.devices import poller
    from topsmon.doctor import model, text
    from topsmon.state import State

    started = time.monotonic()
    try:
        collected = poller.snapshot(SNAPSHOT_SECONDS, common.only, common.only_visible)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    state = State()
    for event in collected:
        state.apply(event, time.monotonic())
    patient = doctor.Patient(state, time.monotonic() - started, python=common.python)
    results = list(doctor.examine(patient))
    if bundle is not None:
        try:
            bundles.write(
                bundle,
                results,
                collected,
                patient.environment,
                identifiers=include_identifiers,
                force=force,
            )
        except NotReplacedError as error:
            raise click.UsageError(f"--bundle {error}") from error
        except OSError as error:
            raise Failure(f"--bundle {bundle}: {error.strerror}") from error
    if as_json:
        write_bytes(text.to_json(results))
    else:
        write_text(text.text(results, width()))
        if bundle is not None:
            click.echo(f"written: {bundle}", err=True)
    raise click.exceptions.Exit(EXIT[model.worst(results)])
