"""Measuring a plan on every device for a command, with a line of progress."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from topsmon.cli.common import Common, enter_simulation, shows_progress

if TYPE_CHECKING:
    from topsmon.laboratory import Outcome

PRECISION_SECONDS = 1.5
PROBE_SECONDS = {"sustained": 14.0, "fusion": 60.0, "energy": 2.0}
"""Budgets that differ from `USUAL_SECONDS`; a probe knows its own, this is for the time limit."""
USUAL_SECONDS = 1.5
GPU_ONLY = frozenset({"transfer", "overlap", "sparsity"})
SLACK_SECONDS = 20.0


def known_keys() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The precisions and the laboratory probes there are."""
    from topsmon.probes.lab import PROBES
    from topsmon.units import PRECISIONS

    return tuple(PRECISIONS), PROBES


def checked_keys(keys: Sequence[str]) -> tuple[str, ...]:
    """The keys without repeats; wrong usage if one is neither a precision nor a probe."""
    precisions, probes = known_keys()
    for key in keys:
        if key.lower() not in {*precisions, *probes}:
            raise click.UsageError(
                f"{key!r} is no precision ({', '.join(precisions)}) and no probe "
                f"({', '.join(probes)})"
            )
    return tuple(dict.fromkeys(key.lower() for key in keys))


def measure(
    common: Common,
    keys: Sequence[str],
    *,
    seconds: float | None = None,
    sizes: tuple[int, ...] = (),
    force: bool = False,
) -> Outcome:
    """Measure the keys once on every chosen device; `seconds` bounds the measuring of each."""
    enter_simulation(common)
    from topsmon.laboratory import ProgressLine, Run, RunOptions, UnknownDeviceError

    precisions, _ = known_keys()
    budgets = {
        key: PRECISION_SECONDS if key in precisions else PROBE_SECONDS.get(key, USUAL_SECONDS)
        for key in keys
    }
    total = sum(budgets.values())
    scale = min(1.0, seconds / total) if seconds is not None and total else 1.0
    budgets = {key: value * scale for key, value in budgets.items()}

    def plan(kind: str) -> dict[str, float]:
        return {
            key: value for key, value in budgets.items() if kind == "gpu" or key not in GPU_ONLY
        }

    show = ProgressLine() if shows_progress() else None
    options = RunOptions(
        plan=plan,
        sizes=sizes,
        devices=common.only,
        only_visible=common.only_visible,
        python=common.python,
        force=force,
        limit_seconds=3 * total * scale + SLACK_SECONDS,
        simulated=common.simulate,
    )

    async def run() -> Outcome:
        return await Run(options, show).run()

    try:
        return asyncio.run(run())
    except UnknownDeviceError as error:
        raise click.UsageError(str(error)) from error
    finally:
        if show is not None:
            show.end()
