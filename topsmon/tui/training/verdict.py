"""The selected run in a line, and what to do about what is off."""

from __future__ import annotations

from topsmon.run_state import RunState
from topsmon.tui.cells import Line, Span, clip, fit, line_width, words
from topsmon.tui.findings_list import finding_block
from topsmon.tui.panel import FRAME_COLUMNS, Panel
from topsmon.tui.training.words import full_name, last_words, state_word
from topsmon.tui.view import View
from topsmon.units import plain

BADGES = {"ok": "badge-ok", "muted": "badge-info", "warn": "badge-warn", "fail": "badge-fail"}


class RunVerdict(Panel):
    """Word and verdict; under it the findings with their remedies, the worst first."""

    def title(self, view: View) -> str:
        """Name the run."""
        run = view.training.selected
        return full_name(run.identity) if run is not None else "run"

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        """Return the verdict, then the findings as far as they fit; unframed the worst alone."""
        run = view.training.selected
        if run is None:
            return []
        if not self.framed:
            remedy = _remedy(view, run)
            lines = verdict_lines(view, run, width, max(1, height - min(2, bool(remedy) * 2)))
            return [*lines, *_in_lines(_arrow(view), remedy, width, height - len(lines))]
        lines = verdict_lines(view, run, width, height)
        blocks = finding_blocks(view, run, width)
        for place, block in enumerate(blocks):
            hidden = len(blocks) - place
            if len(lines) + len(block) > height - (hidden > 1):
                lines += [fit((Span(f"       {hidden} more: Enter", "muted"),), width)]
                break
            lines += block
        return lines[:height]


def verdict_lines(view: View, run: RunState, width: int, most: int = 9) -> list[Line]:
    """The state's word as a badge and the verdict beside it."""
    word, role = state_word(run, view.training.of(run).findings)
    badge = Span(f" {word} ", BADGES.get(role, "badge-info"))
    return _in_lines((badge, Span(" ")), _verdict(view, run, word), width, most)


def _verdict(view: View, run: RunState, word: str) -> str:
    """The verdict without a word that its badge says already."""
    text = plain(view.training.of(run).verdict, 600) or last_words(run)
    return text.removeprefix(f"{word}: ").removeprefix("FAIL: ")


def finding_blocks(view: View, run: RunState, width: int) -> list[list[Line]]:
    """Lines of each finding, the worst first; what the verdict has said is not said again."""
    judgement = view.training.of(run)
    blocks: list[list[Line]] = []
    for finding in judgement.findings:
        block = finding_block(view, finding, width)
        said = not blocks and plain(finding.title, 300) in judgement.verdict
        blocks.append(block[1:] if said else block)
    return blocks


def _arrow(view: View) -> Line:
    return (Span(f" {view.glyphs.arrow} ", "muted"),)


def _remedy(view: View, run: RunState) -> str:
    """What to do about the worst finding."""
    findings = view.training.of(run).findings
    return plain(findings[0].remedy or findings[0].cause, 600) if findings else ""


def _in_lines(head: Line, text: str, width: int, most: int) -> list[Line]:
    """Text beside a head, in at most so many lines; the last one says where it is cut."""
    if not text or most < 1:
        return []
    indent = line_width(head)
    parts = words(text, width - indent)
    if len(parts) > most:
        parts = [*parts[: most - 1], clip(" ".join(parts[most - 1 :]), width - indent)]
    return [
        (*head, Span(part)) if place == 0 else (Span(" " * indent), Span(part))
        for place, part in enumerate(parts)
    ]


def line_count(view: View, width: int, *, framed: bool) -> int:
    """Lines that the panel can use in a terminal of some width, without its frame."""
    run = view.training.selected
    if run is None:
        return 1
    if framed:
        width -= FRAME_COLUMNS
        blocks = finding_blocks(view, run, width)
        return len(verdict_lines(view, run, width)) + sum(map(len, blocks))
    remedy = _in_lines(_arrow(view), _remedy(view, run), width, 9)
    return len(verdict_lines(view, run, width)) + len(remedy)
