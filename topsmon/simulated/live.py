"""A scenario that changes while processes read it: values, faults, processes and its clock."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from topsmon.simulated import call_log, scenario, table
from topsmon.simulated.build import prepare, write_files
from topsmon.simulated.values import SimulationError


class Live:
    """A running scenario. Processes started with `environment` read it and see every change.

    `name` is a shipped scenario or a path ending in .json; the library is kept in `builds`, all
    else in `folder`. With `seconds` scenario time stands still there until `clock` or `advance`;
    None: it runs with real time. Raises SimulationError as `prepare` does, also where a change
    makes no sense: the scenario then stays as it was. A change restarts the counting of calls that
    faults with `after`, `count` or `every` do.
    """

    def __init__(
        self, name: str, builds: Path, folder: Path, *, seconds: float | None = 0.0
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.seconds = seconds
        self._content = scenario.content(name)
        self._name = scenario.find(name).stem
        self.environment = {
            **prepare(name, builds),
            "TOPSMON_SIMULATED_TABLE": str(folder / "table"),
            "TOPSMON_SIMULATED_CLOCK": str(folder / "clock"),
            "TOPSMON_SIMULATED_LOG": str(folder / "log"),
        }
        self._write(self._content)
        if "TOPSMON_SIMULATED_ROOT" in self.environment:
            files = self._content.get("files", {})
            self._root = write_files(files, folder)
            self.environment["TOPSMON_SIMULATED_ROOT"] = str(self._root)
        if seconds is not None:
            self.clock(seconds)

    def set(self, device: int | None = None, **fields: object) -> None:
        """Change fields of a device, or of all (None); None as a value: not supported."""
        content = copy.deepcopy(self._content)
        if device is None:
            content.setdefault("device", {}).update(fields)
        else:
            content.setdefault("devices", {}).setdefault(str(device), {}).update(fields)
        self._write(content)

    def fault(self, call: str, *, code: int | str | None = None, **fault: object) -> None:
        """Add a fault: the keys of a scenario's `faults`, with `code` for "return"."""
        added = {"call": call, **({} if code is None else {"return": code}), **fault}
        self._write({**self._content, "faults": [*self._content.get("faults", []), added]})

    def heal(self, call: str | None = None) -> None:
        """Take away the faults of a call, or all (None)."""
        kept = [
            fault
            for fault in self._content.get("faults", [])
            if call is not None and call not in (fault["call"], *fault["call"])
        ]
        self._write({**self._content, "faults": kept})

    def replace(self, content: Mapping[str, Any]) -> None:
        """Play another scenario, given as the content of its file."""
        self._write(dict(content))

    def clock(self, seconds: float) -> None:
        """Set the scenario time; from now on it stands still."""
        self.seconds = seconds
        table.set_clock(self.folder / "clock", seconds)

    def advance(self, seconds: float) -> None:
        """Let scenario time pass."""
        if self.seconds is None:
            raise SimulationError("scenario time runs with real time; stop it with clock()")
        self.clock(self.seconds + seconds)

    def write_file(self, path: str, text: str) -> None:
        """Change a file of the host, one that the scenario has: its path without root."""
        if path not in self._content.get("files", {}):
            raise SimulationError(f"scenario {self._name} has no file {path}")
        table.replace(self._root / path, text.encode())

    def calls(self) -> list[call_log.Call]:
        """Return the calls of all processes so far."""
        return call_log.read(self.folder / "log")

    def _write(self, content: dict[str, Any]) -> None:
        table.write(scenario.parse(content, self._name), self.folder / "table")
        self._content = content
