"""Building the driver library and preparing a scenario."""

import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from topsmon.simulated import SimulationError, build, prepare


@pytest.fixture
def no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))
    monkeypatch.delenv("CC", raising=False)


@pytest.fixture
def counting_compiler(builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The real compiler behind a $CC of several words that notes each run."""
    real = build.compiler()[0]
    script = tmp_path / "compiler.sh"
    script.write_text(f'echo run >> {tmp_path}/runs\nexec {shutil.which(real)} "$@"\n')
    monkeypatch.setenv("CC", f"{shutil.which('sh')} '{script}'")
    return [str(tmp_path / "runs")]


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_it_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(SimulationError, match=r"needs a C compiler.*apt install gcc.*set CC"):
        prepare("h100-8", tmp_path)


@pytest.mark.usefixtures("no_compiler")
def test_a_machine_without_driver_needs_no_compiler(tmp_path: Path) -> None:
    environment = prepare("no-library", tmp_path)
    folder = Path(environment["LD_LIBRARY_PATH"].split(":")[0])
    assert not (folder / "libnvidia-ml.so.1").read_bytes().startswith(b"\x7fELF")


def test_a_wrong_cc_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/nonesuch/cc -m64")
    with pytest.raises(SimulationError, match=r"\$CC names '/nonesuch/cc'"):
        prepare("h100-8", tmp_path)


def test_a_failing_compiler_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "cc"
    script.write_text("#!/bin/sh\necho 'fatal: no space' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    with pytest.raises(SimulationError, match="cannot build the simulated driver: fatal: no space"):
        prepare("h100-8", tmp_path / "out")
    assert not list((tmp_path / "out").glob("driver-*/*"))


def test_an_unwritable_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SimulationError, match=r"cannot write to .*file/here"):
        prepare("h100-8", tmp_path / "file" / "here")


def test_an_unknown_name_lists_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(SimulationError, match=r"no scenario '../x'; there are: .*h100-8"):
        prepare("../x", tmp_path)


def test_it_is_built_once(counting_compiler: list[str], tmp_path: Path) -> None:
    first = prepare("h100-8", tmp_path / "out")
    second = prepare("power-cap", tmp_path / "out")
    assert Path(counting_compiler[0]).read_text() == "run\n"
    assert first["LD_LIBRARY_PATH"] == second["LD_LIBRARY_PATH"]
    assert first["TOPSMON_SIMULATED_TABLE"] != second["TOPSMON_SIMULATED_TABLE"]
    prepare("driver-470", tmp_path / "out")
    assert Path(counting_compiler[0]).read_text() == "run\nrun\n"


def test_several_may_build_at_the_same_time(builds: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    environments: list[dict[str, str]] = []
    threads = [
        threading.Thread(target=lambda: environments.append(prepare("mig", out))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({env["LD_LIBRARY_PATH"] for env in environments}) == 1
    (folder,) = out.glob("driver-*")
    assert [path.name for path in folder.iterdir()] == ["libnvidia-ml.so.1"]
    assert not list(out.glob("tmp*"))


def test_environment_says_what_is_simulated(builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/mine")
    environment = prepare("gb10", builds)
    assert environment["TOPSMON_SIMULATED"] == "gb10"
    assert environment["LD_LIBRARY_PATH"].endswith(":/opt/mine")
    assert Path(environment["TOPSMON_SIMULATED_TABLE"]).is_file()
    assert not Path(environment["TOPSMON_SIMULATED_CLOCK"]).exists()
    assert Path(environment["TOPSMON_SIMULATED_SCENARIO"]).name == "gb10.json"


def test_a_path_is_a_scenario_too(builds: Path, tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    path.write_text('{"extends": "gb10"}')
    environment = prepare(str(path), builds)
    assert environment["TOPSMON_SIMULATED"] == "own"
    assert environment["TOPSMON_SIMULATED_SCENARIO"] == str(path)


def test_the_library_loaded_first_serves_a_running_process(simulate) -> None:
    """A process that did not start with LD_LIBRARY_PATH gets it by its soname."""
    environment = simulate("rtx4090").environment
    folder = environment.pop("LD_LIBRARY_PATH").split(":")[0]
    code = (
        f"import ctypes; ctypes.CDLL({folder + '/libnvidia-ml.so.1'!r})\n"
        "import pynvml as n; n.nvmlInit()\n"
        "print(n.nvmlDeviceGetName(n.nvmlDeviceGetHandleByIndex(0)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "NVIDIA GeForce RTX 4090\n"
