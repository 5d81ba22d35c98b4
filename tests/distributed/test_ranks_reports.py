"""What is shown of several ranks: text, JSON, JUnit, Nagios; advice in the text."""

from xml.etree import ElementTree as ET

import pytest
from ranks_nodes import A100_PCIE, document, gpu, report, verdicts

from topsmon.checks import ranks_advice
from topsmon.checks.command import CheckOptions, render
from topsmon.checks.outcome import exit_code, status
from topsmon.launcher.document import Ranks
from topsmon.report.check_document import CheckDocument, from_json


@pytest.fixture(autouse=True)
def no_recorded_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks_advice, "_recorded", lambda: None)


def shown(ranks: Ranks, form: str = "text", **advice: float) -> str:
    results = tuple(verdicts(ranks))
    told = CheckDocument(
        version="1",
        host="node0",
        started_unix_seconds=0.0,
        duration_seconds=12.0,
        status=status(results),
        exit_code=exit_code(results),
        checks=results,
        ranks=ranks,
        balance=ranks_advice.advise(ranks, **advice),  # type: ignore[arg-type]
    )
    return render(told, CheckOptions(format=form)).decode()  # type: ignore[arg-type]


SLOW = (800, 800, 600, 800)


def slow_node() -> Ranks:
    return document(*(report(at, rate * 1e12) for at, rate in enumerate(SLOW)))


def test_text_has_the_straggler_the_table_and_the_code() -> None:
    told = shown(slow_node())
    assert "FAIL  rank 2  straggler: 25.0% below the best of 4 equal ranks" in told
    assert "rank 0-1,3" in told
    row = next(line for line in told.splitlines() if line.startswith("all-reduce  "))
    # 1 GiB x 2 x 3/4 / 380 GB/s = 4.24 ms.
    assert "380 (4.24 ms)" in row
    assert "exit 2" in told


def test_json_holds_every_rank_and_reads_back() -> None:
    told = from_json(shown(slow_node(), "json").encode())
    assert told.ranks is not None
    assert [one.gemm.rate_ops_per_second for one in told.ranks.ranks if one.gemm] == [
        rate * 1e12 for rate in SLOW
    ]
    assert told.exit_code == 2


def test_junit_and_nagios_name_the_rank() -> None:
    root = ET.fromstring(shown(slow_node(), "junit"))
    failed = [case for case in root.iter("testcase") if case.find("failure") is not None]
    assert [(case.get("classname"), case.get("name")) for case in failed] == [
        ("topsmon.rank 2", "straggler")
    ]
    line = shown(slow_node(), "nagios")
    assert line.startswith("TOPSMON CRITICAL - rank 2 straggler")
    assert "all_ranks_all_reduce_giga_bytes_per_second=380;" in line


def test_advice_on_communication() -> None:
    # 1e9 x 4 bytes x 1.5 / 380 GB/s = 15.8 ms; beside 15.8 ms of computing half of the step.
    ranks = document(*map(report, range(4)))
    told = shown(ranks, parameters=1_000_000_000, step_seconds=0.01579)
    assert "4.00 GB of gradients" in told
    assert "15.8 ms over 4 ranks at 380 GB/s (measured at 1.0 GiB)" in " ".join(told.split())
    assert "50.0% of the step" in told
    assert "9 micro-batches accumulated: 10.0% of the step" in " ".join(told.split())
    assert "model.no_sync()" in told
    assert "batch split" not in told


def test_advice_on_unequal_cards() -> None:
    ranks = document(report(0, 600e12), report(1, 200e12, device=gpu(1, **A100_PCIE)))
    told = " ".join(shown(ranks).split())
    # Memory 149 and 41 GB: 78.4 % and 21.6 %; rates 75 and 25 %: min 75 and 21.6, normalised.
    assert "rank 0: 77.7% of the batch (memory 78.4%, rate 75.0%)" in told
    assert "n_i x world / N" in told


def test_nothing_is_advised_of_what_is_not_known() -> None:
    ranks = document(report(0, None), report(1), measurements=())
    assert ranks_advice.advise(ranks, 1000).communication is None
    assert ranks_advice.advise(ranks, 1000).split is None
