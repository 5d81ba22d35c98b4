"""The command line: options, commands, exit codes.

Exit codes: 0 OK, 1 WARN, 2 FAIL, 3 UNKNOWN (could not be measured), 64 wrong usage,
130 interrupted. Everything heavy is imported inside the command that needs it, so that
`--version`, `--help` and `--once` start fast.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import click

from topsmon.cli.common import INTERRUPTED, OK, UNKNOWN, USAGE
from topsmon.cli.root import root

__all__ = ["main", "root"]


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code; errors are one line on stderr."""
    debug = "--debug" in arguments
    if sys.stdout is None:  # closed by the caller, as in `topsmon >&-`
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  until the end
    try:
        outcome = root.main(
            args=list(arguments),
            prog_name="topsmon",
            standalone_mode=False,
            obj=tuple(arguments),
        )
    except click.UsageError as error:
        _complain(error.format_message())
        return USAGE
    except click.ClickException as error:
        _complain(error.format_message())
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001  the last resort: one line instead of a traceback
        if debug:
            traceback.print_exc()
        else:
            _complain(f"internal error: {type(error).__name__}: {error} (--debug shows where)")
        return UNKNOWN
    return outcome if isinstance(outcome, int) else OK


def _complain(message: str) -> None:
    click.echo(f"topsmon: {message}", err=True)
