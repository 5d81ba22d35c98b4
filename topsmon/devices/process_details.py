"""`python -m topsmon.devices.process_details PID TICKS`: all about one process, as JSON lines.

A process of its own, so that one which is stuck in the kernel, and holds up whoever reads its
memory, costs nobody else. What is sure to answer comes first. Secrets do not leave this process.
"""

from __future__ import annotations

import json
import sys

from topsmon.devices import process_files
from topsmon.devices.process_secrets import masked
from topsmon.devices.text import valid_text

TEXT_LIMIT = 1 << 18
"""Characters of a command line, and of a variable, that are told."""
VARIABLES_MOST = 2000


def main(arguments: list[str]) -> int:
    """Write one JSON object a line for each thing that was read."""
    pid, ticks = int(arguments[0]), int(arguments[1])
    if process_files.start_ticks(pid) != ticks:
        tell(ended=True)
        return 0
    status = process_files.status(pid)
    tell(
        threads=status.get("Threads"),
        executable=process_files.link(pid, "exe"),
        folder=process_files.link(pid, "cwd"),
    )
    try:
        tell(command=[text(word) for word in process_files.words(pid, "cmdline")])
    except OSError as error:
        tell(command_problem=error.strerror or str(error))
    try:
        tell(environment=environment(process_files.words(pid, "environ")))
    except OSError as error:
        tell(environment_problem=error.strerror or str(error))
    return 0


def environment(words: list[bytes]) -> list[tuple[str, str]]:
    """Names and masked values, by name."""
    pairs = (text(word).partition("=") for word in words[:VARIABLES_MOST])
    return sorted((name, masked(name, value)) for name, _, value in pairs if name)


def text(word: bytes) -> str:
    """Valid text, whatever the bytes are."""
    return valid_text(word, TEXT_LIMIT) or ""


def tell(**found: object) -> None:
    """Write one line at once: the next thing may never come."""
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
