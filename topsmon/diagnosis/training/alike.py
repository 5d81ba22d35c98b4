"""One finding for several ranks of a launch: what they share is said once, the rest by rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from topsmon import events
from topsmon.diagnosis.training.other_ranks import rank_word, ranks_text
from topsmon.diagnosis.training.words import counted
from topsmon.run_state import RunState

OTHERS_SHOWN = 3
"""Of ranks with words of their own so many are quoted; the rest are counted."""

Pair = tuple[RunState, events.Finding]


def together(pairs: Sequence[Pair]) -> tuple[list[RunState], events.Finding]:
    """The ranks that a finding is worded for, and the finding; all pairs have its code.

    Ranks with other words are counted in its title and quoted in its evidence: names and counts of
    one rank are never told as those of all.
    """
    variants: dict[tuple[str, ...], list[Pair]] = {}
    for run, finding in pairs:
        words = finding.title, finding.cause, finding.remedy, finding.command
        variants.setdefault(words, []).append((run, finding))
    alike, *others = variants.values()
    first = alike[0][1]
    evidence = tuple(_evidence(alike))
    title = first.title
    if others:
        rest = sum(map(len, others))
        ranked = all(run.identity.rank is not None for run, _ in pairs)
        nouns = ("more rank",) if ranked else ("more process", "more processes")
        title += f", and {counted(rest, *nouns)}"
        evidence = (*evidence, *_quoted(others, first))
    said = msgspec.structs.replace(first, title=title, evidence=evidence)
    return [run for run, _ in alike], said


def _evidence(alike: Sequence[Pair]) -> Iterator[str]:
    """The evidence of the first of them, with its rank where not all have the same."""
    run, finding = alike[0]
    for line in finding.evidence:
        shared = all(line in other.evidence for _, other in alike)
        yield line if shared else f"{rank_word(run)}: {line}"


def _quoted(others: Sequence[Sequence[Pair]], first: events.Finding) -> Iterator[str]:
    for variant in others[:OTHERS_SHOWN]:
        finding = variant[0][1]
        cause = f": {finding.cause}" if finding.cause != first.cause else ""
        yield f"{ranks_text([run for run, _ in variant])}: {finding.title}{cause}"
    left = sum(map(len, others[OTHERS_SHOWN:]))
    if left:
        yield f"{left:,} more with words of {'its' if left == 1 else 'their'} own"
