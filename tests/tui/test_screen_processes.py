"""Who uses a device: the program and its script, and how much it takes, in columns."""

from __future__ import annotations

import pytest
from screen_demo import GIB, NOW, cpu_only, eight, stamp
from screen_text import OpenScreen, text_of
from test_screen_live import end_of, line_with

from topsmon import events
from topsmon.tui.process_rows import command_text

TRAINING = events.ProcessEntry(
    pid=24093,
    name="python3",
    user="ada",
    cpu_cores=0.98,
    memory_bytes=41 * GIB,
    command="/home/ada/projects/lm/venv/bin/python3 train.py --lr 1e-4",
)
COMPILER = events.ProcessEntry(
    pid=311, name="cc1plus", user="bo", cpu_cores=0.5, memory_bytes=GIB, command="cc1plus x.cc"
)


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("/usr/bin/python3 train.py --lr 1", "python3 train.py --lr 1"),
        ("python3 /srv/jobs/train.py", "python3 /srv/jobs/train.py"),
        ("/opt/server/bin/worker", "worker"),
        ("sshd: ada@pts/0", "sshd: ada@pts/0"),
        (None, "named"),
        ("", "named"),
    ],
)
def test_a_program_goes_without_its_directory(command: str | None, shown: str) -> None:
    assert command_text(events.ProcessEntry(pid=1, name="named", command=command)) == shown


def test_a_process_without_a_name_is_not_available() -> None:
    assert command_text(events.ProcessEntry(pid=1)) == "N/A"


async def test_the_cpus_users_are_counted_in_cores(open_screen: OpenScreen) -> None:
    state = cpu_only()
    state.apply(events.Processes(**stamp(), device="cpu", entries=(TRAINING, COMPILER)), NOW)
    async with open_screen(state, size=(120, 40)) as (app, pilot):
        lines = text_of(app)
        head = line_with(lines, "PID", "cores", "user", "command")
        row = line_with(lines, "24093", "ada", "python3 train.py --lr 1e-4")
        assert end_of(head, "PID") == end_of(row, "24093")
        assert end_of(head, "cores") == end_of(row, "0.98")
        assert "GiB" not in head
        assert "venv" not in " ".join(lines)
        await pilot.press("enter")
        await pilot.pause()
        assert line_with(text_of(app), "24093", "0.98 cores, ada, python3 train.py")


async def test_a_long_command_keeps_its_script(open_screen: OpenScreen) -> None:
    command = "/usr/bin/python3 /home/ada/projects/language-model/source/train.py --steps 10000"
    entry = events.ProcessEntry(pid=9, user="ada", cpu_cores=1.0, command=command)
    state = cpu_only()
    state.apply(events.Processes(**stamp(), device="cpu", entries=(entry, COMPILER)), NOW)
    async with open_screen(state, size=(120, 40)) as (app, _):
        assert line_with(text_of(app), " 9 ", "1.0", "ada", "python3 train.py")


async def test_one_line_for_the_largest_user_of_a_gpu(open_screen: OpenScreen) -> None:
    state = eight(ticks=2)
    users = events.Processes(**stamp(), device="GPU-00000000", entries=(COMPILER, TRAINING))
    state.apply(users, NOW)
    async with open_screen(state, size=(120, 40)) as (app, _):
        assert line_with(
            text_of(app), "used by", "PID 24093, 41.0 GiB: python3 train.py", "+1 more"
        )
