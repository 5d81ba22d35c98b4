"""Rules: a PCIe link below its maximum under load, and one that has to send again.

At rest a link trains down, which is no fault.
"""

from __future__ import annotations

from collections.abc import Iterator

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.diagnosis.observe import LOAD_RATIO, live_gpus, load, mean, recent, under_load
from topsmon.diagnosis.words import finding, lspci_address
from topsmon.state import State
from topsmon.units import duration

TRANSFERS_PER_SECOND = {1: 2.5e9, 2: 5e9, 3: 8e9, 4: 16e9, 5: 32e9}
"""Per lane and direction, PCI Express base specification."""
CODING = {1: 0.8, 2: 0.8, 3: 128 / 130, 4: 128 / 130, 5: 128 / 130}
REPLAYS_PER_MINUTE = 8
"""More than this is a bad link (NVIDIA DCGM, dcgm_gpu_hardware_limits.h, MAX_PCIREPLAY_RATE)."""
REPLAY_WINDOW_SECONDS = 300.0
LINK_AGE_SECONDS = 2.1
"""The link is read every 2 s: what is shown under load may be a reading from the rest before."""
WORKING_STATES = (0, 1, 2, 3)
"""Performance states in which compute runs; in a lower one the link may rest."""


def raw_bytes_per_second(generation: int, width: int) -> float | None:
    """Rate of one direction after line coding; None for a generation not in the table."""
    if generation not in TRANSFERS_PER_SECOND:
        return None
    return TRANSFERS_PER_SECOND[generation] * CODING[generation] / 8 * width


def is_reduced(sample: events.DeviceSample) -> bool | None:
    """True when the link is below its maximum, None where it was not measured."""
    now = (sample.pcie_generation, sample.pcie_width)
    most = (sample.pcie_generation_max, sample.pcie_width_max)
    known = [
        current < maximum
        for current, maximum in zip(now, most, strict=True)
        if current is not None and maximum is not None
    ]
    return any(known) if known else None


def describe(sample: events.DeviceSample, *, loaded: bool) -> str | None:
    """The link in words, "gen 4 x16"; below its maximum with the maximum, at rest with a remark."""
    if sample.pcie_generation is None or sample.pcie_width is None:
        return None
    text = f"gen {sample.pcie_generation} x{sample.pcie_width}"
    if not is_reduced(sample):
        return text
    most = f"gen {sample.pcie_generation_max} x{sample.pcie_width_max}"
    return f"{text} of {most}" if loaded else f"{text} (idle; max {most})"


def reduced_link(state: State, now: float) -> Iterator[events.Finding]:
    """Only with load over several samples, and the link low in all of the last three."""
    for device in live_gpus(state, now):
        sample, samples = device.sample, recent(device, 3)
        if sample is None or len(samples) < 2 or not under_load(device):
            continue
        if sample.performance_state not in (None, *WORKING_STATES):
            continue
        if not all(is_reduced(past) for past in samples) or not _loaded_for_long(device):
            continue
        yield finding(
            sample,
            device,
            code="pcie-link-low",
            severity="warn",
            word="SLOW",
            title=f"PCIe link {describe(sample, loaded=True)} under load",
            cause="the slot, riser, BIOS setting or a bad contact limits the link",
            evidence=_evidence(sample),
            remedy="Use an x16 slot, reseat the board or riser, check the BIOS link setting.",
            command=_lspci(device, "LnkSta"),
            basis="NVML current and maximum link; PCI Express base specification",
        )


def _loaded_for_long(device: DeviceState) -> bool:
    """True where the link was surely read after the load had begun."""
    samples = list(device.recent)
    for place, first in enumerate(samples):
        if samples[-1].monotonic - first.monotonic < LINK_AGE_SECONDS:
            return False
        average = mean(load(past) for past in samples[place:])
        if (load(first) or 0.0) >= LOAD_RATIO and average is not None and average >= LOAD_RATIO:
            return True
    return False


def replays_rising(state: State, now: float) -> Iterator[events.Finding]:
    """Packets sent again, in several readings: one burst after a reset is no fault."""
    for device in live_gpus(state, now):
        sample = device.sample
        if sample is None or sample.pcie_replays is None:
            continue
        rise = device.growth["pcie_replays"].within(REPLAY_WINDOW_SECONDS, sample.monotonic)
        if rise.times < 2 or rise.per_minute() <= REPLAYS_PER_MINUTE:
            continue
        yield finding(
            sample,
            device,
            code="pcie-replays",
            severity="warn",
            word="SLOW",
            title=f"PCIe link sends again: {rise.added} replays in {duration(rise.seconds)}",
            cause="transmission errors: a bad contact, riser, cable or slot",
            evidence=(
                f"{sample.pcie_replays} replays since the driver was loaded",
                *([f"link {link}"] if (link := describe(sample, loaded=True)) else []),
            ),
            remedy="Reseat the board and its riser or cable; try another slot.",
            command=_lspci(device, "-E 'LnkSta|DevSta|CESta'"),
            basis=f"more than {REPLAYS_PER_MINUTE} a minute (NVIDIA DCGM's limit)",
        )


def _lspci(device: DeviceState, what: str) -> str:
    address = lspci_address(device.identity.pci_bus_id or "")
    return f"sudo lspci -vv -s {address} | grep {what}" if address else ""


def _evidence(sample: events.DeviceSample) -> tuple[str, ...]:
    if None in (sample.pcie_generation_max, sample.pcie_width_max):
        return ()
    assert sample.pcie_generation is not None
    assert sample.pcie_width is not None
    assert sample.pcie_generation_max is not None
    assert sample.pcie_width_max is not None
    now = raw_bytes_per_second(sample.pcie_generation, sample.pcie_width)
    most = raw_bytes_per_second(sample.pcie_generation_max, sample.pcie_width_max)
    if now is None or most is None:
        return ()
    return (f"{now / 1e9:.1f} of {most / 1e9:.1f} GB/s per direction",)
