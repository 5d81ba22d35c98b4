"""Everything about one process; its environment and whole command come from a child process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from topsmon import events
from topsmon.report.process_rows import Row
from topsmon.tui.cells import left
from topsmon.tui.dialogs import CLOSE, STANDS_STILL, TEXT_WIDTH
from topsmon.tui.processes.words import (
    COMMAND_SHOWN,
    broken,
    elsewhere,
    kind_words,
    parents,
    place_hint,
    state_hint,
    who,
)
from topsmon.tui.view import View
from topsmon.units import NOT_AVAILABLE, age, binary_bytes, percent, plain

HEAD = 14
WAIT_SECONDS = 2.0
"""A process that is stuck in the kernel holds up who reads its memory; it is not waited for."""
REAP_SECONDS = 0.1
LINE_MOST = 1 << 23
VALUE_SHOWN = 1000
CHILD = "topsmon.devices.process_details"


class ProcessDialog(ModalScreen[None]):
    """What is known of a process at once, and what is read of it when it comes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *CLOSE,
        Binding("j,down", "scroll(1)", show=False),
        Binding("k,up", "scroll(-1)", show=False),
        Binding("pagedown", "scroll(20)", show=False),
        Binding("pageup", "scroll(-20)", show=False),
    ]

    def __init__(self, view: View, row: Row, beside: Sequence[Row]) -> None:
        """`beside` are the rows of the same process on all devices."""
        super().__init__()
        self.row = row
        self.known = known_facts(view, row, beside)
        self.elsewhere = elsewhere(view)
        self.found: dict[str, Any] = {}

    def compose(self) -> ComposeResult:
        """Lay out heading, text and hint. Content, not str: nothing in it is markup."""
        heading = f"PID {self.row.entry.pid}  {who(self.row, 60)}"
        with VerticalScroll(classes="dialog") as box:
            box.border_subtitle = STANDS_STILL
            yield Static(Content(heading), classes="heading")
            yield Static(id="process-text")
            yield Static(Content("Esc closes"), classes="hint")

    def on_mount(self) -> None:
        """Show what is known; read the rest where that is this system's process."""
        entry = self.row.entry
        problem = self.elsewhere or unseen(entry)
        if problem or entry.start_ticks is None:
            self.found["environment_problem"] = problem
        else:
            self.run_worker(self._read(entry.pid, entry.start_ticks))
        self._show()

    async def _read(self, pid: int, ticks: int) -> None:
        async for part in read_details(pid, ticks):
            self.found |= part
            self._show()
        for name in ("command", "environment"):
            if not {name, f"{name}_problem", "ended"} & self.found.keys():
                self.found[f"{name}_problem"] = "it does not answer: stuck in the kernel?"
        self._show()

    def _show(self) -> None:
        width = min(TEXT_WIDTH, int(self.app.size.width * 0.96) - 7) - HEAD
        lines = [
            left(head if number == 0 else "", HEAD) + part
            for head, text in (*self.known, *read_facts(self.found, self.row.entry))
            for number, part in enumerate(broken(text, max(width, 10)))
        ]
        self.query_one("#process-text", Static).update(Content("\n".join(lines)))

    def action_scroll(self, lines: int) -> None:
        """Scroll by lines."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)


def unseen(entry: events.ProcessEntry) -> str:
    """Why a process cannot be looked at, "" where it can."""
    if not entry.local:
        return "it is not looked up: it is no process of this system"
    return "it cannot be looked at: /proc does not show it" if entry.start_ticks is None else ""


def known_facts(view: View, row: Row, beside: Sequence[Row]) -> list[tuple[str, str]]:
    """Heads and texts of what the table knows."""
    entry = row.entry
    pairs = [("is", place_hint(view, entry)), ("state", state_hint(entry))]
    if entry.own:
        pairs.append(("note", "a process of topsmon itself: it is started again when it ends"))
    pairs.append(("user", plain(entry.user or NOT_AVAILABLE, 64)))
    pairs += [("on" if number == 0 else "", place(one)) for number, one in enumerate(beside)]
    if row.note:
        pairs.append(("not told", plain(row.note, 400)))
    if entry.cpu_cores is not None:
        text = f"{percent(entry.cpu_cores, 0)} (100% is one core)"
        pairs.append(("CPU", text))
    if entry.host_memory_bytes is not None:
        pairs.append(("host memory", binary_bytes(entry.host_memory_bytes)))
    if entry.started is not None:
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.started))
        pairs.append(("started", f"{moment}, {age(view.wall - entry.started)} ago"))
    pairs.append(("parents", parents(entry)))
    return [pair for pair in pairs if pair[1]]


def place(row: Row) -> str:
    """What a process takes of one device: "GPU 0: 41.0 GiB, compute, SM 73%"."""
    entry = row.entry
    if row.cpu or row.is_parent:
        return row.device
    parts = [f"{binary_bytes(entry.memory_bytes)} of memory", kind_words(entry)]
    if entry.sm_ratio is not None:
        parts.append(f"SM {percent(entry.sm_ratio, 0)} of the time")
    if entry.memory_busy_ratio is not None:
        parts.append(f"memory {percent(entry.memory_busy_ratio, 0)} of the time")
    if row.profile:
        parts.append(f"MIG {plain(row.profile, 20)}")
    return f"{row.device}: {', '.join(parts)}"


def read_facts(found: dict[str, Any], entry: events.ProcessEntry) -> list[tuple[str, str]]:
    """Heads and texts of what the child has read so far."""
    if found.get("ended"):
        return [("command", plain(entry.command or "")), ("environment", "the process has ended")]
    pairs = [
        (head, plain(str(found.get(name) or ""), 4000))
        for head, name in (("threads", "threads"), ("program", "executable"), ("folder", "folder"))
    ]
    words = found.get("command")
    command = entry.command or "" if words is None else " ".join(words)
    cut = len(command) - COMMAND_SHOWN
    pairs.append(("command", plain(command, COMMAND_SHOWN) + (f" … {cut} more" if cut > 0 else "")))
    pairs.append(("", plain(str(found.get("command_problem") or ""), 200)))
    environment = found.get("environment")
    if environment is None:
        pairs.append(
            ("environment", plain(str(found.get("environment_problem") or "reading"), 200))
        )
    else:
        pairs.append(("environment", f"{len(environment)} variables; secrets are masked"))
        for name, value in environment:
            text = plain(f"{name}={value}", VALUE_SHOWN)
            pairs.append(("", text + ("…" if len(name) + len(value) >= VALUE_SHOWN else "")))
    return [pair for pair in pairs if pair[1]]


async def read_details(pid: int, ticks: int) -> AsyncIterator[dict[str, Any]]:
    """Yield what a child reads of a process as it comes, for `WAIT_SECONDS` at the most."""
    # asyncio warns on stderr, which is the screen, when a killed child is reaped elsewhere.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", CHILD, str(pid), str(ticks)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=LINE_MOST,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
    )
    assert child.stdout is not None
    deadline = time.monotonic() + WAIT_SECONDS
    try:
        while True:
            line = await asyncio.wait_for(child.stdout.readline(), deadline - time.monotonic())
            if not line:
                return
            yield json.loads(line)
    except (asyncio.TimeoutError, ValueError):
        return
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(child.wait(), REAP_SECONDS)
