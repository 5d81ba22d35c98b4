"""The file for node_exporter: whole or not at all."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from exported_machines import NOW, sample, state
from prometheus_client.core import Metric

from topsmon.exporters import textfile
from topsmon.exporters.prometheus import Exported, families, registry_of
from topsmon.files import NotReplacedError


def write(path: Path, watts: float) -> None:
    exported = Exported(state(sample(power_watts=watts)))
    textfile.write(path, registry_of(lambda: families(exported, NOW)))


def test_the_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "topsmon.prom"
    write(path, 1.0)
    with path.open() as reader:
        begun = reader.read(10)
        write(path, 2.0)
        whole = begun + reader.read()
    assert 'uuid="GPU-00000000-0000-0000-0000-000000000001"} 1.0\n' in whole
    assert "} 2.0\n" in path.read_text()
    assert [one.name for one in tmp_path.iterdir()] == ["topsmon.prom"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_what_goes_wrong_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "topsmon.prom"
    write(path, 1.0)
    before = path.read_bytes()

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write(path, 2.0)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_metrics_that_cannot_be_read_leave_no_file(tmp_path: Path) -> None:
    def read() -> list[Metric]:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        textfile.write(tmp_path / "x.prom", registry_of(read))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotReplacedError, match="no folder"):
        write(tmp_path / "nowhere" / "x.prom", 1.0)


@pytest.mark.parametrize("content", ["root:x:0:0\n", "# HELP node_load1 Load.\nnode_load1 1\n"])
def test_what_is_not_ours_is_not_written_over(tmp_path: Path, content: str) -> None:
    path = tmp_path / "topsmon.prom"
    path.write_text(content)
    with pytest.raises(NotReplacedError, match="is no file of topsmon's metrics"):
        write(path, 1.0)
    (tmp_path / "link.prom").symlink_to(path)
    with pytest.raises(NotReplacedError, match="no regular file"):
        write(tmp_path / "link.prom", 1.0)
    assert path.read_text() == content
