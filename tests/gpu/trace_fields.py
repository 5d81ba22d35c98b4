"""Which field of a scenario each answer of NVML is, by function and by number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MIB = 1 << 20

Fields = dict[str, Any]
Reader = Callable[[list[Any], Any], Fields]


def one(field: str, divisor: int = 1) -> Reader:
    return lambda arguments, value: {field: value if divisor == 1 else value / divisor}


def several(*fields: str, divisor: int = 1) -> Reader:
    return lambda arguments, value: {
        field: number if divisor == 1 else number / divisor
        for field, number in zip(fields, value, strict=False)
    }


def choice(*fields: str) -> Reader:
    """The first argument says which."""
    return lambda arguments, value: (
        {fields[arguments[0]]: value} if arguments[0] < len(fields) else {}
    )


def memory(arguments: list[Any], value: Any) -> Fields:
    return {
        "memory_total_mib": value["total"] / MIB,
        "memory_used_mib": value["used"] / MIB,
        "memory_reserved_mib": value.get("reserved", 0) / MIB,
    }


def pci(arguments: list[Any], value: Any) -> Fields:
    return {
        "pci_bus_id": value["busId"],
        "pci_device_id": value["pciDeviceId"],
        "pci_subsystem_id": value["pciSubSystemId"],
    }


def errors(arguments: list[Any], value: Any) -> Fields:
    kind, counter = ("corrected", "uncorrected")[arguments[0]], ("volatile", "aggregate")
    return {f"ecc_{kind}_{counter[arguments[1]]}": value}


READERS: dict[str, Reader] = {
    "nvmlDeviceGetName": one("name"),
    "nvmlDeviceGetUUID": one("uuid"),
    "nvmlDeviceGetPciInfo_v3": pci,
    "nvmlDeviceGetPciInfo": pci,
    "nvmlDeviceGetCudaComputeCapability": lambda arguments, value: {
        "compute_capability": f"{value[0]}.{value[1]}"
    },
    "nvmlDeviceGetArchitecture": one("architecture"),
    "nvmlDeviceGetNumGpuCores": one("cores"),
    "nvmlDeviceGetMemoryBusWidth": one("memory_bus_bits"),
    "nvmlDeviceGetMemoryInfo": memory,
    "nvmlDeviceGetUtilizationRates": lambda arguments, value: {
        "busy_percent": value["gpu"],
        "memory_busy_percent": value["memory"],
    },
    "nvmlDeviceGetClockInfo": choice(
        "graphics_clock_mhz", "sm_clock_mhz", "memory_clock_mhz", "video_clock_mhz"
    ),
    "nvmlDeviceGetMaxClockInfo": choice(
        "graphics_clock_max_mhz", "sm_clock_max_mhz", "memory_clock_max_mhz", "video_clock_max_mhz"
    ),
    "nvmlDeviceGetPowerUsage": one("power_watts", 1000),
    "nvmlDeviceGetEnforcedPowerLimit": one("power_limit_watts", 1000),
    "nvmlDeviceGetPowerManagementLimit": one("power_management_limit_watts", 1000),
    "nvmlDeviceGetPowerManagementDefaultLimit": one("power_limit_default_watts", 1000),
    "nvmlDeviceGetPowerManagementLimitConstraints": several(
        "power_limit_min_watts", "power_limit_max_watts", divisor=1000
    ),
    "nvmlDeviceGetTotalEnergyConsumption": one("energy_joules", 1000),
    "nvmlDeviceGetTemperatureV": one("temperature_celsius"),
    "nvmlDeviceGetTemperature": one("temperature_celsius"),
    "nvmlDeviceGetMarginTemperature": one("temperature_margin_celsius"),
    "nvmlDeviceGetTemperatureThreshold": choice(
        "temperature_shutdown_celsius",
        "temperature_slowdown_celsius",
        "temperature_memory_max_celsius",
        "temperature_gpu_max_celsius",
    ),
    "nvmlDeviceGetPerformanceState": one("performance_state"),
    "nvmlDeviceGetCurrentClocksEventReasons": one("clock_event_mask"),
    "nvmlDeviceGetCurrentClocksThrottleReasons": one("clock_event_mask"),
    "nvmlDeviceGetCurrPcieLinkGeneration": one("pcie_generation"),
    "nvmlDeviceGetCurrPcieLinkWidth": one("pcie_width"),
    "nvmlDeviceGetMaxPcieLinkGeneration": one("pcie_generation_max"),
    "nvmlDeviceGetMaxPcieLinkWidth": one("pcie_width_max"),
    "nvmlDeviceGetPcieReplayCounter": one("pcie_replays"),
    "nvmlDeviceGetFanSpeed": lambda arguments, value: {"fan_percent": value, "fan_count": 1},
    "nvmlDeviceGetEncoderUtilization": several("encoder_busy_percent"),
    "nvmlDeviceGetDecoderUtilization": several("decoder_busy_percent"),
    "nvmlDeviceGetEccMode": several("ecc_mode", "ecc_mode_pending"),
    "nvmlDeviceGetMigMode": several("mig_mode", "mig_mode_pending"),
    "nvmlDeviceGetTotalEccErrors": errors,
    "nvmlDeviceGetRemappedRows": several(
        "row_remap_corrected", "row_remap_uncorrected", "row_remap_pending", "row_remap_failed"
    ),
    "nvmlDeviceGetRetiredPages": lambda arguments, value: {
        ("pages_retired_single_bit", "pages_retired_double_bit")[arguments[0]]: len(value)
    },
    "nvmlDeviceGetRetiredPagesPendingStatus": one("pages_retirement_pending"),
    "nvmlDeviceGetComputeMode": one("compute_mode"),
    "nvmlDeviceGetPersistenceMode": one("persistence_mode"),
    "nvmlDeviceGetMaxMigDeviceCount": one("mig_count_max"),
    "nvmlDeviceGetNvLinkState": lambda arguments, value: {f"nvlink_active.{arguments[0]}": value},
}

NANOSECONDS = 1_000_000_000
FIELD_IDS: dict[int, tuple[str, int]] = {
    29: ("pages_retired_single_bit", 1),
    30: ("pages_retired_double_bit", 1),
    31: ("pages_retirement_pending", 1),
    38: ("nvlink_crc_flit_errors", 1),
    45: ("nvlink_crc_data_errors", 1),
    52: ("nvlink_replay_errors", 1),
    59: ("nvlink_recovery_errors", 1),
    74: ("throttle_power_seconds", NANOSECONDS),
    75: ("throttle_thermal_seconds", NANOSECONDS),
    76: ("throttle_sync_boost_seconds", NANOSECONDS),
    77: ("throttle_board_limit_seconds", NANOSECONDS),
    79: ("throttle_reliability_seconds", NANOSECONDS),
    82: ("memory_temperature_celsius", 1),
    91: ("nvlink_count", 1),
    94: ("pcie_replays", 1),
    138: ("nvlink_transmit_kib", 1),
    139: ("nvlink_receive_kib", 1),
    197: ("pcie_transmit_bytes", 1),
    198: ("pcie_receive_bytes", 1),
    202: ("nvlink_transmit_bytes", 1),
    204: ("nvlink_receive_bytes", 1),
    269: ("throttle_software_thermal_seconds", NANOSECONDS),
    270: ("throttle_hardware_thermal_seconds", NANOSECONDS),
    271: ("throttle_power_brake_seconds", NANOSECONDS),
}
"""Field and divisor by NVML's number: those that topsmon asks for."""
SUMS = frozenset({38, 45, 52, 59})
"""Sums over all links, whatever the scope."""
ALL_LINKS = 0xFFFFFFFF
METRICS = {
    1: "gpm_graphics_percent",
    2: "gpm_sm_percent",
    3: "gpm_occupancy_percent",
    4: "gpm_integer_percent",
    5: "gpm_tensor_percent",
    10: "gpm_dram_percent",
    11: "gpm_fp64_percent",
    12: "gpm_fp32_percent",
    13: "gpm_fp16_percent",
    20: "gpm_pcie_transmit_mib_per_second",
    21: "gpm_pcie_receive_mib_per_second",
    60: "gpm_nvlink_receive_mib_per_second",
    61: "gpm_nvlink_transmit_mib_per_second",
}
