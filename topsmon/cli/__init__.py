"""The command line: options, commands, exit codes.

Exit codes: 0 OK, 1 WARN, 2 FAIL, 3 UNKNOWN (could not be measured), 64 wrong usage,
130 interrupted. Everything heavy is imported inside the command that needs it, so that
`--version`, `--help` and `--once` start fast.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from topsmon import __version__

OK, WARN, FAIL, UNKNOWN, USAGE, INTERRUPTED = 0, 1, 2, 3, 64, 130
SNAPSHOT_SECONDS = 2.0
"""A snapshot waits this long at the most for a driver that does not answer."""

INSIDE_SIMULATION = "TOPSMON_INSIDE_SIMULATION"
DEVICES_HELP = "Only these devices: indexes, UUIDs or their beginnings, cpu (comma-separated)."


class Failure(click.ClickException):
    """An error the user can act on: one line, exit code UNKNOWN."""

    exit_code = UNKNOWN


@dataclass(frozen=True)
class Common:
    """Options that hold for every command."""

    interval: float
    only: tuple[str, ...]
    only_visible: bool
    simulate: str | None
    ascii_only: bool
    color: bool
    debug: bool
    arguments: tuple[str, ...]


def _split_devices(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...]:
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())


def _read_config(
    context: click.Context, _parameter: click.Parameter, value: str | None
) -> str | None:
    """Make a TOML file's keys the defaults of the options of the same names."""
    path = Path(value) if value is not None else _default_config()
    if value is None and not path.is_file():
        return None
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise click.UsageError(f"--config {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{path} is not valid TOML: {error}") from error
    known = {parameter.name for parameter in context.command.params}
    unknown = sorted(set(settings) - known)
    if unknown:
        raise click.UsageError(
            f"{path}: unknown setting {unknown[0]!r}; settings are named like the options"
        )
    context.default_map = {**(context.default_map or {}), **settings}
    return str(path)


def _default_config() -> Path:
    import platformdirs

    return platformdirs.user_config_path("topsmon") / "config.toml"


@click.group(
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 OK, 1 WARN, 2 FAIL, 3 UNKNOWN, 64 wrong usage, 130 interrupted.",
)
@click.option("-1", "--once", is_flag=True, help="Print one snapshot and exit.")
@click.option("--json", "as_json", is_flag=True, help="With --once: print it as JSON.")
@click.option(
    "-i",
    "--interval",
    type=click.FloatRange(0.1, 60.0),
    default=1.0,
    show_default=True,
    help="Seconds between two samples.",
)
@click.option("-o", "--only", multiple=True, callback=_split_devices, help=DEVICES_HELP)
@click.option("--only-visible", is_flag=True, help="Only the devices in CUDA_VISIBLE_DEVICES.")
@click.option(
    "--simulate",
    metavar="SCENARIO",
    help="Show a simulated GPU driver instead of the real one; 'list' names the scenarios.",
)
@click.option(
    "--python",
    "python",
    metavar="PATH",
    help="Interpreter whose torch measures (default: our own, then the active environment's).",
)
@click.option(
    "--bench/--no-bench",
    default=True,
    show_default=True,
    help="Measure rates in short bursts while the screen is open.",
)
@click.option("--theme", metavar="NAME", help="Colours of the screen; m shows the next one.")
@click.option("--mouse/--no-mouse", default=True, show_default=True, help="Use the mouse.")
@click.option("--ascii", "ascii_only", is_flag=True, help="Draw with ASCII characters only.")
@click.option("--color/--no-color", default=True, help="Colours; NO_COLOR is respected too.")
@click.option(
    "--config",
    callback=_read_config,
    is_eager=True,
    metavar="FILE",
    help="TOML file of defaults for these options.",
)
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.version_option(__version__, "-V", "--version", message="topsmon %(version)s")
@click.pass_context
def cli(  # noqa: PLR0913  one parameter an option is how click hands them over
    context: click.Context,
    *,
    once: bool,
    as_json: bool,
    interval: float,
    only: tuple[str, ...],
    only_visible: bool,
    simulate: str | None,
    python: str | None,
    bench: bool,
    theme: str | None,
    mouse: bool,
    ascii_only: bool,
    color: bool,
    config: str | None,
    debug: bool,
) -> None:
    """Show what this machine's GPUs (or CPU) can do, what they do now, and why not more.

    Without a command: the live screen, or one text snapshot where there is no terminal.
    """
    del config
    common = Common(
        interval=interval,
        only=only,
        only_visible=only_visible,
        simulate=simulate,
        ascii_only=ascii_only,
        color=color and not os.environ.get("NO_COLOR"),
        debug=debug,
        arguments=context.obj or (),
    )
    context.obj = common
    if simulate == "list":
        _list_scenarios()
        context.exit(OK)
    if context.invoked_subcommand is not None:
        return
    if as_json and not once:
        raise click.UsageError("--json goes with --once (topsmon --once --json)")
    if once or not _has_screen():
        context.exit(_snapshot(common, as_json=as_json))
    context.exit(_screen(common, python=python, bench=bench, theme=theme, mouse=mouse))


def _has_screen() -> bool:
    """True where a full-screen program can run: three terminals and a capable TERM."""
    terminals = all(stream is not None and stream.isatty() for stream in _streams())
    return terminals and os.environ.get("TERM", "") not in {"", "dumb"}


def _streams() -> tuple[Any, ...]:
    return sys.stdin, sys.stdout, sys.stderr


def _utf8(stream: Any) -> bool:
    encoding = getattr(stream, "encoding", None) or ""
    return encoding.lower().replace("-", "").replace("_", "") == "utf8"


def _list_scenarios() -> None:
    from topsmon.simulated import SCENARIOS

    width = max(len(name) for name in SCENARIOS)
    for name, scenario in SCENARIOS.items():
        click.echo(f"{name:<{width}}  {scenario.description}")


def _prepare_simulation(name: str | None) -> dict[str, str]:
    """Build the simulated driver; return the environment that makes a child use it."""
    if name is None:
        return {}
    import platformdirs

    from topsmon.simulated import SCENARIOS, SimulationError, prepare

    if name not in SCENARIOS and not name.endswith(".json"):
        raise click.UsageError(f"--simulate {name}: no such scenario; see topsmon --simulate list")
    try:
        return prepare(name, platformdirs.user_cache_path("topsmon") / "simulated")
    except SimulationError as error:
        raise Failure(str(error)) from error


def _enter_simulation(common: Common) -> None:
    """Become a process that reads the simulated driver.

    The loader reads LD_LIBRARY_PATH at start only, so the program is started anew, in place.
    """
    if common.simulate is None or os.environ.get(INSIDE_SIMULATION) == common.simulate:
        return
    environment = {**os.environ, **_prepare_simulation(common.simulate), "PYTHONSAFEPATH": "1"}
    environment[INSIDE_SIMULATION] = common.simulate
    command = [sys.executable, "-m", "topsmon", *common.arguments]
    os.execve(sys.executable, command, environment)


def _snapshot(common: Common, *, as_json: bool) -> int:
    _enter_simulation(common)
    from topsmon import diagnosis, results
    from topsmon.devices import poller
    from topsmon.report import once
    from topsmon.state import State

    try:
        events = poller.snapshot(SNAPSHOT_SECONDS, common.only, common.only_visible)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    state = State()
    for event in events:
        state.apply(event, time.monotonic())
    if state.simulated is None:
        for result in results.load(results.default_path()):
            state.remember(result)
    now = time.monotonic()
    findings = diagnosis.diagnose(state, now)
    if as_json:
        sys.stdout.buffer.write(once.to_json(state, findings, now))
    else:
        ascii_only = common.ascii_only or not _utf8(sys.stdout)
        text = once.text(state, findings, now, ascii_only=ascii_only)
        sys.stdout.buffer.write(text.encode(sys.stdout.encoding or "ascii", errors="replace"))
    sys.stdout.flush()
    return exit_code([finding.severity for finding in findings])


def exit_code(severities: Sequence[str]) -> int:
    """The worst severity as an exit code."""
    return FAIL if "fail" in severities else WARN if "warn" in severities else OK


def _screen(
    common: Common, *, python: str | None, bench: bool, theme: str | None, mouse: bool
) -> int:
    environment = _prepare_simulation(common.simulate)
    from topsmon import results
    from topsmon.session import Session, SessionOptions
    from topsmon.tui import ScreenOptions, run

    session = Session(
        SessionOptions(
            interval=common.interval,
            only=common.only,
            only_visible=common.only_visible,
            simulated=common.simulate,
            environment=environment,
            python=python,
            benchmarks=bench,
            remember=results.default_path(),
        )
    )
    options = ScreenOptions(
        theme=theme,
        ascii_only=common.ascii_only or not _utf8(sys.__stderr__),
        color=common.color,
        mouse=mouse,
        debug=common.debug,
    )
    return run(session, options)


@cli.command()
@click.argument("board", required=False)
@click.option(
    "--clock", type=click.FloatRange(1, 10000), metavar="MHZ", help="Ceilings at a clock."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def specs(common: Common, board: str | None, clock: float | None, as_json: bool) -> None:
    """Theoretical ceilings of this machine's devices, or of any BOARD by its exact name."""
    from topsmon.report import specs as report

    if board is not None:
        try:
            found = [(report.board_ceilings(board), None)]
        except report.UnknownBoard as error:
            raise Failure(str(error)) from error
    else:
        found = _device_ceilings(common)
    if as_json:
        documents = [
            report.specs_json(ceilings, device, clock).rstrip(b"\n") for ceilings, device in found
        ]
        sys.stdout.buffer.write(b"[" + b",\n".join(documents) + b"]\n")
    else:
        ascii_only = common.ascii_only or not _utf8(sys.stdout)
        width = _width()
        texts = [
            report.specs_text(ceilings, device, clock, width, ascii_only=ascii_only)
            for ceilings, device in found
        ]
        click.echo("\n\n".join(text.rstrip("\n") for text in texts))
    if all(not ceilings.rates for ceilings, _ in found):
        raise click.exceptions.Exit(UNKNOWN)


def _width() -> int:
    import shutil

    return shutil.get_terminal_size((100, 24)).columns


def _device_ceilings(common: Common) -> list[tuple[Any, Any]]:
    _enter_simulation(common)
    from topsmon.devices import poller
    from topsmon.state import State

    try:
        events = poller.snapshot(SNAPSHOT_SECONDS, common.only, common.only_visible)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    state = State()
    for event in events:
        state.apply(event, time.monotonic())
    return [
        (device.ceilings, device.identity)
        for device in state.ordered()
        if device.ceilings is not None
    ]


@cli.command()
@click.option("-i", "--interval", type=click.FloatRange(0.1, 60.0), help="Seconds between samples.")
@click.option("-o", "--only", multiple=True, callback=_split_devices, help=DEVICES_HELP)
@click.option("--only-visible", is_flag=True, help="Only the devices in CUDA_VISIBLE_DEVICES.")
@click.option("--gpu/--no-gpu", default=True, help="Read the GPU driver.")
@click.option("--until-stdin-closes", is_flag=True, hidden=True)
@click.pass_obj
def stream(
    common: Common,
    interval: float | None,
    only: tuple[str, ...],
    only_visible: bool,
    gpu: bool,
    until_stdin_closes: bool,
) -> None:
    """Write the event stream as JSON lines until interrupted."""
    _enter_simulation(common)
    from topsmon.devices import poller

    try:
        code = poller.run(
            interval or common.interval,
            only or common.only,
            only_visible or common.only_visible,
            until_stdin_closes,
            gpu=gpu,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    raise click.exceptions.Exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code; errors are one line on stderr."""
    debug = "--debug" in arguments
    try:
        outcome = cli.main(
            args=list(arguments),
            prog_name="topsmon",
            standalone_mode=False,
            obj=tuple(arguments),
        )
        sys.stdout.flush()
    except click.UsageError as error:
        _complain(error.format_message())
        return USAGE
    except click.ClickException as error:
        _complain(error.format_message())
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has what it wanted; nothing may be flushed into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return OK
    except Exception as error:  # noqa: BLE001  the last resort: one line instead of a traceback
        if debug:
            traceback.print_exc()
        else:
            _complain(f"internal error: {type(error).__name__}: {error} (--debug shows where)")
        return UNKNOWN
    return outcome if isinstance(outcome, int) else OK


def _complain(message: str) -> None:
    click.echo(f"topsmon: {message}", err=True)
