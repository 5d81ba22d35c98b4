"""One machine's stream: an ssh child that is kept alive, and reconnected with growing pauses.

The other end is `topsmon stream --until-stdin-closes`: it takes commands, and ends with its input,
so that nothing stays there when this process ends, however it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Literal, TypeVar

from topsmon import events
from topsmon.remote import ssh
from topsmon.remote.gate import Gate, pause
from topsmon.remote.greeting import Greeting, greeting, refusal
from topsmon.remote.ssh import Ending, LinkOptions
from topsmon.units import duration, plain
from topsmon.workers import write_command

_Result = TypeVar("_Result")
Condition = Literal["connecting", "live", "gone", "refused"]

HELLO_SECONDS = 30.0
"""Connecting, logging in and starting Python on a slow network file system takes less."""
ENDING_SECONDS = 1.0
"""ssh ends within this once the stream has."""
STOP_GRACE_SECONDS = 0.04
"""At the end ssh is asked so long, then terminated, then killed: together below 100 ms."""
STEADY_SECONDS = 10.0
"""A stream that lasted so long was no failure: the pauses begin anew."""
STDERR_LINES = 8
LINES_AT_A_TIME = 200
"""A host that floods us must not keep the screen from its keys."""


class Link:
    """Keeps the stream of one host. Use from one event loop only; nothing here blocks it."""

    def __init__(
        self,
        host: str,
        options: LinkOptions,
        gate: Gate,
        receive: Callable[[events.AnyEvent], None],
        tell: Callable[[Condition, str], None],
    ) -> None:
        self.host = host
        self.options = options
        self.decoder = events.LineDecoder()
        self._gate = gate
        self._receive = receive
        self._tell = tell
        self._process: asyncio.subprocess.Process | None = None
        self._live_since: float | None = None
        self._banner = ""
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Connect, and keep connected until `stop`."""
        # asyncio warns on stderr, which is the screen, when a killed child is reaped elsewhere.
        logging.getLogger("asyncio").setLevel(logging.ERROR)
        self._task = asyncio.create_task(self._keep(), name=f"link {self.host}")

    @property
    def running(self) -> bool:
        """True from `start` to `stop`."""
        return self._task is not None and not self._task.done()

    @property
    def pid(self) -> int | None:
        """PID of the running ssh, None between two."""
        process = self._process
        return None if process is None or process.returncode is not None else process.pid

    def send(self, **command: object) -> None:
        """Send one command. A host that is gone or does not read loses it, silently."""
        write_command(self._process, command)

    async def stop(self) -> None:
        """Have the other side end, and ssh here; return within 100 ms."""
        task, self._task = self._task, None
        process = self._process
        if process is not None and process.returncode is None:
            self.send(command="stop")
            if process.stdin is not None:
                process.stdin.close()
            if not await _ended(process, STOP_GRACE_SECONDS):
                await _put_down(process)
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _keep(self) -> None:
        self._tell("connecting", "")
        failures = 0
        while True:
            self._stderr.clear()
            self._banner = ""
            self._live_since = None
            ending = await self._run_once()
            lived = 0.0 if self._live_since is None else time.monotonic() - self._live_since
            failures = 1 if lived > STEADY_SECONDS else failures + 1
            self._tell(ending.condition, ending.detail)
            await asyncio.sleep(pause(failures, refused=ending.condition == "refused"))

    async def _run_once(self) -> Ending:
        """Run ssh to its end."""
        errors: asyncio.Task[None] | None = None
        try:
            async with self._gate:
                process = await self._spawn()
                if process is None:
                    return self._explain(None)
                errors = asyncio.create_task(self._read_errors(process))
                begun = await self._hello(process)
            if isinstance(begun, Ending):
                return begun
            if begun:
                self._live_since = time.monotonic()
                self._tell("live", "")
                await self._read_events(process)
            ended = await _ended(process, ENDING_SECONDS)
            # What ssh said last may still be in its pipe.
            await asyncio.wait({errors}, timeout=0.1)
            return self._explain(process.returncode if ended else ssh.EXIT_SSH)
        finally:
            self._close(errors)

    async def _spawn(self) -> asyncio.subprocess.Process | None:
        command = ssh.command(self.host, self.options)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=os.environ,
                limit=2 * events.MAX_LINE_BYTES,
            )
        except OSError as error:
            self._stderr.append(f"{command[0]}: {error.strerror or error}")
            self._process = None
        return self._process

    async def _hello(self, process: asyncio.subprocess.Process) -> bool | Ending:
        """Wait for the stream: True when it begins, False when it has ended, else what is wrong."""
        search = asyncio.create_task(self._find_hello(process))
        if not await _done(search, HELLO_SECONDS):
            words = plain(self._stderr[-1] if self._stderr else self._banner, 200) or "no message"
            waited = duration(HELLO_SECONDS)
            return Ending("gone", f"no event stream within {waited} of connecting ({words})")
        found = search.result()
        if found is None:
            return False
        self._banner = ""
        line, hello = found
        problem = refusal(self.host, hello)
        if problem is not None:
            return Ending("refused", problem)
        event = self.decoder.decode(line)
        if event is not None:
            self._receive(event)
        return True

    async def _find_hello(
        self, process: asyncio.subprocess.Process
    ) -> tuple[bytes, Greeting] | None:
        """Skip what logins print until the hello line; None at the end of the output."""
        async for line in self._lines(process):
            found = greeting(line)
            if found is not None:
                return line, found
            if line.strip():
                self._banner = line.strip()[:400].decode(errors="replace")
        return None

    async def _read_events(self, process: asyncio.subprocess.Process) -> None:
        async for line in self._lines(process):
            event = self.decoder.decode(line)
            if event is not None:
                self._receive(event)

    async def _lines(self, process: asyncio.subprocess.Process) -> AsyncIterator[bytes]:
        """The lines of the output; one over the limit is dropped and counted."""
        assert process.stdout is not None
        count = 0
        while True:
            count += 1
            if count % LINES_AT_A_TIME == 0:
                await asyncio.sleep(0)
            try:
                line = await process.stdout.readline()
            except ValueError:
                self.decoder.malformed += 1
                self.decoder.last_error = f"{self.host}: line over the limit dropped"
                continue
            if not line:
                return
            yield line

    async def _read_errors(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while True:
            with contextlib.suppress(ValueError):
                line = await process.stderr.readline()
                if not line:
                    return
                self._stderr.append(line.decode(errors="replace").rstrip())

    def _explain(self, code: int | None) -> Ending:
        # A refused login often says why on its output, and nothing on stderr.
        return ssh.explain(self.host, code, self._stderr or [self._banner], self.options)

    def _close(self, errors: asyncio.Task[None] | None) -> None:
        if errors is not None:
            errors.cancel()
        process = self._process
        if process is not None:
            # Also ends an ssh that lives on and has closed its pipes, without waiting for it.
            process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001


async def _put_down(process: asyncio.subprocess.Process) -> None:
    """Terminate ssh, which then ends its ProxyCommand; kill it where it does not listen."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    if not await _ended(process, STOP_GRACE_SECONDS / 2):
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await _ended(process, STOP_GRACE_SECONDS / 2)


async def _ended(process: asyncio.subprocess.Process, seconds: float) -> bool:
    """True once the process has ended, False after `seconds`."""
    await _done(asyncio.create_task(process.wait()), seconds)
    return process.returncode is not None


async def _done(task: asyncio.Task[_Result], seconds: float) -> bool:
    """True once a task is done; after `seconds` False, and it is cancelled.

    Before Python 3.12 asyncio.wait_for may lose a cancellation that comes at the same time.
    """
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
        return bool(done)
    finally:
        task.cancel()
