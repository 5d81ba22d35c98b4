"""The command line as people type it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import topsmon


@pytest.fixture(autouse=True)
def own_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable))


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "topsmon", *arguments],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
        timeout=60,
        check=False,
    )


def test_the_version() -> None:
    for option in ("-V", "--version"):
        result = run(option)
        assert result.stdout.decode() == f"topsmon {topsmon.__version__}\n"
        assert result.returncode == 0


def test_help_names_every_command_and_the_exit_codes() -> None:
    text = run("--help").stdout.decode()
    for word in ("specs", "stream", "--once", "--simulate", "130"):
        assert word in text


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["--once", "--json"], ["--once"]])
def test_headless_commands_load_neither_torch_nor_textual(arguments: list[str]) -> None:
    script = (
        "import sys\n"
        "from topsmon.cli import main\n"
        f"main({arguments!r})\n"
        "heavy = {'torch', 'textual', 'rich', 'numpy', 'asyncio'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert result.returncode == 0, result.stderr.decode()


def test_the_screen_loads_neither_torch_nor_pynvml() -> None:
    script = (
        "import sys\n"
        "import topsmon.tui.app, topsmon.session\n"
        "heavy = {'torch', 'pynvml', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert result.returncode == 0, result.stderr.decode()


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--theme", "nowhere", "--theme nowhere: no such theme; there are: "),
        ("--python", "/nowhere/python", "--python /nowhere/python: no such program"),
    ],
)
def test_what_a_snapshot_does_not_need_must_exist_too(option: str, value: str, words: str) -> None:
    result = run("--once", "--json", option, value)
    assert result.returncode == 64
    assert words in result.stderr.decode()
    assert result.stdout == b""


def test_one_snapshot_as_json_on_this_machine() -> None:
    document = json.loads(run("--once", "--json").stdout)
    assert document["schema_version"] == 1
    assert document["simulated"] is None
    cpu = next(device for device in document["devices"] if device["device"] == "cpu")
    assert cpu["sample"]["memory_total_bytes"] > 2**28
    assert 0 <= cpu["sample"]["busy_ratio"] <= 1
    assert cpu["sample"]["pcie_generation"] is None


def test_without_a_terminal_the_bare_command_prints_a_snapshot_without_escapes() -> None:
    result = run()
    assert result.returncode in {0, 1}
    assert b"\x1b" not in result.stdout
    assert b"CPU" in result.stdout
    assert result.stderr == b""


@pytest.mark.parametrize(
    "environment",
    [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}],
    ids=["ascii", "c-locale"],
)
def test_without_utf8_the_snapshot_is_ascii(environment: dict[str, str]) -> None:
    result = run("--once", **environment)
    assert result.stdout.isascii()
    assert b"?" not in result.stdout.replace(b"(virtual machine?)", b"")
    assert result.returncode in {0, 1}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--no-such-option"], "--no-such-option"),
        (["frobnicate"], "frobnicate"),
        (["--interval", "0"], "0.1"),
        (["--interval", "soon"], "soon"),
        (["--interval", "nan"], "nan"),
        (["specs", "--clock", "nan", "Tesla T4"], "nan"),
        (["bench", "fp7"], "fp7"),
        (["check", "--json", "--junit"], "--junit"),
        (["check", "--only", "no-such-check"], "no-such-check"),
        (["roofline", "memory"], "memory"),
        (["--json"], "--once"),
        (["--simulate", "no-such-scenario"], "no-such-scenario"),
        (["--once", "--only", "17"], "17"),
        (["specs", "--clock", "-5", "Tesla T4"], "-5"),
        (["--config", "/no/such/file"], "/no/such/file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_wrong_usage_is_one_line_that_names_the_input(arguments: list[str], named: str) -> None:
    result = run(*arguments)
    assert result.returncode == 64
    lines = result.stderr.decode().splitlines()
    assert len(lines) == 1
    assert named in lines[0]
    assert "Traceback" not in result.stderr.decode()


def test_settings_are_defaults_and_the_command_line_wins(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text('simulate = "no-such-scenario"\n')
    assert run("--config", str(config), "--once").returncode == 64
    assert run("--config", str(config), "--simulate", "list").returncode == 0


@pytest.mark.parametrize(("text", "named"), [("colour = 1\n", "colour"), ("interval = \n", "TOML")])
def test_a_wrong_setting_is_named(tmp_path: Path, text: str, named: str) -> None:
    config = tmp_path / "c.toml"
    config.write_text(text)
    result = run("--config", str(config), "--once")
    assert result.returncode == 64
    assert named in result.stderr.decode()
    assert str(config) in result.stderr.decode()


def test_specs_of_two_boards_and_of_none() -> None:
    geforce = run("specs", "NVIDIA GeForce RTX 3090").stdout.decode()
    for figure in ("35.6", "71.2", "142.3", "284.7", "936"):
        assert figure in geforce
    volta = run("specs", "Tesla V100-SXM2-16GB").stdout.decode()
    for figure in ("15.7", "125", "900"):
        assert figure in volta
    unknown = run("specs", "NVIDIA FutureCard X1")
    assert unknown.returncode == 3
    assert "NVIDIA FutureCard X1" in unknown.stderr.decode()
    assert unknown.stdout == b""


def test_specs_as_json() -> None:
    documents = json.loads(run("specs", "NVIDIA GeForce RTX 3090", "--json").stdout)
    assert len(documents) == 1


def test_a_reader_that_leaves_early_is_no_error() -> None:
    result = subprocess.run(
        [
            "bash",
            "-c",
            f"{sys.executable} -m topsmon stream -i 0.1 | head -n 3; echo ${{PIPESTATUS[0]}}",
        ],
        capture_output=True,
        check=True,
        timeout=60,
    )
    *lines, code = result.stdout.decode().splitlines()
    assert json.loads(lines[0])["type"] == "hello"
    assert code == "0"
    assert result.stderr == b""


def test_an_internal_error_is_one_line_and_a_traceback_only_under_debug() -> None:
    script = (
        "import sys\n"
        "from topsmon import cli\n"
        "from topsmon.cli import screen\n"
        "screen.snapshot = lambda *a, **k: 1 / 0\n"
        "sys.exit(cli.main(sys.argv[1:]))\n"
    )
    for options, traceback in ((["--once"], False), (["--once", "--debug"], True)):
        result = subprocess.run(
            [sys.executable, "-c", script, *options], capture_output=True, check=False
        )
        assert result.returncode == 3
        assert (b"Traceback" in result.stderr) is traceback
        assert b"division by zero" in result.stderr


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("{python} -m topsmon specs 'Tesla T4' >&-", 0, ""),
        ("{python} -m topsmon specs 'Tesla T4' | true; exit ${{PIPESTATUS[0]}}", 0, ""),
        ("{python} -m topsmon specs 'Tesla T4' >/dev/full", 3, "cannot be written: No space left"),
    ],
    ids=["closed", "gone", "full"],
)
def test_output_that_nobody_takes(command: str, code: int, said: str) -> None:
    result = subprocess.run(
        ["bash", "-c", command.format(python=sys.executable)], capture_output=True, check=False
    )
    assert result.returncode == code
    assert said in result.stderr.decode()
    assert result.stderr.decode().count("\n") == bool(said)


def test_every_command_has_a_help_of_its_own() -> None:
    for name in ("bench", "check", "flops", "roofline", "specs", "stream"):
        result = run(name, "--help")
        assert result.returncode == 0
        assert result.stdout.startswith(f"Usage: topsmon {name}".encode())


def test_a_run_that_has_failed_is_told_but_is_no_fault_of_the_machine(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir(mode=0o700)
    # A process that starts a ring, says how it ends, and is gone.
    script = (
        "from topsmon.training.recorder.ring import RingWriter, identity_of_process\n"
        "ring = RingWriter.create({**identity_of_process(), 'command': 'python train.py'})\n"
        "ring.event('exception', 3, 'boom', ('ValueError',))\n"
        "ring.event('end', 3, 'exit code 1', values={'exit_code': 1})\n"
        "ring.close()\n"
    )
    environment = {"TOPSMON_DIR": str(folder)}
    subprocess.run(
        [sys.executable, "-c", script], check=True, env={**os.environ, **environment}, timeout=60
    )
    result = run("--once", "--json", **environment)
    document = json.loads(result.stdout)
    assert [one["condition"] for one in document["runs"]] == ["failed"]
    codes = {one["code"]: one["severity"] for one in document["findings"]}
    assert codes["run-failed"] in {"warn", "fail"}
    assert result.returncode == 0
