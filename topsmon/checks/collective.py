"""Judges over several ranks: who is missing, who is slow, what the links between them give."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from topsmon import events
from topsmon.checks.bus import judge_bus, judge_latency
from topsmon.checks.context import Moment
from topsmon.checks.model import Check
from topsmon.checks.ranks_context import ALL, RanksContext
from topsmon.checks.stragglers import judge_stragglers
from topsmon.launcher.document import INTERRUPTED, RankReport, Ranks, hosts, missing, to_blame
from topsmon.units import bandwidth, percent, plain

NO_RANK = (
    "Look at the network between the machines: NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME name its "
    "interface; NCCL_DEBUG=INFO tells what NCCL does."
)

LOOK = (
    "Look at that rank's device: nvidia-smi, Xids in the kernel log; py-spy dump --pid shows "
    "where it hangs."
)


@dataclass(frozen=True)
class Surroundings:
    """What the ranks do not tell: GPUs that the driver shows here, a device that was asked for."""

    gpus_here: int = 0
    cpu_asked: bool = False


def judge(
    document: Ranks,
    moment: Moment,
    checks: Sequence[Check],
    *,
    source: str = "",
    surroundings: Surroundings | None = None,
) -> tuple[events.CheckResult, ...]:
    """The verdicts in the table's order. Pure."""
    around = surroundings or Surroundings()
    results: list[events.CheckResult] = []
    for check in checks:
        context = RanksContext(document, check, moment, source)
        if check.judge == "backend":
            results.extend(judge_backend(context, around))
        elif document.kind is None or document.kind in check.kinds:
            results.extend(JUDGES[check.judge](context))
    return tuple(results)


def judge_answers(context: RanksContext) -> Iterator[events.CheckResult]:
    """Every rank measures to the end; else the one that the others waited for is named."""
    document = context.document
    if document.complete:
        machines = len(hosts(document.ranks))
        where = "1 machine" if machines == 1 else f"{machines} machines"
        yield context.result(
            "PASS",
            value=float(document.world_size),
            unit="count",
            value_text=f"{document.world_size} ranks on {where}",
        )
        return
    if document.problem == INTERRUPTED:
        yield context.result("NO-VERDICT", cause=INTERRUPTED, unknown=True)
        return
    blamed = to_blame(document)
    for report in blamed:
        cause, remedy = _fate(report)
        yield context.result(
            "NO-VERDICT",
            label=report.label,
            device=report.label,
            cause=cause,
            remedy=remedy,
            unknown=True,
        )
    unknown = missing(document)
    if unknown:
        names = ", ".join(str(rank) for rank in unknown[:8])
        more = ", ..." if len(unknown) > 8 else ""
        yield context.result(
            "NO-VERDICT",
            cause=f"never heard of rank {names}{more}: {plain(document.problem, 200)}",
            remedy="Check that the ranks of all machines were started and can reach rank 0.",
            unknown=True,
        )
    if not blamed and not unknown:
        yield context.result(
            "NO-VERDICT",
            cause=f"no rank stands out: {plain(document.problem or 'ended early', 240)}",
            remedy=NO_RANK,
            unknown=True,
        )


def _fate(report: RankReport) -> tuple[str, str]:
    """What became of a rank, and what to do."""
    stage, place = plain(report.stage or "its start", 60), plain(report.place, 80)
    if report.failed_by_itself:
        return (
            f"{report.label} ({place}) failed in {stage}: {plain(report.failure, 240)}",
            "Cure this error on that rank's device first.",
        )
    if report.fate == "stopped":
        words = f"{report.label} ({place}) is stopped (SIGSTOP or a debugger) in {stage}"
        return words, "Look for what stopped it: a debugger, job control, a checkpoint of the job."
    if report.fate == "gone" or (not report.ended and not report.fate):
        return (
            f"{report.label} ({place}) ended without a word in {stage}",
            "Look for a kill: the kernel log (dmesg: out of memory, Xid), limits of the job.",
        )
    return f"{report.label} ({place}) hangs in {stage}: the others waited in vain", LOOK


def judge_backend(context: RanksContext, around: Surroundings) -> Iterator[events.CheckResult]:
    """NCCL moves data between GPUs; gloo there costs most of the bandwidth."""
    document = context.document
    if document.kind == "gpu" and document.backend == "gloo":
        yield context.result("WARN", value_text="gloo", cause="gloo with CUDA GPUs present")
    elif document.kind == "gpu" and document.backend is not None:
        version = f" {document.nccl_version}" if document.nccl_version else ""
        yield context.result("PASS", value_text=f"{document.backend}{version}")
    elif document.kind == "cpu" and around.gpus_here and not around.cpu_asked:
        yield context.result(
            "WARN",
            value_text="gloo",
            cause=f"torch {document.torch_version} finds no GPU, the driver shows "
            f"{around.gpus_here}: gloo on the processor was measured",
            remedy="Install a CUDA build of torch, or name an interpreter with --python; "
            "then nccl is used.",
        )


def judge_results(context: RanksContext) -> Iterator[events.CheckResult]:
    """No rank's matrix product is wrong."""
    checked = [one for one in context.document.ranks if one.gemm is not None]
    wrong = [one for one in checked if one.gemm is not None and one.gemm.correct is False]
    for report in wrong:
        assert report.gemm is not None
        error = report.gemm.relative_error
        shown = "not finite" if error is None else f"{error:.1e}"
        yield context.result(
            "FAIL",
            label=report.label,
            device=report.label,
            value_text=f"relative error {shown}",
            cause=f"wrong result on {plain(report.place, 80)}",
            evidence=context.identity(report),
        )
    if checked and not wrong:
        yield context.result("PASS", value_text=f"{len(checked)} right")


def judge_values(context: RanksContext) -> Iterator[events.CheckResult]:
    """Every element of every collective is what it should be, on every rank."""
    wrong = [
        (report, one)
        for report in context.document.ranks
        for one in report.collectives
        if not one.correct
    ]
    count = sum(len(report.collectives) for report in context.document.ranks)
    if wrong:
        ranks = ", ".join(dict.fromkeys(str(report.rank) for report, _ in wrong))
        where = ", ".join(dict.fromkeys(one.operation for _, one in wrong))
        yield context.result(
            "FAIL",
            value=float(len(wrong)),
            unit="count",
            value_text=f"{len(wrong)} of {count} wrong",
            lower_is_better=True,
            cause=f"wrong values in {where}, seen on rank {ranks}",
        )
    elif count:
        yield context.result("PASS", value_text=f"{count} right")


def judge_shared_link(context: RanksContext) -> Iterator[events.CheckResult]:
    """Copies of a rank's GPU alone against those with all others: a shared switch or root port."""
    limit = context.check.pass_from
    assert limit is not None
    for report in context.document.ranks:
        known = report.transfer
        shares = {
            name: known[f"{name}_together_bytes_per_second"]
            / known[f"{name}_alone_bytes_per_second"]
            for name in ("h2d", "d2h")
            if known.get(f"{name}_alone_bytes_per_second")
            and known.get(f"{name}_together_bytes_per_second")
        }
        if not shares:
            continue
        worst = min(shares, key=shares.__getitem__)
        alone = known[f"{worst}_alone_bytes_per_second"]
        both = known[f"{worst}_together_bytes_per_second"]
        told: dict[str, Any] = {
            "label": report.label,
            "device": report.label,
            "value": shares[worst],
            "unit": "ratio",
            "value_text": f"{percent(shares[worst], 0)} of alone",
            "threshold_text": f">= {percent(limit, 0)}",
            "pass_limit": limit,
            "evidence": (f"{worst}: alone {bandwidth(alone)}, all at once {bandwidth(both)}",),
        }
        if shares[worst] >= limit:
            yield context.result("PASS", **told)
        else:
            cause = "GPUs share their way to the host: a switch or a root port"
            yield context.result("WARN", cause=cause, **told)


JUDGES: Mapping[str, Callable[[RanksContext], Iterator[events.CheckResult]]] = {
    "answers": judge_answers,
    "straggler": judge_stragglers,
    "results": judge_results,
    "values": judge_values,
    "latency": judge_latency,
    "bus": judge_bus,
    "shared-link": judge_shared_link,
}
"""The judge "backend" also wants the surroundings and stands apart."""

__all__ = ["ALL", "JUDGES", "Surroundings", "judge"]
