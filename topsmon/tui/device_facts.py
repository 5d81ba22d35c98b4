"""What the selected device is, and who uses it."""

from __future__ import annotations

from topsmon import events
from topsmon.state import DeviceState
from topsmon.tui.cells import Line, Span, clip, fit, left, right
from topsmon.tui.panel import Panel
from topsmon.tui.view import View
from topsmon.units import (
    NOT_AVAILABLE,
    bandwidth,
    binary_bytes,
    gibibytes,
    plain,
    significant,
)

HEAD = 9


class DeviceFacts(Panel):
    """Identity, links and processes of the selected device."""

    def title(self, view: View) -> str:
        """Name the device."""
        device = view.device
        return f"{device.label}  {plain(device.identity.name, 80)}" if device else "device"

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        """Return the facts, then the processes as far as there is room."""
        device = view.device
        if device is None:
            return []
        pairs = facts(device)
        processes = process_lines(device, width, max(1, height - len(pairs)))
        pairs = pairs[: max(0, height - len(processes))]
        lines = [
            fit((Span(left(head, HEAD) + " ", "muted"), Span(clip(text, width - HEAD - 1))), width)
            for head, text in pairs
        ]
        if view.training_hint is not None and len(lines) + len(processes) < height:
            processes.append(fit((Span(plain(view.training_hint, 300), "muted"),), width))
        return lines + processes


def line_count(view: View) -> int:
    """Lines that the panel needs, without a long list of processes."""
    device = view.device
    if device is None:
        return 0
    hint = 1 if view.training_hint is not None else 0
    return len(facts(device)) + len(process_lines(device, 80, 5)) + hint


def facts(device: DeviceState) -> list[tuple[str, str]]:
    """Heads and texts of what the device is; unknown parts are left out."""
    identity, sample = device.identity, device.sample
    chip = [f"{identity.sm_count} SMs"] if identity.sm_count else []
    if identity.compute_capability:
        chip.append(f"sm_{identity.compute_capability.replace('.', '')}")
    if identity.architecture:
        chip.append(plain(identity.architecture, 40))
    pairs = [("chip", ", ".join(chip))] if chip else []
    pairs += _ceiling_facts(device)
    if sample is not None and sample.pcie_generation is not None:
        pairs.append(("PCIe", _link(sample)))
    if device.prober.ready is not None:
        pairs.append(("torch", _torch(device.prober.ready)))
    return pairs


def _ceiling_facts(device: DeviceState) -> list[tuple[str, str]]:
    ceilings = device.ceilings
    if ceilings is None:
        return []
    if ceilings.unknown is not None:
        return [("ceilings", f"unknown: {plain(ceilings.unknown, 200)}")]
    pairs = []
    if ceilings.matched_by is not None:
        origin = f", {plain(ceilings.clock_source, 240)}" if ceilings.clock_source else ""
        pairs.append(("ceilings", f"by {plain(ceilings.matched_by, 60)}{origin}"))
    if ceilings.memory_bandwidth_bytes_per_second is not None:
        memory = f"{bandwidth(ceilings.memory_bandwidth_bytes_per_second)} ceiling"
        if ceilings.l2_bytes is not None:
            memory += f", L2 {binary_bytes(ceilings.l2_bytes)}"
        pairs.append(("memory", memory))
    return pairs


def _link(sample: events.DeviceSample) -> str:
    text = f"generation {sample.pcie_generation}"
    if sample.pcie_width is not None:
        text += f" x{sample.pcie_width}"
    if sample.pcie_generation_max is not None:
        text += f" of {sample.pcie_generation_max}"
        if sample.pcie_width_max is not None:
            text += f" x{sample.pcie_width_max}"
    if sample.pcie_generation_max is not None and not sample.busy_ratio:
        text += " (idle: it slows down to save power)" * (
            (sample.pcie_generation or 0) < sample.pcie_generation_max
        )
    return text


def _torch(ready: events.ProberReady) -> str:
    text = plain(ready.torch_version, 40)
    if ready.threads is not None:
        text += f", {ready.threads} threads"
        if ready.usable_cpus is not None:
            text += f" on {ready.usable_cpus} usable CPUs"
    return text


def process_lines(device: DeviceState, width: int, room: int) -> list[Line]:
    """Lines about the processes on a device, the last one counting those left out."""
    processes = device.processes
    if processes is None or room <= 0:
        return []
    if processes.entries is None:
        reason = plain(processes.reason, 200) or "no reason given"
        return [fit((Span(f"processes {NOT_AVAILABLE}: {reason}", "muted"),), width)]
    others = [entry for entry in processes.entries if not entry.own]
    if not others:
        return [fit((Span("nobody else uses it", "muted"),), width)]
    if room < 1 + min(len(others), 2):
        return [_first_process(others, width)]
    head = right("PID", 8) + right("GiB", 7) + "  user      command"
    lines = [fit((Span(head, "muted"),), width)]
    shown = others if len(others) < room else others[: room - 2]
    lines += [_process(entry, width) for entry in shown]
    if len(shown) < len(others):
        lines.append(fit((Span(f"and {len(others) - len(shown)} more", "muted"),), width))
    return lines


def _first_process(entries: list[events.ProcessEntry], width: int) -> Line:
    """The largest user, and how many others there are."""
    first = max(entries, key=lambda entry: entry.memory_bytes or 0)
    more = f" +{len(entries) - 1} more" if len(entries) > 1 else ""
    command = plain(first.command or first.name or NOT_AVAILABLE, 2000)
    text = f"PID {first.pid}, {gibibytes(first.memory_bytes)} GiB: {command}"
    head = left("used by", HEAD) + " "
    text = clip(text, width - len(head) - len(more))
    return fit((Span(head, "muted"), Span(text), Span(more, "muted")), width)


def _process(entry: events.ProcessEntry, width: int) -> Line:
    memory = gibibytes(entry.memory_bytes)
    if entry.memory_bytes is None and entry.cpu_cores is not None:
        memory = f"{significant(entry.cpu_cores, 2)} cpu"
    user = left(plain(entry.user or "", 40), 9)
    command = plain(entry.command or entry.name or NOT_AVAILABLE, 2000)
    return fit(
        (
            Span(right(str(entry.pid), 8) + right(memory, 7) + "  ", "text"),
            Span(user + " ", "muted"),
            Span(command, "text"),
        ),
        width,
    )
