"""`topsmon --once --host ...`: what is printed of each host, and the exit code."""

import json
from pathlib import Path

import pytest
from fake_ssh import HEADER, FakeSsh, device, hello, lines, sample

from topsmon import events
from topsmon.cli import main

NO_PROCESSES = events.Processes(**HEADER, device="GPU-1", entries=())
HOST = events.Host(**HEADER, hostname="there-\x1b[2Jevil", system="Linux")
STREAM = hello() + "\n" + lines(HOST, device(), sample(busy=0.25), NO_PROCESSES)


@pytest.fixture(autouse=True)
def no_settings_of_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def test_each_host_is_printed_under_its_name(
    ssh: FakeSsh, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    ssh.plays("a", "say stream; wait_for_end", stream=STREAM)
    ssh.plays("b", "echo 'ssh: connect to host b port 22: No route to host' >&2; exit 255")
    assert main(["--once", "--host", "a,b"]) == 3
    text = capfdbinary.readouterr().out.decode()
    first, second = text.split("== b ==")
    assert first.startswith("== a ==")
    assert "25%" in first
    assert "No route to host" in second
    assert "\x1b" not in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_the_document_has_one_entry_a_host(
    ssh: FakeSsh, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    ssh.plays("a", "say stream; wait_for_end", stream=STREAM)
    ssh.plays("b", "exit 127")
    main(["--once", "--json", "--host", "a", "--host", "b"])
    document = json.loads(capfdbinary.readouterr().out)
    one, other = document["hosts"]
    assert (one["host"], one["problem"]) == ("a", None)
    assert one["snapshot"]["devices"][0]["sample"]["busy_ratio"] == 0.25
    assert (other["host"], other["snapshot"]) == ("b", None)
    assert "install topsmon on b" in other["problem"]


def test_the_worst_finding_of_any_host_is_the_exit_code(
    ssh: FakeSsh, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    lost = events.DeviceStatus(**HEADER, device="GPU-1", condition="lost", since=1.0)
    ssh.plays("a", "say good; wait_for_end", good=STREAM)
    ssh.plays("b", "say bad; wait_for_end", bad=hello() + "\n" + lines(device(), lost))
    assert main(["--once", "--host", "a"]) == 0
    assert main(["--once", "--host", "a,b"]) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "-oProxyCommand=touch PWNED"], "is no host name"),
        (["--host=a;id"], "is no host name"),
        (["--host", "n[1-500]"], "topsmon fleet --prometheus"),
        (["--hostfile", "/no/such/file"], "--hostfile"),
        (["--host", "a", "--remote-command", "a;id"], "--remote-command"),
        (["--host", "a", "--ssh", ""], "--ssh"),
        (["--host", "a", "specs"], "ssh HOST topsmon specs"),
    ],
)
def test_wrong_usage_is_one_line_and_nothing_is_started(
    ssh: FakeSsh, arguments: list[str], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["--once", *arguments]) == 64
    error = capfd.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert list(ssh.folder.iterdir()) == [ssh.folder / "ssh"]


def test_ssh_and_the_way_to_topsmon_can_be_settings(
    ssh: FakeSsh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text('remote-command = "~/venv/bin/topsmon"\n')
    monkeypatch.setenv("TOPSMON_SSH", "ssh -F 'my config'")
    ssh.plays("a", "say stream; wait_for_end", stream=STREAM)
    main(["--once", "--config", str(settings), "--host", "a"])
    given = ssh.arguments("a")
    assert given[:2] == ["-F", "my config"]
    assert given[-1].startswith("./venv/bin/topsmon stream ")
    settings.write_text('host = "a"\n')
    assert main(["--once", "--config", str(settings)]) == 64
