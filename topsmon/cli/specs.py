"""topsmon specs: theoretical ceilings with their sources."""

from __future__ import annotations

import sys
from typing import Any

import click

from topsmon.cli.common import (
    UNKNOWN,
    Common,
    Failure,
    Number,
    common_options,
    remembering_state,
    width,
    write_bytes,
    write_text,
)


@click.command()
@click.argument("board", required=False)
@click.option("--clock", type=Number(1, 10000), metavar="MHZ", help="Ceilings at a clock.")
@click.option("--list", "list_boards", is_flag=True, help="List the names of all known boards.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@common_options
def command(
    common: Common, board: str | None, clock: float | None, list_boards: bool, as_json: bool
) -> None:
    """Theoretical ceilings of this machine's devices, or of any BOARD by its name.

    Exit code 3 for a board that is not known: nothing is guessed.
    """
    from topsmon.report import specs

    if list_boards:
        write_text("\n".join(specs.board_names()))
        return
    found = _devices(common) if board is None else [(_board(board), None)]
    if as_json:
        documents = [
            specs.specs_json(ceilings, device, clock).rstrip(b"\n") for ceilings, device in found
        ]
        write_bytes(b"[" + b",\n".join(documents) + b"]\n")
    else:
        ascii_only = common.ascii_for(sys.stdout)
        texts = [
            specs.specs_text(ceilings, device, clock, width(), ascii_only=ascii_only)
            for ceilings, device in found
        ]
        write_text("\n\n".join(text.rstrip("\n") for text in texts))
    if all(not ceilings.rates for ceilings, _ in found):
        raise click.exceptions.Exit(UNKNOWN)


def _board(name: str) -> Any:
    from topsmon.report import specs

    try:
        return specs.board_ceilings(name)
    except specs.UnknownBoard as error:
        raise Failure(str(error)) from error


def _devices(common: Common) -> list[tuple[Any, Any]]:
    return [
        (device.ceilings, device.identity)
        for device in remembering_state(common).ordered()
        if device.ceilings is not None
    ]
