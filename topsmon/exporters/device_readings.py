"""Which reading of a device becomes which metric, in base units.

One line a metric: its name after "topsmon_gpu_", the field of the sample, the factor to the base
unit, its help. A field that the driver does not give is None, and its series is then absent.
"""

from __future__ import annotations

from typing import NamedTuple

MEGA = 1e6


class Reading(NamedTuple):
    """A field of a sample as a metric."""

    name: str
    field: str
    text: str
    factor: float = 1.0


GAUGES = (
    Reading("busy_ratio", "busy_ratio", "Share of time in which any kernel ran (GPU-Util)."),
    Reading(
        "memory_busy_ratio",
        "memory_busy_ratio",
        "Share of time in which memory was read or written; no bandwidth.",
    ),
    Reading("memory_used_bytes", "memory_used_bytes", "Memory in use."),
    Reading("memory_reserved_bytes", "memory_reserved_bytes", "Memory held by the driver."),
    Reading("memory_total_bytes", "memory_total_bytes", "Memory of the device."),
    Reading("sm_clock_hertz", "sm_clock_mhz", "Clock of the SMs.", MEGA),
    Reading("memory_clock_hertz", "memory_clock_mhz", "Clock of the memory.", MEGA),
    Reading("power_watts", "power_watts", "Power drawn."),
    Reading("power_limit_watts", "power_limit_watts", "Power limit in force."),
    Reading(
        "power_limit_default_watts", "power_limit_default_watts", "Power limit of the factory."
    ),
    Reading("temperature_celsius", "temperature_celsius", "Temperature of the chip."),
    Reading("memory_temperature_celsius", "memory_temperature_celsius", "Temperature of memory."),
    Reading(
        "temperature_margin_celsius",
        "temperature_margin_celsius",
        "How much hotter it may get before clocks go down.",
    ),
    Reading("fan_ratio", "fan_ratio", "Speed of the fan, of the most possible."),
    Reading("encoder_busy_ratio", "encoder_busy_ratio", "Share of time the encoder was busy."),
    Reading("decoder_busy_ratio", "decoder_busy_ratio", "Share of time the decoder was busy."),
    Reading("performance_state", "performance_state", "Performance state, 0 is the fastest."),
    Reading("pcie_generation", "pcie_generation", "PCIe generation in use now."),
    Reading("pcie_generation_max", "pcie_generation_max", "PCIe generation possible here."),
    Reading("pcie_lanes", "pcie_width", "PCIe lanes in use now."),
    Reading("pcie_lanes_max", "pcie_width_max", "PCIe lanes possible here."),
    Reading(
        "pcie_transmit_bytes_per_second",
        "pcie_transmit_bytes_per_second",
        "PCIe traffic that leaves the GPU.",
    ),
    Reading(
        "pcie_receive_bytes_per_second",
        "pcie_receive_bytes_per_second",
        "PCIe traffic that reaches the GPU.",
    ),
    Reading(
        "nvlink_transmit_bytes_per_second",
        "nvlink_transmit_bytes_per_second",
        "NVLink traffic that leaves the GPU.",
    ),
    Reading(
        "nvlink_receive_bytes_per_second",
        "nvlink_receive_bytes_per_second",
        "NVLink traffic that reaches the GPU.",
    ),
    Reading("nvlink_links_up", "nvlink_links_up", "NVLinks that are up."),
    Reading("nvlink_links", "nvlink_links", "NVLinks that the GPU has."),
    Reading("ecc_enabled", "ecc_enabled", "1: memory errors are corrected (ECC)."),
    Reading("row_remap_pending", "row_remap_pending", "1: a row is remapped at the next reset."),
    Reading("row_remap_failed", "row_remap_failed", "1: a row could not be remapped."),
    Reading(
        "page_retirement_pending",
        "pages_retirement_pending",
        "1: a page is retired at the next reset.",
    ),
    Reading("persistence_mode", "persistence_mode", "1: the driver stays loaded."),
)
COUNTERS = (
    Reading("energy_joules", "energy_joules", "Energy since the driver was loaded."),
    Reading("pcie_replays", "pcie_replays", "PCIe packets sent again."),
    Reading("nvlink_errors", "nvlink_errors", "Errors of all NVLinks."),
    Reading("pages_retired", "pages_retired", "Memory pages retired over the board's life."),
)


class Labelled(NamedTuple):
    """Several fields that are one metric with a label or two."""

    field: str
    labels: dict[str, str]


ECC_ERRORS = (
    Labelled("ecc_corrected_volatile", {"kind": "corrected", "counted": "since_driver_load"}),
    Labelled("ecc_uncorrected_volatile", {"kind": "uncorrected", "counted": "since_driver_load"}),
    Labelled("ecc_corrected_aggregate", {"kind": "corrected", "counted": "board_life"}),
    Labelled("ecc_uncorrected_aggregate", {"kind": "uncorrected", "counted": "board_life"}),
)
ROWS_REMAPPED = (
    Labelled("rows_remapped_corrected", {"kind": "corrected"}),
    Labelled("rows_remapped_uncorrected", {"kind": "uncorrected"}),
)

ACTIVITY = (
    Reading("graphics_active_ratio", "graphics_active_ratio", "Share of time any engine worked."),
    Reading("sm_active_ratio", "sm_active_ratio", "Share of SMs that had a warp."),
    Reading("sm_occupancy_ratio", "sm_occupancy_ratio", "Warps in flight of the most possible."),
    Reading("tensor_active_ratio", "tensor_active_ratio", "Tensor pipe, of its peak issue rate."),
    Reading("dram_active_ratio", "dram_active_ratio", "DRAM, of its theoretical bandwidth."),
    Reading("fp64_active_ratio", "fp64_active_ratio", "FP64 pipe, of its peak issue rate."),
    Reading("fp32_active_ratio", "fp32_active_ratio", "FP32 pipe, of its peak issue rate."),
    Reading("fp16_active_ratio", "fp16_active_ratio", "FP16 pipe, of its peak issue rate."),
    Reading("integer_active_ratio", "integer_active_ratio", "Integer pipe, of its peak rate."),
)
"""NVML's GPM, Hopper and newer; also of each MIG instance."""

CPU_GAUGES = (
    Reading("busy_ratio", "busy_ratio", "Share of busy time of the CPUs that may be used here."),
    Reading("memory_used_bytes", "memory_used_bytes", "Memory in use, within what is allowed."),
    Reading("memory_total_bytes", "memory_total_bytes", "Memory that may be used here."),
    Reading("clock_hertz", "sm_clock_mhz", "Clock of the CPU.", MEGA),
    Reading("power_watts", "power_watts", "Power drawn by the CPU package."),
    Reading("temperature_celsius", "temperature_celsius", "Temperature of the CPU package."),
)
"""After "topsmon_cpu_"."""
