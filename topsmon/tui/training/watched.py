"""What the screen knows of runs beyond the state: the order, the cursor, findings and verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from topsmon import events
from topsmon.run_state import RunState
from topsmon.state import State
from topsmon.tui.training.launches import Launch, launches

SECONDS = 1.0
"""Least time between two diagnoses."""
SEVERITIES = ("fail", "warn")


class Judgement(NamedTuple):
    """What the rules say of one run, worst first, and all of it in a line.

    `suffers`: another rank has caused its trouble.
    """

    findings: tuple[events.Finding, ...] = ()
    verdict: str = ""
    suffers: bool = False


@dataclass(frozen=True)
class Training:
    """The runs as the screen shows them.

    `run` is the key of the selected one. `rows` are what the list shows: one launch a row, or one
    rank a row where they are `unfolded`.
    """

    launches: tuple[Launch, ...] = ()
    run: str | None = None
    unfolded: bool = False
    judged: Mapping[str, Judgement] = field(default_factory=dict)

    @property
    def rows(self) -> list[Launch]:
        """The rows of the list."""
        if not self.unfolded:
            return list(self.launches)
        return [Launch(run.key, (run,)) for launch in self.launches for run in launch.members]

    @property
    def launch(self) -> Launch | None:
        """The launch that the selected run belongs to."""
        return next((one for one in self.launches if self.run in _keys(one)), None)

    @property
    def selected(self) -> RunState | None:
        """The selected run."""
        launch = self.launch
        if launch is None:
            return None
        return next(run for run in launch.members if run.key == self.run)

    def of(self, run: RunState) -> Judgement:
        """What the rules say of a run."""
        return self.judged.get(run.key, Judgement())

    def findings(self, members: Sequence[RunState]) -> tuple[events.Finding, ...]:
        """Findings of some runs, the worst first."""
        found = [finding for run in members for finding in self.of(run).findings]
        return tuple(sorted(found, key=_badness))


NO_RUNS = Training()


class Watched:
    """Keeps the cursor and asks for a diagnosis at most once a second."""

    def __init__(self) -> None:
        self._moved_to: str | None = None
        self._unfolded = False
        self._judged: dict[str, Judgement] = {}
        self._ended: dict[str, tuple[object, ...]] = {}
        self._version: int | None = None
        self._at = 0.0
        self.training = NO_RUNS

    def update(self, state: State, now: float) -> Training:
        """Take what is new in `state`; `now` is the monotonic clock, in s."""
        if not state.runs:
            self.training = NO_RUNS
            return self.training
        found = launches(state.runs.values())
        if self._due(state, now):
            self._judge(state, now)
        training = Training(found, unfolded=self._unfolded, judged=self._judged)
        runs = {run.key for launch in found for run in launch.members}
        key = self._moved_to if self._moved_to in runs else _worst(training)
        self.training = Training(found, key, self._unfolded, self._judged)
        return self.training

    def _due(self, state: State, now: float) -> bool:
        fresh = self._version is not None and abs(now - self._at) < SECONDS
        return not (fresh and self._judged.keys() == state.runs.keys()) and (
            state.version != self._version
        )

    def _judge(self, state: State, now: float) -> None:
        from topsmon.diagnosis import of_run
        from topsmon.diagnosis.training.other_ranks import suffers
        from topsmon.report.training import verdict

        judged = {}
        # How a rank is judged depends on how the others of its launch are.
        ranks: dict[str, tuple[str, ...]] = {}
        for run in state.runs.values():
            ranks[run.group] = (*ranks.get(run.group, ()), run.condition)
        for key, run in state.runs.items():
            told = (run.sample, run.status, ranks[run.group])
            if run.ended and self._ended.get(key) == told:
                judged[key] = self._judged[key]
                continue
            findings = of_run(state, key, now)
            judged[key] = Judgement(findings, verdict(run, findings), suffers(state, run))
            if run.ended:
                self._ended[key] = told
        self._judged, self._version, self._at = judged, state.version, now

    def move(self, step: int) -> None:
        """Select the run `step` rows on."""
        rows = self.training.rows
        if rows:
            here = [place for place, row in enumerate(rows) if self.training.run in _keys(row)]
            place = min(max((here or [0])[0] + step, 0), len(rows) - 1)
            self._moved_to = _first_bad(self.training, rows[place])

    def move_rank(self, step: int) -> None:
        """Select the rank `step` places on within the launch."""
        launch = self.training.launch
        if launch is not None:
            keys = _keys(launch)
            place = keys.index(self.training.run or "") + step
            self._moved_to = keys[min(max(place, 0), len(keys) - 1)]

    def select_row(self, place: int) -> None:
        """Select the run of a row."""
        rows = self.training.rows
        if 0 <= place < len(rows):
            self._moved_to = _first_bad(self.training, rows[place])

    def fold(self) -> None:
        """Show one row a rank, or one a launch again. The cursor stays where it is."""
        self._moved_to = self.training.run
        self._unfolded = not self._unfolded


def _keys(launch: Launch) -> list[str]:
    return [run.key for run in launch.members]


def _badness(finding: events.Finding) -> int:
    return SEVERITIES.index(finding.severity) if finding.severity in SEVERITIES else len(SEVERITIES)


def _trouble(training: Training, members: Sequence[RunState]) -> int:
    return min(map(_badness, training.findings(members)), default=len(SEVERITIES))


def _first_bad(training: Training, launch: Launch) -> str:
    """The rank to look at first: the one with the worst finding that no other one has caused."""
    return min(
        launch.members, key=lambda run: (_trouble(training, [run]), training.of(run).suffers)
    ).key


def _worst(training: Training) -> str | None:
    """The run to look at first: of the living launches the one with the worst finding."""
    living = [launch for launch in training.launches if launch.living]
    candidates = living or training.launches[:1]
    if not candidates:
        return None
    launch = min(candidates, key=lambda launch: _trouble(training, launch.members))
    return _first_bad(training, launch)
