"""What the selected device is, and who uses it."""

from __future__ import annotations

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.diagnosis import link
from topsmon.tui.cells import Line, Span, clip, fit, left
from topsmon.tui.panel import Panel
from topsmon.tui.process_rows import HEAD, process_lines
from topsmon.tui.view import View, state_word
from topsmon.units import bandwidth, binary_bytes, gibibytes, plain


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
        pairs = facts(view, device)
        processes = process_lines(
            device, width, max(1, height - len(pairs)), stale=state_word(view, device)[0] == "STALE"
        )
        pairs = pairs[: max(0, height - len(processes))]
        lines = [
            fit((Span(left(head, HEAD) + " ", "muted"), Span(clip(text, width - HEAD - 1))), width)
            for head, text in pairs
        ]
        return lines + processes


def line_count(view: View) -> int:
    """Lines that the panel needs, without a long list of processes."""
    device = view.device
    if device is None:
        return 0
    return len(facts(view, device)) + len(process_lines(device, 80, 5))


def facts(view: View, device: DeviceState) -> list[tuple[str, str]]:
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
    if view.torch_problem is not None:
        pairs.append(("torch", plain(view.torch_problem, 400)))
    elif device.prober.ready is not None:
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
        pairs.append(("memory", memory + _unified(device)))
    return pairs


def _unified(device: DeviceState) -> str:
    """Whose the memory is where the GPU has none of its own, with its total."""
    sample = device.sample
    if sample is None or not sample.memory_note.startswith("unified"):
        return ""
    total = sample.memory_total_bytes
    return ", unified" + (f": {gibibytes(total)} GiB shared with the CPU" if total else "")


def _link(sample: events.DeviceSample) -> str:
    text = f"generation {sample.pcie_generation}"
    if sample.pcie_width is not None:
        text += f" x{sample.pcie_width}"
    if sample.pcie_generation_max is not None:
        text += f" of {sample.pcie_generation_max}"
        if sample.pcie_width_max is not None:
            text += f" x{sample.pcie_width_max}"
    if link.is_reduced(sample) and sample.busy_ratio == 0:
        text += " (idle: it slows down to save power)"
    return text


def _torch(ready: events.ProberReady) -> str:
    text = plain(ready.torch_version, 40)
    if ready.threads is not None:
        text += f", {ready.threads} threads"
        if ready.usable_cpus is not None:
            text += f" on {ready.usable_cpus} usable CPUs"
    return text
