"""Judges of laboratory probes: memory bandwidth, copies, latencies, sizes, overlap."""

from __future__ import annotations

import re
from typing import Any

from topsmon import events
from topsmon.ceilings.links import pcie
from topsmon.checks.context import Context, by_limits
from topsmon.checks.model import Check, PcieFigure, table
from topsmon.device_state import DeviceState
from topsmon.diagnosis.expected import table as expected_table
from topsmon.diagnosis.words import number
from topsmon.units import bandwidth, binary_bytes, percent, plain, si

FULL_WIDTH = 16
DATA_CENTER = ("data_center_pcie", "data_center_module")
NOT_THE_LINK = "pinned copies are slower than the link: NUMA node, IOMMU, switch or a shared link"
BASE = 4096
NOTHING_RAN = "Check the driver, the kernel log (Xid) and the torch build."
TIMED_WRONG = "Check again; if it stays, report it to topsmon with the output of check --json."
LOSES = 0.95
"""A size below this share of the base's rate loses enough to be told."""
_RATE_OF_SIZE = re.compile(r"rate_([0-9]+)_ops_per_second")


def _probe(context: Context) -> events.ProbeResult | events.CheckResult:
    """The probe's result, or the answer where there is none that can be judged."""
    device, check = context.board, context.check
    probe = device.probes.get(check.needs)
    if probe is None:
        if check.needs in device.refused:
            return context.result("UNSUPPORTED", cause=plain(device.refused[check.needs], 200))
        return context.missing()
    if probe.correct is False:
        return context.result("FAIL", cause="the result is wrong: see the check 'correctness'")
    return probe


def _measured(
    context: Context,
) -> tuple[events.ProbeResult, float] | events.CheckResult:
    """The probe's result and the value that this check is about."""
    probe, check = _probe(context), context.check
    if isinstance(probe, events.CheckResult):
        return probe
    value = probe.values.get(check.value)
    if value is None:
        reason = probe.unavailable.get(check.value)
        if reason is not None:
            return context.result("UNSUPPORTED", cause=plain(reason, 200))
        return context.missing(probe.invalid_reason or "the probe gave no value")
    return probe, value


def _doubt(
    context: Context, probe: events.ProbeResult, told: dict[str, Any]
) -> events.CheckResult | None:
    """INVALID or FAIL for a value that no limit can judge, else None."""
    if not probe.valid:
        return context.disturbed(probe.invalid_reason, told)
    if not told["value"] > 0:
        if told["unit"] == "s":
            cause = "a time of 0 cannot be: nothing was launched"
            return context.result("INVALID", cause=cause, remedy=NOTHING_RAN, unknown=True, **told)
        return context.result(
            "FAIL",
            **{
                **told,
                "cause": "measured as 0",
                "remedy": NOTHING_RAN,
            },
        )
    return None


def judge_bandwidth(context: Context) -> events.CheckResult | None:
    """Memory bandwidth against the ceiling of bus width and clock."""
    measured = _measured(context)
    if isinstance(measured, events.CheckResult):
        return measured
    (probe, value), check, device = measured, context.check, context.board
    ceiling, no_ceiling = _memory_ceiling(device)
    told: dict[str, Any] = {"value": value, "unit": "bytes/s", "value_text": bandwidth(value)}
    evidence = _memory_evidence(context, probe, value, ceiling)
    if evidence:
        told["evidence"] = evidence
    if ceiling:
        told["ratio"] = value / ceiling
    doubt = _doubt(context, probe, told) or _in_cache(context, probe, value, ceiling, told)
    if doubt is not None:
        return doubt
    if not ceiling:
        return context.result("NO-VERDICT", cause=no_ceiling, **told)
    told |= _limits(check, ceiling)
    told["threshold_text"] = f">= {bandwidth(told['pass_limit'])}"
    state = by_limits(value, check, ceiling)
    cause = f"{percent(value / ceiling)} of the {bandwidth(ceiling)} of bus width and clock"
    return context.result(state, cause="" if state == "PASS" else cause, **told)


def _memory_ceiling(device: DeviceState) -> tuple[float | None, str]:
    """Bytes per second, or None and why."""
    ceilings = device.ceilings
    if device.identity.mig:
        return None, "a MIG slice has a share of the bandwidth that is not readable"
    if ceilings is None:
        return None, "no ceiling known"
    value = ceilings.memory_bandwidth_bytes_per_second
    return value, plain(f"no ceiling known: {ceilings.memory_bandwidth_source}", 200)


def _in_cache(
    context: Context,
    probe: events.ProbeResult,
    value: float,
    ceiling: float | None,
    told: dict[str, Any],
) -> events.CheckResult | None:
    """INVALID for a bandwidth that is the cache's, else None."""
    cause = _cache_held_it(context, probe)
    impossible = context.check.impossible
    if cause is None and ceiling and impossible is not None and value > impossible * ceiling:
        cause = f"{percent(value / ceiling)} of the ceiling: served by the cache, not by memory"
    if cause is None:
        return None
    return context.result("INVALID", cause=cause, remedy=TIMED_WRONG, unknown=True, **told)


def _limits(check: Check, scale: float) -> dict[str, Any]:
    return {
        "pass_limit": None if check.pass_from is None else check.pass_from * scale,
        "fail_limit": None if check.warn_from is None else check.warn_from * scale,
    }


def _memory_evidence(
    context: Context, probe: events.ProbeResult, value: float, ceiling: float | None
) -> tuple[str, ...]:
    lines = []
    if ceiling:
        lines.append(f"{percent(value / ceiling)} of {bandwidth(ceiling)}")
    most = context.board.identity.memory_clock_max_mhz
    clocks = [sample.memory_clock_mhz for sample in context.seen.loaded if sample.memory_clock_mhz]
    if most and clocks and ceiling and max(clocks) < most:
        clock = max(clocks)
        lines.append(
            f"memory clock {clock:.0f} of {number(most)} MHz: "
            f"{percent(value / ceiling * most / clock)} of the ceiling there"
        )
    size = probe.values.get("buffer_bytes")
    if size:
        lines.append(f"buffers of {binary_bytes(size)}")
    return tuple(lines)


def _cache_held_it(context: Context, probe: events.ProbeResult) -> str | None:
    """Why the buffers were too small to leave the cache, None where they were not."""
    device = context.board
    size, ready = probe.values.get("buffer_bytes"), device.prober.ready
    cache = ready.l2_bytes if ready is not None else None
    if cache is None and device.ceilings is not None:
        cache = device.ceilings.l2_bytes
    if not size or not cache or size > cache:
        return None
    return f"buffers of {binary_bytes(size)} fit the cache of {binary_bytes(cache)}"


def judge_transfer(context: Context) -> events.CheckResult | None:
    """Pinned copies against published figures of the link that the board could have."""
    measured = _measured(context)
    if isinstance(measured, events.CheckResult):
        return measured
    (probe, value), check = measured, context.check
    link = _widest_link(context)
    narrow = "" if link is None else _narrow(probe, link)
    told: dict[str, Any] = {
        "value": value,
        "unit": "bytes/s",
        "value_text": bandwidth(value),
        "evidence": tuple(_transfer_evidence(probe, check.value, narrow=bool(narrow))),
    }
    raw = pcie(*link) if link is not None else None
    if raw is not None:
        told["ratio"] = value / raw
    doubt = _doubt(context, probe, told)
    if doubt is not None:
        return doubt
    if raw is not None and check.impossible is not None and value > check.impossible * raw:
        cause = f"{percent(value / raw)} of the link: this was no copy over it"
        return context.result("INVALID", cause=cause, remedy=TIMED_WRONG, unknown=True, **told)
    figure = _figure(link)
    if link is None or figure is None:
        return context.result("NO-VERDICT", cause=_no_figure(link), **told)
    scale = 1e9 * min(link[1], FULL_WIDTH) / FULL_WIDTH
    board = context.board.ceilings.board if context.board.ceilings is not None else None
    groups = expected_table().groups
    published_for_it = link[1] >= FULL_WIDTH and any(board in groups[name] for name in DATA_CENTER)
    told |= {
        "pass_limit": figure.pass_from * scale,
        "fail_limit": figure.warn_from * scale,
        "threshold_text": f">= {bandwidth(figure.pass_from * scale)}",
        "basis": figure.published
        if published_for_it
        else f"{figure.published}; for this board or width chosen, so no failure",
        "experimental": not published_for_it,
    }
    if value >= figure.pass_from * scale:
        return context.result("PASS", **told)
    failed = value < figure.warn_from * scale and published_for_it
    if narrow:
        told["remedy"] = next(one.remedy for one in table().check if one.judge == "link")
    return context.result("FAIL" if failed else "WARN", cause=narrow or NOT_THE_LINK, **told)


def _widest_link(context: Context) -> tuple[int, int] | None:
    """Generation and width that board and slot could have together."""
    sample, probe = context.board.sample, context.board.probes.get("transfer")
    if sample is not None and sample.pcie_generation_max and sample.pcie_width_max:
        return sample.pcie_generation_max, sample.pcie_width_max
    values = probe.values if probe is not None else {}
    generation, width = values.get("pcie_generation"), values.get("pcie_width")
    return (round(generation), round(width)) if generation and width else None


def _figure(link: tuple[int, int] | None) -> PcieFigure | None:
    if link is None:
        return None
    return next((one for one in table().pcie if one.generation == link[0]), None)


def _no_figure(link: tuple[int, int] | None) -> str:
    if link is None:
        return "generation and width of the link are not known"
    return f"nobody published figures for generation {link[0]}"


def _narrow(probe: events.ProbeResult, most: tuple[int, int]) -> str:
    """That the link was less than it could be while copying, "" where it was not."""
    generation, width = probe.values.get("pcie_generation"), probe.values.get("pcie_width")
    if generation and width and (generation < most[0] or width < most[1]):
        return f"the link ran at gen {generation:.0f} x{width:.0f} of gen {most[0]} x{most[1]}"
    return ""


def _transfer_evidence(probe: events.ProbeResult, key: str, *, narrow: bool) -> list[str]:
    lines = ["pinned memory, large blocks"]
    generation, width = probe.values.get("pcie_generation"), probe.values.get("pcie_width")
    if generation and width:
        lines.append(f"gen {generation:.0f} x{width:.0f} while copying")
    pageable = probe.values.get(key.replace("pinned", "pageable"))
    if pageable:
        note = "" if narrow else ": no fault of the slot"
        lines.append(f"from pageable memory {bandwidth(pageable)}{note}")
    return lines


def judge_latency(context: Context) -> events.CheckResult | None:
    """A time in seconds; without limits it is information."""
    measured = _measured(context)
    if isinstance(measured, events.CheckResult):
        return measured
    (probe, value), check = measured, context.check
    told: dict[str, Any] = {"value": value, "unit": "s", "value_text": si(value, "s", 3)}
    gain = probe.values.get("graph_gain_ratio")
    if gain:
        told["evidence"] = (f"CUDA graphs launch {gain:.1f}x faster",)
    if check.pass_from is None:
        if not probe.valid:
            return context.disturbed(probe.invalid_reason, told)
        return context.result("NO-VERDICT", cause="information only", **told)
    doubt = _doubt(context, probe, told)
    if doubt is not None:
        return doubt
    told |= _limits(check, 1.0)
    told["threshold_text"] = f"<= {si(check.pass_from, 's', 2)}"
    state = by_limits(value, check)
    cause = "" if state == "PASS" else "launching costs more than usual: slow host, or debugging on"
    return context.result(state, cause=cause, **told)


def judge_ratio(context: Context) -> events.CheckResult | None:
    """A dimensionless value against limits of its own."""
    measured = _measured(context)
    if isinstance(measured, events.CheckResult):
        return measured
    (probe, value), check = measured, context.check
    told: dict[str, Any] = {"value": value, "unit": "ratio", "value_text": percent(value, 0)}
    if not probe.valid:
        return context.disturbed(probe.invalid_reason, told)
    told |= _limits(check, 1.0)
    told["threshold_text"] = f">= {percent(check.pass_from, 0)}"
    state = by_limits(value, check)
    cause = "" if state == "PASS" else "copies wait for kernels, or kernels for copies"
    return context.result(state, cause=cause, **told)


def judge_alignment(context: Context) -> events.CheckResult | None:
    """What sizes that are no multiples of 64 cost on this device. Information."""
    probe = _probe(context)
    if isinstance(probe, events.CheckResult):
        return probe
    rates = {
        int(found[1]): value
        for key, value in probe.values.items()
        if value and (found := _RATE_OF_SIZE.fullmatch(key))
    }
    wanted = probe.labels.get("base_n", "")
    base = int(wanted) if wanted.isdigit() else BASE
    if base not in rates:
        return context.missing(probe.invalid_reason or "the probe gave no value")
    shares = {size: value / rates[base] for size, value in rates.items() if size != base}
    slowest = sorted(shares, key=shares.__getitem__)
    told: dict[str, Any] = {
        "value": min(shares.values(), default=1.0),
        "unit": "ratio",
        "value_text": ", ".join(f"{size}: {percent(shares[size], 0)}" for size in slowest[:2])
        + f" of {base}",
    }
    if not probe.valid:
        return context.disturbed(probe.invalid_reason, told)
    losers = [str(size) for size in slowest if shares[size] < LOSES]
    cause = "information only"
    if losers:
        cause = f"N = {', '.join(losers)} loses: pad sizes to multiples of 64"
    return context.result("NO-VERDICT", cause=cause, **told)
