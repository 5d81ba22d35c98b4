"""A recorder in this process, and what it has written, read back by topsmon's reader."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from topsmon.training.reader import Record, RingReader
from topsmon.training.recorder import install, layout
from topsmon.training.recorder.recorder import Recorder


@dataclass
class Written:
    """The recorder of this process, and all that a reader sees of it now."""

    recorder: Recorder

    @property
    def reader(self) -> RingReader:
        assert self.recorder.ring is not None, self.recorder.trouble
        return RingReader(Path(self.recorder.ring.path), os.geteuid())

    @property
    def records(self):
        """All records in the order of their steps, decoded by the layout."""
        if self.recorder.ring is None:
            return ()
        slots = range(min(self.recorder.steps, layout.RECORD_SLOTS) + 1)
        found = [self._record(slot) for slot in slots]
        return tuple(sorted(record for record in found if record.step))

    @property
    def newest(self):
        """The newest record."""
        return self._record(self.recorder.steps % layout.RECORD_SLOTS)

    def _record(self, slot):
        with Path(self.recorder.ring.path).open("rb") as file:
            file.seek(layout.RECORDS_OFFSET + slot * layout.RECORD_SLOT_BYTES)
            return Record(*layout.RECORD.unpack(file.read(layout.RECORD.size)))

    def events(self, kind: str | None = None):
        found = [happening for _, happening in self.reader.happenings()]
        return [one for one in found if kind is None or one.kind == kind]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder for rings, and an environment without any of the recorder's options."""
    path = tmp_path / "rings"
    path.mkdir(mode=0o700)
    for name in [name for name in os.environ if name.startswith("TOPSMON_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TOPSMON_DIR", str(path))
    return path


@pytest.fixture
def written(folder):
    """A freshly installed recorder; it must be without errors of its own at the end."""
    install.uninstall()
    torch.manual_seed(0)
    recorder = install.install()
    assert recorder is not None
    yield Written(recorder)
    errors, trouble = recorder.errors, recorder.trouble
    install.uninstall()
    assert (errors, trouble) == (0, "")


@pytest.fixture
def net():
    """A small network, made after the recorder came in."""

    def make(width: int = 16) -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Linear(width, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
        )

    return make
