"""Rules: NVLinks that are down, and NVLinks with errors.

A board may have fewer links in use than it has: without a bridge none, with one some. So a link
counts as down only where it was up before, where an equal board has it up, or where the board's
form (SXM) wires them all.
"""

from __future__ import annotations

from collections.abc import Iterator

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.diagnosis.observe import live_gpus
from topsmon.diagnosis.words import finding, nvidia_smi
from topsmon.state import State
from topsmon.units import duration

ERROR_WINDOW_SECONDS = 300.0
ERRORS_PER_MINUTE = 60.0
"""One a second over minutes; a few are corrected by sending again."""


def links_down(state: State, now: float) -> Iterator[events.Finding]:
    """Fewer links up than there should be."""
    for device in live_gpus(state, now):
        sample = device.sample
        up = sample.nvlink_links_up if sample is not None else None
        if sample is None or up is None or not sample.nvlink_links:
            continue
        wanted, why = _wanted(state, device, sample.nvlink_links)
        if up >= wanted:
            continue
        sure = why != WIRED
        yield finding(
            sample,
            device,
            code="nvlink-down",
            severity="warn" if sure else "info",
            word="SLOW" if sure else "note",
            title=f"{up} of {wanted} NVLinks up",
            cause=f"{why}; traffic between GPUs takes the links that are left, or PCIe",
            evidence=(f"{sample.nvlink_links} links on this board",),
            remedy="See the kernel log (XID 74); check bridges or baseboard and the fabric "
            "manager; reset the GPUs when their jobs have ended.",
            command=nvidia_smi(state, device, "nvlink --status", changes=False),
            basis="NVML NvLinkState of each link",
        )


WIRED = "all links of an SXM board are wired"


def _wanted(state: State, device: DeviceState, links: int) -> tuple[int, str]:
    """How many links should be up, and why."""
    before = device.most_links_up or 0
    equals = [
        other.sample.nvlink_links_up
        for other in state.gpus()
        if other is not device
        and other.sample is not None
        and other.sample.nvlink_links == links
        and other.identity.name == device.identity.name
        and other.sample.nvlink_links_up is not None
    ]
    most = max(equals, default=0)
    now = device.sample.nvlink_links_up if device.sample is not None else None
    if now is not None and before > now:
        return max(before, most), "links that were up have gone down"
    if most > before:
        return most, "an equal GPU of this machine has more links up"
    sxm = device.ceilings is not None and "sxm" in (device.ceilings.board or "")
    # None up at all: the machine has no NVLink fabric, or its manager does not run yet.
    return (links, WIRED) if sxm and before else (before, "")


def link_errors(state: State, now: float) -> Iterator[events.Finding]:
    """Errors that grow in several readings; what was counted before says nothing of now."""
    for device in live_gpus(state, now):
        sample = device.sample
        if sample is None or sample.nvlink_errors is None:
            continue
        rise = device.growth["nvlink_errors"].within(ERROR_WINDOW_SECONDS, sample.monotonic)
        if rise.times < 2:
            continue
        many = rise.per_minute() >= ERRORS_PER_MINUTE
        yield finding(
            sample,
            device,
            code="nvlink-errors",
            severity="warn" if many else "info",
            word="SLOW" if many else "note",
            title=f"NVLink errors: {rise.added} in {duration(rise.seconds)}",
            cause="transmission errors on a link: packets are sent again"
            if many
            else "single transmission errors; the packets were sent again",
            evidence=(f"{sample.nvlink_errors} since the driver was loaded",),
            remedy="Find the link; reseat bridge or board; have it tested if it goes on.",
            command=nvidia_smi(state, device, "nvlink --errorcounters", changes=False),
            basis="any growth is noted, from one a second on it warns; NVIDIA DCGM warns of any "
            "growth and fails a link from 100 CRC errors a second on",
        )
