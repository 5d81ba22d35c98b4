"""What the laboratory's probes add to a benchmark: bandwidths, launches, energy, what is held."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.report.bench.model import Bandwidth, Energy, Latency, Sustained
from topsmon.units import plain

BANDWIDTH, TIME = "_bytes_per_second", "_seconds"
NAMES = {
    "memory copy": "DRAM copy",
    "memory triad": "DRAM triad",
    "memory read": "DRAM read",
    "memory write": "DRAM write",
    "cache l1": "L1 cache",
    "cache l2": "L2 cache",
    "cache last_level": "last-level cache",
    "cache dram": "DRAM by ladder",
    "transfer h2d_pinned": "H2D pinned",
    "transfer d2h_pinned": "D2H pinned",
    "transfer h2d_pageable": "H2D pageable",
    "transfer d2h_pageable": "D2H pageable",
    "launch launch": "kernel launch",
    "launch graph_launch": "graph launch",
    "launch round_trip": "launch and wait",
    "launch eager_op": "eager operation",
}


def bandwidths(device: DeviceState) -> tuple[Bandwidth, ...]:
    """Those of memory, caches and the link to the host."""
    found = []
    for probe in _shown(device, "memory", "cache", "transfer"):
        for stem in _stems(probe.values, BANDWIDTH):
            value = probe.values[f"{stem}{BANDWIDTH}"]
            ceiling, source = _rated(device, probe.probe, stem)
            right = probe.correct is not False
            found.append(
                Bandwidth(
                    name=_name(probe.probe, stem),
                    probe=probe.probe,
                    bytes_per_second=value,
                    low_bytes_per_second=probe.values.get(f"{stem}_low{BANDWIDTH}"),
                    high_bytes_per_second=probe.values.get(f"{stem}_high{BANDWIDTH}"),
                    calls=_calls(probe, stem),
                    ceiling_bytes_per_second=ceiling,
                    ceiling_source=source,
                    ratio=value / ceiling if value is not None and ceiling and right else None,
                    valid=probe.valid,
                    invalid_reason=plain(probe.invalid_reason, 300),
                    correct=probe.correct,
                    unavailable=_why(probe, f"{stem}{BANDWIDTH}"),
                )
            )
    return tuple(found)


def latencies(device: DeviceState) -> tuple[Latency, ...]:
    """What starting work costs."""
    return tuple(
        Latency(
            name=_name(probe.probe, stem),
            probe=probe.probe,
            seconds=probe.values[f"{stem}{TIME}"],
            low_seconds=probe.values.get(f"{stem}_low{TIME}"),
            high_seconds=probe.values.get(f"{stem}_high{TIME}"),
            calls=_calls(probe, stem),
            valid=probe.valid,
            invalid_reason=plain(probe.invalid_reason, 300),
            correct=probe.correct,
            unavailable=_why(probe, f"{stem}{TIME}"),
        )
        for probe in _shown(device, "launch")
        for stem in _stems(probe.values, TIME)
    )


def _shown(device: DeviceState, *names: str) -> Iterator[events.ProbeResult]:
    for name in names:
        if name in device.probes:
            yield device.probes[name]


def _stems(values: Mapping[str, float | None], ending: str) -> Iterator[str]:
    """Names of the values of one kind, without those that are another's quartiles."""
    for key in values:
        stem = key.removesuffix(ending)
        if stem != key and not stem.endswith(("_low", "_high")):
            yield stem


def _name(probe: str, stem: str) -> str:
    key = f"{probe} {stem}"
    return NAMES.get(key) or plain(key.replace("_", " "), 40)


def _calls(probe: events.ProbeResult, stem: str) -> int | None:
    count = probe.values.get(f"{stem}_calls")
    return None if count is None else round(count)


def _why(probe: events.ProbeResult, key: str) -> str:
    """Why a value is missing, "" where it is not."""
    if probe.values.get(key) is not None:
        return ""
    return plain(probe.unavailable.get(key) or probe.invalid_reason or "not measured", 200)


def _rated(device: DeviceState, probe: str, stem: str) -> tuple[float | None, str]:
    """The rated bandwidth to hold a value against, and its source.

    Caches have none, and copies of pageable memory go through another copy on the host.
    """
    ceilings = device.ceilings
    if ceilings is None or probe == "cache" or stem.endswith("pageable"):
        return None, ""
    if probe == "memory":
        source = ceilings.memory_bandwidth_source
        return ceilings.memory_bandwidth_bytes_per_second, plain(source, 200)
    return ceilings.pcie_bytes_per_second, plain(ceilings.pcie_source, 200)


def pcie(transfer: events.ProbeResult | None) -> str:
    """The link while copies ran: "PCIe 5.0 x16 under load"; "" where it was not read."""
    if transfer is None:
        return ""
    generation = transfer.values.get("pcie_generation")
    width = transfer.values.get("pcie_width")
    if generation is None or width is None:
        return ""
    return f"PCIe {generation:.0f}.0 x{width:.0f} under load"


def energy(probe: events.ProbeResult | None) -> Energy | None:
    """What the energy probe found."""
    if probe is None:
        return None
    values = probe.values
    return Energy(
        precision=plain(probe.labels.get("precision", ""), 20),
        source=plain(probe.labels.get("source", ""), 60),
        ops_per_joule=values.get("ops_per_joule"),
        mean_watts=values.get("mean_watts"),
        sampled_watts=values.get("sampled_watts"),
        idle_watts=values.get("idle_watts"),
        shape=plain(probe.labels.get("shape", ""), 60),
        valid=probe.valid and probe.correct is not False,
        invalid_reason=plain(probe.invalid_reason, 300),
        note=plain(probe.note, 400),
    )


def sustained(probe: events.ProbeResult | None) -> Sustained | None:
    """What the probe of sustained against boost found."""
    if probe is None:
        return None
    values = probe.values
    return Sustained(
        precision=plain(probe.labels.get("precision", ""), 20),
        burst_rate_ops_per_second=values.get("burst_rate_ops_per_second"),
        sustained_rate_ops_per_second=values.get("sustained_rate_ops_per_second"),
        sustained_ratio=values.get("sustained_ratio"),
        burst_clock_mhz=values.get("burst_clock_mhz"),
        sustained_clock_mhz=values.get("sustained_clock_mhz"),
        work_seconds=values.get("work_seconds"),
        valid=probe.valid and probe.correct is not False,
        invalid_reason=plain(probe.invalid_reason, 300),
        note=plain(probe.note, 400),
    )
