"""Runs as people know them: the ranks of one launch together, those that live first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from topsmon.run_state import RunState

RECENT_SECONDS = 600.0
"""An ended run is news for this long."""
TOGETHER_SECONDS = 60.0
"""Ranks of one command that start within this time belong together, where no launch says so."""


class Launch(NamedTuple):
    """What one command has started, in the order of ranks: usually one run, or one a rank."""

    key: str
    members: tuple[RunState, ...]

    @property
    def first(self) -> RunState:
        """The member that names the launch."""
        return self.members[0]

    @property
    def living(self) -> bool:
        """True while any member runs."""
        return any(not run.ended for run in self.members)

    @property
    def ended_at(self) -> float:
        """Wall-clock time at which the last member ended, in s."""
        return max((run.status.since for run in self.members if run.status is not None), default=0)

    def recent(self, now: float) -> bool:
        """True while it lives and for some minutes after; `now` is the monotonic clock, in s."""
        ages = [run.ended_for(now) for run in self.members]
        return any(age is None or age < RECENT_SECONDS for age in ages)


def launches(runs: Iterable[RunState]) -> tuple[Launch, ...]:
    """Group runs: living launches by their start, the newest first, then by their end."""
    members: dict[str, list[RunState]] = {}
    for run in sorted(runs, key=lambda run: (run.identity.started, run.key)):
        members.setdefault(_group(run, members), []).append(run)
    found = [
        Launch(key, tuple(sorted(group, key=_place_in_launch))) for key, group in members.items()
    ]
    return tuple(sorted(found, key=_place_in_list))


def _group(run: RunState, members: dict[str, list[RunState]]) -> str:
    """The key of the launch that a run belongs to; `members` holds those that began before it."""
    identity = run.identity
    if identity.launch is not None:
        return f"launch {identity.launch}"
    if identity.rank is None or not identity.world_size or identity.world_size < 2:
        return run.key
    for key, group in members.items():
        first = group[0].identity
        alike = (first.launch, first.hostname, first.command, first.world_size) == (
            (None, identity.hostname, identity.command, identity.world_size)
        )
        taken = any(other.identity.rank == identity.rank for other in group)
        if alike and not taken and identity.started - first.started <= TOGETHER_SECONDS:
            return key
    return run.key


def _place_in_launch(run: RunState) -> tuple[int, float, str]:
    rank = run.identity.rank
    return (rank if rank is not None else 1 << 30, run.identity.started, run.key)


def _place_in_list(launch: Launch) -> tuple[bool, float, str]:
    living = launch.living
    return (not living, -(launch.first.identity.started if living else launch.ended_at), launch.key)
