"""Our own child processes: JSON event lines on stdout, JSON commands on stdin, kept alive.

A child that crashes costs nothing but itself: it is started again with a growing pause, a few
times, and every change is an event. Stopping asks first and kills after `STOP_GRACE_SECONDS`; it
never waits for a child that a driver holds in the kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from topsmon import events

STOP_GRACE_SECONDS = 0.06
"""A cooperative child ends within this; then it is killed, so that stopping takes < 100 ms."""
REAP_SECONDS = 0.03
STDERR_LINES = 8

EXIT_USAGE = 64
"""The child refuses its options: starting it again would not help."""
EXIT_NO_TORCH = 69
"""A prober's interpreter cannot import torch: starting it again would not help."""
EXIT_DEVICE_ERROR = 70
"""A prober gives up after a sticky device error: a fresh process may work."""
EXIT_DRIVER_RELOADED = 75
"""The poller's NVML handles became void in mid-run: a fresh process is needed."""


@dataclass(frozen=True)
class RestartPolicy:
    """How often and how fast a child is started again.

    After `limit` ends within `window_seconds` it is given up. The pause before the nth restart is
    `first_pause_seconds * 2**(n-1)`.
    """

    limit: int = 3
    window_seconds: float = 120.0
    first_pause_seconds: float = 0.5
    never: tuple[int, ...] = (EXIT_USAGE, EXIT_NO_TORCH)


@dataclass
class _Endings:
    times: deque[float] = field(default_factory=deque)
    total: int = 0


def write_command(
    process: asyncio.subprocess.Process | None, command: Mapping[str, object]
) -> None:
    """Write one JSON line to a child. One that is gone or does not read loses it, silently."""
    if process is None or process.stdin is None or process.stdin.is_closing():
        return
    if process.stdin.transport.get_write_buffer_size() > 1 << 16:
        return
    with contextlib.suppress(ConnectionError, RuntimeError):
        process.stdin.write(msgspec.json.encode(command) + b"\n")


class Worker:
    """One supervised child process. Use from one event loop only; nothing here blocks it."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        receive: Callable[[events.AnyEvent], None],
        *,
        environment: Mapping[str, str] | None = None,
        source: str = "",
        policy: RestartPolicy | None = None,
        on_start: Callable[[], None] | None = None,
    ) -> None:
        self.name = name
        self.command = tuple(command)
        self.decoder = events.LineDecoder()
        self.process: asyncio.subprocess.Process | None = None
        self.restarts = 0
        self.exit_code: int | None = None
        self._receive = receive
        self._environment = {**os.environ, **(environment or {}), "PYTHONSAFEPATH": "1"}
        self._source = source
        self._policy = policy or RestartPolicy()
        self._on_start = on_start
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES)
        self._ended_so = ""
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    def start(self) -> None:
        """Start the child and keep it alive until `stop`."""
        # asyncio warns on stderr, which is the screen, when a killed child is reaped elsewhere.
        logging.getLogger("asyncio").setLevel(logging.ERROR)
        self._stopping = False
        self._task = asyncio.create_task(self._supervise(), name=self.name)

    @property
    def pid(self) -> int | None:
        """PID of the running child, None between two runs."""
        if self.process is None or self.process.returncode is not None:
            return None
        return self.process.pid

    def send(self, **command: object) -> None:
        """Send one command. A child that is gone or does not read loses it, silently."""
        write_command(self.process, command)

    async def stop(self) -> None:
        """Ask the child to end, kill it after the grace time; return within 100 ms."""
        self._stopping = True
        process = self.process
        if process is not None and process.returncode is None:
            self.send(command="stop")
            if process.stdin is not None:
                process.stdin.close()
            if not await _ended(process, STOP_GRACE_SECONDS):
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await _ended(process, REAP_SECONDS)
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _supervise(self) -> None:
        endings = _Endings()
        while True:
            self._stderr.clear()
            self._report("starting", self._ended_so)
            self.exit_code = code = await self._run_once()
            if self._stopping:
                return
            # Kept while the next child runs: whoever looks once a minute is told it too.
            self._ended_so = _describe_end(code, self._stderr)
            if not self._may_restart(endings, code):
                self._report("failed", self._ended_so)
                return
            endings.total += 1
            self.restarts = endings.total
            self._report("restarted", self._ended_so)
            recent = len(endings.times)
            await asyncio.sleep(self._policy.first_pause_seconds * 2 ** (recent - 1))

    def _may_restart(self, endings: _Endings, code: int | None) -> bool:
        now = time.monotonic()
        endings.times.append(now)
        while endings.times and now - endings.times[0] > self._policy.window_seconds:
            endings.times.popleft()
        return code not in self._policy.never and len(endings.times) <= self._policy.limit

    async def _run_once(self) -> int | None:
        """Run the child to its end. Return its exit code, None if it could not be started."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._environment,
                limit=2 * events.MAX_LINE_BYTES,
            )
        except OSError as error:
            self._stderr.append(f"{self.command[0]}: {error.strerror or error}")
            return None
        self.process = process
        self._report("running", self._ended_so)
        if self._on_start is not None:
            self._on_start()
        errors = asyncio.create_task(self._read_errors(process))
        try:
            await self._read_events(process)
            code = await process.wait()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(errors, 0.2)
        finally:
            errors.cancel()
            if process.returncode is None:
                # Kills a child that lives on and closes its pipes, without waiting for either.
                process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001
        return code

    async def _read_events(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:  # longer than the limit: asyncio has dropped it
                self.decoder.malformed += 1
                self.decoder.last_error = f"{self.name}: line over the limit dropped"
                continue
            if not line:
                return
            event = self.decoder.decode(line)
            if event is not None:
                self._receive(event)

    async def _read_errors(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while True:
            with contextlib.suppress(ValueError):
                line = await process.stderr.readline()
                if not line:
                    return
                self._stderr.append(line.decode(errors="replace").rstrip())

    def _report(self, condition: events.WorkerCondition, detail: str = "") -> None:
        self._receive(
            events.Worker(
                time=time.time(),
                monotonic=time.monotonic(),
                source=self._source,
                worker=self.name,
                condition=condition,
                restarts=self.restarts,
                detail=detail,
            )
        )


async def _ended(process: asyncio.subprocess.Process, seconds: float) -> bool:
    """True once the process has ended, False after `seconds`."""
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(process.wait(), seconds)
    return process.returncode is not None


def _describe_end(code: int | None, stderr: Sequence[str]) -> str:
    """Say in one line how a child ended: signal name or exit code, and its last words."""
    words = next((line for line in reversed(stderr) if line.strip()), "")
    if code is None:
        return f"could not be started: {words}"
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"killed by {name}" + (f": {words}" if words else "")
    return f"exit code {code}" + (f": {words}" if words else "")
