"""Judges of what the driver alone tells: it works, the device answers, memory errors, link, power.

Each takes a `Context` and returns a result, or None where the check does not apply.
"""

from __future__ import annotations

from typing import Any

from topsmon import events
from topsmon.checks.context import READ_AGAIN, Context
from topsmon.diagnosis import availability, cpu, driver, link, power
from topsmon.diagnosis.words import board, lspci_address, number
from topsmon.units import binary_bytes, plain

NVML = "nvml"
UNSETTLED = frozenset({"nvml-stalled", "nvml-crashed", "nvml-ended", "nvml-no-process"})
"""One quick look cannot tell a slow start from a driver that hangs, nor one crash from many; and a
system that gives no process says nothing of its GPUs."""
CRASHED_ONCE = "driver-crashed"
"""The library crashed, and all GPUs were read in a second try."""
TORCH_DIFFERS = 0.05
"""torch counts memory without the driver's share; more apart than this is another device."""
BUSY_ENOUGH = 0.5


def judge_driver(context: Context) -> events.CheckResult | None:
    """The driver library and its kernel module work."""
    state = context.state
    for finding in driver.driver_problem(state, context.moment.monotonic):
        if finding.code == CRASHED_ONCE:
            return context.result("WARN", cause=finding.title, remedy=finding.remedy)
        if not finding.code.startswith(f"{NVML}-"):
            continue
        told = {"cause": finding.title, "remedy": finding.remedy}
        late = context.seen.quick and finding.code in UNSETTLED
        if finding.severity == "fail" and not late:
            return context.result("FAIL", **told)
        if finding.severity == "info":
            return context.result("UNSUPPORTED", **told)
        return context.result("NO-VERDICT", unknown=True, **told)
    crashed = [
        finding
        for finding in driver.worker_trouble(state, context.moment.monotonic)
        if finding.code == "poller-failed"
    ]
    if crashed:
        return context.result("FAIL", cause=crashed[0].title, remedy=crashed[0].remedy)
    return _version(context)


def _version(context: Context) -> events.CheckResult:
    """The driver's version; a machine without a GPU has none."""
    state, host = context.state, context.state.host
    if host is None or host.driver_version is None:
        if host is not None and state.devices and not any(state.gpus()):
            return context.result("UNSUPPORTED", cause="no NVIDIA GPU here")
        return context.missing("the driver has not told its version")
    cuda = f", CUDA {host.cuda_version}" if host.cuda_version else ""
    return context.result("PASS", value_text=plain(f"{host.driver_version}{cuda}", 60))


def judge_device(context: Context) -> events.CheckResult | None:
    """The device answers the driver: it is neither lost nor hung."""
    state, device, now = context.state, context.board, context.moment.monotonic
    for rule in (availability.lost, availability.not_answering, availability.in_error):
        for finding in rule(state, now):
            if finding.device != device.key:
                continue
            late = context.seen.quick and device.condition == "stalled"
            fail = finding.severity == "fail" and not late
            return context.result(
                "FAIL" if fail else "NO-VERDICT",
                value_text=finding.word,
                cause=finding.cause if fail else finding.title.removeprefix(f"{device.label}  "),
                evidence=finding.evidence,
                remedy=finding.remedy,
                command=finding.command,
                unknown=not fail,
            )
    if device.condition == "asleep":
        return context.result(
            "NO-VERDICT",
            value_text="asleep",
            cause="suspended to save power; it was not woken",
            remedy="Wake it (nvidia-smi does), then check again.",
            unknown=True,
        )
    if device.sample is None:
        return context.missing("no sample was read")
    if context.seen.unanswered:
        return context.result("NO-VERDICT", cause=context.seen.unanswered, unknown=True)
    return context.result("PASS", value_text=board(device))


def judge_inventory(context: Context) -> events.CheckResult | None:
    """The driver and torch see the same device."""
    device = context.board
    identity, ready = device.identity, device.prober.ready
    total = identity.memory_total_bytes
    if total is None:
        return context.unreadable("memory_total_bytes")
    if total <= 0:
        return context.result(
            "INVALID", value_text="0 B", cause="memory reads 0", remedy=READ_AGAIN, unknown=True
        )
    sms = f"{identity.sm_count} SMs, " if identity.sm_count else ""
    text = f"{sms}{binary_bytes(total)}"
    differs = []
    if ready is not None and not identity.mig:
        theirs = ready.memory_total_bytes
        if theirs and abs(theirs - total) > TORCH_DIFFERS * total:
            differs.append(f"torch sees {binary_bytes(theirs)} of memory")
        if ready.sm_count and identity.sm_count and ready.sm_count != identity.sm_count:
            differs.append(f"torch sees {ready.sm_count} SMs")
    if differs:
        return context.result(
            "WARN",
            value_text=text,
            cause=f"the driver tells {text}, but {' and '.join(differs)}",
            remedy="Check that both mean the same board (UUID), and MPS or MIG settings.",
        )
    doubt = context.implausible()
    if doubt is not None:
        return doubt
    unknown_board = device.ceilings.unknown if device.ceilings is not None else None
    note = f"no ceiling known: {unknown_board}" if unknown_board else ""
    return context.result("PASS", value_text=text, cause=plain(note, 200))


def judge_ecc(context: Context) -> events.CheckResult | None:
    """No uncorrectable memory errors since the driver was loaded, no failed row remapping."""
    sample = context.board.sample
    if sample is None:
        return context.missing("no sample was read")
    uncorrected = sample.ecc_uncorrected_volatile
    if sample.ecc_enabled is False:
        return context.result("NO-VERDICT", value_text="off", cause="ECC is switched off")
    known = (uncorrected, sample.row_remap_failed, sample.row_remap_pending)
    if all(value is None for value in known):
        return context.unreadable("ecc_uncorrected_volatile", "ecc_enabled", "row_remap_failed")
    evidence = tuple(
        f"{count} {words}"
        for count, words in (
            (sample.ecc_uncorrected_aggregate, "uncorrectable over the board's life"),
            (sample.ecc_corrected_volatile, "corrected since the driver was loaded"),
        )
        if count
    )
    told: dict[str, Any] = {
        "value": None if uncorrected is None else float(uncorrected),
        "unit": "count",
        "value_text": "N/A" if uncorrected is None else f"{uncorrected} uncorrectable",
        "threshold_text": "0",
        "evidence": evidence,
        "lower_is_better": True,
    }
    state, cause = _memory_state(sample)
    doubt = context.implausible() if state == "PASS" else None
    if doubt is not None:
        return doubt
    if state != "PASS":
        told["evidence"] = (*evidence, *_uuid(context))
    if state == "WARN":
        told["remedy"] = "Reset the GPU or reboot when its jobs have ended, then check again."
    return context.result(state, cause=cause, **told)


def _memory_state(sample: events.DeviceSample) -> tuple[events.CheckState, str]:
    if sample.ecc_uncorrected_volatile:
        return "FAIL", "uncorrectable memory errors"
    if sample.row_remap_failed:
        return "FAIL", "a memory row could not be remapped"
    if sample.row_remap_pending:
        return "WARN", "a memory row waits to be remapped"
    return "PASS", ""


def judge_link(context: Context) -> events.CheckResult | None:
    """The link reaches its maximum while copies or kernels run: its best reading counts."""
    device = context.board
    sample = device.sample
    if sample is None:
        return context.missing("no sample was read")
    most = _link(sample.pcie_generation_max, sample.pcie_width_max)
    if most is None:
        return context.unreadable("pcie_generation_max", "pcie_width_max", "pcie_generation")
    readings = [
        _link(past.pcie_generation, past.pcie_width)
        for past in context.seen.loaded or _busy_samples(context)
    ]
    readings.append(_transfer_link(context))
    known = [reading for reading in readings if reading is not None]
    limit = f"gen {most[0]} x{most[1]}"
    if not known:
        return _link_at_rest(context, sample, limit)
    best = max(known, key=lambda reading: link.raw_bytes_per_second(*reading) or 0.0)
    text = f"gen {best[0]} x{best[1]}"
    if best[0] >= most[0] and best[1] >= most[1]:
        return context.result("PASS", value_text=text, threshold_text=limit)
    address = lspci_address(device.identity.pci_bus_id or "")
    return context.result(
        "WARN",
        value_text=text,
        threshold_text=limit,
        cause="the slot, riser, BIOS setting or a bad contact limits the link",
        evidence=(*_link_rates(best, most), *_uuid(context)),
        command=f"sudo lspci -vv -s {address} | grep LnkSta" if address else "",
    )


def _link_at_rest(context: Context, sample: events.DeviceSample, limit: str) -> events.CheckResult:
    now = link.describe(sample, loaded=False)
    if now is None:
        return context.unreadable("pcie_generation", "pcie_width")
    if context.seen.refused:
        return context.missing()
    return context.result(
        "NO-VERDICT",
        value_text=now,
        threshold_text=limit,
        cause="at rest the link trains down: only judged under load",
    )


def _link(generation: int | None, width: int | None) -> tuple[int, int] | None:
    return (generation, width) if generation and width else None


def _transfer_link(context: Context) -> tuple[int, int] | None:
    """The link as the transfer probe read it while it copied."""
    probe = context.board.probes.get("transfer")
    values = probe.values if probe is not None else {}
    generation, width = values.get("pcie_generation"), values.get("pcie_width")
    return None if not generation or not width else (round(generation), round(width))


def _busy_samples(context: Context) -> list[events.DeviceSample]:
    """Without a run of our own: samples in which the device worked at a high clock."""
    samples = context.seen.samples or tuple(context.board.recent)
    return [
        sample
        for sample in samples
        if sample.busy_ratio is not None
        and sample.busy_ratio >= BUSY_ENOUGH
        and sample.performance_state in (None, *link.WORKING_STATES)
    ]


def _link_rates(now: tuple[int, int], most: tuple[int, int]) -> tuple[str, ...]:
    here, there = link.raw_bytes_per_second(*now), link.raw_bytes_per_second(*most)
    if here is None or there is None:
        return ()
    return (f"{here / 1e9:.1f} of {there / 1e9:.1f} GB/s per direction",)


def judge_power(context: Context) -> events.CheckResult | None:
    """The enforced limit is the board's default, or does not bite."""
    device = context.board
    sample = device.sample
    if sample is None:
        return context.missing("no sample was read")
    limit = sample.power_limit_watts
    if limit is None:
        return context.unreadable("power_limit_watts")
    if limit <= 0:
        return context.result(
            "INVALID", value_text="0 W", cause="limit reads 0", remedy=READ_AGAIN, unknown=True
        )
    default = device.identity.power_limit_default_watts
    told: dict[str, Any] = {
        "value": limit,
        "unit": "watts",
        "value_text": f"{number(limit)} W",
        "threshold_text": "" if default is None else f"default {number(default)} W",
        "pass_limit": default,
    }
    finding = power.of_device(context.state, device)
    if finding is None:
        return context.result("PASS", **told)
    evidence = (*finding.evidence, *_uuid(context))
    more = {"cause": finding.cause, "evidence": evidence, "command": finding.command}
    if finding.severity == "info":
        return context.result("PASS", **told, **more)
    return context.result("WARN", remedy=finding.remedy, **told, **more)


def judge_temperature(context: Context) -> events.CheckResult | None:
    """The hottest reading stays below the threshold at which the board slows down."""
    device = context.board
    samples = (*(context.seen.samples or device.recent), device.sample)
    readings = [
        sample.temperature_celsius
        for sample in samples
        if sample is not None and sample.temperature_celsius is not None
    ]
    if not readings:
        return context.unreadable("temperature_celsius")
    hottest = max(readings)
    limit = device.identity.temperature_slowdown_celsius
    told: dict[str, Any] = {
        "value": float(hottest),
        "unit": "celsius",
        "value_text": f"{hottest:.0f} C",
        "lower_is_better": True,
    }
    if hottest <= 0:
        return context.result(
            "INVALID", cause="a sensor that reads 0", remedy=READ_AGAIN, unknown=True, **told
        )
    if not limit:
        return context.result("NO-VERDICT", cause="the driver tells no threshold", **told)
    near = limit - context.check.warn_within_celsius
    told |= {
        "threshold_text": f"< {near:.0f} C",
        "pass_limit": float(near),
        "fail_limit": float(limit),
    }
    if hottest < near:
        return context.result("PASS", **told)
    told["evidence"] = (f"slowdown at {limit} C", *_uuid(context))
    if hottest < limit:
        return context.result("WARN", cause="close to the slowdown threshold", **told)
    return context.result("FAIL", cause="at the slowdown threshold", **told)


def judge_threads(context: Context) -> events.CheckResult | None:
    """Torch takes as many threads by itself as there are usable cores."""
    ready = context.board.prober.ready
    if ready is None:
        return context.missing()
    if ready.threads is None:
        return context.result("NO-VERDICT", cause="torch does not tell its threads", unknown=True)
    if ready.default_threads is None:
        return context.result(
            "NO-VERDICT",
            value=float(ready.threads),
            unit="count",
            value_text=str(ready.threads),
            cause="measured with so many; how many torch takes by itself is not told",
        )
    told: dict[str, Any] = {
        "value": float(ready.default_threads),
        "unit": "count",
        "value_text": str(ready.default_threads),
        "threshold_text": str(ready.threads),
    }
    for finding in cpu.threads_misfit(context.state, context.moment.monotonic):
        if finding.device == context.board.key:
            return context.result(
                "WARN",
                cause=finding.cause,
                evidence=finding.evidence,
                remedy=finding.remedy,
                command=finding.command,
                **told,
            )
    return context.result("PASS", **told)


def _uuid(context: Context) -> tuple[str, ...]:
    uuid = context.board.identity.uuid
    return (plain(uuid, 80),) if uuid else ()
