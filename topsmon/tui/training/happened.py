"""What happened in the selected run, the newest first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from topsmon import events
from topsmon.diagnosis.training.words import scale_text
from topsmon.tui.cells import Line, Span, fit, left, right
from topsmon.tui.panel import Panel
from topsmon.tui.rate_rows import age_text
from topsmon.tui.training.words import count, number
from topsmon.tui.view import View
from topsmon.units import percent, plain

STEP, AGE = 8, 11
AGE_FROM = 50
ROLES = {
    "nonfinite-gradients": "warn",
    "nonfinite-output": "fail",
    "nonfinite-loss": "fail",
    "nonfinite-weights": "fail",
    "scaled-clip": "fail",
    "bypass": "fail",
    "exception": "fail",
    "recorder": "warn",
}


class Happening(NamedTuple):
    """One line of the list: an event, or several alike in a row."""

    event: events.RunEvent
    times: int = 1


class RunHappenings(Panel):
    """Events with their step and age."""

    headed_from = 3

    def title(self, view: View) -> str:
        """Name the list."""
        del view
        return "what happened, newest first"

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        """Return one line an event; equal ones in a row share a line."""
        run = view.training.selected
        if run is None:
            return []
        found = newest(run.happened)[:height]
        if not found:
            return [fit((Span("nothing but steps so far", "muted"),), width)]
        return [_line(view, one, width) for one in found]


def newest(happened: Iterable[events.RunEvent]) -> list[Happening]:
    """The newest first. A skip is told by the scale's fall; falls in a row become one line."""
    found: list[Happening] = []
    for event in reversed(list(happened)):
        last = found[-1] if found else None
        if last is not None and event.kind == last.event.kind == "end":
            continue  # the run's own word, and that of the one that has started it
        if last is not None and event.kind == last.event.kind == "back-off":
            found[-1] = last._replace(times=last.times + 1)
        elif not (
            last is not None
            and event.kind == "skip"
            and last.event.kind == "back-off"
            and last.event.step - event.step < last.times
        ):
            found.append(Happening(event))
    return found


def _line(view: View, one: Happening, width: int) -> Line:
    event = one.event
    spans = [Span(right(count(event.step), STEP) + "  ", "muted")]
    if width >= AGE_FROM:
        spans.append(Span(left(age_text(view.wall - event.time), AGE), "muted"))
    return fit((*spans, Span(event_text(event, one.times), ROLES.get(event.kind, "text"))), width)


def event_text(event: events.RunEvent, times: int = 1) -> str:
    """An event in words; safe to draw. `times` alike events in a row are told at once."""
    names = ", ".join(plain(name, 200) for name in event.names)
    message = plain(event.message, 400)
    if event.kind in NUMBERS:
        return NUMBERS[event.kind](event.values, times)
    if event.kind == "nonfinite-gradients":
        text = f"bad gradients{_of_parameters(event.values)}: {names or 'names not known'}"
    elif event.kind == "nonfinite-output":
        where = f"{names} ({message})" if names and message else names or message
        text = f"first bad output: {where}"
    elif event.kind == "exception":
        seen = " (passed on)" if event.values.get("handled") else ""
        text = f"{names or 'exception'}: {message}{seen}"
    else:
        head = HEADS.get(event.kind, plain(event.kind, 40))
        text = ": ".join(filter(None, (head, names, message)))
    return text


def _of_parameters(values: dict[str, float]) -> str:
    bad, all_of_them = values.get("bad"), values.get("parameters")
    if bad is None or all_of_them is None:
        return ""
    return f" in {count(bad)} of {count(all_of_them)}"


def _growth(values: dict[str, float], times: int) -> str:
    del times
    return f"scale up to {scale_text(values.get('scale'))}"


def _back_off(values: dict[str, float], times: int) -> str:
    skipped = f"{count(times)} skipped" if times > 1 else "skipped"
    return f"{skipped}, scale down to {scale_text(values.get('scale'))}"


def _scaled_clip(values: dict[str, float], times: int) -> str:
    del times
    norm, limit = number(values.get("norm")), number(values.get("max_norm"))
    return f"clipped before unscaling: norm {norm}, clipped at {limit}"


def _zeros(values: dict[str, float], times: int) -> str:
    del times
    scale = scale_text(values.get("scale"))
    at = f" at scale {scale}" if scale else " without a scaler"
    return f"{percent(values.get('ratio'))} of FP16 gradients are 0{at}"


HEADS = {
    "nonfinite-loss": "loss not finite",
    "nonfinite-weights": "weights not finite",
    "skip": "step skipped",
    "bypass": "optimizer.step() was called past the scaler",
    "end": "ended",
    "profile": "profile stored",
}
"""Words for kinds that say the rest themselves."""
NUMBERS: dict[str, Callable[[dict[str, float], int], str]] = {
    "growth": _growth,
    "back-off": _back_off,
    "scaled-clip": _scaled_clip,
    "gradient-zeros": _zeros,
}
"""Words for kinds that are told in numbers."""
