"""Words about a process."""

from __future__ import annotations

from rich.cells import chop_cells

from topsmon import events
from topsmon.report.process_rows import Row
from topsmon.tui.cells import width_of
from topsmon.tui.view import View
from topsmon.units import NOT_AVAILABLE, command_words, plain

COMMAND_SHOWN = 20_000
"""Characters of a command line that a dialog shows."""


def state_hint(entry: events.ProcessEntry) -> str:
    """What the state letter means, "" for a process that runs or sleeps."""
    match entry.state:
        case "Z":
            parent = f" (PID {entry.parent_pid})" if entry.parent_pid else ""
            return (
                f"ended, but its parent{parent} has not taken note of it: GPU memory still listed "
                "here is held by a dead process, until the parent does or ends"
            )
        case "D":
            return "waits in the kernel (disk, network or driver): signals have to wait as well"
        case "T":
            return "stopped: it holds its memory and does nothing until it gets CONT"
        case _:
            return ""


def elsewhere(view: View) -> str:
    """Why the processes shown are not those of this machine now, "" where they are."""
    if view.replay is not None:
        return "this is a recording: its processes are not here"
    return "it runs on a host that is watched from here" if view.hosts is not None else ""


def place_hint(view: View, entry: events.ProcessEntry) -> str:
    """Why nothing is known of a process, "" for one of this system."""
    if entry.local:
        return ""
    if view.state.host is not None and view.state.host.container:
        return (
            "a PID of the host, outside this container: start it with --pid=host to see who it is"
        )
    return "no process of this PID can be seen here: it has ended, or is in another PID namespace"


def who(row: Row, room: int = COMMAND_SHOWN) -> str:
    """The command, without the program's folder; what is known where there is none.

    One that is wider than `room` cells loses the folders of its arguments too.
    """
    entry = row.entry
    text = command_words(entry.command or "", COMMAND_SHOWN) or plain(entry.name or "", 200)
    if width_of(text) > room:
        text = " ".join(map(_without_folder, text.split(" ")))
    if entry.own:
        return f"topsmon itself: {text}"
    if not entry.local:
        return f"{text or NOT_AVAILABLE} (not of this system)"
    return text or NOT_AVAILABLE


def _without_folder(word: str) -> str:
    return word.rpartition("/")[2] or word if word.startswith(("/", "./", "../", "~/")) else word


def parents(entry: events.ProcessEntry) -> str:
    """The chain of parents, the nearest first: "bash (88) < sshd (77)"."""
    names = (f"{plain(one.name or NOT_AVAILABLE, 40)} ({one.pid})" for one in entry.ancestors)
    return " < ".join(names)


def kind_words(entry: events.ProcessEntry) -> str:
    """The kind of its context on the GPU."""
    return "compute and graphics" if entry.kind == "both" else plain(entry.kind, 20)


def broken(text: str, width: int) -> list[str]:
    """Return text in lines of at most `width` cells: broken at blanks, long words anywhere."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        if line and width_of(line) + 1 + width_of(word) <= width:
            line += f" {word}"
            continue
        if line:
            lines.append(line)
        *whole, line = chop_cells(word, width) or [""]
        lines += whole
    return [*lines, line] if line else lines
