"""topsmon flops: FLOPs and bytes of a model, counted by a child that has torch and the model."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

import topsmon
from topsmon import events
from topsmon.cli.common import (
    OK,
    Common,
    Failure,
    Number,
    common_options,
    remembering_state,
    width,
    write_bytes,
    write_text,
)

if TYPE_CHECKING:
    from topsmon.report.counted import Count
    from topsmon.report.flops import Device

COUNTER = Path(topsmon.__file__).parent / "flops"


@click.command()
@click.argument("target", metavar="MODULE:FACTORY")
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="SHAPE",
    help="Shape of an input, as 1x3x224x224, 8x128:int64 or name=8x128; repeat for several.",
)
@click.option("--training", is_flag=True, help="Count the backward pass too.")
@click.option("--input-grad", is_flag=True, help="The inputs need a gradient as well.")
@click.option("--dtype", metavar="DTYPE", help="Convert the module first, as float16.")
@click.option(
    "--bandwidth",
    type=Number(0.001, 1e6),
    metavar="GB/S",
    help="Memory bandwidth to hold bytes against; without a rated one it is measured (2 s).",
)
@click.option("--precision", metavar="KEY", help="Best time at this precision alone, as bf16.")
@click.option("--depth", type=click.IntRange(1), help="Sum up modules below this depth.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@common_options
def command(
    common: Common,
    target: str,
    inputs: tuple[str, ...],
    training: bool,
    input_grad: bool,
    dtype: str | None,
    bandwidth: float | None,
    precision: str | None,
    depth: int | None,
    as_json: bool,
) -> None:
    """FLOPs and bytes per layer, what bounds each here, and the best possible time.

    FACTORY is a function, a class or a ready module of MODULE (a module's name or a .py file). A
    multiply-add counts as two FLOPs.
    """
    options = ["--training"] * training + ["--input-grad"] * input_grad
    options += ["--dtype", dtype] if dtype else []
    options += ["--debug"] * common.debug
    device = _device(common, bandwidth)
    count = count_model(common, target, inputs, options)
    from topsmon.report import flops

    if as_json:
        write_bytes(flops.to_json(count, device))
        return
    try:
        text = flops.text(
            count,
            device,
            precision=precision,
            backward=training,
            depth=depth,
            width=max(80, width()),
            ascii_only=common.ascii_for(sys.stdout),
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    write_text(text)


def count_model(
    common: Common, target: str, inputs: tuple[str, ...], options: list[str] | None = None
) -> Count:
    """Let a Python with torch count; its own one-line errors have gone to stderr."""
    from topsmon import interpreter
    from topsmon.report.counted import load

    found = asyncio.run(interpreter.find(common.python, os.environ))
    if found.path is None:
        raise Failure(found.problem)
    shapes = [part for shape in inputs for part in ("--input", shape)]
    command = [found.path, str(COUNTER), target, *shapes, *(options or [])]
    result = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if result.returncode != OK:
        raise click.exceptions.Exit(result.returncode)
    try:
        return load(result.stdout)
    except ValueError as error:
        raise Failure(str(error)) from error


def _device(common: Common, bandwidth: float | None) -> Device:
    """The first GPU, or the CPU, with the clock it was last measured at and a memory bandwidth."""
    state = remembering_state(common)
    from topsmon.report.flops import Device

    device = next(iter(state.ordered()), None)
    if device is None:
        raise Failure("no device to hold the count against")
    ceilings = device.ceilings
    if ceilings is not None:
        if bandwidth is not None:
            ceilings = _with_bandwidth(ceilings, bandwidth * 1e9, "--bandwidth")
        elif ceilings.memory_bandwidth_bytes_per_second is None and not device.identity.mig:
            measured = _measured_bandwidth(common, device.key)
            if measured is not None:
                ceilings = _with_bandwidth(ceilings, measured, "DRAM copy, measured now")
    return Device(device.identity.name, ceilings)


def _with_bandwidth(ceilings: events.Ceilings, value: float, source: str) -> events.Ceilings:
    return msgspec.structs.replace(
        ceilings, memory_bandwidth_bytes_per_second=value, memory_bandwidth_source=source
    )


def _measured_bandwidth(common: Common, key: str) -> float | None:
    """Copy bandwidth in bytes/s; None where it could not be measured undisturbed."""
    from topsmon.cli.measure import measure

    outcome = measure(dataclasses.replace(common, only=(key,)), ("memory",), seconds=1.0)
    device = outcome.state.devices.get(key)
    result = device.probes.get("memory") if device is not None else None
    if result is None or not result.valid or result.correct is False:
        return None
    return result.values.get("copy_bytes_per_second")
