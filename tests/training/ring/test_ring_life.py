"""Whether a run lives and how it ended: by its process, by its last words, by its age."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from topsmon.training.life import Here, Life, life, process_lives
from topsmon.training.reader import Happening, ProcessFacts
from topsmon.training.recorder import process

NOW = 1_000_000.0
HERE = Here("boot", "pid:[1]", NOW - 86400)


def facts(**changes: object) -> ProcessFacts:
    fields = {
        "pid": os.getpid(),
        "started": NOW - 3600,
        "boot_id": "boot",
        "pid_namespace": "pid:[1]",
        "process_started": (process.status_of("self") or ("", 0))[1],
        **changes,
    }
    return ProcessFacts(**fields)  # type: ignore[arg-type]


DEAD = facts(process_started=1)
"""Our PID with another start: the number was given anew."""
ELSEWHERE = facts(pid_namespace="pid:[2]", process_started=1)


def said(
    kind: str, ago: float = 5.0, message: str = "", name: str = "", **numbers: float
) -> Happening:
    names = (name,) if name else ()
    return Happening(time=NOW - ago, kind=kind, message=message, names=names, values=numbers)


def judge(
    who: ProcessFacts, stepped_ago: float, *words: Happening, high: float | None = 0.1
) -> Life:
    return life(who, NOW - stepped_ago, high, words, HERE, NOW)


@pytest.mark.parametrize(
    ("ago", "high", "condition"),
    [
        (1.0, 0.1, "running"),
        (9.0, 0.1, "running"),
        (11.0, 0.1, "silent"),
        (90_000.0, 0.1, "silent"),
        (399.0, 20.0, "running"),
        (401.0, 20.0, "silent"),
        (59.0, None, "running"),
        (61.0, None, "silent"),
    ],
)
def test_a_process_that_is_there_is_never_gone(
    ago: float, high: float | None, condition: str
) -> None:
    assert judge(facts(), ago, high=high).condition == condition


def test_a_pid_given_anew_is_not_the_run() -> None:
    assert process_lives(facts(), HERE) is True
    assert process_lives(DEAD, HERE) is False


def test_a_process_without_a_word_is_gone() -> None:
    found = judge(DEAD, 5.0)
    assert (found.condition, found.since) == ("gone", NOW - 5.0)
    assert "killed, out of memory" in found.detail


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([said("end", message="exit code 0", exit_code=0)], ("finished", "exit code 0", 0)),
        ([said("end", message="exit code 2", exit_code=2)], ("failed", "exit code 2", 2)),
        (
            [said("end", message="signal SIGKILL", exit_code=137)],
            ("killed", "signal SIGKILL", 137),
        ),
        (
            [
                said("exception", message="boom", name="ValueError"),
                said("end", 4.0, "exit code 1", exit_code=1),
            ],
            ("failed", "ValueError: boom (exit code 1)", 1),
        ),
        (
            [said("exception", message="boom", name="ValueError")],
            ("failed", "ValueError: boom", None),
        ),
        (
            [said("exception", message="boom", name="E", handled=1), said("end", exit_code=0)],
            ("finished", "", 0),
        ),
        (
            [said("exception", message="boom", name="E", handled=1), said("end")],
            ("finished", "", None),
        ),
        # The launcher knows the code, whoever wrote last.
        ([said("end", exit_code=3), said("end", 4.0)], ("failed", "", 3)),
    ],
)
def test_last_words(words: list[Happening], expected: tuple[str, str, int | None]) -> None:
    found = judge(DEAD, 10.0, *words)
    assert (found.condition, found.detail, found.exit_code) == expected


def test_an_end_that_is_said_counts_before_the_process_has_left() -> None:
    assert judge(facts(), 10.0, said("end", exit_code=0)).condition == "finished"


def test_words_that_the_run_has_outlived_are_not_its_last() -> None:
    words = said("exception", 100.0, "boom", "ValueError")
    assert judge(facts(), 1.0, words).condition == "running"
    assert judge(DEAD, 1.0, words).condition == "gone"


@pytest.mark.parametrize(
    ("ago", "condition"), [(1.0, "running"), (120.0, "silent"), (899.0, "silent"), (901.0, "gone")]
)
def test_a_process_in_another_pid_namespace_is_judged_by_age(ago: float, condition: str) -> None:
    found = judge(ELSEWHERE, ago)
    assert (found.condition, found.certain) == (condition, False)


def test_another_boot_is_the_end_of_what_started_before_ours() -> None:
    before = facts(boot_id="old", started=NOW - 90_000)
    found = judge(before, 89_000.0)
    assert (found.condition, found.detail) == ("gone", "the machine was restarted")


def test_another_kernel_s_run_that_goes_on_is_seen_by_age() -> None:
    """A virtual machine has a boot of its own, and may share a folder."""
    assert judge(facts(boot_id="guest"), 1.0).condition == "running"


def test_a_process_s_status_is_read_whatever_its_name(tmp_path: Path) -> None:
    fields = " ".join(str(n) for n in range(4, 22))
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text(f"7 (a) Z (b) S {fields} 4242 23\n")
    assert process.status_of(7, str(tmp_path)) == ("S", 4242)
    (tmp_path / "7" / "stat").write_text("7 (x) Z 1")
    assert process.status_of(7, str(tmp_path)) is None
    assert process.status_of(8, str(tmp_path)) is None


def test_a_stopped_process_is_told_at_once(tmp_path: Path) -> None:
    stat = tmp_path / "77" / "stat"
    stat.parent.mkdir()
    who = facts(pid=77, process_started=1234)
    here = Here("boot", "pid:[1]", NOW - 86400, str(tmp_path))

    def judged(letter: str) -> tuple[str, str]:
        stat.write_text(f"77 (python) {letter} " + " ".join(["0"] * 18) + " 1234 0\n")
        found = life(who, NOW - 5.0, 0.1, (), here, NOW)
        return found.condition, found.detail

    assert judged("S") == ("running", "")
    assert judged("T") == ("silent", "stopped (Ctrl-Z or SIGSTOP)")
