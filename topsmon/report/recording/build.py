"""A summary of a recording as a document: sections in the order in which they are asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator

from topsmon import __version__
from topsmon.device_state import DeviceState
from topsmon.recording.summary import DeviceSummary, RateStatistics, Span, Summary
from topsmon.recording.words import clock
from topsmon.report import training
from topsmon.report.recording.model import Block, Document, Lines, Listing, Section, Table
from topsmon.report.recording.plotted import device_plots, run_plots
from topsmon.units import (
    NOT_AVAILABLE,
    PRECISIONS,
    bandwidth,
    duration,
    gibibytes,
    percent,
    plain,
    rate,
    watts,
)

REDACTED = (
    "Names of hosts and users, identifiers, addresses and the arguments of processes were replaced "
    "by hashes of this report's own (--include-identifiers keeps them)."
)
COMPLETE = "Nothing was redacted (--include-identifiers)."
SHOWN_FINDINGS = 200
ORDER = {"fail": 0, "warn": 1, "info": 2}


def document(summary: Summary, *, redacted: bool) -> Document:
    """Return the report. What the recording does not hold is N/A, or left out with its section."""
    for key, run in summary.runs.items():
        summary.state.runs.setdefault(key, run)
    sections = (
        Section("Recording", tuple(_recording(summary, redacted=redacted))),
        Section("Host", tuple(_host(summary))),
        Section("Devices", tuple(_devices(summary))),
        Section("Findings", tuple(_findings(summary))),
        Section("Rates", tuple(_rates(summary))),
        Section("Readings", tuple(_readings(summary))),
        Section("Held down", tuple(_held_down(summary))),
        Section("Training runs", tuple(_runs(summary))),
        Section("Gaps", tuple(_gaps(summary))),
    )
    shown = tuple(section for section in sections if section.blocks)
    return Document("topsmon: report of a recording", shown)


def _recording(summary: Summary, *, redacted: bool) -> Iterator[Block]:
    index, state = summary.index, summary.state
    lines = []
    if state.simulated is not None:
        lines.append(f"SIMULATED ({plain(state.simulated, 40)}): no real GPU was read")
    lines.append(
        f"{_date(index.begin.wall)} to {_date(index.end.wall)} ({clock(index.seconds)}), "
        f"{index.lines:,} lines"
    )
    version = plain(state.hello.version, 30) if state.hello is not None else NOT_AVAILABLE
    lines.append(f"recorded by topsmon {version}, reported by topsmon {__version__}")
    interval = NOT_AVAILABLE if state.interval is None else f"{state.interval:g} s"
    lines.append(f"sampling interval {interval}")
    lines += index.lost.words()
    lines.append(REDACTED if redacted else COMPLETE)
    yield Lines(tuple(lines), listed=True)


def _date(wall: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(wall))


def _host(summary: Summary) -> Iterator[Block]:
    host = summary.state.host
    if host is None:
        return
    rows = [
        ("name", plain(host.hostname, 60)),
        ("system", plain(host.system, 100)),
        ("processor", plain(host.cpu_name or NOT_AVAILABLE, 100)),
        ("memory", f"{gibibytes(host.memory_total_bytes)} GiB"),
        ("driver", plain(host.driver_version or NOT_AVAILABLE, 30)),
        ("CUDA of the driver", plain(host.cuda_version or NOT_AVAILABLE, 30)),
    ]
    kinds = [word for word, true in (("container", host.container), ("WSL", host.wsl)) if true]
    if kinds:
        rows.append(("inside", ", ".join(kinds)))
    torch = {
        device.prober.ready.torch_version
        for device in summary.state.ordered()
        if device.prober.ready is not None
    }
    if torch:
        rows.append(("torch", plain(", ".join(sorted(torch)), 60)))
    yield Table(("", ""), tuple(rows))
    problems = [plain(problem.message, 300) for problem in summary.state.problems.values()]
    if problems:
        yield Lines(tuple(problems), listed=True)


def _devices(summary: Summary) -> Iterator[Block]:
    rows = tuple(_device_row(device) for device in summary.state.ordered())
    head = ("device", "name", "memory GiB", "bandwidth ceiling", "PCIe", "power limit W", "key")
    if rows:
        yield Table(head, rows, frozenset({2, 3, 5}))


def _device_row(device: DeviceState) -> tuple[str, ...]:
    sample, identity = device.sample, device.identity
    ceilings = device.ceilings
    total = identity.memory_total_bytes or (sample.memory_total_bytes if sample else None)
    link = NOT_AVAILABLE
    if sample is not None and sample.pcie_generation is not None and sample.pcie_width is not None:
        link = f"{sample.pcie_generation} x{sample.pcie_width}"
        if sample.pcie_generation_max is not None and sample.pcie_width_max is not None:
            link += f" of {sample.pcie_generation_max} x{sample.pcie_width_max}"
    return (
        device.label,
        plain(identity.name, 60),
        gibibytes(total),
        bandwidth(ceilings.memory_bandwidth_bytes_per_second if ceilings is not None else None),
        link,
        watts(sample.power_limit_watts if sample is not None else None),
        plain(identity.device, 60),
    )


def _findings(summary: Summary) -> Iterator[Block]:
    spans = [span for span in summary.spans if span.finding.word != "note"]
    notes = [span for span in summary.spans if span.finding.word == "note"]
    lost = summary.index.lost
    gaps = lost.damaged_bytes or lost.bad_lines or lost.missing_files or lost.unwritten_lines
    if not spans and gaps:
        yield Lines(("Nothing was off in what could be read; a part of the recording is missing.",))
    elif not spans:
        yield Lines(("Nothing was off.",))
    else:
        yield _span_table(spans[:SHOWN_FINDINGS])
        if len(spans) > SHOWN_FINDINGS:
            yield Lines((f"and {len(spans) - SHOWN_FINDINGS} more",))
        yield Lines(tuple(_told(spans)), listed=True)
    if notes:
        yield Lines(("Notes:",))
        yield _span_table(notes[:SHOWN_FINDINGS])


def _span_table(spans: list[Span]) -> Table:
    head = ("first", "lasted", "", "what")
    rows = tuple(
        (
            clock(span.begin),
            clock(span.end - span.begin) + (" to the end" if span.lasting else ""),
            plain(span.finding.word, 8),
            plain(span.finding.title, 300),
        )
        for span in spans
    )
    return Table(head, rows, frozenset({0}))


def _told(spans: list[Span]) -> Iterator[str]:
    """Each kind of finding once: cause, evidence and remedy."""
    told: set[tuple[str, str | None]] = set()
    for span in sorted(spans, key=lambda one: ORDER[one.finding.severity]):
        finding = span.finding
        if (finding.code, finding.cause) in told:
            continue
        told.add((finding.code, finding.cause))
        parts = [f"{plain(finding.word, 8)} {plain(finding.title, 300)}"]
        parts += [plain(one, 300) for one in (finding.cause, *finding.evidence) if one]
        if finding.remedy:
            parts.append(f"to do: {plain(finding.remedy, 400)}")
        if finding.basis:
            parts.append(f"basis: {plain(finding.basis, 200)}")
        yield "; ".join(parts)


def _rates(summary: Summary) -> Iterator[Block]:
    for device in summary.state.ordered():
        rows = tuple(
            row
            for key in PRECISIONS
            if (row := _rate_row(device, key, summary.devices.get(device.key))) is not None
        )
        if rows:
            head = ("", "ceiling", "best", "ratio", "at held clock", "median", "measured", "remark")
            yield Lines((f"{device.label}, dense ceilings:",))
            yield Table(head, rows, frozenset({1, 2, 3, 4, 5, 6}))


def _rate_row(
    device: DeviceState, key: str, summary: DeviceSummary | None
) -> tuple[str, ...] | None:
    known, ceiling = device.rates[key], device.ceiling(key)
    best = known.best
    if best is None:
        return None
    found = summary.rates.get(key) if summary is not None else None
    statistics = found or RateStatistics()
    remarks = []
    if known.is_remembered:
        remarks.append("measured before the recording")
    if best.correct is False:
        remarks.append("WRONG RESULT")
    elif not best.valid:
        remarks.append(f"not valid: {plain(best.invalid_reason, 120)}")
    if best.emulated:
        remarks.append("emulated")
    if statistics.invalid:
        remarks.append(f"{statistics.invalid} disturbed")
    if statistics.wrong:
        remarks.append(f"{statistics.wrong} wrong")
    return (
        PRECISIONS[key].label,
        rate(ceiling.ops_per_second, key) if ceiling is not None else NOT_AVAILABLE,
        rate(best.rate_ops_per_second, key),
        percent(device.ratio(key)),
        percent(device.held_ratio(key)),
        rate(statistics.median(), key),
        f"{len(statistics.valid):,}",
        ", ".join(remarks),
    )


def _readings(summary: Summary) -> Iterator[Block]:
    head = ("device", "busy mean", "busy most", "memory most GiB", "power mean W", "power most W",
            "hottest C", "MHz lowest", "MHz mean", "MHz highest")  # fmt: skip
    rows = []
    for device in summary.state.ordered():
        found = summary.devices.get(device.key)
        if found is not None:
            rows.append((device.label, *_reading_row(found)))
    if rows:
        yield Table(head, tuple(rows), frozenset(range(1, len(head))))
    for device in summary.state.ordered():
        found = summary.devices.get(device.key)
        if found is not None:
            yield from device_plots(device, found, summary)


def _reading_row(device: DeviceSummary) -> tuple[str, ...]:
    whole = {name: series.whole() for name, series in device.series.items()}
    busy, memory = whole["busy_ratio"], whole["memory_used_bytes"]
    power, hot, megahertz = (
        whole[name] for name in ("power_watts", "temperature_celsius", "sm_clock_mhz")
    )
    return (
        percent(busy and busy.mean, 0),
        percent(busy and busy.high, 0),
        gibibytes(memory and memory.high),
        watts(power and power.mean),
        watts(power and power.high),
        watts(hot and hot.high),
        watts(megahertz and megahertz.low),
        watts(megahertz and megahertz.mean),
        watts(megahertz and megahertz.high),
    )


def _held_down(summary: Summary) -> Iterator[Block]:
    rows = []
    for device in summary.state.ordered():
        found = summary.devices.get(device.key)
        if found is None:
            continue
        basis = "driver's counter" if found.counted else "estimated from single readings"
        for reason, seconds in sorted((found.counted or found.estimated).items()):
            if seconds > 0:
                share = seconds / summary.index.seconds if summary.index.seconds else None
                words = (plain(reason, 40), duration(seconds), percent(share), basis)
                rows.append((device.label, *words))
    if rows:
        head = ("device", "clocks held down by", "for", "share of the time", "how known")
        yield Table(head, tuple(rows), frozenset({2, 3}))


def _runs(summary: Summary) -> Iterator[Block]:
    if not summary.runs:
        return
    state = summary.state
    runs = [run for run in state.ordered_runs() if run.key in summary.runs]
    yield Listing(training.summary(runs, state, summary.index.end.now).rstrip("\n"))
    rows = tuple(
        (run.label, kind.replace("-", " "), f"{count:,}")
        for run in runs
        for kind, count in sorted(summary.happened.get(run.key, {}).items())
    )
    if rows:
        yield Table(("run", "what happened", "times told"), rows, frozenset({2}))
    for run in runs:
        yield from run_plots(run)


def _gaps(summary: Summary) -> Iterator[Block]:
    rows = tuple(
        (clock(gap.begin), clock(gap.end - gap.begin), plain(gap.reason, 200))
        for gap in sorted(summary.gaps, key=lambda one: one.begin)
    )
    if rows:
        yield Table(("at", "for", "why"), rows, frozenset({0, 1}))
