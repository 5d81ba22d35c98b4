"""The C source of the driver library as a compiler and a reader see it."""

import re
import subprocess
from pathlib import Path

import pytest

from topsmon.simulated import SimulationError
from topsmon.simulated.build import FLAGS, LINK, compiler
from topsmon.simulated.device import MAX_DEVICES
from topsmon.simulated.fields import NUMBER_FIELDS, TEXT_FIELDS
from topsmon.simulated.table import SOURCES
from topsmon.simulated.values import MAX_TOKENS

TEXT = "\n".join(path.read_text("ascii") for path in sorted(SOURCES.glob("*.c")))
PROBERS = {"burst_clock_mhz", "burst_pcie_generation", "burst_power_watts"}
DRIVERS = {"driver_version", "nvml_version", "cuda_version", "process_entry_bytes"}


@pytest.mark.parametrize("release", [470, 535, 580])
def test_it_compiles_without_a_warning(release: int, tmp_path: Path) -> None:
    try:
        command = compiler()
    except SimulationError as error:
        pytest.skip(str(error))
    warnings = ("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror")
    done = subprocess.run(
        [*command, *FLAGS, *warnings, f"-DDRIVER={release}", *SOURCES.glob("*.c"),
         "-o", tmp_path / "library.so", *LINK],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", sorted(SOURCES.iterdir()), ids=lambda path: path.name)
def test_files_are_short(path: Path) -> None:
    lines = path.read_text("ascii").splitlines()
    assert len(lines) <= 400
    assert max(map(len, lines)) <= 100


def test_the_driver_asks_for_the_fields_that_scenarios_may_have() -> None:
    """A field that no call reads, or one that no scenario may have, is a misspelling."""
    strings = set(re.findall(r'"([a-z][a-z0-9_]*)"', TEXT))
    assert strings >= {*NUMBER_FIELDS, *TEXT_FIELDS} - PROBERS
    asked = set(
        re.findall(r'"([a-z0-9_]+_(?:percent|watts|celsius|mhz|bytes|kib|errors|mib))"', TEXT)
    )
    assert asked <= NUMBER_FIELDS | DRIVERS


def test_limits_agree() -> None:
    headers = "\n".join(path.read_text("ascii") for path in SOURCES.glob("*.h"))
    limits = dict(re.findall(r"#define (MAX_\w+) (\d+)", headers))
    assert int(limits["MAX_DEVICES"]) == MAX_DEVICES
    assert int(limits["MAX_TOKENS"]) == MAX_TOKENS
    assert max(map(len, NUMBER_FIELDS)) + len(".64") < int(limits["MAX_NAME"])
