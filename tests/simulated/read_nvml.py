"""Reads everything the simulated driver offers through the real nvidia-ml-py; prints JSON."""

from __future__ import annotations

import json
import sys

import pynvml as nvml


def attempt(call, *arguments):
    try:
        return call(*arguments)
    except nvml.NVMLError as error:
        return {"error": error.value}
    except nvml.NVMLLibraryMismatchError:
        return {"error": "mismatch"}
    except UnicodeDecodeError:
        return {"error": "unicode"}


def fields(structure, *names):
    if isinstance(structure, dict):
        return structure
    return {name: getattr(structure, name) for name in names}


def read_processes(call, handle):
    found = attempt(call, handle)
    if isinstance(found, dict):
        return found
    return [[p.pid, p.usedGpuMemory, p.gpuInstanceId, p.computeInstanceId] for p in found]


FIELD_IDS = (82, 83, 185, 186, 94, 999)


def read_fields(handle):
    values = attempt(nvml.nvmlDeviceGetFieldValues, handle, list(FIELD_IDS))
    if isinstance(values, dict):
        return values
    wide = nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
    return {
        str(v.fieldId): {"error": v.nvmlReturn}
        if v.nvmlReturn
        else (v.value.ullVal if v.valueType == wide else v.value.uiVal)
        for v in values
    }


SIMPLE = [
    "Name",
    "UUID",
    "CudaComputeCapability",
    "Architecture",
    "NumGpuCores",
    "MemoryBusWidth",
    "MinorNumber",
    "Index",
    "PowerUsage",
    "EnforcedPowerLimit",
    "PowerManagementLimit",
    "PowerManagementDefaultLimit",
    "PowerManagementLimitConstraints",
    "TotalEnergyConsumption",
    "PerformanceState",
    "CurrPcieLinkGeneration",
    "MaxPcieLinkGeneration",
    "GpuMaxPcieLinkGeneration",
    "CurrPcieLinkWidth",
    "MaxPcieLinkWidth",
    "PersistenceMode",
    "ComputeMode",
    "MigMode",
    "MaxMigDeviceCount",
    "EccMode",
    "CurrentClocksEventReasons",
    "SupportedClocksEventReasons",
    "CurrentClocksThrottleReasons",
    "MarginTemperature",
]


def read_device(handle):
    device = {name: attempt(getattr(nvml, f"nvmlDeviceGet{name}"), handle) for name in SIMPLE}
    device["Clocks"] = [attempt(nvml.nvmlDeviceGetClockInfo, handle, kind) for kind in range(4)]
    device["MaxClocks"] = [
        attempt(nvml.nvmlDeviceGetMaxClockInfo, handle, kind) for kind in range(4)
    ]
    device["CustomerBoost"] = attempt(nvml.nvmlDeviceGetMaxCustomerBoostClock, handle, 1)
    device["Temperature"] = attempt(nvml.nvmlDeviceGetTemperature, handle, 0)
    device["TemperatureV"] = attempt(nvml.nvmlDeviceGetTemperatureV, handle, 0)
    device["Thresholds"] = [
        attempt(nvml.nvmlDeviceGetTemperatureThreshold, handle, kind) for kind in range(4)
    ]
    device["Utilization"] = fields(
        attempt(nvml.nvmlDeviceGetUtilizationRates, handle), "gpu", "memory"
    )
    device["Memory"] = fields(
        attempt(nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2),
        "total", "reserved", "free", "used",
    )  # fmt: skip
    device["MemoryV1"] = fields(
        attempt(nvml.nvmlDeviceGetMemoryInfo, handle), "total", "free", "used"
    )
    device["Pci"] = fields(
        attempt(nvml.nvmlDeviceGetPciInfo, handle),
        "busId", "busIdLegacy", "domain", "bus", "device", "pciDeviceId", "pciSubSystemId",
    )  # fmt: skip
    device["Compute"] = read_processes(nvml.nvmlDeviceGetComputeRunningProcesses, handle)
    device["ComputeV2"] = read_processes(nvml.nvmlDeviceGetComputeRunningProcesses_v2, handle)
    device["Graphics"] = read_processes(nvml.nvmlDeviceGetGraphicsRunningProcesses, handle)
    device["Attributes"] = fields(
        attempt(nvml.nvmlDeviceGetAttributes_v2, handle),
        "multiprocessorCount", "gpuInstanceSliceCount", "computeInstanceSliceCount", "memorySizeMB",
    )  # fmt: skip
    device["Fields"] = read_fields(handle)
    return device


def read_all():
    failed = attempt(nvml.nvmlInit)
    if failed is not None:
        return failed
    result = {
        "driver": nvml.nvmlSystemGetDriverVersion(),
        "nvml": nvml.nvmlSystemGetNVMLVersion(),
        "cuda": nvml.nvmlSystemGetCudaDriverVersion(),
        "devices": [],
    }
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = attempt(nvml.nvmlDeviceGetHandleByIndex, index)
        result["devices"].append(handle if isinstance(handle, dict) else read_device(handle))
    nvml.nvmlShutdown()
    return result


if __name__ == "__main__":
    json.dump(read_all(), sys.stdout)
