"""Over a real sshd on 127.0.0.1, through the real ssh and the real `topsmon stream`."""

import asyncio
import json
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from sshd_server import MISSING, SSHD, Sshd, client_configuration, keys, pids, remote_command
from waiting import alive, until

from topsmon.cli import main
from topsmon.remote import snapshot
from topsmon.remote.session import HostsSession
from topsmon.remote.ssh import LinkOptions, remote_words

pytestmark = [pytest.mark.real, pytest.mark.skipif(SSHD is None, reason=MISSING)]
TWELVE = tuple(f"node{number:02}" for number in range(1, 13))


class Machines:
    """Two servers: `one` is `first`, everything else is `second`."""

    def __init__(self, folder: Path) -> None:
        keys(folder)
        self.folder = folder
        self.first, self.second = Sshd(folder, "first", folder), Sshd(folder, "second", folder)
        others = dict.fromkeys(("two", *TWELVE), self.second)
        self.configuration = client_configuration(folder, {"one": self.first, **others}, folder)
        self.ssh = ("ssh", "-F", str(self.configuration))

    def session(self, *hosts: str, interval: float = 0.5) -> HostsSession:
        remote = remote_words(remote_command())
        return HostsSession(hosts, LinkOptions(self.ssh, remote, interval, only=("cpu",)))

    def command(self, *arguments: str) -> list[str]:
        ssh = ["--ssh", shlex.join(self.ssh), "--remote-command", remote_command()]
        return [sys.executable, "-m", "topsmon", *ssh, *arguments]


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    made = Machines(tmp_path_factory.mktemp("sshd"))
    made.first.start()
    made.second.start()
    yield made
    made.first.stop()
    made.second.stop()


@asynccontextmanager
async def running(session: HostsSession) -> AsyncIterator[HostsSession]:
    await session.start()
    try:
        yield session
    finally:
        await session.stop()


def links(session: HostsSession) -> dict[str, str]:
    return {host: view.link for host, view in session.fleet.hosts.items()}


def sampled(session: HostsSession, host: str) -> bool:
    device = session.fleet.hosts[host].devices.get("cpu")
    return device is not None and device.sample is not None


async def test_one_of_two_hosts_goes_and_comes_back(machines: Machines) -> None:
    session = machines.session("one", "two")
    async with running(session):
        await until(lambda: sampled(session, "one") and sampled(session, "two"))
        assert links(session) == {"one": "live", "two": "live"}
        streams = pids(machines.first.streams())
        assert streams
        machines.first.stop()
        await until(lambda: links(session)["one"] == "gone")
        # The last values stay, with their age.
        assert sampled(session, "one")
        assert session.findings()[0].code == "host-gone"
        await until(lambda: not any(alive(pid) for pid in streams))
        before = session.fleet.hosts["two"].seen
        await until(lambda: session.fleet.hosts["two"].seen != before)
        assert links(session)["two"] == "live"
        machines.first.start()
        await until(lambda: links(session)["one"] == "live")
        again = session.fleet.hosts["one"].devices["cpu"].seen
        await until(lambda: session.fleet.hosts["one"].devices["cpu"].seen != again)
        assert pids(machines.first.streams()).isdisjoint(streams)
    for server in (machines.first, machines.second):
        await until(lambda server=server: not server.streams())  # type: ignore[misc]


async def test_twelve_hosts_are_live_together_and_leave_nothing_behind(machines: Machines) -> None:
    session = machines.session(*TWELVE, interval=1.0)
    async with running(session):
        await until(lambda: all(sampled(session, host) for host in TWELVE), 150)
        assert set(links(session).values()) == {"live"}
        names = {view.host.hostname for view in session.fleet.hosts.values() if view.host}
        assert len(names) == 1
        ssh = session.child_pids()
        assert len(ssh) == 12
        assert session.fleet.aggregate("busy").count == 12
    await until(lambda: not any(alive(pid) for pid in ssh))
    await until(lambda: not machines.second.streams())


async def test_nothing_stays_there_when_this_side_is_killed(machines: Machines) -> None:
    script = (
        "import asyncio, sys\n"
        "from topsmon.remote.session import HostsSession\n"
        "from topsmon.remote.ssh import LinkOptions\n"
        "async def main():\n"
        "    options = LinkOptions(tuple(sys.argv[1:4]), tuple(sys.argv[4:]))\n"
        "    await HostsSession(['two'], options).start()\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", script, *machines.ssh, *remote_words(remote_command())]
    process = await asyncio.create_subprocess_exec(*command)
    try:
        await until(lambda: bool(machines.second.streams()))
        ssh = pids(psutil.Process(process.pid).children())
    finally:
        process.kill()
        await process.wait()
    assert ssh
    await until(lambda: not machines.second.streams())
    await until(lambda: not any(alive(pid) for pid in ssh))


async def test_a_program_that_is_not_there_is_told_by_the_shell_there(machines: Machines) -> None:
    options = LinkOptions(machines.ssh, ("no-such-topsmon",))
    session = HostsSession(["two"], options)
    async with running(session):
        await until(lambda: links(session)["two"] == "refused")
        assert "install topsmon on two" in session.fleet.hosts["two"].detail


async def test_a_host_key_that_is_not_known_is_refused_not_accepted(machines: Machines) -> None:
    empty = machines.folder / "empty_known_hosts"
    ssh = (*machines.ssh, "-o", f"UserKnownHostsFile={empty}")
    session = HostsSession(["two"], LinkOptions(ssh, remote_words(remote_command())))
    async with running(session):
        await until(lambda: links(session)["two"] == "refused")
        assert "Host key verification failed" in session.fleet.hosts["two"].detail
    assert not empty.exists()


def test_a_snapshot_of_two_hosts(
    machines: Machines, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(machines.folder / "config"))
    # A machine that has much else to do may need longer for its first reading.
    monkeypatch.setattr(snapshot, "READING_SECONDS", 60.0)
    words = machines.command("--once", "--json", "--host", "one,two", "--only", "cpu")[3:]
    code = main(words)
    printed = capfdbinary.readouterr()
    assert code in {0, 1}, printed.err
    hosts = json.loads(printed.out)["hosts"]
    assert [host["host"] for host in hosts] == ["one", "two"]
    for host in hosts:
        assert [device["device"] for device in host["snapshot"]["devices"]] == ["cpu"]


def test_a_host_that_is_an_option_makes_no_file(machines: Machines, tmp_path: Path) -> None:
    command = machines.command("--once", "--host", "-oProxyCommand=touch PWNED")
    done = subprocess.run(command, capture_output=True, timeout=120, cwd=tmp_path, check=False)
    assert done.returncode == 64
    assert b"is no host name" in done.stderr
    assert not list(tmp_path.iterdir())
