"""The built wheel, outside the checkout: everything that is no Python file must be in it too."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", target, ROOT],
        check=True,
        capture_output=True,
    )
    return next(target.glob("topsmon-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    subprocess.run([*command, target, wheel], check=True, capture_output=True)
    return target


def run(installed: Path, tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed), "XDG_CONFIG_HOME": str(tmp_path)}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_wheel_holds_every_theme_and_no_test(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    shipped = {name.removeprefix("topsmon/themes/") for name in names if "/themes/" in name}
    assert shipped == {path.name for path in (ROOT / "themes").glob("*.toml")}
    assert len(shipped) >= 8
    assert not [name for name in names if name.startswith(("tests", "themes"))]


def test_themes_are_found_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    script = (
        "import topsmon\n"
        "from topsmon.tui import themes\n"
        "print(topsmon.__file__)\n"
        "print(len(themes.load([themes.packaged_directory()]).themes))\n"
    )
    result = run(installed, tmp_path, "-c", script)
    origin, count = result.stdout.splitlines()
    assert origin.startswith(str(installed)), result.stderr
    assert int(count) >= 8


def test_ceilings_and_the_simulated_driver_work_outside_the_checkout(
    installed: Path, tmp_path: Path
) -> None:
    specs = run(installed, tmp_path, "-m", "topsmon", "specs", "Tesla V100-SXM2-16GB")
    assert "15.7" in specs.stdout, specs.stderr
    scenarios = run(installed, tmp_path, "-m", "topsmon", "--simulate", "list")
    assert "power-cap" in scenarios.stdout, scenarios.stderr
    assert (installed / "topsmon" / "simulated" / "driver" / "driver.c").is_file()
    assert (installed / "topsmon" / "py.typed").is_file()


def test_what_enters_training_runs_is_shipped(installed: Path, tmp_path: Path) -> None:
    code = "import os; from topsmon.training import launch; print(*sorted(os.listdir(launch.BOOT)))"
    result = run(installed, tmp_path, "-c", code)
    assert {"_topsmon_boot.py", "sitecustomize.py"} <= set(result.stdout.split()), result.stderr
    assert (installed / "topsmon" / "demo" / "amp.py").is_file()
