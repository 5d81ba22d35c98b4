"""topsmon recipe: how topsmon is put to work in SLURM, Kubernetes, systemd, Docker, cron."""

from __future__ import annotations

import click

from topsmon.cli.common import write_text


@click.command()
@click.argument("name", required=False)
def command(name: str | None) -> None:
    """Show the page NAME, or the names of all pages."""
    from topsmon import recipes

    titles = recipes.titles()
    if name is None:
        longest = max(len(known) for known in titles)
        write_text("\n".join(f"{known:<{longest}}  {title}" for known, title in titles.items()))
        return
    if name not in titles:
        raise click.UsageError(f"no recipe {name!r}; there are {', '.join(titles)}")
    write_text(recipes.page(name))
