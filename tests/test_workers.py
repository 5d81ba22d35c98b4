"""Child processes: events through pipes, crashes survived, stopping that never waits."""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from topsmon import events
from topsmon.workers import EXIT_NO_TORCH, EXIT_USAGE, RestartPolicy, Worker

HELLO = (
    "import json, os, sys, time\n"
    "def say(**fields):\n"
    "    fields = {'time': 1.0, 'monotonic': 1.0, 'source': 'x', **fields}\n"
    "    print(json.dumps(fields), flush=True)\n"
    "say(type='hello', version='1', schema=1, role='test', pid=os.getpid())\n"
)
FAST = RestartPolicy(limit=2, first_pause_seconds=0.01)


class Listener:
    """Collects events and lets a test wait for one."""

    def __init__(self) -> None:
        self.events: list[events.AnyEvent] = []

    def __call__(self, event: events.AnyEvent) -> None:
        self.events.append(event)

    def of(self, kind: type[events.Event]) -> list[events.AnyEvent]:
        return [event for event in self.events if isinstance(event, kind)]

    def conditions(self) -> list[str]:
        return [event.condition for event in self.events if isinstance(event, events.Worker)]

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(60) if sys.version_info >= (3, 11) else _no_limit():
            while not holds():
                await asyncio.sleep(0.005)


class _no_limit:  # noqa: N801  stands in for asyncio.timeout on Python 3.10
    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None: ...


def worker(script: str, listener: Listener, **options: object) -> Worker:
    return Worker("child", [sys.executable, "-c", HELLO + script], listener, **options)  # type: ignore[arg-type]


async def test_events_come_in_and_commands_go_out() -> None:
    listener = Listener()
    child = worker(
        "for line in sys.stdin:\n"
        "    command = json.loads(line)\n"
        "    if command['command'] == 'stop': break\n"
        "    say(type='prober-idle', device='d', reason=command['word'])\n",
        listener,
    )
    child.start()
    await listener.until(lambda: bool(listener.of(events.Hello)))
    child.send(command="say", word="a\nb")
    await listener.until(lambda: bool(listener.of(events.ProberIdle)))
    idle = listener.of(events.ProberIdle)[0]
    assert isinstance(idle, events.ProberIdle)
    assert idle.reason == "a\nb"
    await child.stop()
    await listener.until(lambda: child.pid is None)
    assert listener.conditions() == ["starting", "running"]


async def test_a_child_that_ignores_everything_is_killed_in_time() -> None:
    listener = Listener()
    child = worker(
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)\n", listener
    )
    child.start()
    await listener.until(lambda: bool(listener.of(events.Hello)))
    pid = child.pid
    assert pid is not None
    await child.stop()
    await listener.until(lambda: not _alive(pid))


async def test_a_crash_is_reported_and_the_child_started_again() -> None:
    listener = Listener()
    child = worker("time.sleep(60)", listener, policy=FAST)
    child.start()
    await listener.until(lambda: len(listener.of(events.Hello)) == 1)
    assert child.pid is not None
    os.kill(child.pid, 9)
    await listener.until(lambda: len(listener.of(events.Hello)) == 2)
    restarted = [e for e in listener.of(events.Worker) if e.condition == "restarted"]  # type: ignore[union-attr]
    assert len(restarted) == 1
    assert isinstance(restarted[0], events.Worker)
    assert restarted[0].restarts == 1
    assert "SIGKILL" in restarted[0].detail
    last = listener.of(events.Worker)[-1]
    assert isinstance(last, events.Worker)
    assert (last.condition, last.detail) == ("running", restarted[0].detail)
    await child.stop()


async def test_a_child_that_always_crashes_is_given_up_with_its_last_words() -> None:
    listener = Listener()
    child = worker("sys.exit('the driver bit me')", listener, policy=FAST)
    child.start()
    await listener.until(lambda: "failed" in listener.conditions())
    assert listener.conditions().count("restarted") == FAST.limit
    assert len(listener.of(events.Hello)) == FAST.limit + 1
    last = listener.of(events.Worker)[-1]
    assert isinstance(last, events.Worker)
    assert last.detail == "exit code 1: the driver bit me"
    await child.stop()


@pytest.mark.parametrize("code", [EXIT_NO_TORCH, EXIT_USAGE])
async def test_some_exit_codes_are_final(code: int) -> None:
    listener = Listener()
    child = worker(f"sys.exit({code})", listener)
    child.start()
    await listener.until(lambda: "failed" in listener.conditions())
    assert "restarted" not in listener.conditions()
    assert child.exit_code == code
    await child.stop()


async def test_a_program_that_does_not_exist_is_named() -> None:
    listener = Listener()
    child = Worker("child", ["/no/such/python"], listener, policy=RestartPolicy(limit=0))
    child.start()
    await listener.until(lambda: "failed" in listener.conditions())
    last = listener.of(events.Worker)[-1]
    assert isinstance(last, events.Worker)
    assert "/no/such/python: No such file" in last.detail
    await child.stop()


async def test_garbage_between_events_is_counted_not_fatal() -> None:
    listener = Listener()
    child = worker(
        "print('warning: something'); say(type='from-the-future')\n"
        f"sys.stdout.write('x' * {3 * events.MAX_LINE_BYTES} + '\\n')\n"
        "say(type='prober-idle', device='d', reason='after'); time.sleep(60)\n",
        listener,
    )
    child.start()
    await listener.until(lambda: bool(listener.of(events.ProberIdle)))
    assert child.decoder.skipped == 1
    assert child.decoder.malformed >= 2
    await child.stop()


async def test_stopping_twice_or_before_the_start_is_harmless() -> None:
    child = worker("time.sleep(60)", Listener())
    await child.stop()
    child.start()
    await child.stop()
    await child.stop()


async def test_a_child_sees_its_input_end_when_its_parent_is_killed(tmp_path: Path) -> None:
    marker = tmp_path / "ended"
    parent = (
        "import asyncio, sys\nfrom topsmon.workers import Worker\n"
        "async def main():\n"
        "    child = Worker('c', [sys.executable, '-c', sys.argv[1]], lambda e: None)\n"
        "    child.start()\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    script = HELLO + (
        f"open({str(tmp_path / 'started')!r}, 'w').close()\n"
        f"sys.stdin.read()\nopen({str(marker)!r}, 'w').close()\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", parent, script)
    deadline = time.monotonic() + 60
    while not (tmp_path / "started").exists() and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    process.kill()
    await process.wait()
    while not marker.exists() and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    assert marker.exists()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
async def test_the_active_environment_offers_its_python(tmp_path: Path, variable: str) -> None:
    from topsmon import interpreter

    fake = tmp_path / "bin" / "python"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\nexit 0\n")
    fake.chmod(0o755)
    found = interpreter.candidates({variable: str(tmp_path), "PATH": ""})
    assert found == [str(fake)]


async def test_an_interpreter_without_torch_is_refused_by_name(tmp_path: Path) -> None:
    from topsmon import interpreter

    fake = tmp_path / "python-without"
    fake.write_text("#!/bin/sh\nexit 0\n")
    fake.chmod(0o755)
    found = await interpreter.find(str(fake), {})
    assert found.path is None
    assert str(fake) in found.problem
    with_torch = tmp_path / "python-with"
    with_torch.write_text("#!/bin/sh\necho torch is here\n")
    with_torch.chmod(0o755)
    assert await interpreter.find(str(with_torch), {}) == interpreter.Interpreter(str(with_torch))
    missing = await interpreter.find(str(tmp_path / "nothing"), {})
    assert missing.path is None
    assert "no such program" in missing.problem
