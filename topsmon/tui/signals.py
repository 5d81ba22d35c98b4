"""What a GPU tells of its work besides the columns of its row, as values without layout."""

from __future__ import annotations

from typing import NamedTuple

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.diagnosis import activity, cooling, link
from topsmon.diagnosis.observe import power_share, under_load
from topsmon.diagnosis.throttle import BITS, LEAST_TIME
from topsmon.diagnosis.verdict import THROTTLED
from topsmon.tui.device_rows import concerned, is_gone
from topsmon.tui.view import View, state_word
from topsmon.units import NOT_AVAILABLE, PRECISIONS, percent, plain, significant

COUNTERS = (
    ("sm_active_ratio", "SM active", "SM"),
    ("tensor_active_ratio", "tensor", "tensor"),
    ("dram_active_ratio", "DRAM", "DRAM"),
    ("sm_occupancy_ratio", "occupancy", "occupancy"),
    ("fp32_active_ratio", "FP32", "FP32"),
    ("fp64_active_ratio", "FP64", "FP64"),
    ("fp16_active_ratio", "FP16", "FP16"),
    ("integer_active_ratio", "integer", "integer"),
)
"""GPM's ratios: field, label, label where room is short; the most telling first."""
THROTTLE_REASONS = {
    "power": "power cap",
    "thermal": "thermal",
    "sw_thermal": "SW thermal",
    "hw_thermal": "HW thermal",
    "power_brake": "power brake",
    "sync_boost": "sync boost",
    "board_limit": "board limit",
    "reliability": "reliability",
}
NEGLIGIBLE = 0.0005
"""A smaller share would be shown as 0.0%."""


class Gauge(NamedTuple):
    """One bar: `label` and, where room is short, `short`; `ratio` is never clamped."""

    label: str
    short: str
    ratio: float
    role: str


class Fact(NamedTuple):
    """One line: a head, a text, the role of the text."""

    head: str
    text: str
    role: str = "text"


def gauges(view: View, device: DeviceState) -> list[Gauge]:
    """The bars: GPM's counters, else what busy time, power, clock and own rates tell."""
    sample = device.sample
    if sample is None or is_gone(device):
        return []
    counters = sample.counters
    if counters is None:
        found = _without_counters(view, device, sample)
    else:
        role = "muted" if counters.during_burst else "spark"
        values = ((label, short, getattr(counters, field)) for field, label, short in COUNTERS)
        found = [
            Gauge(label, short, value, role) for label, short, value in values if value is not None
        ]
    if state_word(view, device)[0] == "STALE":
        return [gauge._replace(role="muted") for gauge in found]
    return found


def _without_counters(view: View, device: DeviceState, sample: events.DeviceSample) -> list[Gauge]:
    clock, most = sample.sm_clock_mhz, device.identity.sm_clock_max_mhz
    held = activity.throttling(device).ratio
    label = PRECISIONS[view.precision].label
    found = (
        ("busy", "busy", sample.busy_ratio, "spark"),
        ("power", "power", power_share(sample), concerned(view, device, "power-")),
        ("clock", "clock", clock / most if clock is not None and most else None, "spark"),
        ("mem busy", "mem busy", sample.memory_busy_ratio, "spark"),
        ("throttled", "throttled", held, "warn" if (held or 0.0) >= THROTTLED else "spark"),
        (f"{label} rate", f"{label} rate", device.ratio(view.precision), "good"),
    )
    return [
        Gauge(label, short, ratio, "spark" if role in {"text", "muted"} else role)
        for label, short, ratio, role in found
        if ratio is not None
    ]


def facts(view: View, device: DeviceState) -> list[Fact]:
    """The lines under the bars, what is off first."""
    sample = device.sample
    if sample is None or is_gone(device):
        return []
    found = (
        _throttled(sample),
        _pcie(view, device, sample),
        _nvlink(view, device, sample),
        _heat(view, device, sample),
        _codecs(sample),
    )
    return [fact for fact in found if fact is not None]


def _throttled(sample: events.DeviceSample) -> Fact | None:
    shares = {
        reason: share for reason, share in sample.throttle_ratios.items() if share >= NEGLIGIBLE
    }
    if not shares:
        return None
    ordered = sorted(shares.items(), key=lambda one: -one[1])
    words = [
        f"{THROTTLE_REASONS.get(reason, plain(reason, 20))} {percent(share)}"
        for reason, share in ordered
    ]
    faulty = any(shares.get(reason, 0.0) >= LEAST_TIME for reason in BITS)
    return Fact("throttled", ", ".join(words), "warn" if faulty else "text")


def _pcie(view: View, device: DeviceState, sample: events.DeviceSample) -> Fact | None:
    transmit = sample.pcie_transmit_bytes_per_second
    receive = sample.pcie_receive_bytes_per_second
    text = _rates(transmit, receive, _pcie_ceiling(device, sample))
    return Fact("PCIe", text, concerned(view, device, "pcie-")) if text else None


def _pcie_ceiling(device: DeviceState, sample: events.DeviceSample) -> float | None:
    """The link as it is under load; the board's at rest, when it has only slowed down."""
    most = device.ceilings.pcie_bytes_per_second if device.ceilings is not None else None
    generation, width = sample.pcie_generation, sample.pcie_width
    if generation is None or width is None or not link.is_reduced(sample):
        return most
    now = link.raw_bytes_per_second(generation, width) if under_load(device) else None
    return most if now is None else now


def _nvlink(view: View, device: DeviceState, sample: events.DeviceSample) -> Fact | None:
    ceiling = device.ceilings.nvlink_bytes_per_second if device.ceilings is not None else None
    text = _rates(
        sample.nvlink_transmit_bytes_per_second, sample.nvlink_receive_bytes_per_second, ceiling
    )
    up, links = sample.nvlink_links_up, sample.nvlink_links
    parts = [f"{NOT_AVAILABLE if up is None else up}/{links} up"] if links and up != links else []
    parts += [text] if text else []
    role = concerned(view, device, "nvlink-")
    return Fact("NVLink", ", ".join(parts), role) if parts else None


def _rates(transmit: float | None, receive: float | None, ceiling: float | None) -> str:
    """Both directions, and the busier one as a share of the ceiling of one direction."""
    known = [rate for rate in (transmit, receive) if rate is not None]
    if not known:
        return ""
    text = f"out {_giga(transmit)}, in {_giga(receive)} GB/s"
    if ceiling:
        text += f", {percent(max(known) / ceiling)} of {significant(ceiling / 1e9)}"
    return text


def _giga(bytes_per_second: float | None) -> str:
    if bytes_per_second is None:
        return NOT_AVAILABLE
    return significant(bytes_per_second / 1e9) if bytes_per_second >= 1e6 else "0"


def _heat(view: View, device: DeviceState, sample: events.DeviceSample) -> Fact | None:
    left = cooling.margin(device, sample)
    parts = []
    if sample.memory_temperature_celsius is not None:
        parts.append(f"memory {sample.memory_temperature_celsius:.0f} °C")
    if left is not None:
        parts.append(f"margin {left:.0f} °C")
    if sample.fan_ratio is not None:
        parts.append(f"fan {percent(sample.fan_ratio, 0)}")
    role = concerned(view, device, "memory-hot", "thermal-", "fan-")
    return Fact("heat", ", ".join(parts), role) if parts else None


def _codecs(sample: events.DeviceSample) -> Fact | None:
    found = (("encoder", sample.encoder_busy_ratio), ("decoder", sample.decoder_busy_ratio))
    parts = [f"{name} {percent(ratio, 0)}" for name, ratio in found if ratio]
    return Fact("video", ", ".join(parts)) if parts else None


def not_told(counters: events.GpuCounters) -> Fact | None:
    """Counters that are missing among those that the driver gives, each reason once."""
    by_reason: dict[str, list[str]] = {}
    for field, label, _ in COUNTERS:
        if getattr(counters, field) is None:
            reason = plain(counters.unavailable.get(field, NOT_AVAILABLE), 100)
            by_reason.setdefault(reason, []).append(label)
    parts = [f"{', '.join(labels)}: {reason}" for reason, labels in by_reason.items()]
    return Fact("not told", "; ".join(parts), "muted") if parts else None
