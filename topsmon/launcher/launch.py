"""Start ranks, watch them, end them all, and read what they have told.

Nothing is left behind: ranks end when their stdin closes and when their parent dies, and the folder
of their notes is temporary.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from topsmon.distributed.environment import Placement
from topsmon.launcher import folders, torchrun
from topsmon.launcher.document import (
    INTERRUPTED,
    RankReport,
    Ranks,
    completed,
    read,
    read_notes,
)
from topsmon.launcher.torchrun import Nodes

POLL_SECONDS = 0.05
GRACE_SECONDS = 5.0
"""After a rank of this machine has failed, rank 0 gathers last words for less than this."""
AGREE_SECONDS = 8.0
"""After the verdict, ranks tell each other the exit code and end within this."""
LINGER_SECONDS = 12.0
"""A rank's topsmon whose rank is gone waits so long before it ends: mpirun and torchrun kill all
others at the first failure, rank 0 before it has told who failed."""
LOG_BYTES = 4000
EXIT_UNKNOWN = 3
ALONE = Nodes()


class LaunchError(Exception):
    """The ranks could not be started; the message says why and what to do."""


@dataclass(frozen=True)
class Job:
    """What to start. `place`: this process is a rank itself; else torchrun starts `ranks_here`.

    `limit_seconds` bounds everything, of which `spent_seconds` are over already;
    `stage_seconds` bounds each operation of the ranks. `judge` turns what rank 0 has told into an
    exit code, after it has shown it.
    """

    python: str
    ranks_here: int
    judge: Callable[[Ranks, bool], int]
    nodes: Nodes = ALONE
    place: Placement | None = None
    device: str = "auto"
    devices: tuple[str, ...] = ()
    threads: int | None = None
    largest_bytes: int | None = None
    limit_seconds: float = 120.0
    spent_seconds: float = 0.0
    stage_seconds: float = 30.0
    progress: Callable[[Mapping[int, RankReport]], None] = lambda _: None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def world_size(self) -> int:
        """All ranks."""
        return (
            self.place.world_size
            if self.place is not None
            else self.ranks_here * self.nodes.machines
        )

    @property
    def leads(self) -> bool:
        """True where rank 0 runs: there the verdict is given."""
        return self.place.rank == 0 if self.place is not None else self.nodes.number == 0


@dataclass(frozen=True)
class Outcome:
    """How it ended here: the exit code, and on other machines than rank 0's why it is so."""

    exit_code: int
    words: str = ""


def measure(job: Job) -> Outcome:
    """Run the ranks to their end. Raises LaunchError."""
    folders.sweep()
    with folders.temporary() as folder, _interruptible() as interruption:
        return _Launch(job, folder, interruption).run()


class _Interruption:
    """Whether SIGINT or SIGTERM has come."""

    came = False

    def note(self, _number: int, _frame: object) -> None:
        """Handle a signal."""
        self.came = True


@contextlib.contextmanager
def _interruptible() -> Iterator[_Interruption]:
    interruption = _Interruption()
    before = {
        number: signal.signal(number, interruption.note)
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Launch:
    def __init__(self, job: Job, folder: Path, interruption: _Interruption) -> None:
        self._job = job
        self._folder = folder
        self._interruption = interruption
        self._deadline = time.monotonic() + job.limit_seconds - job.spent_seconds
        self._log = folder / "log"

    def run(self) -> Outcome:
        job = self._job
        with self._started() as process:
            notes = self._watch(process)
            if not job.leads:
                return self._followed(process, notes)
            document = self._document(process, notes)
            code = job.judge(document, self._interruption.came)
            if document.complete:
                part = self._folder / "code.part"
                part.write_text(str(code), encoding="utf-8")
                part.replace(self._folder / "code")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(AGREE_SECONDS)
            return Outcome(code)

    def _command(self) -> list[str]:
        job, folder = self._job, self._folder
        order = ["--out", str(folder / "document.json"), "--folder", str(folder)]
        order += ["--device", job.device, "--limit", f"{job.stage_seconds:g}"]
        order += ["--meet-limit", f"{max(job.limit_seconds - GRACE_SECONDS, 2.0):g}"]
        order += ["--until-stdin-closes", "--agree"]
        if job.largest_bytes is not None:
            order += ["--largest", str(job.largest_bytes)]
        if job.place is not None:
            return torchrun.rank_command(job.python, order)
        return torchrun.torchrun_command(job.python, job.ranks_here, job.nodes, folder, order)

    @contextlib.contextmanager
    def _started(self) -> Iterator[subprocess.Popen[bytes]]:
        job = self._job
        more = {**job.environment, **(job.place.variables() if job.place is not None else {})}
        environment = torchrun.environment(
            os.environ, folder=self._folder, devices=job.devices, threads=job.threads, more=more
        )
        with self._log.open("wb") as log:
            try:
                process = subprocess.Popen(
                    self._command(),
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    start_new_session=True,
                )
            except OSError as error:
                raise LaunchError(f"{job.python} cannot be started: {error.strerror}") from error
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.kill()
            process.wait()
            self._end_ranks()

    def _end_ranks(self) -> None:
        """Wait for the ranks, which the kernel kills with their parent."""
        until = time.monotonic() + 2.0
        pids = [note.pid for note in read_notes(self._folder).values()]
        while time.monotonic() < until and any(_is_rank(pid, self._folder) for pid in pids):
            time.sleep(POLL_SECONDS)

    def _watch(self, process: subprocess.Popen[bytes]) -> dict[int, RankReport]:
        """Wait for the document, for an end without one, or for the time to be over."""
        notes: dict[int, RankReport] = {}
        failed_at: float | None = None
        document = self._folder / ("document.json" if self._job.leads else "agreed")
        while not document.exists() and process.poll() is None:
            now = time.monotonic()
            notes = read_notes(self._folder)
            self._job.progress(notes)
            if failed_at is None and any(note.ended == "failed" for note in notes.values()):
                failed_at = now
            if failed_at is not None and now - failed_at > GRACE_SECONDS:
                break
            if self._interruption.came or now > self._deadline:
                break
            time.sleep(POLL_SECONDS)
        return {
            rank: note
            if note.ended == "finished"
            else msgspec.structs.replace(note, fate=_fate(note.pid, self._folder))
            for rank, note in read_notes(self._folder).items()
        }

    def _document(self, process: subprocess.Popen[bytes], notes: Mapping[int, RankReport]) -> Ranks:
        """What all ranks have told, with why it is not complete."""
        job = self._job
        found = read(self._folder / "document.json")
        if found is None and not notes and process.poll() is not None:
            raise LaunchError(f"the ranks did not start: {self._last_words()}")
        if found is None and (why := self._cut_short()):
            found = Ranks(world_size=job.world_size, problem=why)
        return completed(found, notes, job.world_size)

    def _cut_short(self) -> str:
        """Why we did not wait for the document, "" where it is no fault of ours."""
        if self._interruption.came:
            return INTERRUPTED
        if time.monotonic() > self._deadline:
            return f"time ran out after {self._job.limit_seconds:g} s; --timeout gives more"
        return ""

    def _followed(
        self, process: subprocess.Popen[bytes], notes: Mapping[int, RankReport]
    ) -> Outcome:
        """The end of a topsmon beside that of rank 0: the same exit code, or UNKNOWN."""
        agreed = self._folder / "agreed"
        if agreed.exists():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(AGREE_SECONDS)
            return Outcome(int(agreed.read_text(encoding="utf-8")))
        until = time.monotonic() + LINGER_SECONDS
        while self._job.place is not None and not self._interruption.came:
            if time.monotonic() > until:
                break
            time.sleep(POLL_SECONDS)
        words = [
            f"rank {note.rank}: {note.failure or 'ended without a word'} in {note.stage}"
            for note in notes.values()
        ]
        return Outcome(EXIT_UNKNOWN, words[0] if words else self._last_words())

    def _last_words(self) -> str:
        """The line of the ranks' output that says most: the last that names an error."""
        with contextlib.suppress(OSError):
            text = self._log.read_bytes()[-LOG_BYTES:].decode("utf-8", "replace")
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            told = [line for line in lines if "rror" in line or line.startswith("topsmon")]
            if told or lines:
                return (told or lines)[-1][:300]
        return "no word from them"


def _fate(pid: int, folder: Path) -> str:
    """What the kernel says of a rank: "gone", "stopped" or "alive"."""
    if not _is_rank(pid, folder):
        return "gone"
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2][:1]
        return "stopped" if state in ("T", "t") else "alive"
    return "gone"


def _is_rank(pid: int, folder: Path) -> bool:
    """True while this process is one of ours: a PID may be another's by now."""
    with contextlib.suppress(OSError):
        return str(folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
