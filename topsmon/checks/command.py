"""`topsmon check`: cached or new verdicts, in the format that was asked for, as an exit code."""

from __future__ import annotations

import asyncio
import functools
import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from topsmon import __version__
from topsmon.checks import cache
from topsmon.checks.context import Moment
from topsmon.checks.model import Check, UnknownCheckError, select
from topsmon.checks.outcome import USAGE, FailOn, exit_code, status
from topsmon.files import NotReplacedError
from topsmon.report.check_document import CheckDocument, CheckedDevice, Selection, to_json

if TYPE_CHECKING:
    from topsmon.laboratory import Observed
    from topsmon.state import State

Format = Literal["text", "json", "junit", "nagios"]


@dataclass(frozen=True)
class CheckOptions:
    """What the command line asks for.

    `environment` is added to that of the children; `width` None does not cut lines. `cached` names
    the file of a kept verdict that answers while it is at most `max_age_seconds` old.
    """

    format: Format = "text"
    quick: bool = False
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    only_visible: bool = False
    python: str | None = None
    force: bool = False
    limit_seconds: float = 30.0
    fail_on: FailOn = "warn"
    unknown_ok: bool = False
    cached: Path | None = None
    max_age_seconds: float = 300.0
    simulated: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    ascii_only: bool = False
    colour: bool = False
    width: int | None = None
    progress: bool = False


def run(options: CheckOptions) -> int:
    """Check, write the result to stdout, return the exit code."""
    try:
        checks = select(options.only, options.skip, quick=options.quick)
        if not checks:
            raise UnknownCheckError("no check is left: --only, --skip and --quick exclude them all")
        document = _kept(options)
        if document is None:
            if options.cached is not None:
                cache.check(options.cached)
            document = _new(options, checks)
            _keep(options, document)
    except ValueError as error:
        complain(str(error).replace("--only: no device", "--device: no device"))
        return USAGE
    except NotReplacedError as error:
        complain(f"--cached {error}")
        return USAGE
    sys.stdout.flush()
    sys.stdout.buffer.write(render(document, options))
    sys.stdout.flush()
    return document.exit_code


def render(document: CheckDocument, options: CheckOptions) -> bytes:
    """The document in the format that was asked for."""
    match options.format:
        case "json":
            return to_json(document)
        case "junit":
            from topsmon.report.check_junit import junit

            return junit(document, warnings_fail=options.fail_on == "warn")
        case "nagios":
            from topsmon.report.check_nagios import nagios

            return nagios(document).encode("ascii", "replace")
        case _:
            from topsmon.report.check_text import text

            shown = text(
                document,
                width=options.width,
                ascii_only=options.ascii_only,
                colour=options.colour,
            )
            return shown.encode(sys.stdout.encoding or "ascii", "replace")


# A kept verdict -----------------------------------------------------------------------------------


def _selection(options: CheckOptions) -> Selection:
    return Selection(
        quick=options.quick,
        only=options.only,
        skip=options.skip,
        devices=options.devices,
        only_visible=options.only_visible,
        force=options.force,
        simulated=options.simulated,
    )


def _kept(options: CheckOptions) -> CheckDocument | None:
    """The kept verdict with the exit code that today's options give it; None to check anew."""
    if options.cached is None:
        return None
    now = time.time()
    try:
        document = cache.read(
            options.cached,
            max_age_seconds=options.max_age_seconds,
            now=now,
            selection=_selection(options),
            host=socket.gethostname(),
        )
    except cache.StaleError:
        return None
    code = exit_code(document.checks, fail_on=options.fail_on, unknown_ok=options.unknown_ok)
    age = round(now - document.started_unix_seconds, 1)
    return msgspec.structs.replace(document, exit_code=code, cached=True, age_seconds=age)


def _keep(options: CheckOptions, document: CheckDocument) -> None:
    """Write the file of kept verdicts. A verdict that cannot be kept still counts."""
    if options.cached is None or document.interrupted:
        return
    try:
        cache.write(options.cached, document)
    except NotReplacedError as error:
        complain(f"--cached {error}")
    except OSError as error:
        complain(f"--cached {options.cached}: cannot be written: {error.strerror}")


# A new one ----------------------------------------------------------------------------------------


def _new(options: CheckOptions, checks: tuple[Check, ...]) -> CheckDocument:
    """Measure and judge. ValueError: a device was asked for that is not here."""
    wall, started = time.time(), time.monotonic()
    interrupted, keys = False, None
    if options.quick:
        from topsmon.checks import quick

        state, seen = quick.run(options.devices, only_visible=options.only_visible)
        keys = tuple(device.key for device in state.gpus())
    else:
        state, seen, keys, interrupted = _measure(options, checks)
    from topsmon.checks.verdict import judge

    results = judge(state, Moment(time.time(), time.monotonic()), checks, seen, keys)
    host = state.host
    return CheckDocument(
        version=__version__,
        host=host.hostname if host is not None else socket.gethostname(),
        started_unix_seconds=wall,
        duration_seconds=round(time.monotonic() - started, 3),
        status=status(results),
        exit_code=exit_code(
            results,
            fail_on=options.fail_on,
            unknown_ok=options.unknown_ok,
            interrupted=interrupted,
        ),
        interrupted=interrupted,
        selection=_selection(options),
        driver_version=host.driver_version if host is not None else None,
        cuda_version=host.cuda_version if host is not None else None,
        devices=_devices(state, keys),
        checks=results,
    )


def _measure(
    options: CheckOptions, checks: tuple[Check, ...]
) -> tuple[State, dict[str, Observed], tuple[str, ...], bool]:
    from topsmon.checks.model import plan
    from topsmon.laboratory import ProgressLine, Run, RunOptions

    show = ProgressLine() if options.progress else None

    async def measure() -> tuple[State, dict[str, Observed], tuple[str, ...], bool]:
        asked = RunOptions(
            plan=functools.partial(plan, checks),
            devices=options.devices,
            only_visible=options.only_visible,
            python=options.python,
            force=options.force,
            limit_seconds=options.limit_seconds,
            simulated=options.simulated,
            environment=options.environment,
        )
        outcome = await Run(asked, show).run()
        return outcome.state, outcome.seen, outcome.devices, outcome.interrupted

    try:
        return asyncio.run(measure())
    finally:
        if show is not None:
            show.end()


def _devices(state: State, keys: tuple[str, ...]) -> tuple[CheckedDevice, ...]:
    return tuple(
        CheckedDevice(
            device=device.key,
            label=device.label,
            kind=device.identity.kind,
            index=device.identity.index,
            name=device.identity.name,
            uuid=device.identity.uuid,
            pci_bus_id=device.identity.pci_bus_id,
            board=device.ceilings.board if device.ceilings is not None else None,
        )
        for device in state.ordered()
        if device.key in keys
    )


def complain(message: str) -> None:
    """One line on stderr."""
    os.write(2, f"topsmon: {message}\n".encode(errors="replace"))
