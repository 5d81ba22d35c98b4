"""What is asked of a server about a fleet, in PromQL.

Each quantity comes from topsmon's own metrics, else from dcgm-exporter's, else from those of
nvidia_gpu_exporter; a GPU (by UUID) that several exporters know counts once. "<m>" stands for the
label matchers of --match.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Worst = Literal["low", "high"]

LABELS = "instance, uuid, gpu, Hostname, hostname, index, name, modelName, board"
HARDWARE_REASONS = "thermal|hw_thermal|power_brake"
"""A power cap under load is how boards are meant to work."""


class Quantity(NamedTuple):
    """One number a GPU, in base units. `worst` is the end to look at first, None: neither.

    `unit` is "ratio", "watts", "celsius", "hertz" or "bytes".
    """

    key: str
    label: str
    unit: str
    worst: Worst | None
    own: str
    dcgm: str = ""
    smi: str = ""

    def query(self, match: str) -> str:
        """The PromQL of an instant vector, one series a GPU."""
        return merged(self.own, self.dcgm, self.smi, match)


def merged(own: str, dcgm: str, smi: str, match: str) -> str:
    """Join the sources of a number; each GPU has it from the first that knows it."""
    sources = [own]
    if dcgm:
        sources.append(f'label_replace({dcgm}, "uuid", "$1", "UUID", "(.+)")')
    if smi:  # its UUIDs are without the prefix
        sources.append(f'label_replace({smi}, "uuid", "GPU-$1", "uuid", "([0-9a-f]{{8}}-.+)")')
    joined = " or on (uuid) ".join(f"({source})" for source in sources)
    return f"max by ({LABELS}) ({joined})".replace("<m>", match)


QUANTITIES = (
    Quantity(
        "busy",
        "busy (any kernel)",
        "ratio",
        "low",
        "topsmon_gpu_busy_ratio{<m>}",
        "DCGM_FI_DEV_GPU_UTIL{<m>} / 100",
        "nvidia_smi_utilization_gpu_ratio{<m>}",
    ),
    Quantity(
        "sm_active",
        "SM active",
        "ratio",
        "low",
        "topsmon_gpu_sm_active_ratio{<m>}",
        "DCGM_FI_PROF_SM_ACTIVE{<m>}",
    ),
    Quantity(
        "tensor_active",
        "tensor active",
        "ratio",
        "low",
        "topsmon_gpu_tensor_active_ratio{<m>}",
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{<m>}",
    ),
    Quantity(
        "dram_active",
        "DRAM active",
        "ratio",
        None,
        "topsmon_gpu_dram_active_ratio{<m>}",
        "DCGM_FI_PROF_DRAM_ACTIVE{<m>}",
    ),
    Quantity(
        "memory_used",
        "memory in use",
        "bytes",
        "high",
        "topsmon_gpu_memory_used_bytes{<m>}",
        "DCGM_FI_DEV_FB_USED{<m>} * 1048576",
        "nvidia_smi_memory_used_bytes{<m>}",
    ),
    Quantity(
        "memory_total",
        "memory",
        "bytes",
        None,
        "topsmon_gpu_memory_total_bytes{<m>}",
        "(DCGM_FI_DEV_FB_USED{<m>} + DCGM_FI_DEV_FB_FREE{<m>}) * 1048576",
        "nvidia_smi_memory_total_bytes{<m>}",
    ),
    Quantity(
        "power",
        "power",
        "watts",
        None,
        "topsmon_gpu_power_watts{<m>}",
        "DCGM_FI_DEV_POWER_USAGE{<m>}",
        "nvidia_smi_power_draw_watts{<m>}",
    ),
    Quantity(
        "temperature",
        "temperature",
        "celsius",
        "high",
        "topsmon_gpu_temperature_celsius{<m>}",
        "DCGM_FI_DEV_GPU_TEMP{<m>}",
        "nvidia_smi_temperature_gpu{<m>}",
    ),
    Quantity(
        "clock",
        "SM clock",
        "hertz",
        "low",
        "topsmon_gpu_sm_clock_hertz{<m>}",
        "DCGM_FI_DEV_SM_CLOCK{<m>} * 1000000",
        "nvidia_smi_clocks_current_sm_clock_hz{<m>}",
    ),
    Quantity(
        "throttled",
        "clocks held down",
        "ratio",
        "high",
        "sum by (instance, uuid, gpu) (rate(topsmon_gpu_throttle_seconds_total"
        f'{{reason=~"{HARDWARE_REASONS}",<m>}}[5m]))',
    ),
    Quantity("mfu", "MFU", "ratio", "low", "topsmon_run_mfu_ratio{<m>}"),
)

IDENTITY = Quantity(
    "identity",
    "identity",
    "",
    None,
    "topsmon_gpu_info{<m>}",
    "DCGM_FI_DEV_GPU_TEMP{<m>}",
    "nvidia_smi_gpu_info{<m>}",
)
HOSTS = "max by (instance, hostname) (topsmon_host_info{<m>})"
RATES = (
    "max by (instance, uuid, gpu, precision) (topsmon_bench_achieved_operations_per_second{<m>})"
)
CEILINGS = (
    "max by (instance, uuid, gpu, precision) (topsmon_bench_ceiling_operations_per_second{<m>})"
)
FINDINGS = (
    "max by (instance, uuid, gpu, code, severity) "
    '(topsmon_finding_active{severity=~"warn|fail",<m>})'
)
