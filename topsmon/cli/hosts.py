"""Other machines on the command line: which ones, and how they are reached."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from topsmon.cli.common import (
    FAIL,
    FLEET_PREFIX,
    OK,
    UNKNOWN,
    WARN,
    Common,
    exit_code,
    write_bytes,
    write_text,
)

if TYPE_CHECKING:
    from topsmon.remote.session import HostsSession
    from topsmon.remote.snapshot import HostReading
    from topsmon.remote.ssh import LinkOptions
    from topsmon.state import State

SSH_VARIABLE = "TOPSMON_SSH"


@dataclass(frozen=True)
class Hosts:
    """What the options about other machines say, checked."""

    names: tuple[str, ...]
    link: LinkOptions

    def session(self) -> HostsSession:
        """A session over them for the screen."""
        from topsmon.remote.session import HostsSession

        return HostsSession(self.names, self.link)

    def snapshot(self, common: Common, *, as_json: bool) -> int:
        """Print one snapshot of each; the exit code follows the worst finding of any."""
        import asyncio

        from topsmon.remote.snapshot import read
        from topsmon.report import hosts

        readings = asyncio.run(read(self.names, self.link))
        if as_json:
            write_bytes(hosts.to_json(readings))
        else:
            write_text(hosts.text(readings, ascii_only=common.ascii_for(sys.stdout)))
        return _exit_code(readings)


def host_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give the root command the options about other machines."""
    for option in reversed(
        (
            click.option(
                "--host",
                "hosts",
                multiple=True,
                metavar="NAME,...",
                help="Show other machines through ssh: names, aliases, ranges as node[01-12].",
            ),
            click.option(
                "--hostfile",
                type=click.Path(path_type=Path),
                metavar="FILE",
                help="The same from a file, one host a line.",
            ),
            click.option(
                "--ssh",
                metavar="COMMAND",
                default="ssh",
                envvar=SSH_VARIABLE,
                show_default=True,
                help=f"ssh and its options, such as 'ssh -F FILE' ({SSH_VARIABLE}).",
            ),
            click.option(
                "--remote-command",
                metavar="COMMAND",
                default="topsmon",
                show_default=True,
                help="How topsmon is started there, such as ~/venv/bin/topsmon.",
            ),
        )
    ):
        function = option(function)
    return function


def chosen_hosts(
    common: Common,
    hosts: Sequence[str],
    hostfile: Path | None,
    ssh: str,
    remote_command: str,
) -> Hosts | None:
    """Check the options; None where no other machine was asked for."""
    if not hosts and hostfile is None:
        source = click.get_current_context().get_parameter_source
        for name in ("ssh", "remote_command"):
            if source(name) is click.core.ParameterSource.COMMANDLINE:
                raise click.UsageError(f"--{name.replace('_', '-')} goes with --host or --hostfile")
        return None
    if common.simulate is not None and common.simulate.startswith(FLEET_PREFIX):
        raise click.UsageError(
            f"--simulate {common.simulate} plays its own hosts: leave --host and --hostfile out"
        )
    from topsmon.remote.hostnames import gather
    from topsmon.remote.ssh import LinkOptions, remote_words, ssh_words

    try:
        return Hosts(
            gather(hosts, hostfile),
            LinkOptions(
                ssh=ssh_words(ssh),
                remote=remote_words(remote_command),
                interval=common.interval,
                only=common.only,
                only_visible=common.only_visible,
                simulated=common.simulate,
            ),
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _exit_code(readings: Sequence[HostReading]) -> int:
    """FAIL before WARN before UNKNOWN: a host that was not reached is no bad hardware."""
    severities = [
        finding.severity
        for one in readings
        for finding in one.findings
        if one.state is not None and not _is_of_the_past(finding.run, one.state)
    ]
    worst = exit_code(severities)
    if worst in {FAIL, WARN}:
        return worst
    return OK if all(one.state is not None for one in readings) else UNKNOWN


def _is_of_the_past(run: str | None, state: State) -> bool:
    return run is not None and run in state.runs and state.runs[run].ended
