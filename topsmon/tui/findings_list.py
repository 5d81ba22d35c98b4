"""All findings, for screens that have room."""

from __future__ import annotations

from topsmon import events
from topsmon.tui.cells import Line, Span, clip, fit, left
from topsmon.tui.panel import Panel
from topsmon.tui.view import SEVERITY_ROLES, View
from topsmon.units import plain


class FindingsList(Panel):
    """Every finding with its cause and remedy, worst first."""

    def title(self, view: View) -> str:
        """Count them."""
        return f"{len(view.findings)} findings" if len(view.findings) != 1 else "1 finding"

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        """Return up to three lines a finding."""
        if not view.findings:
            return [fit((Span("nothing is off", "muted"),), width)]
        lines: list[Line] = []
        for place, finding in enumerate(view.findings):
            block = finding_block(view, finding, width)
            left_over = len(view.findings) - place
            if len(lines) + len(block) > height - (1 if left_over > 1 else 0):
                lines = lines[: height - 1]
                lines.append(fit((Span(f"and {left_over} more", "muted"),), width))
                break
            lines += block
        return lines


def finding_block(view: View, finding: events.Finding, width: int) -> list[Line]:
    """Word and title, then cause, then what to do."""
    role = SEVERITY_ROLES[finding.severity]
    lines = [
        fit((Span(left(plain(finding.word, 6), 7), role), Span(plain(finding.title, 300))), width)
    ]
    if finding.cause:
        lines.append((Span(clip("       " + plain(finding.cause, 300), width), "muted"),))
    action = plain(finding.command or finding.remedy, 400)
    if action:
        kind = "key" if finding.command else "muted"
        arrow = Span(f"       {view.glyphs.arrow} ", "muted")
        lines.append(fit((arrow, Span(action, kind)), width))
    return lines
