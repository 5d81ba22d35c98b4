"""An `ssh` for tests: a shell script on PATH that plays one host in a few lines of shell."""

from __future__ import annotations

import json
from pathlib import Path

from topsmon import events

HEADER = {"time": 1.0, "monotonic": 1.0, "source": "there"}


def hello(**changes: object) -> str:
    fields = {"type": "hello", **HEADER, "version": "0.1.0", "schema": 1, "role": "poller"}
    return json.dumps({**fields, "pid": 7, **changes})


def device(key: str = "GPU-1", index: int = 0) -> events.Device:
    return events.Device(
        **HEADER, device=key, kind="gpu", index=index, name="NVIDIA H100 80GB HBM3"
    )


def sample(key: str = "GPU-1", busy: float = 0.25) -> events.DeviceSample:
    return events.DeviceSample(**HEADER, device=key, busy_ratio=busy)


def lines(*more: events.AnyEvent) -> str:
    return "".join(events.encode(event).decode() for event in more)


class FakeSsh:
    """`plays(host, script)` says what `ssh host` does; `arguments(host)` what it was given.

    In the script `say FILE` prints a stored text, `wait_for_end` reads commands into
    HOST.commands until the input closes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        program = folder / "ssh"
        program.write_text(
            "#!/bin/sh\n"
            f"cd {folder}\n"
            'for word in "$@"; do all="$all$word\n"; done\n'
            'while [ "$1" != -- ]; do shift; done\n'
            'HOST=$2; export HOST; printf %s "$all" > "$HOST.arguments"\n'
            'say() { cat "$1"; }\n'
            'wait_for_end() { cat > "$HOST.commands"; exit 0; }\n'
            'echo $$ >> "$HOST.pids"\n'
            'attempt=$(wc -l < "$HOST.pids")\n'
            '. "./$HOST.script"\n'
        )
        program.chmod(0o755)

    def plays(self, host: str, script: str, **texts: str) -> None:
        for name, text in texts.items():
            (self.folder / name).write_text(text)
        (self.folder / f"{host}.script").write_text(script)

    def arguments(self, host: str) -> list[str]:
        return (self.folder / f"{host}.arguments").read_text().splitlines()

    def commands(self, host: str) -> list[dict[str, object]]:
        file = self.folder / f"{host}.commands"
        text = file.read_text() if file.exists() else ""
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def pids(self, host: str) -> list[int]:
        return [int(line) for line in (self.folder / f"{host}.pids").read_text().split()]
