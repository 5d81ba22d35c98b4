"""The structures of the driver library against those of nvidia-ml-py."""

import ctypes
import subprocess
from pathlib import Path

import pynvml as nvml
import pytest

from topsmon.simulated.build import compiler
from topsmon.simulated.table import SOURCES

STRUCTURES = {
    "pci_info": (
        nvml.nvmlPciInfo_t,
        {
            "bus_id_legacy": "busIdLegacy",
            "domain": "domain",
            "bus": "bus",
            "device": "device",
            "pci_device_id": "pciDeviceId",
            "pci_subsystem_id": "pciSubSystemId",
            "bus_id": "busId",
        },
    ),
    "memory_info": (
        nvml.c_nvmlMemory_t,
        {"total": "total", "free": "free", "used": "used"},
    ),
    "memory_info_v2": (
        nvml.c_nvmlMemory_v2_t,
        {
            "version": "version",
            "total": "total",
            "reserved": "reserved",
            "free": "free",
            "used": "used",
        },
    ),
    "utilization": (nvml.c_nvmlUtilization_t, {"gpu": "gpu", "memory": "memory"}),
    "temperature_v1": (
        nvml.c_nvmlTemperature_v1_t,
        {"version": "version", "sensor": "sensorType", "celsius": "temperature"},
    ),
    "margin_temperature_v1": (
        nvml.c_nvmlMarginTemperature_v1_t,
        {"version": "version", "celsius": "marginTemperature"},
    ),
    "process_info_v2": (
        nvml.c_nvmlProcessInfo_v2_t,
        {
            "pid": "pid",
            "used_gpu_memory": "usedGpuMemory",
            "gpu_instance": "gpuInstanceId",
            "compute_instance": "computeInstanceId",
        },
    ),
    "field_value": (
        nvml.c_nvmlFieldValue_t,
        {
            "field": "fieldId",
            "scope": "scopeId",
            "timestamp": "timestamp",
            "latency_microseconds": "latencyUsec",
            "value_type": "valueType",
            "code": "nvmlReturn",
            "value": "value",
        },
    ),
    "addressing_mode_v1": (
        nvml.c_nvmlDeviceAddressingMode_t,
        {"version": "version", "mode": "value"},
    ),
    "sram_errors_v1": (
        nvml.c_nvmlEccSramErrorStatus_v1_t,
        {
            "version": "version",
            "aggregate_parity": "aggregateUncParity",
            "aggregate_secded": "aggregateUncSecDed",
            "aggregate_corrected": "aggregateCor",
            "volatile_parity": "volatileUncParity",
            "volatile_secded": "volatileUncSecDed",
            "volatile_corrected": "volatileCor",
            "bucket_l2": "aggregateUncBucketL2",
            "bucket_sm": "aggregateUncBucketSm",
            "bucket_pcie": "aggregateUncBucketPcie",
            "bucket_mcu": "aggregateUncBucketMcu",
            "bucket_other": "aggregateUncBucketOther",
            "threshold_exceeded": "bThresholdExceeded",
        },
    ),
    "process_sample": (
        nvml.c_nvmlProcessUtilizationSample_t,
        {
            "pid": "pid",
            "timestamp": "timeStamp",
            "sm": "smUtil",
            "memory": "memUtil",
            "encoder": "encUtil",
            "decoder": "decUtil",
        },
    ),
    "process_utilization_v1": (
        nvml.c_nvmlProcessUtilizationInfo_v1_t,
        {
            "timestamp": "timeStamp",
            "pid": "pid",
            "sm": "smUtil",
            "memory": "memUtil",
            "encoder": "encUtil",
            "decoder": "decUtil",
            "jpeg": "jpgUtil",
            "ofa": "ofaUtil",
        },
    ),
    "processes_utilization_v1": (
        nvml.c_nvmlProcessesUtilizationInfo_v1_t,
        {
            "version": "version",
            "count": "processSamplesCount",
            "last_seen": "lastSeenTimeStamp",
            "entries": "procUtilArray",
        },
    ),
    "sample": (nvml.c_nvmlSample_t, {"timestamp": "timeStamp", "value": "sampleValue"}),
    "event_data": (
        nvml.c_nvmlEventData_t,
        {
            "device": "device",
            "type": "eventType",
            "data": "eventData",
            "gpu_instance": "gpuInstanceId",
            "compute_instance": "computeInstanceId",
        },
    ),
    "gpm_support": (
        nvml.c_nvmlGpmSupport_t,
        {"version": "version", "supported": "isSupportedDevice"},
    ),
    "gpm_metric": (
        nvml.c_nvmlGpmMetric_t,
        {"id": "metricId", "code": "nvmlReturn", "value": "value", "short_name": "metricInfo"},
    ),
    "gpm_metrics": (
        nvml.c_nvmlGpmMetricsGet_t,
        {
            "version": "version",
            "count": "numMetrics",
            "older": "sample1",
            "newer": "sample2",
            "metrics": "metrics",
        },
    ),
    "attributes": (
        nvml.c_nvmlDeviceAttributes,
        {
            "multiprocessors": "multiprocessorCount",
            "copy_engines": "sharedCopyEngineCount",
            "decoders": "sharedDecoderCount",
            "encoders": "sharedEncoderCount",
            "jpeg_engines": "sharedJpegCount",
            "ofa_engines": "sharedOfaCount",
            "gpu_instance_slices": "gpuInstanceSliceCount",
            "compute_instance_slices": "computeInstanceSliceCount",
            "memory_mib": "memorySizeMB",
        },
    ),
}
VERSIONS = {
    "struct memory_info_v2, 2": nvml.nvmlMemory_v2,
    "struct temperature_v1, 1": nvml.nvmlTemperature_v1,
    "struct margin_temperature_v1, 1": nvml.nvmlMarginTemperature_v1,
    "struct addressing_mode_v1, 1": nvml.nvmlDeviceAddressingMode_v1,
    "struct sram_errors_v1, 1": nvml.nvmlEccSramErrorStatus_v1,
    "struct processes_utilization_v1, 1": nvml.ProcessesUtilizationInfo_v1,
}


@pytest.fixture(scope="module")
def measured(builds: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """Sizes, offsets and version words as the C compiler sees them."""
    others = ("process_info_v1", "process_info_early_535")
    expressions = [f"sizeof(struct {name})" for name in (*STRUCTURES, *others)]
    for name, (_, fields) in STRUCTURES.items():
        expressions += [f"offsetof(struct {name}, {field})" for field in fields]
    expressions += [f"VERSION({version})" for version in VERSIONS]
    expressions.append("sizeof(union value)")
    prints = "\n".join(f'printf("%lu\\n", (unsigned long){e});' for e in expressions)
    folder = tmp_path_factory.mktemp("layout")
    source = folder / "layout.c"
    source.write_text(f'#include "export.h"\n#include <stdio.h>\nint main(void) {{\n{prints}\n}}\n')
    program = folder / "layout"
    subprocess.run([*compiler(), f"-I{SOURCES}", str(source), "-o", str(program)], check=True)
    lines = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()
    return dict(zip(expressions, map(int, lines), strict=True))


@pytest.mark.parametrize("name", STRUCTURES)
def test_size_and_every_offset(measured: dict[str, int], name: str) -> None:
    theirs, fields = STRUCTURES[name]
    assert list(fields.values()) == [field[0] for field in theirs._fields_]
    assert measured[f"sizeof(struct {name})"] == ctypes.sizeof(theirs)
    for ours, field in fields.items():
        offset = measured[f"offsetof(struct {name}, {ours})"]
        assert offset == getattr(theirs, field).offset, field


def test_process_structure_of_the_oldest_call_has_no_mig_fields(measured: dict[str, int]) -> None:
    assert measured["sizeof(struct process_info_v1)"] == 16


def test_process_structure_of_the_first_535_drivers_has_one_more_field(
    measured: dict[str, int],
) -> None:
    """The field of nvmlProcessDetail_v1_t after the four that all versions have."""
    assert measured["sizeof(struct process_info_early_535)"] == ctypes.sizeof(
        nvml.c_nvmlProcessDetail_v1_t
    )


def test_union_of_values(measured: dict[str, int]) -> None:
    assert measured["sizeof(union value)"] == ctypes.sizeof(nvml.c_nvmlValue_t)


@pytest.mark.parametrize("version", VERSIONS)
def test_version_words(measured: dict[str, int], version: str) -> None:
    assert measured[f"VERSION({version})"] == VERSIONS[version]
