"""topsmon bench: rates and bandwidths now, and against an earlier result."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from topsmon import events
from topsmon.cli.common import (
    FAIL,
    INTERRUPTED,
    OK,
    UNKNOWN,
    Common,
    Number,
    common_options,
    width,
    write_bytes,
    write_text,
)
from topsmon.cli.measure import checked_keys, known_keys, measure

if TYPE_CHECKING:
    from topsmon.laboratory import Outcome

BANDWIDTHS = ("memory", "cache", "transfer", "launch", "energy")
OPT_IN = frozenset({"fusion", "sustained"})


@click.command()
@click.argument("keys", nargs=-1, metavar="[PRECISION|PROBE]...")
@click.option(
    "--size",
    "sizes",
    type=click.IntRange(32, 65536),
    multiple=True,
    metavar="N",
    help="N x N x N products instead of the usual shapes; repeat for several.",
)
@click.option(
    "--seconds",
    type=Number(1.0, 600.0),
    metavar="S",
    help="Measure each device for about this long at the most.",
)
@click.option("--lab", is_flag=True, help="All laboratory probes but the slow fusion, sustained.")
@click.option("--advice", is_flag=True, help="Say which precision to choose for which work.")
@click.option("--force", is_flag=True, help="Measure devices that others use too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, to keep for --against.")
@click.option(
    "--against",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Compare with the JSON of an earlier run: regression or not, given the noise.",
)
@common_options
def command(
    common: Common,
    keys: tuple[str, ...],
    sizes: tuple[int, ...],
    seconds: float | None,
    lab: bool,
    advice: bool,
    force: bool,
    as_json: bool,
    against: Path | None,
) -> None:
    """Measure rates per precision and bandwidths, or the named precisions and probes alone.

    Exit codes: 0 at least one number is valid, whatever was disturbed (with --against: no
    regression), 1 regression, 2 wrong result or a rate of 0 (nothing was computed), 3 could not be
    measured or told, 130 interrupted.
    """
    from topsmon.report import bench

    try:
        earlier = bench.load(against) if against is not None else None
    except ValueError as error:
        raise click.UsageError(f"--against {error}") from error
    asked = _asked(keys, lab=lab, advice=advice)
    outcome = measure(common, asked, seconds=seconds, sizes=sizes, force=force)
    missing = {key: seen.refused or seen.missing for key, seen in outcome.seen.items()}
    document = bench.document(
        outcome.state,
        outcome.devices,
        outcome.state.simulated,
        asked=asked,
        missing={key: reason for key, reason in missing.items() if reason},
    )
    ascii_only = common.ascii_for(sys.stdout)
    if earlier is None:
        write_bytes(bench.to_json(document)) if as_json else write_text(
            bench.text(document, max(60, width()), ascii_only)
        )
        if (advice or lab) and not as_json:
            write_text(_advice(outcome))
        raise click.exceptions.Exit(_exit_code(outcome))
    comparison = bench.compare(earlier, document)
    write_bytes(bench.comparison_json(comparison)) if as_json else write_text(
        bench.comparison_text(comparison, max(72, width()), ascii_only)
    )
    code = INTERRUPTED if outcome.interrupted else bench.exit_code(comparison)
    raise click.exceptions.Exit(code)


def _asked(keys: tuple[str, ...], *, lab: bool, advice: bool) -> tuple[str, ...]:
    """What to measure: the named, else everything that is quick."""
    precisions, probes = known_keys()
    wanted = checked_keys(keys) or (*precisions, *BANDWIDTHS)
    if lab:
        wanted += tuple(probe for probe in probes if probe not in OPT_IN)
    if advice:
        wanted += ("quantisation",)
    return tuple(dict.fromkeys(wanted))


def _advice(outcome: Outcome) -> str:
    from topsmon.diagnosis.advice import advise
    from topsmon.diagnosis.device_split import split_of
    from topsmon.report import advice, ranks_text

    devices = [outcome.state.devices[key] for key in outcome.devices]
    blocks = ["\n".join(advice.lines(device, advise(device))) for device in devices]
    blocks += ["\n".join(part) for part in (ranks_text.split_lines(split_of(devices)),) if part]
    return "\n" + "\n\n".join(blocks)


def _exit_code(outcome: Outcome) -> int:
    from topsmon.report.shown import nothing_computed

    if outcome.interrupted:
        return INTERRUPTED
    devices = [outcome.state.devices[key] for key in outcome.devices]
    results: list[events.RateMeasured | events.ProbeResult] = []
    for device in devices:
        for rate in device.rates.values():
            last = (rate.latest, rate.wrong, *rate.by_shape.values())
            results += [one for one in last if one is not None]
        results += device.probes.values()
    if any(one.correct is False or nothing_computed(one) for one in results):
        return FAIL
    return OK if any(one.valid for one in results) else UNKNOWN
