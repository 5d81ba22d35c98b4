"""Which rank a process is: by its process group where there is one, else by its launcher."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.testing._internal.distributed.fake_pg import FakeStore

from topsmon.training.recorder.process import identity_of_process


def told() -> tuple[object, object]:
    identity = identity_of_process()
    return identity["rank"], identity["world_size"]


@pytest.fixture
def third_of_eight() -> Iterator[None]:
    torch.distributed.init_process_group("fake", rank=3, world_size=8, store=FakeStore())
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def test_alone_there_is_no_rank() -> None:
    assert told() == (None, None)


def test_a_launcher_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "6")
    assert told() == (5, 6)


@pytest.mark.usefixtures("third_of_eight")
def test_a_process_group_tells_it_where_no_launcher_did() -> None:
    """As in Lightning, whose ddp strategy sets LOCAL_RANK for its children only."""
    assert told() == (3, 8)


@pytest.mark.usefixtures("third_of_eight")
def test_a_process_group_knows_better(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    assert told() == (3, 8)
