"""The split of a batch over the GPUs of one machine, from their measured rates and free memory."""

from __future__ import annotations

from collections.abc import Sequence

from topsmon.device_state import DeviceState
from topsmon.diagnosis.balance import Member, Split, split
from topsmon.diagnosis.trust import trusted

TRAINING = ("bf16", "fp16", "tf32", "fp32")
"""Types that training computes in, the first that all GPUs have shown decides."""


def split_of(devices: Sequence[DeviceState]) -> Split | None:
    """The split over the GPUs among the devices; None for fewer than two or unknown ones."""
    gpus = [device for device in devices if device.identity.kind == "gpu"]
    for precision in TRAINING:
        members = [member for gpu in gpus if (member := _member(gpu, precision)) is not None]
        if len(members) == len(gpus):
            return split(members)
    return None


def _member(gpu: DeviceState, precision: str) -> Member | None:
    result, memory = trusted(gpu, precision), _free_bytes(gpu)
    if result is None or not result.rate_ops_per_second or memory is None:
        return None
    return Member(
        label=gpu.label, memory_bytes=memory, rate_ops_per_second=result.rate_ops_per_second
    )


def _free_bytes(gpu: DeviceState) -> float | None:
    """Free memory by the latest reading, else all there is."""
    sample = gpu.sample
    if sample is not None and sample.memory_total_bytes and sample.memory_used_bytes is not None:
        taken = sample.memory_used_bytes + (sample.memory_reserved_bytes or 0)
        return float(sample.memory_total_bytes - taken)
    total = gpu.identity.memory_total_bytes
    return None if total is None else float(total)
