"""The rate of this rank's device in the type that training uses. No collective in it: one would
make every rank look as slow as the slowest.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from typing import Any

import torch

from ..probes import machine
from ..probes.bursts import Bench
from ..probes.devices import CpuDevice, CudaDevice
from .faults import Fault

GPU_SIZES = (8192, 4096, 2048)
CPU_SIZE = 512
GPU_BURSTS, CPU_BURSTS = 4, 3
OPERANDS = 4.0
"""Matrices of a product with room for checking it."""


def open_gpu(index: int) -> CudaDevice:
    """The GPU of this rank, made the process's current one."""
    torch.cuda.set_device(index)
    return CudaDevice(uuid_of(index) or "", index)


def open_cpu(local_world_size: int) -> CpuDevice:
    """The processor with the cores that are this rank's."""
    cpus = machine.read_cpus()
    device = CpuDevice()
    bound = cpus.logical < (os.cpu_count() or 1)  # mpirun and srun give each rank its own cores
    wanted = cpus.usable if bound else max(1, cpus.usable // local_world_size)
    torch.set_num_threads(wanted)
    device.threads = wanted
    return device


def uuid_of(index: int) -> str | None:
    """NVML's name of a GPU ("GPU-..."), None where torch does not tell (before 2.5)."""
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    return None if uuid is None else f"GPU-{uuid}"


def describe(device: CpuDevice | CudaDevice, local_world_size: int) -> dict[str, Any]:
    """What decides whether two ranks' devices are equal, and how much memory a rank has.

    Ranks on a processor share its memory.
    """
    if isinstance(device, CpuDevice):
        free = device.free_bytes()
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return {
            "kind": "cpu",
            "name": device.facts.name,
            "index": 0,
            "memory_total_bytes": total // local_world_size,
            "memory_free_bytes": None if free is None else free // local_world_size,
            "threads": device.threads,
            "cuda_devices": torch.cuda.device_count(),
        }
    index = int(device.place.index)
    properties = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    count = torch.cuda.device_count()
    neighbour = (index + 1) % count
    return {
        "kind": "gpu",
        "name": str(properties.name),
        "index": index,
        "uuid": uuid_of(index),
        "compute_capability": f"{properties.major}.{properties.minor}",
        "sm_count": int(properties.multi_processor_count),
        "memory_total_bytes": int(total),
        "memory_free_bytes": int(free),
        "cuda_devices": count,
        "peer_access": torch.cuda.can_device_access_peer(index, neighbour) if count > 1 else None,
    }


def precision_of(device: CpuDevice | CudaDevice) -> str:
    """What training computes in: BF16 where it is native, else FP16; FP32 on a processor."""
    if isinstance(device, CpuDevice):
        return "fp32"
    return "bf16" if (device.facts.capability or (0, 0)) >= (8, 0) else "fp16"


def measure(
    device: CpuDevice | CudaDevice, fault: Fault, checkpoint: Callable[[], None]
) -> dict[str, Any]:
    """Fields of a rate event from several bursts of one shape.

    The rate is the median of the bursts' on a GPU, where later ones show throttling, and the best
    on a processor, which others use too.
    """
    key = precision_of(device)
    bench = Bench(device, checkpoint)
    gemm = bench.gemms[key]
    plain = gemm.run

    def run(operands: Any) -> Any:
        fault.lag()
        return plain(operands)

    gemm.run = run  # type: ignore[method-assign]
    gpu = isinstance(device, CudaDevice)
    size = _size(device, gemm.element_bytes) if gpu else CPU_SIZE
    bursts = [
        bench.burst_of(key, (size, size, size), quick=not gpu)
        for _ in range(GPU_BURSTS if gpu else CPU_BURSTS)
    ]
    rates = [float(burst["rate_ops_per_second"]) for burst in bursts]
    rate = statistics.median_low(rates) if gpu else max(rates)
    chosen = bursts[rates.index(rate)]
    wrong = [burst for burst in bursts if burst["correct"] is False]
    masks = [burst["clock_event_mask"] for burst in bursts if burst["clock_event_mask"] is not None]
    mask = None
    for one in masks:
        mask = (mask or 0) | one
    return {**(wrong[0] if wrong else chosen), "clock_event_mask": mask, "burst_rates": rates}


def _size(device: CpuDevice | CudaDevice, element_bytes: float) -> int:
    """The largest square that a tenth of the free memory holds."""
    room = (device.free_bytes() or 0) / 10
    fitting = [size for size in GPU_SIZES if OPERANDS * element_bytes * size**2 <= room]
    return fitting[0] if fitting else GPU_SIZES[-1]
