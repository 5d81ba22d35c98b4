"""The command line may look at the screen's options without paying for Textual."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("topsmon.tui", ("textual", "rich", "torch", "pynvml")),
        ("topsmon.tui.app", ("torch", "pynvml", "numpy")),
    ],
)
def test_an_import_loads_no_more_than_it_needs(module: str, absent: tuple[str, ...]) -> None:
    program = f"import sys, {module}; print([name for name in {absent!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
