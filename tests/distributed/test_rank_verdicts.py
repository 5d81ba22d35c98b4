"""Verdicts over several ranks: stragglers, links, lost ranks, wrong values."""

from typing import Any

import msgspec
import pytest
from ranks_nodes import A100_PCIE, GIB, cpu, document, gpu, measurement, report, verdict, verdicts

from topsmon.checks import model
from topsmon.checks.collective import JUDGES, Surroundings
from topsmon.launcher.document import RankReport, Ranks, RankTime, to_blame


def test_every_check_has_a_judge_and_chosen_limits_say_so() -> None:
    checks = model.table().ranks
    assert {check.judge for check in checks} == {*JUDGES, "backend"}
    assert len({check.id for check in checks}) == len(checks)
    for check in checks:
        assert bool(check.experimental) == ("chosen" in check.basis), check.id


def by_label(ranks: Ranks, check: str) -> dict[str, tuple[str, str]]:
    return {one.label: (one.state, one.cause) for one in verdicts(ranks, check)}


# Stragglers


@pytest.mark.parametrize(
    ("slow", "state"), [(96.0, "PASS"), (94.0, "WARN"), (91.0, "WARN"), (89.0, "FAIL")]
)
def test_a_gpu_below_the_best_of_its_equals(slow: float, state: str) -> None:
    rates = [100.0, 100.0, 99.0, slow]
    ranks = document(*(report(at, rate * 1e12) for at, rate in enumerate(rates)))
    found = by_label(ranks, "straggler")
    assert found["rank 3"][0] == state
    assert {found[f"rank {at}"][0] for at in range(3)} == {"PASS"}


def test_the_straggler_is_named_with_its_cost_and_its_reason() -> None:
    # One of eight equal cards at 78: the job loses 1 - 78 / 97.25 = 19.8 %.
    rates = [100, 100, 99, 101, 100, 78, 100, 100]
    hot = {"clock_event_mask": 0x40, "held_clock_mhz": 1200.0, "power_watts": 350.0}
    ranks = document(
        *(report(at, rate * 1e12, gemm=hot if at == 5 else {}) for at, rate in enumerate(rates))
    )
    (bad,) = (one for one in verdicts(ranks, "straggler") if one.state != "PASS")
    assert (bad.label, bad.state) == ("rank 5", "FAIL")
    assert "22.8% below the best of 8" in bad.cause
    assert "too hot" in bad.cause
    told = " ".join(bad.evidence)
    assert "GPU-0005" in told
    assert "node0 GPU 5" in told
    assert "median 100" in told
    assert "it loses 19.8%" in told
    assert "held 1200 MHz, 350 W" in told


def test_of_two_ranks_the_slow_one_is_named() -> None:
    found = by_label(document(report(0, 800e12), report(1, 400e12)), "straggler")
    assert found["rank 0"][0] == "PASS"
    assert found["rank 1"][0] == "FAIL"


def test_unequal_cards_are_not_held_against_each_other() -> None:
    ranks = document(report(0), report(1, 200e12, device=gpu(1, **A100_PCIE)))
    assert {state for state, _ in by_label(ranks, "straggler").values()} == {"NO-VERDICT"}


@pytest.mark.parametrize(("slow", "state"), [(75.0, "PASS"), (65.0, "WARN"), (10.0, "WARN")])
def test_ranks_on_a_processor_only_warn(slow: float, state: str) -> None:
    ranks = document(
        report(0, 100e9, device=cpu()), report(1, slow * 1e9, device=cpu()), backend="gloo"
    )
    found = by_label(ranks, "straggler-cpu")
    assert found["rank 1"][0] == state
    assert state == "PASS" or "indicative only" in found["rank 1"][1]
    assert not verdicts(ranks, "straggler")


# Links


def test_nvls_above_the_wire_is_no_fault() -> None:
    # 8 x H200 with NVLS: 473 GB/s over 450 (stas00/ml-engineering, network/README.md).
    result = verdict(document(*map(report, range(8)), busbw=473e9), "all-reduce")
    assert result.state == "PASS"
    assert result.ratio == pytest.approx(473 / 450, rel=1e-3)
    assert any("above the wire by design" in line for line in result.evidence)
    assert "431" in result.basis
    assert "nd96isr_h200_v5.conf" in result.basis


@pytest.mark.parametrize(("busbw", "state"), [(363.3, "PASS"), (250.0, "WARN"), (100.0, "WARN")])
def test_four_gpus_against_nvlink(busbw: float, state: str) -> None:
    # 4 x H200 by the ring: 363.3 GB/s, 81 % of the wire (the same table).
    result = verdict(document(*map(report, range(4)), busbw=busbw * 1e9), "all-reduce")
    assert result.state == state
    assert result.experimental


def test_a_published_floor_is_judged_as_nccl_tests_does() -> None:
    low = document(*map(report, range(8)), busbw=380e9)
    result = verdict(low, "all-reduce")
    assert result.state == "WARN"  # 1 GiB, published for 16 GiB
    full = measurement("all-reduce", 8, 16 * GIB, 380e9)
    result = verdict(msgspec.structs.replace(low, measurements=(full,)), "all-reduce")
    assert result.state == "FAIL"
    enough = measurement("all-reduce", 8, 16 * GIB, 0.91 * 431e9)
    result = verdict(msgspec.structs.replace(low, measurements=(enough,)), "all-reduce")
    assert result.state == "PASS"


def test_pcie_boards_are_told_without_a_verdict() -> None:
    ranks = document(*(report(at, device=gpu(at, **A100_PCIE)) for at in range(4)), busbw=10e9)
    assert verdict(ranks, "all-reduce").state == "NO-VERDICT"


def test_several_machines_are_told_in_gigabits() -> None:
    ranks = document(*map(report, range(8)), busbw=40e9, nodes=2)
    result = verdict(ranks, "all-reduce")
    assert result.state == "NO-VERDICT"
    assert "320 Gbit/s over 2 machines" in result.cause


def test_gloo_beside_gpus() -> None:
    result = verdict(document(report(0), report(1), backend="gloo"), "backend")
    assert result.state == "WARN"
    assert "nccl" in result.remedy
    on_cpu = document(report(0, device=cpu()), report(1, device=cpu()), backend="gloo")
    around = Surroundings(gpus_here=2)
    assert verdict(on_cpu, "backend", surroundings=around).state == "WARN"
    assert not verdicts(on_cpu, "backend", surroundings=Surroundings(2, cpu_asked=True))
    assert not verdicts(on_cpu, "backend")


def test_an_operation_that_the_library_lacks() -> None:
    one = report(0, unsupported={"reduce-scatter": "gloo does not support reduce_scatter"})
    ranks = document(one, report(1), measurements=())
    result = verdict(ranks, "reduce-scatter")
    assert result.state == "UNSUPPORTED"
    assert not result.unknown


def test_a_shared_switch_shows_when_all_copy_at_once() -> None:
    def with_copies(rank: int, together: float) -> RankReport:
        copies = {"h2d_alone_bytes_per_second": 50e9, "h2d_together_bytes_per_second": together}
        return report(rank, transfer=copies)

    found = by_label(document(with_copies(0, 26e9), with_copies(1, 49e9)), "shared-link")
    assert found["rank 0"][0] == "WARN"
    assert "switch" in found["rank 0"][1]
    assert found["rank 1"][0] == "PASS"


# Wrong values


def test_wrong_values_fail_and_name_operation_and_rank() -> None:
    right = RankTime(operation="all-reduce", bytes=GIB, seconds=0.1, correct=True)
    wrong = msgspec.structs.replace(right, operation="all-gather", correct=False)
    ranks = document(report(0, collectives=(right,)), report(1, collectives=(right, wrong)))
    result = verdict(ranks, "collective-values")
    assert result.state == "FAIL"
    assert "all-gather" in result.cause
    assert "rank 1" in result.cause


def test_a_wrong_product_fails_on_its_rank() -> None:
    bad = report(1)
    assert bad.gemm is not None
    wrong = msgspec.structs.replace(bad.gemm, correct=False, relative_error=0.3)
    ranks = document(report(0), msgspec.structs.replace(bad, gemm=wrong))
    result = verdict(ranks, "rank-results")
    assert (result.label, result.state) == ("rank 1", "FAIL")


# Ranks that are lost

RESET = "[gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer"
TIMED_OUT = "Timed out waiting 3000ms for recv operation to complete"


def lost(*reports: RankReport, problem: str = RESET, **fields: Any) -> Ranks:
    return document(*reports, problem=problem, measurements=(), **fields)


def test_the_rank_that_ends_without_a_word_is_named() -> None:
    ranks = lost(
        report(0, ended="failed", failure=RESET, stage="all-gather 1 MiB"),
        report(1, ended="", stage="all-gather 1 MiB", fate="gone"),
        report(2, ended="failed", failure=RESET, stage="all-gather 1 MiB"),
    )
    result = verdict(ranks, "ranks")
    assert (result.label, result.state, result.unknown) == ("rank 1", "NO-VERDICT", True)
    assert "ended without a word in all-gather 1 MiB" in result.cause
    assert "PID 1001" in result.cause or "GPU 1" in result.cause


def test_the_rank_that_lags_behind_is_named() -> None:
    ranks = lost(
        report(0, ended="failed", failure=TIMED_OUT, steps=41),
        report(1, ended="failed", failure="time-out", steps=40, stage="gemm"),
        report(2, ended="failed", failure=TIMED_OUT, steps=41),
        problem=TIMED_OUT,
    )
    assert [one.rank for one in to_blame(ranks)] == [1]
    assert "hangs in gemm" in verdict(ranks, "ranks").cause


def test_an_error_of_its_own_comes_before_its_consequences() -> None:
    ranks = lost(
        report(0, ended="failed", failure=RESET, steps=40),
        report(1, ended="", steps=40),
        report(2, ended="failed", failure="CUDA out of memory. Tried to allocate 2 GiB", steps=41),
    )
    result = verdict(ranks, "ranks")
    assert result.label == "rank 2"
    assert "CUDA out of memory" in result.cause


def test_where_all_wait_alike_the_link_is_suspected_and_nobody_blamed() -> None:
    ranks = lost(*(report(at, ended="failed", failure=TIMED_OUT) for at in range(4)))
    result = verdict(ranks, "ranks")
    assert result.label == "all ranks"
    assert "no rank stands out" in result.cause


def test_ranks_that_never_came_are_numbered() -> None:
    ranks = lost(report(0, None, ended="failed", failure="did not meet"), world_size=3)
    (result,) = (one for one in verdicts(ranks, "ranks") if "never heard" in one.cause)
    assert "rank 1, 2" in result.cause


def test_a_broken_ring_still_names_the_slow_rank() -> None:
    ranks = lost(
        *(
            report(at, 400e12 if at == 2 else 800e12, ended="failed", failure="time-out")
            for at in range(4)
        )
    )
    assert by_label(ranks, "straggler")["rank 2"][0] == "FAIL"
