"""topsmon roofline: ceilings, measured lines and kinds of work in one picture."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from topsmon.cli.common import (
    INTERRUPTED,
    UNKNOWN,
    Common,
    Failure,
    Number,
    common_options,
    width,
    write_bytes,
    write_text,
)
from topsmon.cli.flops import count_model
from topsmon.cli.measure import checked_keys, known_keys, measure

POINTS = (
    "memory",
    "cache",
    "convolution",
    "attention_prefill",
    "attention_decode",
    "message_passing",
)
PLOT_LINES = 24


@click.command()
@click.argument("precisions", nargs=-1, metavar="[PRECISION]...")
@click.option("--svg", type=click.Path(dir_okay=False, path_type=Path), help="Write an SVG file.")
@click.option(
    "--model",
    metavar="MODULE:FACTORY",
    help="Place the layers of this model too.",
)
@click.option("--input", "inputs", multiple=True, metavar="SHAPE", help="With --model: its inputs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--seconds", type=Number(1.0, 600.0), metavar="S", help="Time to measure.")
@click.option("--force", is_flag=True, help="Measure devices that others use too.")
@common_options
def command(
    common: Common,
    precisions: tuple[str, ...],
    svg: Path | None,
    model: str | None,
    inputs: tuple[str, ...],
    as_json: bool,
    seconds: float | None,
    force: bool,
) -> None:
    """Roofline: ceilings (rated, held), measured lines, workloads and layers as points.

    The first PRECISION is drawn in full; without any, the usual one of the device.
    """
    known, _ = known_keys()
    wanted = checked_keys(precisions)
    strange = [key for key in wanted if key not in known]
    if strange:
        raise click.UsageError(f"{strange[0]!r} is no precision; there are {', '.join(known)}")
    if inputs and model is None:
        raise click.UsageError("--input goes with --model MODULE:FACTORY")
    count = count_model(common, model, inputs) if model is not None else None
    outcome = measure(common, (*(wanted or known), *POINTS), seconds=seconds, force=force)
    if not outcome.devices:
        raise Failure("no device could be measured; topsmon --once says what was found")
    from topsmon.report import roofline

    state = outcome.state
    drawn = [
        roofline.build(
            state.devices[key],
            wanted or None,
            focus=wanted[0] if wanted else None,
            count=count,
            simulated=state.simulated,
        )
        for key in outcome.devices
    ]
    if svg is not None:
        _write_svg(svg, [roofline.svg(one) for one in drawn])
    if as_json:
        documents = [roofline.to_json(one).rstrip(b"\n") for one in drawn]
        write_bytes(b"[" + b",\n".join(documents) + b"]\n")
    elif svg is None:
        ascii_only = common.ascii_for(sys.stdout)
        columns = max(60, width())
        texts = [
            roofline.text(one, width=columns, height=PLOT_LINES, ascii_only=ascii_only)
            for one in drawn
        ]
        write_text("\n\n".join(texts))
    if outcome.interrupted:
        raise click.exceptions.Exit(INTERRUPTED)
    if all(state.devices[key].prober.ready is None for key in outcome.devices):
        raise click.exceptions.Exit(UNKNOWN)


def _write_svg(path: Path, pictures: list[str]) -> None:
    """One file a device; the second and later get a number before the ending."""
    for number, picture in enumerate(pictures):
        target = path if not number else path.with_stem(f"{path.stem}-{number}")
        try:
            target.write_text(picture, encoding="utf-8")
        except OSError as error:
            raise Failure(f"--svg {target}: cannot be written: {error.strerror}") from error
        click.echo(str(target), err=True)
