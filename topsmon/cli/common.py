"""What all commands share: exit codes, common options, the simulated driver, output."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from topsmon.simulated.fleet import FleetPlan
    from topsmon.state import State

OK, WARN, FAIL, UNKNOWN, USAGE, INTERRUPTED = 0, 1, 2, 3, 64, 130
SNAPSHOT_SECONDS = 2.0
"""A snapshot waits this long at the most for a driver that does not answer."""
PATIENCE_SECONDS = 15.0
"""And this much longer for one that answers every call, but slowly."""

COERCED = frozenset(("LC_CTYPE", value) for value in ("C.UTF-8", "C.utf8", "UTF-8"))
"""What Python sets where the locale is C (PEP 538)."""
INSIDE_SIMULATION = "TOPSMON_INSIDE_SIMULATION"
FLEET_PREFIX = "nodes="
"""So begins the plan of a simulated fleet, which needs no driver."""
DEVICES_HELP = "Only these devices: indexes, UUIDs or their beginnings, cpu (comma-separated)."


class Failure(click.ClickException):
    """An error the user can act on: one line, exit code UNKNOWN."""

    exit_code = UNKNOWN


@dataclass(frozen=True)
class Common:
    """Options that hold for every command, wherever they stand on the command line."""

    interval: float = 1.0
    only: tuple[str, ...] = ()
    only_visible: bool = False
    simulate: str | None = None
    python: str | None = None
    ascii_only: bool = False
    color: bool = True
    debug: bool = False
    arguments: tuple[str, ...] = ()

    def ascii_for(self, stream: Any) -> bool:
        """Tell whether text for this stream must be ASCII."""
        return self.ascii_only or not is_utf8(stream)


class Number(click.FloatRange):
    """A finite number within limits; click's own range lets "nan" through."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number, or fail in words."""
        try:
            number = float(value)
        except (TypeError, ValueError):
            self.fail(f"{value!r} is not a number", param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return float(super().convert(number, param, ctx))


def split_list(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...]:
    """Turn "0,2" "cpu" into ("0", "2", "cpu")."""
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())


_OUTPUT_OPTIONS: tuple[Callable[..., Any], ...] = (
    click.option("--ascii", "ascii_only", is_flag=True, help="ASCII characters only."),
    click.option("--debug", is_flag=True, help="Show tracebacks."),
)
_COMMON_OPTIONS: tuple[Callable[..., Any], ...] = (
    click.option("--only-visible", is_flag=True, help="Only the devices in CUDA_VISIBLE_DEVICES."),
    click.option(
        "--simulate",
        metavar="SCENARIO",
        help="Read a simulated GPU driver instead of the real one; 'list' names the scenarios.",
    ),
    click.option(
        "--python",
        metavar="PATH",
        help="Interpreter whose torch measures (default: our own, then the active environment's).",
    ),
    *_OUTPUT_OPTIONS,
)
_COMMON_FIELDS = ("only", "only_visible", "simulate", "python", "ascii_only", "debug")


def common_options(function: Callable[..., Any], *, devices: str = "--only") -> Callable[..., Any]:
    """Give a command the common options too; its first argument is then a `Common`.

    `devices` is the name of the option that chooses devices, where "--only" means something else.
    """

    @functools.wraps(function)
    def command(**options: Any) -> Any:
        given = {name: options.pop(name) for name in _COMMON_FIELDS}
        changes = {name: value for name, value in given.items() if value}
        common: Common = click.get_current_context().obj
        return function(dataclasses.replace(common, **changes), **options)

    for option in reversed(_COMMON_OPTIONS):
        command = option(command)
    short = "-o" if devices == "--only" else "-d"
    choose = click.option(
        short, devices, "only", multiple=True, callback=split_list, help=DEVICES_HELP
    )
    return choose(command)


def output_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command that reads no device here the options about its output alone."""

    @functools.wraps(function)
    def command(*, ascii_only: bool, debug: bool, **options: Any) -> Any:
        common: Common = click.get_current_context().obj
        changed = dataclasses.replace(
            common, ascii_only=common.ascii_only or ascii_only, debug=common.debug or debug
        )
        return function(changed, **options)

    for option in reversed(_OUTPUT_OPTIONS):
        command = option(command)
    return command


def exit_code(severities: Sequence[str]) -> int:
    """The worst severity as an exit code."""
    return FAIL if "fail" in severities else WARN if "warn" in severities else OK


def is_utf8(stream: Any) -> bool:
    """True where a stream takes any character, and the locale does not speak against it."""
    encoding = getattr(stream, "encoding", None) or ""
    utf8 = encoding.lower().replace("-", "").replace("_", "") == "utf8"
    return utf8 and not has_plain_locale(os.environ)


def has_plain_locale(environment: Mapping[str, str]) -> bool:
    """True in the locale C or POSIX, asked for by name: then nothing but ASCII is sure to be shown.

    Python takes UTF-8 in it all the same, and sets LC_CTYPE to say so to its children (PEP 538 and
    540). What is set for Python alone goes before the locale.
    """
    if environment.get("PYTHONUTF8") == "1" or environment.get("PYTHONIOENCODING"):
        return False
    asked = [(name, environment.get(name)) for name in ("LC_ALL", "LC_CTYPE", "LANG")]
    locale = next((value for name, value in asked if value and (name, value) not in COERCED), "")
    return locale in {"C", "POSIX"}


def write_text(text: str) -> None:
    """Write text to stdout whatever its encoding; what it lacks becomes "?"."""
    write_bytes((text.rstrip("\n") + "\n").encode(sys.stdout.encoding or "ascii", "replace"))


def write_bytes(data: bytes) -> None:
    """Write a finished document to stdout. A reader that leaves early is no error."""
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
    except BrokenPipeError:
        # Nothing may be flushed into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise Failure(f"the output cannot be written: {error.strerror}") from error


def shows_progress() -> bool:
    """True where a line on stderr can be written over."""
    return sys.stderr.isatty() and os.environ.get("TERM", "") not in {"", "dumb"}


def has_screen() -> bool:
    """True where a full-screen program can run: three terminals and a capable TERM."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    terminals = all(stream is not None and stream.isatty() for stream in streams)
    return terminals and os.environ.get("TERM", "") not in {"", "dumb"}


def width() -> int:
    """Columns of the terminal, 100 where there is none."""
    import shutil

    return shutil.get_terminal_size((100, 24)).columns


def prepare_simulation(name: str | None, *, one_look: bool = False) -> dict[str, str]:
    """Build the simulated driver; return the environment that makes a child use it.

    `one_look`: it is read once, so scenario time starts where there is something to see.
    """
    if name is None:
        return {}
    import platformdirs

    from topsmon.simulated import SCENARIOS, SimulationError, prepare

    if name == "list":
        list_scenarios()
        raise click.exceptions.Exit(OK)
    if name.startswith(FLEET_PREFIX):
        raise click.UsageError(
            f"--simulate {name} plays many hosts: only topsmon, topsmon --once and topsmon stream"
            " show them"
        )
    if name not in SCENARIOS and not name.endswith(".json"):
        raise click.UsageError(f"--simulate {name}: no such scenario; see topsmon --simulate list")
    try:
        folder = platformdirs.user_cache_path("topsmon") / "simulated"
        return prepare(name, folder, one_look=one_look)
    except SimulationError as error:
        raise Failure(str(error)) from error


def fleet_plan(name: str | None) -> FleetPlan | None:
    """The plan of many simulated hosts ("nodes=1250,gpus=8"), None where none is asked for."""
    if name is None or not name.startswith(FLEET_PREFIX):
        return None
    from topsmon.simulated import SimulationError
    from topsmon.simulated.fleet import parse

    try:
        return parse(name)
    except SimulationError as error:
        raise click.UsageError(str(error)) from error


def list_scenarios() -> None:
    """Print the names of the simulated driver's scenarios."""
    from topsmon.simulated import SCENARIOS

    longest = max(len(name) for name in SCENARIOS)
    for name, scenario in SCENARIOS.items():
        click.echo(f"{name:<{longest}}  {scenario.description}")
    click.echo("nodes=1250,gpus=8,fault=straggler:node17:3  many hosts; fault= may be repeated:")
    click.echo("  fault=KIND:NODE:GPU with a KIND of straggler, hot, lost, ecc;")
    click.echo("  fault=gone:NODE for a host that falls silent")


def enter_simulation(common: Common, *, one_look: bool = False) -> None:
    """Become a process that reads the simulated driver; `one_look` as in `prepare_simulation`.

    The loader reads LD_LIBRARY_PATH at start only, so the program is started anew, in place.
    """
    if common.simulate is None or os.environ.get(INSIDE_SIMULATION) == common.simulate:
        return
    simulation = prepare_simulation(common.simulate, one_look=one_look)
    environment = {**os.environ, **simulation, "PYTHONSAFEPATH": "1"}
    environment[INSIDE_SIMULATION] = common.simulate
    command = [sys.executable, "-m", "topsmon", *common.arguments]
    os.execve(sys.executable, command, environment)


def remembering_state(common: Common) -> State:
    """A snapshot with the rates, and a CPU's clock, that earlier sessions have measured."""
    state = snapshot_state(common)
    from topsmon import results

    if state.simulated is None:
        for result in results.load(results.default_path()):
            state.remember(result)
    return state


def snapshot_state(common: Common) -> State:
    """Read everything once, in this process, and fold it."""
    enter_simulation(common, one_look=True)
    from topsmon.devices import poller
    from topsmon.state import State

    try:
        events = poller.snapshot(
            SNAPSHOT_SECONDS, common.only, common.only_visible, patience_seconds=PATIENCE_SECONDS
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    state = State()
    for event in events:
        state.apply(event, time.monotonic())
    return state
