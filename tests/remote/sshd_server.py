"""A real sshd on 127.0.0.1 with its own keys, and an ssh configuration that knows it by aliases."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
from ports import free_port

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
MISSING = "no sshd here (Debian: apt-get install openssh-server)"


def keys(folder: Path) -> None:
    """A host key and a user key, as the test's own."""
    for name in ("host_key", "user_key"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(command, check=True)


class Sshd:
    """One sshd. `start` and `stop` it; stopping ends its sessions too, as a crash would."""

    def __init__(self, folder: Path, name: str, key_folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.configuration = folder / f"sshd-{name}.conf"
        self.configuration.write_text(
            f"ListenAddress 127.0.0.1\nPort {self.port}\n"
            f"HostKey {key_folder / 'host_key'}\n"
            f"AuthorizedKeysFile {key_folder / 'user_key.pub'}\n"
            f"PidFile {folder / f'{name}.pid'}\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nStrictModes no\n"
            "UsePAM no\nPermitRootLogin prohibit-password\nMaxStartups 100\n"
        )
        self.host_key = (key_folder / "host_key.pub").read_text().split()[:2]

    def start(self) -> None:
        assert SSHD is not None
        if os.getuid() == 0:
            with contextlib.suppress(OSError):  # sshd as root wants it; at boot systemd makes it
                Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        self._process = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(self.configuration)],
            stdin=subprocess.DEVNULL,
            stderr=(self.folder / "sshd.log").open("ab"),
        )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            time.sleep(0.02)
        raise AssertionError((self.folder / "sshd.log").read_text())

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for child in self.sessions(process.pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        process.kill()
        process.wait()

    def streams(self) -> list[psutil.Process]:
        """The programs that run in this sshd's sessions."""
        if self._process is None:
            return []
        return [child for child in self._under(self._process.pid) if _is_stream(child)]

    def sessions(self, pid: int) -> list[psutil.Process]:
        """sshd's own processes below the listening one."""
        return [child for child in self._under(pid) if not _is_stream(child)]

    @staticmethod
    def _under(pid: int) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(pid).children(recursive=True)
        return []


def _is_stream(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return "stream" in process.cmdline()
    return False


def client_configuration(folder: Path, aliases: dict[str, Sshd], key_folder: Path) -> Path:
    """An ssh configuration in which each alias is one of the servers. Host keys are checked."""
    known, lines = [], []
    for alias, server in aliases.items():
        known.append(f"[127.0.0.1]:{server.port} {' '.join(server.host_key)}\n")
        lines.append(f"Host {alias}\n  HostName 127.0.0.1\n  Port {server.port}\n")
    (folder / "known_hosts").write_text("".join(known))
    path = folder / "ssh_config"
    path.write_text(
        "".join(lines)
        + f"Host *\n  User {getpass.getuser()}\n  IdentityFile {key_folder / 'user_key'}\n"
        "  IdentitiesOnly yes\n  IdentityAgent none\n"
        f"  UserKnownHostsFile {folder / 'known_hosts'}\n  GlobalKnownHostsFile /dev/null\n"
    )
    return path


def remote_command() -> str:
    """How topsmon is started over there: with this interpreter."""
    return f"{sys.executable} -m topsmon"


def pids(processes: Sequence[psutil.Process]) -> set[int]:
    return {process.pid for process in processes}
