"""Rules about settings of the driver that explain what programs see: compute mode, persistence."""

from __future__ import annotations

import re
from collections.abc import Iterator

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.diagnosis.observe import live_gpus, other_processes
from topsmon.diagnosis.words import finding, nvidia_smi, process, where_needed
from topsmon.state import State
from topsmon.units import plain

_SERVER_BOARDS = re.compile(
    r"\b(Tesla|[APVT]\d{1,3}[GX]?|[HBL]\d{1,3}S?|G[HB]\d{3}|Server Edition)\b"
)
"""Names of boards for machines without a display: "Tesla V100-SXM2-16GB", "NVIDIA H100 NVL"."""
_WORKSTATION_NAMES = re.compile(r"Quadro|RTX A|GeForce|TITAN|Laptop|NVS|Jetson")


def compute_mode(state: State, now: float) -> Iterator[events.Finding]:
    """A mode that keeps programs off the GPU, where it does: it is no fault, but explains one."""
    for device in live_gpus(state, now):
        sample = device.sample
        mode = sample.compute_mode if sample is not None else None
        if sample is None or mode is None or mode == "default":
            continue
        prohibited = mode == "prohibited"
        others = other_processes(device)
        failed = device.prober.worker is not None and device.prober.worker.condition == "failed"
        if not prohibited and not others and not failed:
            continue  # one program at a time, and there is none
        holder = f"{process(others[0])} has it" if others else "another program may have it"
        yield finding(
            sample,
            device,
            code="compute-mode",
            severity="warn" if prohibited else "info",
            word="note",
            title=f"compute mode {plain(mode, 30)}",
            cause="no CUDA program can run on it, and nothing can be measured"
            if prohibited
            else f"one program at a time: {holder}, others fail to start (device unavailable)",
            remedy=where_needed(state, "set the default mode if several programs shall run."),
            command=nvidia_smi(state, device, "-c DEFAULT", changes=True),
            basis="NVIDIA nvml.h, nvmlComputeMode_t",
        )


def persistence_off(state: State, now: float) -> Iterator[events.Finding]:
    """On a server board the driver is set up anew for the first program of each job."""
    for device in live_gpus(state, now):
        sample = device.sample
        if sample is None or sample.persistence_mode is not False or not _serves(device):
            continue
        if state.host is not None and state.host.wsl:
            continue
        yield finding(
            sample,
            device,
            code="persistence-off",
            severity="info",
            word="note",
            title="persistence mode is off",
            cause="each first program waits a second or more for the driver to set up the GPU, "
            "and settings like a power limit are lost in between",
            remedy=where_needed(state, "run nvidia-persistenced, or switch the mode on."),
            command=nvidia_smi(state, device, "-pm 1", changes=True),
            basis="NVIDIA, Driver Persistence; 1.5 s seen in system76-power issue 492",
        )


def _serves(device: DeviceState) -> bool:
    name = device.identity.name
    return bool(_SERVER_BOARDS.search(name)) and not _WORKSTATION_NAMES.search(name)
