"""topsmon export of this machine as it runs: a server that Prometheus scrapes, a file, or both."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import ssl
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from topsmon import results
from topsmon.cli.common import (
    INTERRUPTED,
    OK,
    UNKNOWN,
    Common,
    Failure,
    prepare_simulation,
    write_bytes,
)
from topsmon.exporters import address, server, textfile
from topsmon.exporters.aside import aside
from topsmon.exporters.basic_auth import read_credentials
from topsmon.exporters.check_file import CheckFile
from topsmon.exporters.prometheus import Exported, families, registry_of
from topsmon.exporters.run_metrics import Slots
from topsmon.files import NotReplacedError
from topsmon.session import Session, SessionOptions

SCRAPE_SECONDS = 5.0
"""A scrape that our own event loop does not answer within this fails."""
FIRST_SAMPLES_SECONDS = 8.0
"""How long the first file waits for two samples of every device."""
STDOUT = Path("-")


@dataclass(frozen=True)
class LiveOptions:
    """What the command line asks for."""

    prometheus: str | None = None
    textfile: Path | None = None
    once: bool = False
    every: float = 15.0
    bench: bool = False
    check_file: Path | None = None
    runs: int = 32
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    auth_file: Path | None = None


def export(common: Common, options: LiveOptions) -> int:
    """Serve, or write, until a signal; return the exit code."""
    _check_usage(options)
    listener = _Listener.prepare(options)
    environment = prepare_simulation(common.simulate)
    session = Session(
        SessionOptions(
            interval=common.interval,
            only=common.only,
            only_visible=common.only_visible,
            simulated=common.simulate,
            environment=environment,
            python=common.python,
            benchmarks=options.bench,
            remember=results.default_path(),
        )
    )
    return asyncio.run(_Exporter(session, options, listener).run())


def print_file(name: str) -> None:
    """Print a file that comes with topsmon: the dashboard, the alert rules."""
    from importlib import resources

    write_bytes((resources.files("topsmon.exporters") / "files" / name).read_bytes())


def _check_usage(options: LiveOptions) -> None:
    if options.once and options.textfile is None:
        raise click.UsageError("--once goes with --textfile FILE")
    if options.once and options.prometheus is not None:
        raise click.UsageError("--once writes a file and ends: leave out --prometheus")
    if options.textfile is not None and options.textfile != STDOUT:
        try:
            textfile.check(options.textfile)
        except NotReplacedError as error:
            raise click.UsageError(f"--textfile {error}") from error
    if (options.tls_cert is None) != (options.tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key go together")
    if options.tls_client_ca is not None and options.tls_cert is None:
        raise click.UsageError("--tls-client-ca needs --tls-cert and --tls-key")
    secured = options.tls_cert is not None or options.auth_file is not None
    if secured and options.prometheus is None:
        raise click.UsageError("TLS and --auth-file protect a server: give --prometheus")


@dataclass
class _Listener:
    """Where to listen and how it is protected; nothing is opened yet."""

    address: address.Address
    tls: ssl.SSLContext | None
    credentials: bytes | None

    @classmethod
    def prepare(cls, options: LiveOptions) -> _Listener | None:
        """Read what the options name, so that mistakes are told before anything starts."""
        if options.prometheus is None:
            return None
        try:
            place = address.parse(options.prometheus)
        except ValueError as error:
            raise click.UsageError(f"--prometheus: {error}") from error
        tls = None
        if options.tls_cert is not None and options.tls_key is not None:
            files = server.Tls(options.tls_cert, options.tls_key, options.tls_client_ca)
            try:
                tls = files.context()
            except OSError as error:
                raise click.UsageError(
                    f"--tls-cert {options.tls_cert}, --tls-key {options.tls_key}: "
                    f"{error.strerror or error}; both must be PEM files that belong together"
                ) from error
        credentials = None
        if options.auth_file is not None:
            try:
                credentials = read_credentials(options.auth_file)
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else error
                raise click.UsageError(f"--auth-file {options.auth_file}: {reason}") from error
        return cls(place, tls, credentials)

    def warning(self) -> str | None:
        """What somebody who listens beyond this machine must know, None on loopback."""
        if self.address.loopback:
            return None
        if self.credentials is not None and self.tls is None:
            return "the password crosses the network in clear: add --tls-cert and --tls-key"
        if self.credentials is not None or (self.tls and self.tls.verify_mode is ssl.CERT_REQUIRED):
            return "open to the network, for those who have the password or certificate"
        return (
            "everybody who can reach this address can read the metrics; "
            "--auth-file or --tls-client-ca lets in only some"
        )


@dataclass
class _Exporter:
    session: Session
    options: LiveOptions
    listener: _Listener | None
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    code: int = OK
    _said: dict[str, str] = field(default_factory=dict)

    async def run(self) -> int:
        exported = Exported(
            self.session.state,
            self.session.findings,
            slots=Slots(self.options.runs),
            children=self.session.child_pids,
        )
        self.session.listeners.append(exported.tally.add)
        if self.options.check_file is not None:
            exported.checks = CheckFile(self.options.check_file, socket.gethostname())
        self._listen_to_signals()
        with self._serving(exported):
            await self.session.start()
            try:
                await self._work(exported)
            finally:
                await self.session.stop()
        return self.code

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        codes = {signal.SIGTERM: OK, signal.SIGHUP: OK, signal.SIGINT: INTERRUPTED}
        for number, code in codes.items():
            loop.add_signal_handler(number, self._stop, code)

    def _stop(self, code: int) -> None:
        self.code = code
        self.stopped.set()

    @contextlib.contextmanager
    def _serving(self, exported: Exported) -> Iterator[None]:
        if self.listener is None:
            yield
            return
        loop = asyncio.get_running_loop()

        async def read() -> Iterable[Any]:
            return families(exported, time.monotonic())

        def scrape() -> Iterable[Any]:
            return asyncio.run_coroutine_threadsafe(read(), loop).result(SCRAPE_SECONDS)

        app = server.application(registry_of(scrape), self.listener.credentials)
        try:
            opened = server.MetricsServer(self.listener.address, app, self.listener.tls)
        except OSError as error:
            raise Failure(
                f"--prometheus {self.listener.address}: {error.strerror or error}; "
                "choose another ADDR:PORT"
            ) from error
        opened.start()
        self._say(f"metrics at {opened.url}")
        if (warning := self.listener.warning()) is not None:
            self._say(warning)
        try:
            yield
        finally:
            opened.stop()

    async def _work(self, exported: Exported) -> None:
        if self.options.textfile is not None:
            await self._first_samples()
        while not self.stopped.is_set():
            await self._refresh(exported)
            self._write(exported)
            if self.options.once or await self._waited(self.options.every):
                return

    async def _refresh(self, exported: Exported) -> None:
        if exported.checks is None:
            return
        await aside(exported.checks.refresh)
        self._complain("check", exported.checks.problem)

    def _write(self, exported: Exported) -> None:
        path = self.options.textfile
        if path is None:
            return
        registry = registry_of(lambda: families(exported, time.monotonic()))
        if path == STDOUT:
            from prometheus_client import generate_latest

            write_bytes(generate_latest(registry))
            return
        try:
            textfile.write(path, registry)
        except (NotReplacedError, OSError) as error:
            reason = f"{path}: {error.strerror}" if isinstance(error, OSError) else error
            self._complain("textfile", f"--textfile {reason}")
            if self.options.once:
                self.code = UNKNOWN
        else:
            self._complain("textfile", None)

    async def _first_samples(self) -> None:
        """Wait for two samples of every device: shares and rates need a sample before."""
        end = time.monotonic() + FIRST_SAMPLES_SECONDS + 2 * self.session.interval
        while time.monotonic() < end and not self._sampled():
            if await self._waited(0.05):
                return

    def _sampled(self) -> bool:
        state = self.session.state
        answering = [device for device in state.devices.values() if device.condition == "ok"]
        known = bool(state.devices) and state.host_sample is not None
        return known and all(len(device.recent) > 1 for device in answering)

    async def _waited(self, seconds: float) -> bool:
        """Wait; True when it is time to end."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.stopped.wait(), seconds)
        return self.stopped.is_set()

    def _complain(self, subject: str, problem: str | None) -> None:
        """Say a problem once, and once that it is over."""
        before = self._said.get(subject)
        if problem is not None and problem != before:
            self._said[subject] = problem
            self._say(problem)
        elif problem is None and before is not None:
            del self._said[subject]
            self._say(f"works again: {before}")

    def _say(self, text: str) -> None:
        click.echo(f"topsmon: {text}", err=True)
