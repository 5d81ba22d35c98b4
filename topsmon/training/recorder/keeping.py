"""Keeping a run in sight: its file is made anew where somebody has removed it.

At a user's last logout systemd-logind empties /run/user/UID, and with RemoveIPC=yes /dev/shm of the
user's files too; a run under nohup or tmux goes on, into a file that nobody can open any more.
"""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from . import folder
from .ring import SPARE_BYTES

if TYPE_CHECKING:
    from .recorder import Recorder
    from .ring import RingWriter

LOOK_SECONDS = 5.0
RETRY_SECONDS_MAX = 60.0
"""While no folder can be used the pauses grow to this: the next login brings one back."""
REMOVALS_MAX = 8
"""A logout takes a file two times at most; whoever removes it so often does not want it."""


class Keeper:
    """Looks after the file of one run. `due` is when to look next, on the clock perf_counter."""

    def begin(self, recorder: Recorder) -> None:
        """A run begins."""
        self.recorder = recorder
        self.due = 0.0
        self._pause = LOOK_SECONDS
        self._missing = False
        self._removals: dict[str, int] = {}

    def look(self) -> None:
        """Make the file anew if it has been removed. One fstat while it has not; no error."""
        self.due = perf_counter() + LOOK_SECONDS
        ring = self.recorder.ring
        if ring is None or not ring.removed():
            return
        if not self._missing:
            self._missing = True
            place = str(Path(ring.path).parent)
            self._removals[place] = self._removals.get(place, 0) + 1
        times = sum(self._removals.values())
        if times > REMOVALS_MAX:
            self.recorder.off(f"its file was removed {times} times; it is not made anew again")
        elif self._make_anew(ring):
            self._missing, self._pause = False, LOOK_SECONDS
            self.recorder.examiner.ring_moved(ring.path)
        else:
            self._pause = min(2.0 * self._pause, RETRY_SECONDS_MAX)
            self.due += self._pause - LOOK_SECONDS

    def _make_anew(self, ring: RingWriter) -> bool:
        """Try the folders, those first in which files last."""
        places = folder.candidates(os.environ, folder.user_id())
        places = tuple(sorted(places, key=lambda place: self._removals.get(place, 0)))
        for spare in (SPARE_BYTES, 0):
            for place in places:
                try:
                    ring.make_anew(place, spare)
                except (folder.FolderError, OSError):
                    continue
                return True
        return False
