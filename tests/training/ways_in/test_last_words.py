"""What a launcher writes into the rings of its runs once they have ended."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from topsmon.training import last_words, unseen
from topsmon.training.foreground import Ended
from topsmon.training.launch import Options, environment
from topsmon.training.memory_kills import Kills
from topsmon.training.reader import RingReader
from topsmon.training.recorder.process import identity_of_process
from topsmon.training.recorder.ring import RingWriter


@pytest.fixture
def make(recordings: Path):
    """A ring of this launch: of a process that has ended unless `pid` is given."""

    def ring(launch: str = "ours", pid: int | None = None, *, end: dict | None = None) -> Path:
        identity = {**identity_of_process(), "launch": launch}
        if pid is None:
            identity |= {"pid": 4194305, "process_started": 1}
        writer = RingWriter.create(identity)
        if end is not None:
            writer.event("end", 5, "its own words", values=end)
        writer.close()
        return Path(writer.path)

    return ring


def words(path: Path) -> list[tuple[str, dict[str, float]]]:
    with contextlib.closing(RingReader(path)) as reader:
        return [(h.message, h.values) for _, h in reader.happenings() if h.kind == "end"]


def place(recordings: Path) -> dict[str, str]:
    return {"TOPSMON_DIR": str(recordings)}


def test_the_rings_of_a_launch_alone(make, recordings: Path) -> None:
    first, second = make(), make()
    make("another")
    (recordings / "20200101T000000-1-0.ring").write_bytes(b"rubbish")
    assert last_words.rings("ours", place(recordings), time.time()) == sorted([first, second])
    old = time.time() - 3600
    os.utime(first, (old, old))
    assert last_words.rings("ours", place(recordings), time.time()) == [second]


def test_the_rings_of_a_process(make, recordings: Path) -> None:
    path = make()
    assert last_words.rings_of_process(place(recordings), 4194305, 1) == [path]
    assert last_words.rings_of_process(place(recordings), 4194305, 2) == []


def test_no_folder_no_rings(tmp_path: Path) -> None:
    assert last_words.rings("ours", {"TOPSMON_DIR": str(tmp_path / "none")}, 0.0) == []


def test_the_commands_own_process_gets_its_status(make) -> None:
    path = make()
    last_words.write([path], 4194305, Ended(exit_code=3), "")
    assert words(path) == [("exit code 3", {"exit_code": 3.0})]


def test_a_kill_says_what_is_known_of_memory(make) -> None:
    path = make()
    last_words.write([path], 4194305, Ended(signal=9), "the kernel killed for want of memory")
    assert words(path) == [
        ("signal SIGKILL; the kernel killed for want of memory", {"exit_code": 137.0})
    ]


def test_memory_is_not_blamed_for_another_signal(make) -> None:
    path = make()
    last_words.write([path], 4194305, Ended(signal=15), "the kernel killed for want of memory")
    assert words(path) == [("signal SIGTERM", {"exit_code": 143.0})]


def test_what_the_run_has_said_itself_is_not_said_again(make) -> None:
    path = make(end={"exit_code": 3.0})
    last_words.write([path], 4194305, Ended(exit_code=3), "")
    assert len(words(path)) == 1


def test_an_exit_code_that_the_run_did_not_know_is_added(make) -> None:
    path = make(end={})
    last_words.write([path], 4194305, Ended(exit_code=0), "")
    assert words(path)[-1] == ("exit code 0", {"exit_code": 0.0})


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        (Ended(exit_code=137), ["signal SIGKILL"]),  # what bash says of a killed command
        (Ended(exit_code=1), []),
        (Ended(exit_code=0), []),
        (Ended(exit_code=255), []),
    ],
)
def test_other_processes_of_the_launch(make, ended: Ended, said: list[str]) -> None:
    path = make()
    last_words.write([path], 1, ended, "")
    assert [message for message, _ in words(path)] == said


def test_a_process_that_lives_on_is_not_said_to_have_ended(make) -> None:
    path = make(pid=os.getpid())
    last_words.write([path], 1, Ended(signal=9), "")
    assert words(path) == []


def test_a_damaged_ring_stops_nothing(make, recordings: Path) -> None:
    good, bad = make(), recordings / "bad.ring"
    bad.write_bytes(b"x" * 100)
    last_words.write([bad, good], 4194305, Ended(exit_code=1), "")
    assert words(good)[0][0] == "exit code 1"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (Kills(1, 5), Kills(2, 6), "memory limit"),
        (Kills(1, 5), Kills(1, 6), "on this machine"),
        (Kills(None, 5), Kills(None, 5), ""),
        (Kills(None, None), Kills(3, 4), ""),
    ],
)
def test_kills_for_want_of_memory(before: Kills, after: Kills, said: str) -> None:
    found = after.words_since(before)
    assert said in found
    assert bool(found) == bool(said)


@pytest.mark.parametrize(
    ("ended", "code", "said"),
    [
        (Ended(exit_code=0), 0, "exit code 0"),
        (Ended(signal=9), 137, "signal SIGKILL"),
        (Ended(signal=40), 168, "signal 40"),
    ],
)
def test_how_a_process_ended(ended: Ended, code: int, said: str) -> None:
    assert (ended.code, ended.words) == (code, said)


@pytest.fixture
def with_torch(tmp_path: Path):
    """Start a process that has a file named libtorch mapped."""
    library = tmp_path / "libtorch_cpu.so"
    library.write_bytes(bytes(4096))
    code = (
        "import mmap, sys, time\n"
        "file = open(sys.argv[1])\n"
        "mapped = mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ)\n"
        "print('go', flush=True)\ntime.sleep(600)\n"
    )
    started = []

    def start(*flags: str, inner: dict[str, str]) -> int:
        process = subprocess.Popen(
            [sys.executable, *flags, "-c", code, str(library)], stdout=subprocess.PIPE, env=inner
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"go\n"
        return process.pid

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.real
def test_a_process_with_torch_and_without_the_recorder_is_seen(with_torch) -> None:
    inner = environment(os.environ, "ours", Options())
    assert unseen.reason(with_torch(inner=inner)) is None
    assert "-E" in (unseen.reason(with_torch("-E", inner=inner)) or "")
    lost = {**inner, "PYTHONPATH": "/elsewhere"}
    assert "PYTHONPATH" in (unseen.reason(with_torch(inner=lost)) or "")
    off = {**inner, "TOPSMON_OFF": "1"}
    assert "TOPSMON_OFF" in (unseen.reason(with_torch(inner=off)) or "")
    assert unseen.reason(4194305) is None
