"""Judges of bus bandwidth: against published floors, or NVLink, else told without a verdict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from topsmon import events
from topsmon.checks.context import by_limits
from topsmon.checks.model import Floor, table
from topsmon.checks.ranks_context import RanksContext
from topsmon.diagnosis.expected import table as expected_table
from topsmon.distributed.bus import ALL_REDUCE
from topsmon.launcher.document import Measurement, hosts
from topsmon.units import bandwidth, binary_bytes, percent, plain, si

MODULES = "data_center_module"
SWITCHED = (8, 0)
"""From this compute capability on, modules of a node are joined by NVSwitch: any two have all links
between them."""
TOLERANCE = 0.9
"""nccl-tests fails below 0.9 x NCCL_TESTS_MIN_BW (its src/common.cu)."""
ABOVE = "above the wire by design: NVLink SHARP (NVLS) adds up in the switch"
INDICATIVE = "indicative only: gloo through the host's memory"


def judge_bus(context: RanksContext) -> Iterator[events.CheckResult]:
    """The bus bandwidth of one operation at its largest size."""
    document, check = context.document, context.check
    measured = document.of(check.value)
    if not measured:
        reasons = [
            reason
            for report in document.ranks
            for name, reason in report.unsupported.items()
            if name == check.value
        ]
        if reasons:
            yield context.result("UNSUPPORTED", cause=plain(reasons[0], 200))
        elif document.complete:
            yield context.result("NO-VERDICT", cause="not measured", unknown=True)
        return
    largest = measured[-1]
    value = largest.busbw_bytes_per_second
    told: dict[str, Any] = {
        "value": value,
        "unit": "bytes/s",
        "value_text": f"{bandwidth(value)} at {binary_bytes(largest.bytes)}",
        "evidence": _evidence(context, largest),
    }
    yield _judged(context, largest, told)


def _judged(
    context: RanksContext, largest: Measurement, told: dict[str, Any]
) -> events.CheckResult:
    document, check = context.document, context.check
    if document.kind != "gpu" or document.backend == "gloo":
        return context.result("NO-VERDICT", cause=INDICATIVE, **told)
    machines = document.nodes or len(hosts(document.ranks))
    if machines > 1:
        gigabits = largest.busbw_bytes_per_second * 8 / 1e9
        cause = (
            f"{gigabits:.0f} Gbit/s over {machines} machines: their network's speed is not known"
        )
        return context.result("NO-VERDICT", cause=cause, **told)
    ceilings = context.ceilings()
    if ceilings is None:
        return context.result("NO-VERDICT", cause="unequal GPUs: no common ceiling", **told)
    floor = _floor(ceilings.board, document.world_size) if check.value == ALL_REDUCE else None
    wire = ceilings.nvlink_bytes_per_second
    if wire:
        told |= _against(largest.busbw_bytes_per_second, wire, "NVLink", told["evidence"])
    if floor is not None:
        return _by_floor(context, floor, largest, told)
    if not wire or not _switched(context, ceilings) or check.pass_from is None:
        return context.result("NO-VERDICT", cause=_no_verdict(ceilings, told), **told)
    told |= {
        "pass_limit": check.pass_from * wire,
        "fail_limit": None if check.warn_from is None else check.warn_from * wire,
        "threshold_text": f">= {bandwidth(check.pass_from * wire)}",
    }
    state = by_limits(largest.busbw_bytes_per_second, check, wire)
    cause = f"{percent(told['ratio'])} of NVLink's {bandwidth(wire)} per direction"
    return context.result(state, cause="" if state == "PASS" else cause, **told)


def _against(value: float, wire: float, name: str, evidence: tuple[str, ...]) -> dict[str, Any]:
    """The ratio to the wire, and why it may be over 1."""
    words = f"{percent(value / wire)} of {name}'s {bandwidth(wire)} per direction"
    over = (ABOVE,) if value > wire else ()
    return {"ratio": value / wire, "evidence": (*evidence, words, *over)}


def _by_floor(
    context: RanksContext, floor: Floor, largest: Measurement, told: dict[str, Any]
) -> events.CheckResult:
    """Against what a provider demands of such a node, with the tolerance of nccl-tests.

    A payload under the published one gives less, so that it only warns.
    """
    least = floor.busbw * 1e9
    same = largest.bytes >= floor.payload_gib * 2**30
    published = f"{bandwidth(least)} at {floor.payload_gib:g} GiB: {floor.source}"
    told |= {
        "pass_limit": least * TOLERANCE,
        "fail_limit": least * TOLERANCE if same else None,
        "threshold_text": f">= {bandwidth(least * TOLERANCE)}",
        "basis": f"published floor {published}; less {percent(1 - TOLERANCE, 0)} as nccl-tests has "
        "it" + ("" if same else "; measured with a smaller payload, so no failure"),
        "experimental": not same,
    }
    if largest.busbw_bytes_per_second >= least * TOLERANCE:
        return context.result("PASS", **told)
    return context.result("FAIL", cause=f"below the published floor {published}", **told)


def _floor(board: str | None, ranks: int) -> Floor | None:
    return next((one for one in table().floor if board in one.boards and one.ranks == ranks), None)


def _switched(context: RanksContext, ceilings: events.Ceilings) -> bool:
    if ceilings.board not in expected_table().groups[MODULES]:
        return False
    device = context.document.ranks[0].device
    major, _, minor = ((device.compute_capability if device else None) or "0.0").partition(".")
    return (int(major), int(minor or 0)) >= SWITCHED


def _no_verdict(ceilings: events.Ceilings, told: dict[str, Any]) -> str:
    if ceilings.nvlink_bytes_per_second:
        return "information only: which of these boards NVLink joins is not known"
    pcie = ceilings.pcie_bytes_per_second
    if pcie:
        return (
            f"{percent(told['value'] / pcie)} of PCIe's {bandwidth(pcie)} per direction; nobody "
            "published figures for collectives over PCIe"
        )
    return "no ceiling known"


def _evidence(context: RanksContext, largest: Measurement) -> tuple[str, ...]:
    document = context.document
    return (
        f"{document.world_size} ranks, {document.backend}, slowest rank",
        f"median of {largest.calls} calls {si(largest.seconds, 's', 3)}",
        f"algbw {bandwidth(largest.algbw_bytes_per_second)}",
    )


def judge_latency(context: RanksContext) -> Iterator[events.CheckResult]:
    """The time of the smallest all-reduce. Information."""
    measured = context.document.of(ALL_REDUCE)
    if measured:
        smallest = measured[0]
        yield context.result(
            "NO-VERDICT",
            value=smallest.seconds,
            unit="s",
            value_text=f"{si(smallest.seconds, 's', 3)} at {binary_bytes(smallest.bytes)}",
            cause="information only",
        )
