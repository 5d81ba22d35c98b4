"""What holds for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def no_runs_of_this_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Training runs that really run on the machine must not show up in a test."""
    folder = tmp_path_factory.mktemp("training") / "runs"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOPSMON_DIR", str(folder))
        yield
