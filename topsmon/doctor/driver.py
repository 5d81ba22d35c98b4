"""The NVIDIA driver and the GPUs, as the poller has read them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.devices import host
from topsmon.doctor.model import Outcome, Patient, Result

SLOW_SECONDS = 1.0
NO_GPU_CODES = frozenset({"no-device"})
"""Not a fault: there is no GPU in this machine."""
WARNING_CODES = frozenset({"order", "no-gpu"})
_NVIDIA_VENDOR = "0x10de"
_REASONS_SHOWN = 4


def driver(patient: Patient) -> Iterator[Result]:
    """Whether NVML works, and how fast it answers."""
    state = patient.state
    problems = list(state.problems.values())
    for problem in problems:
        yield _problem(problem, patient)
    facts = state.host
    if problems or facts is None:
        return
    whole = all(device.condition in {"ok", "asleep"} for device in state.gpus())
    slow = whole and patient.read_seconds > SLOW_SECONDS
    told = f"everything was read once in {patient.read_seconds:.2f} s"
    yield Result(
        id="driver",
        state="ok" if whole and not slow else "warn",
        finding=f"driver {facts.driver_version or 'version unknown'}, "
        f"CUDA {facts.cuda_version or 'version unknown'}; "
        f"{told if whole else 'not everything was read'}",
        remedy="nvidia-smi -pm 1 keeps the driver loaded (persistence mode)." if slow else "",
    )


def _problem(problem: events.Problem, patient: Patient) -> Result:
    code = problem.code or ""
    outcome: Outcome = "fail"
    if code in NO_GPU_CODES or (code == "no-library" and not _gpus_on_the_bus(patient.root)):
        outcome = "n/a"
    elif code in WARNING_CODES:
        outcome = "warn"
    return Result(id="driver", state=outcome, finding=problem.message, remedy=problem.remedy)


def _gpus_on_the_bus(root: Path) -> int:
    """NVIDIA display controllers that the kernel sees, whether or not a driver serves them."""
    return sum(
        (host.read_text(device / "vendor") or "").strip() == _NVIDIA_VENDOR
        and (host.read_text(device / "class") or "").startswith("0x03")
        for device in (root / "sys/bus/pci/devices").glob("*")
    )


def device_nodes(patient: Patient) -> Iterator[Result]:
    """Whether this user may open what the driver talks through."""
    if patient.state.simulated is not None:
        yield Result(id="device-nodes", state="n/a", finding="simulated driver")
        return
    nodes = sorted((patient.root / "dev").glob("nvidia[0-9ctu]*"))
    nodes = [node for node in nodes if not node.is_dir()]
    refused = [node for node in nodes if not os.access(node, os.R_OK | os.W_OK)]
    if refused:
        names = ", ".join(f"/dev/{node.name}" for node in refused)
        yield Result(
            id="device-nodes",
            state="fail",
            finding=f"no permission on {names}",
            remedy="Ask for access to them (group video or render, or the job's GPU request).",
        )
        return
    count = _gpus_on_the_bus(patient.root)
    facts = patient.state.host
    if nodes:
        yield Result(id="device-nodes", state="ok", finding=f"{len(nodes)} nodes in /dev, all open")
    elif count == 0:
        yield Result(id="device-nodes", state="n/a", finding="no NVIDIA GPU on the PCI bus")
    elif facts is not None and facts.container:
        yield Result(
            id="device-nodes",
            state="fail",
            finding=f"{count} NVIDIA GPU(s) on the PCI bus, no /dev/nvidia* in this container",
            remedy="Start it with GPU access: docker run --gpus all, or the job's GPU request.",
        )
    else:
        yield Result(
            id="device-nodes",
            state="fail",
            finding=f"{count} NVIDIA GPU(s) on the PCI bus, no /dev/nvidia*",
            remedy="Load the driver (modprobe nvidia) and its nodes (nvidia-modprobe -u -c=0).",
        )


def devices(patient: Patient) -> Iterator[Result]:
    """Each GPU: whether it answers, and its ceiling."""
    for device in patient.state.gpus():
        yield _device(device)


def _device(device: DeviceState) -> Result:
    name = f"{device.label} {device.identity.name}"
    status = device.status
    if status is not None and status.condition == "asleep":
        return Result(id=_id(device), state="ok", finding=f"{name}: asleep, left alone")
    if status is not None and status.condition != "ok":
        return Result(
            id=_id(device),
            state="fail",
            finding=f"{name}: {status.condition}: {status.detail}",
            remedy="See the kernel log: dmesg | grep -iE 'nvrm|xid'.",
        )
    if device.ceilings is None or not device.ceilings.rates:
        reason = device.ceilings.unknown if device.ceilings is not None else None
        return Result(
            id=_id(device),
            state="warn",
            finding=f"{name}: answers; no ceiling known: {reason or 'the board is not known'}",
            remedy="Rates are shown without a ratio. topsmon specs --list names the known boards.",
        )
    matched = device.ceilings.matched_by or "computed"
    return Result(id=_id(device), state="ok", finding=f"{name}: answers; ceilings by {matched}")


def _id(device: DeviceState) -> str:
    return device.label.lower().replace(" ", "-")


def silent_readings(patient: Patient) -> Iterator[Result]:
    """What the GPUs do not tell, by reason: most of it is the board's kind, not a fault."""
    reasons: Counter[str] = Counter()
    fields: dict[str, str] = {}
    for device in patient.state.gpus():
        sample = device.sample
        for name, reason in (sample.unavailable if sample is not None else {}).items():
            reasons[reason] += 1
            fields.setdefault(reason, name)
    if not reasons:
        return
    told = [
        f"{count} x {reason} (such as {fields[reason].replace('_', ' ')})"
        for reason, count in reasons.most_common(_REASONS_SHOWN)
    ]
    yield Result(id="readings", state="ok", finding="not told by the driver: " + "; ".join(told))
