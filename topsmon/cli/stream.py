"""topsmon stream: the poller, which the screen starts too."""

from __future__ import annotations

import click

from topsmon.cli.common import Common, Number, common_options, enter_simulation, fleet_plan


@click.command()
@click.option("-i", "--interval", type=Number(0.1, 60.0), help="Seconds between samples.")
@click.option("--gpu/--no-gpu", default=True, help="Read the GPU driver.")
@click.option("--until-stdin-closes", is_flag=True, hidden=True)
@common_options
def command(common: Common, interval: float | None, gpu: bool, until_stdin_closes: bool) -> None:
    """Write the event stream as JSON lines until interrupted."""
    plan = fleet_plan(common.simulate)
    if plan is not None:
        from topsmon.fleet.play import play

        code = play(plan, interval or common.interval, until_stdin_closes=until_stdin_closes)
        raise click.exceptions.Exit(code)
    enter_simulation(common)
    from topsmon.devices import crashes, poller

    if gpu and not until_stdin_closes:
        gpu = crashes.go_on_in_child()
    try:
        code = poller.run(
            interval or common.interval,
            common.only,
            common.only_visible,
            until_stdin_closes,
            gpu=gpu,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    raise click.exceptions.Exit(code)
