"""Every JSON document says which one it is and which version wrote it, in one way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import topsmon
from topsmon import events
from topsmon.cli.root import root
from topsmon.exporters import fleet_summary
from topsmon.exporters.fleet_reading import Reading
from topsmon.launcher.document import Ranks
from topsmon.remote.snapshot import HostReading
from topsmon.report import bench, check_document, flops, hosts, roofline
from topsmon.report.counted import NOTHING, Count, Total
from topsmon.state import State


def printed(*words: str) -> bytes:
    return CliRunner().invoke(root, words, obj=()).stdout_bytes


def benched() -> bench.BenchDocument:
    return bench.document(State(), (), wall=1.0)


def host_readings() -> bytes:
    return hosts.to_json([HostReading("a", problem="not reached")])


def drawn() -> bytes:
    device = events.Device(
        time=0.0, monotonic=0.0, source="", device="GPU-0", kind="gpu", index=0, name="a board"
    )
    state = State()
    state.apply(device, 0.0)
    return roofline.to_json(roofline.build(state.devices["GPU-0"], None))


def checked() -> bytes:
    document = check_document.CheckDocument(
        version=topsmon.__version__,
        host="a",
        started_unix_seconds=0.0,
        duration_seconds=0.0,
        status="OK",
        exit_code=0,
        ranks=Ranks(world_size=2),
    )
    return check_document.to_json(document)


def counted() -> bytes:
    total = Total(NOTHING, NOTHING, 0, 0)
    count = Count(1, "m:f", "2.0", "3.11", "train", (), "", {}, (), total, (), 0)
    return flops.to_json(count, flops.Device("a board", None))


DOCUMENTS: dict[str, Callable[[], bytes]] = {
    "once": lambda: printed("--once", "--json", "-o", "cpu"),
    "hosts": host_readings,
    "fleet-snapshot": lambda: printed("--simulate", "nodes=2,gpus=1", "--once", "--json"),
    "fleet": lambda: fleet_summary.to_json(Reading(0.0), "http://x"),
    "specs": lambda: printed("specs", "h100-sxm", "--json"),
    "roofline": drawn,
    "bench": lambda: bench.to_json(benched()),
    "bench-comparison": lambda: bench.comparison_json(bench.compare(benched(), benched())),
    "flops": counted,
    "check": checked,
    "doctor": lambda: printed("doctor", "--json"),
    "runs": lambda: printed("runs", "--json"),
}
BEFORE = {"once", "hosts", "specs", "roofline", "bench", "bench-comparison"}
"""They have their older keys too."""


@pytest.mark.parametrize("name", DOCUMENTS)
def test_schema_and_version(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("TOPSMON_DIR", str(tmp_path))
    found = json.loads(DOCUMENTS[name]())
    for document in found if isinstance(found, list) else [found]:
        assert document["schema"] == f"topsmon.{name}/1"
        assert document["version"] == topsmon.__version__
        assert ("schema_version" in document) == (name in BEFORE)
