"""What opens over the screen: help, the details of a device, the choice of precisions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import SelectionList, Static
from textual.widgets.selection_list import Selection

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.diagnosis import bound, mig
from topsmon.run_state import RunState
from topsmon.tui.cells import left, right, words
from topsmon.tui.checks_view import verdict_lines
from topsmon.tui.device_facts import facts
from topsmon.tui.mig_rows import ceiling_text
from topsmon.tui.process_rows import amount_text, command_text
from topsmon.tui.rate_rows import row
from topsmon.tui.sample_fields import (
    counter_pairs,
    identity_pairs,
    sample_pairs,
    topology_pairs,
    xid_pairs,
)
from topsmon.tui.training.details import sections
from topsmon.tui.training.words import full_name
from topsmon.tui.view import MARKS, View, short_name
from topsmon.units import PRECISIONS, bandwidth, plain

TEXT_WIDTH = 92
FIELD = 30
STANDS_STILL = "the screen behind stands still until this closes"

CLOSE: list[BindingType] = [
    Binding("escape,q,enter", "dismiss", "close"),
    Binding("ctrl+c", "app.quit", "quit", priority=True),
    Binding("ctrl+z", "app.suspend_process", "suspend", priority=True),
]


class TextDialog(ModalScreen[None]):
    """Lines of plain text that scroll; Escape, q or Enter closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *CLOSE,
        Binding("j,down", "scroll(1)", show=False),
        Binding("k,up", "scroll(-1)", show=False),
    ]

    def __init__(self, heading: str, lines: Iterable[str]) -> None:
        super().__init__()
        self.heading = heading
        self.text = "\n".join(lines)

    def compose(self) -> ComposeResult:
        """Lay out heading, text and hint. Content, not str: nothing in it is markup."""
        with VerticalScroll(classes="dialog") as box:
            box.border_subtitle = STANDS_STILL
            yield Static(Content(self.heading), classes="heading")
            yield Static(Content(self.text))
            yield Static(Content("Esc closes"), classes="hint")

    def action_scroll(self, lines: int) -> None:
        """Scroll by lines."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)


HELP = (
    ("q, Ctrl-C", "quit"),
    ("1", "live: devices, rates, where the TFLOPS go"),
    ("2", "roofline of the selected device and precision"),
    ("3", "training runs; there up, down: run, left, right: rank, Enter: all about it"),
    ("4", "checks: verdicts so far; there up, down: check, left, right: device"),
    ("5", "processes; there up, down: select, left, right: command, Enter: all"),
    ("5: o, / and t", "sort (then a column's letter), filter (Esc ends it), tree"),
    ("5: K", "send the process a signal: asks first; not under --readonly"),
    ("up, down, k, j", "select a device; at first it is the one with the worst finding"),
    ("left, right, h, l", "select a precision"),
    ("[, ], t", "rank before, rank after; list every rank, or one row a launch again"),
    ("Enter", "details of the device: findings, all readings, ceilings, sources"),
    ("b", "measure the device a lot, even where others compute; again: less"),
    ("B", "choose the precisions that are measured"),
    ("Space", "pause sampling and measuring, or go on"),
    ("+, -", "longer or shorter interval"),
    ("m", "next theme (Ctrl-P: all themes)"),
    ("S", "save a picture (SVG) and the numbers (JSON)"),
    ("R", "record into the state directory, or end it; topsmon replay FILE shows it"),
    ("Ctrl-Z", "back to the shell; fg returns"),
    ("Ctrl-P", "all commands"),
)

WORDS = (
    ("busy", "share of time in which any kernel ran: not a share of the GPU's units"),
    (
        "SM active",
        "share of the SMs that had work; occupancy: warps of the most possible",
    ),
    ("tensor, DRAM, FP32", "share of the peak of these units, whatever the precision (NVML GPM)"),
    ("margin", "how much hotter the GPU may get before its clocks go down"),
    ("ceiling", "rated peak, dense, at the boost clock of the data sheet"),
    ("top clock", "the highest clock measured, on a CPU whose rated one is not known"),
    ("40 s ago !", "a good rate of then; a later try was disturbed and does not count"),
    ("skipped", "steps whose gradients were not finite: the scaler left the weights alone"),
    ("loss scale", "what the loss is multiplied by so that FP16 gradients do not vanish"),
    ("MFU", "model FLOPs a second / rated ceiling; what is computed twice counts once"),
    ("ratio", "achieved / ceiling, never cut at 100 %"),
    ("at clock", "achieved / the ceiling at the clock that was held while measuring"),
    ("FP16a", "FP16 with FP16 accumulate; FP16 accumulates in FP32, as torch.mm does"),
    ("TOPS", "integer operations; TFLOPS are floating-point operations"),
)


REPLAY_KEYS = (
    ("Space", "stand still, or go on"),
    ("left, right", "10 s back or on"),
    ("<, >, comma, dot", "slower, faster"),
    ("n", "go to where the next finding begins, and stand still there"),
    ("Home, End", "the beginning, the end"),
)


LIVE_KEYS = frozenset({"5: K", "b", "Space", "+, -", "R"})
"""Keys of the live screen that do nothing in a replay, or something else."""


def replay_help() -> TextDialog:
    """The help of a replay: its keys, then those that it shares with the live screen."""
    shared = [
        (key.removeprefix("left, right, "), text) for key, text in HELP if key not in LIVE_KEYS
    ]
    first = ["in a replay", *(left(key, 20) + text for key, text in REPLAY_KEYS), "", "else"]
    return help_dialog(first, shared)


def help_dialog(
    first: Iterable[str] = (), keys: Iterable[tuple[str, str]] | None = None
) -> TextDialog:
    """Keys, words and signs; `first` are lines to begin with."""
    lines = [*first, *(left(key, 20) + text for key, text in (HELP if keys is None else keys))]
    lines += [""] + [left(word, 20) + text for word, text in WORDS]
    lines += [""] + [left(f"73.0%{sign}", 20) + text for sign, text in MARKS]
    return TextDialog("topsmon: keys and words", lines)


def details_dialog(view: View, device: DeviceState) -> TextDialog:
    """Everything known about one device, with the reasons for what is not known."""
    lines = [line for head, text in facts(view, device) for line in _wrapped(head, text)]
    if view.prevented is not None and view.torch_problem is None:
        lines += _wrapped("benchmarks", f"none: {view.prevented}")
    for section in (
        _findings(view, device),
        _bound(view, device),
        _instances(view, device),
        _processes(device),
        _fields("performance counters of the last interval", counter_pairs(device)),
        _fields("last reading", sample_pairs(device)),
        _fields("errors that the driver reported", xid_pairs(device)),
        _rates(view, device),
        _ceilings(device),
        _fields("way to the other GPUs over PCIe", topology_pairs(view.state, device)),
        _fields("device", identity_pairs(device)),
        _otherwise_unavailable(device),
    ):
        lines += ["", *section] if section else []
    return TextDialog(f"{device.label}  {short_name(device)}", lines)


def run_dialog(view: View, run: RunState) -> TextDialog:
    """Everything known about one training run."""
    lines: list[str] = []
    for section in sections(view, run):
        block = [line for pair in section for line in _wrapped(*pair)]
        lines += ["", *block] if lines and block else block
    return TextDialog(full_name(run.identity, 60), lines)


def check_dialog(result: events.CheckResult) -> TextDialog:
    """A verdict whole: numbers, cause, evidence, what to do, on what grounds."""
    lines = [line for pair in verdict_lines(result) for line in _wrapped(*pair)]
    title = f"{plain(result.label, 20)}  {plain(result.title, 80)}: {result.state}"
    return TextDialog(title, [*lines, "", *_wrapped("check", result.check)])


def _findings(view: View, device: DeviceState) -> list[str]:
    lines: list[str] = []
    for finding in view.findings:
        if finding.device not in {None, device.key}:
            continue
        lines += _wrapped(plain(finding.word, 6), finding.title)
        for text in (finding.cause, *finding.evidence, finding.remedy, finding.command):
            lines += _wrapped("", text)
        if finding.basis:
            lines += _wrapped("", f"basis: {finding.basis}")
    return lines


def _rates(view: View, device: DeviceState) -> list[str]:
    lines = []
    for key in PRECISIONS:
        entry = row(view, device, key)
        best = device.rates[key].best
        if not entry.rate or best is None:
            lines += _wrapped(entry.label, entry.explanation or "no rate")
            continue
        text = f"{right(entry.rate, 6)} {left(entry.unit, 7)}{right(entry.ratio_text or '-', 7)}"
        lines.append(left(entry.label, 12) + f"{text}  {entry.shape}".rstrip())
        parts = [entry.status, best.method, best.note]
        if best.relative_error is not None:
            parts.append(f"relative error {best.relative_error:.1e}")
        lines += _wrapped("", ", ".join(filter(None, parts)))
    return ["rates", *lines]


def _ceilings(device: DeviceState) -> list[str]:
    ceilings = device.ceilings
    if ceilings is None:
        return []
    lines = ["ceilings and their sources"]
    if ceilings.unknown is not None:
        lines += _wrapped("", ceilings.unknown)
    for ceiling in ceilings.rates:
        value = f"{ceiling.ops_per_second / 1e12:.4g}"
        lines += _wrapped(
            plain(ceiling.precision, 11), f"{value} T/s, {ceiling.origin}: {ceiling.source}"
        )
    for precision, reason in ceilings.absent.items():
        lines += _wrapped(plain(precision, 11), reason)
    for note in ceilings.notes:
        lines += _wrapped("note", note)
    return lines


def _processes(device: DeviceState) -> list[str]:
    entries = device.processes.entries if device.processes is not None else None
    if not entries:
        return []
    lines = ["processes (PID, use, user, command)"]
    for entry in entries:
        who = "topsmon itself" if entry.own else command_text(entry)
        parts = (amount_text(device, entry), entry.user or "", who)
        lines += _wrapped(str(entry.pid), ", ".join(filter(None, parts)))
    return lines


def _bound(view: View, device: DeviceState) -> list[str]:
    """The verdict with its numbers and with what was missing for it."""
    if device.identity.kind != "gpu":
        return []
    verdict = bound.of_device(view.state, device, view.now)
    lines = _wrapped("bound by", verdict.words)
    for text in verdict.evidence:
        lines += _wrapped("", text)
    for text in verdict.missing:
        lines += _wrapped("", f"missing: {text}")
    return lines


def _instances(view: View, device: DeviceState) -> list[str]:
    lines: list[str] = []
    for part in mig.parts(view.state, device, view.now):
        lines += _wrapped("", mig.describe(part))
        ceiling = f"{PRECISIONS[view.precision].label} ceiling {ceiling_text(view, part)} T/s"
        memory = part.ceilings.memory_bandwidth_bytes_per_second
        lines += _wrapped("", f"  {ceiling}, memory {bandwidth(memory)}")
        for text in part.bound.evidence:
            lines += _wrapped("", f"  {text}")
    return ["MIG instances", *lines] if lines else []


def _fields(title: str, pairs: list[tuple[str, str]]) -> list[str]:
    """Fields under a wider head than that of other lines: their names are long."""
    lines = [title] if pairs else []
    for head, text in pairs:
        found = words(text, TEXT_WIDTH - FIELD) or [""]
        lines += [
            left(head if place == 0 else "", FIELD) + line for place, line in enumerate(found)
        ]
    return lines


def _otherwise_unavailable(device: DeviceState) -> list[str]:
    """Reasons for what is no field of a reading or of the device."""
    reasons = dict(device.identity.unavailable)
    fields = set(device.identity.__struct_fields__) | {"xid"}
    if device.sample is not None:
        reasons |= device.sample.unavailable
        fields |= set(device.sample.__struct_fields__)
    lines: list[str] = []
    for name, reason in sorted(reasons.items()):
        if name not in fields:
            lines += _wrapped("", f"{name.replace('_', ' ')}: {reason}")
    return ["not available", *lines] if lines else []


def _wrapped(head: str, text: str) -> list[str]:
    """Text from outside in lines under a head of twelve cells."""
    found = words(plain(text, 4000), TEXT_WIDTH - 12) if text else []
    return [left(head if place == 0 else "", 12) + line for place, line in enumerate(found)]


class PrecisionChoice(ModalScreen[tuple[str, ...] | None]):
    """Choose the precisions to measure. Enter takes the choice, Escape leaves it as it was."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss(None)", "leave"),
        Binding("enter", "take", "take", priority=True),
        *CLOSE[1:],
    ]

    def __init__(self, chosen: tuple[str, ...]) -> None:
        super().__init__()
        self.chosen = chosen

    def compose(self) -> ComposeResult:
        """Lay out the list."""
        with VerticalScroll(classes="dialog") as box:
            box.border_subtitle = STANDS_STILL
            yield Static(Content("precisions that are measured"), classes="heading")
            yield SelectionList[str](
                *(
                    Selection(
                        Content(f"{left(one.label, 7)}{one.long_name}"),
                        one.key,
                        one.key in self.chosen,
                    )
                    for one in PRECISIONS.values()
                )
            )
            yield Static(Content("Space changes, Enter takes, Esc leaves"), classes="hint")

    def on_mount(self) -> None:
        """Put the keys where the list is."""
        self.query_one(SelectionList).focus()

    def action_take(self) -> None:
        """Hand the choice back in the order of the table; an empty one changes nothing."""
        selected = set(self.query_one(SelectionList).selected)
        keys = tuple(key for key in PRECISIONS if key in selected)
        self.dismiss(keys or None)
