"""The command `topsmon` itself: its options, its settings file, and its commands by name."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from topsmon import __version__
from topsmon.cli.common import (
    DEVICES_HELP,
    OK,
    Common,
    Number,
    has_screen,
    list_scenarios,
    split_list,
)
from topsmon.cli.hosts import chosen_hosts, host_options

NO_SETTINGS = frozenset({"once", "as_json", "hosts", "hostfile", "config", "version", "help"})
"""Options that ask for something now and have no place in a file of defaults."""
COMMANDS = {
    "attach": "Watch a training run that is already running (Python 3.14 or newer).",
    "bench": "Measure rates and bandwidths; compare with an earlier result.",
    "check": "Quick sanity check: verdicts with remedies and an exit code.",
    "demo": "Train a small model in mixed precision, healthy or broken, to be watched.",
    "doctor": "What works here and what not, why, and what to do.",
    "export": "Numbers for Prometheus, or of a recording as CSV, Parquet, trace.",
    "fleet": "Distribution and worst devices of many machines, from a Prometheus server.",
    "flops": "FLOPs and bytes per layer of a model, and its best possible time here.",
    "recipe": "How to use it in SLURM, Kubernetes, systemd, Docker, cron.",
    "record": "Record what the screen would show, into a file.",
    "replay": "Show a recording on the screen, at any speed.",
    "report": "Summarise a recording for a bug report.",
    "roofline": "Ceilings, measured lines and kinds of work in one picture.",
    "run": "Start a training command watched, without a change to its code.",
    "runs": "Training runs recorded here: state, step, loss, scale, last words.",
    "specs": "Theoretical ceilings of this machine's devices, or of any board.",
    "stream": "Write the event stream as JSON lines.",
}


class Commands(click.Group):
    """Commands by name; a command's module is imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in order."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a command."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        found = importlib.import_module(f"topsmon.cli.{cmd_name}").command
        assert isinstance(found, click.Command)
        found.name = cmd_name
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


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
    defaults = dict(_setting(context, path, name, value) for name, value in settings.items())
    context.default_map = {**(context.default_map or {}), **defaults}
    return str(path)


def _setting(context: click.Context, path: Path, name: str, value: Any) -> tuple[str, Any]:
    """Check one setting by its option; return the option's own name and the value to use.

    A setting is named as on the command line: "only-visible", "no-bench", "ascii".
    """
    for parameter in context.command.params:
        if parameter.name is None or parameter.name in NO_SETTINGS:
            continue
        written = {option.lstrip("-") for option in parameter.opts} | {parameter.name}
        negated = {option.lstrip("-") for option in parameter.secondary_opts}
        if name.replace("_", "-") in {word.replace("_", "-") for word in written}:
            chosen = value
        elif name.replace("_", "-") in negated and isinstance(value, bool):
            chosen = not value
        else:
            continue
        try:
            parameter.type_cast_value(context, chosen)
        except click.BadParameter as error:
            raise click.UsageError(f"{path}: {name}: {error.message}") from error
        return parameter.name, chosen
    raise click.UsageError(f"{path}: unknown setting {name!r}; settings are named like the options")


def _check_names(context: click.Context, python: str | None, theme: str | None) -> None:
    """Refuse what does not exist, for a snapshot too, which needs neither interpreter nor theme.

    A theme of the settings file that is gone does not keep the screen from opening.
    """
    if python is not None and shutil.which(python) is None:
        raise click.UsageError(f"--python {python}: no such program")
    source = context.get_parameter_source("theme")
    if theme is not None and source is click.core.ParameterSource.COMMANDLINE:
        from topsmon.tui import themes

        known = themes.names()
        if theme not in known:
            raise click.UsageError(f"--theme {theme}: no such theme; there are: {', '.join(known)}")


def _default_config() -> Path:
    import platformdirs

    return platformdirs.user_config_path("topsmon") / "config.toml"


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 OK, 1 WARN, 2 FAIL, 3 UNKNOWN, 64 wrong usage, 130 interrupted.",
)
@click.option("-1", "--once", is_flag=True, help="Print one snapshot and exit.")
@click.option("--json", "as_json", is_flag=True, help="With --once: print it as JSON.")
@click.option(
    "-i",
    "--interval",
    type=Number(0.1, 60.0),
    default=1.0,
    show_default=True,
    help="Seconds between two samples.",
)
@click.option("-o", "--only", multiple=True, callback=split_list, help=DEVICES_HELP)
@click.option("--only-visible", is_flag=True, help="Only the devices in CUDA_VISIBLE_DEVICES.")
@click.option(
    "--simulate",
    metavar="SCENARIO",
    help="Show a simulated GPU driver instead of the real one; 'list' names the scenarios.",
)
@host_options
@click.option(
    "--python",
    metavar="PATH",
    help="Interpreter whose torch measures (default: our own, then the active environment's).",
)
@click.option(
    "--bench/--no-bench",
    default=True,
    show_default=True,
    help="Measure rates in short bursts while the screen is open.",
)
@click.option(
    "--readonly", is_flag=True, help="Only look: the screen sends no signals to processes."
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
def root(
    context: click.Context,
    *,
    once: bool,
    as_json: bool,
    interval: float,
    only: tuple[str, ...],
    only_visible: bool,
    simulate: str | None,
    hosts: tuple[str, ...],
    hostfile: Path | None,
    ssh: str,
    remote_command: str,
    python: str | None,
    bench: bool,
    readonly: bool,
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
        python=python,
        ascii_only=ascii_only,
        color=color and not os.environ.get("NO_COLOR"),
        debug=debug,
        arguments=context.obj or (),
    )
    context.obj = common
    others = chosen_hosts(common, hosts, hostfile, ssh, remote_command)
    if simulate == "list":
        list_scenarios()
        context.exit(OK)
    if context.invoked_subcommand is not None:
        if others is not None:
            raise click.UsageError(
                "--host goes with the screen and with --once; commands work on the machine they "
                f"are started on: ssh HOST topsmon {context.invoked_subcommand}"
            )
        return
    if as_json and not once:
        raise click.UsageError("--json goes with --once (topsmon --once --json)")
    _check_names(context, python, theme)
    from topsmon.cli import screen

    if once or not has_screen():
        if others is not None:
            context.exit(others.snapshot(common, as_json=as_json))
        context.exit(screen.snapshot(common, as_json=as_json))
    context.exit(
        screen.screen(common, others, bench=bench, theme=theme, mouse=mouse, readonly=readonly)
    )
