"""Ceilings of a CPU: physical cores x operations per clock per core x clock."""

from __future__ import annotations

from typing import NamedTuple

from topsmon import events
from topsmon.ceilings.cpu_facts import Core, CpuFacts, read_cpu_facts
from topsmon.ceilings.database import CpuType, Microarchitecture, cpu_rates
from topsmon.units import RATE_LABELS

VECTOR_SETS = ("avx512", "avx2", "avx", "sse2", "neon")
"""Instruction sets with a vector FP32 rate, the widest first within a machine."""
_LABELS = {
    "avx512": "AVX-512", "avx2": "AVX2", "avx": "AVX", "sse2": "SSE2", "neon": "NEON/SVE",
    "amx_bf16": "AMX-BF16", "amx_fp16": "AMX-FP16", "amx_int8": "AMX-INT8",
    "avx512_bf16": "AVX512-BF16", "avx512_fp16": "AVX512-FP16", "avx512_vnni": "AVX512-VNNI",
    "avx_vnni": "AVX-VNNI", "bf16": "BFMMLA", "i8mm": "SMMLA", "asimdhp": "half-precision NEON",
}  # fmt: skip
NO_MEMORY_CEILING = (
    "none: the memory channels and their speed cannot be read (dmidecode as root tells them; a"
    " virtual machine does not)"
)


class Rate(NamedTuple):
    """Operations per clock of one core, `low` to `high`, by which instructions, says who."""

    low: float
    high: float
    instructions: str
    source: str
    verified: bool


class CoreRates(NamedTuple):
    """One usable core: its clock in MHz and its rates by precision. `part` of it may be used."""

    clock_mhz: float | None
    rates: dict[str, Rate]
    part: float = 1.0


def for_cpu(device: events.Device, cpu: CpuFacts | None = None) -> events.Ceilings:
    """Return the ceilings of the CPU as this process may use it."""
    cpu = read_cpu_facts() if cpu is None else cpu
    clock, clock_source = _clock(cpu)
    cores = _usable(cpu, clock)
    unknown = _missing(cpu, cores)
    found = () if unknown else _ceilings(cpu, cores)
    kinds = {_kind(cpu, core) for core in cpu.cores} - {None}
    return events.Ceilings(
        time=device.time,
        monotonic=device.monotonic,
        source=device.source,
        device=device.device,
        board=", ".join(sorted(kind for kind in kinds if kind is not None)) or None,
        matched_by="CPU family and model" if kinds else None,
        unknown=unknown,
        rates=found,
        absent={} if unknown else _absent(cpu, {ceiling.precision for ceiling in found}),
        memory_bandwidth_source=NO_MEMORY_CEILING,
        pcie_source="not a PCIe device",
        nvlink_source="none",
        clock_source=clock_source,
        notes=_notes(cpu),
    )


def usable_cores(cpu: CpuFacts) -> float:
    """Return the physical cores this process may use: affinity, and the quota as a share."""
    count = float(len(cpu.cores))
    return count if cpu.quota_cpus is None else min(count, cpu.quota_cpus)


def vector_set(cpu: CpuFacts) -> str | None:
    """Return the widest vector instruction set with fused or paired multiply-adds."""
    flags = cpu.flags
    present = {
        "avx512": "avx512f" in flags,
        "avx2": {"avx2", "fma"} <= flags,
        "avx": "avx" in flags,
        "sse2": "sse2" in flags,
        "neon": "asimd" in flags,
    }
    return next((name for name in VECTOR_SETS if present[name]), None)


def core_rates(cpu: CpuFacts, core: Core) -> dict[str, Rate]:
    """Return the operations per clock of a core by precision, for what it has natively."""
    widest = vector_set(cpu)
    if widest is None:
        return {}
    kind = cpu_rates().microarchitecture.get(_kind(cpu, core) or "")
    vectors = {
        name: _vector_rate(cpu, kind, name)
        for name in VECTOR_SETS
        if name == widest or (name == "avx2" and widest == "avx512")
    }
    fp32 = vectors[widest]
    found = {"fp32": fp32, "fp64": fp32._replace(low=fp32.low / 2, high=fp32.high / 2)}
    for flag, kind_of_type in cpu_rates().types.items():
        if flag not in cpu.flags:
            continue
        rate = _typed(flag, kind_of_type, vectors)
        slower = found.get(kind_of_type.precision)
        if rate is not None and (slower is None or rate.high > slower.high):
            found[kind_of_type.precision] = rate
    return found


def _typed(flag: str, kind: CpuType, vectors: dict[str, Rate]) -> Rate | None:
    if kind.of is None:
        return Rate(kind.ops, kind.ops, _LABELS[flag], kind.source, kind.verified)
    base = vectors.get(kind.of)
    if base is None:
        return None
    return Rate(
        base.low * kind.times, base.high * kind.times, _LABELS[flag], kind.source, kind.verified
    )


def _vector_rate(cpu: CpuFacts, kind: Microarchitecture | None, name: str) -> Rate:
    label = _LABELS[name]
    if kind is not None and name in kind.fp32:
        rate = kind.fp32[name]
        return Rate(rate, rate, label, f"{kind.name}: {kind.source}", kind.verified)
    if kind is not None and kind.sku is not None and name == "avx512":
        for words, rate in cpu_rates().sku[kind.sku].items():
            if words in (cpu.name or ""):
                source = f"{kind.name} {words.strip('-')}: {kind.source}"
                return Rate(rate, rate, label, source, verified=False)
    low, high = cpu_rates().unknown[name]
    units = "number of 512-bit FMA units" if name == "avx512" else "FMA width of this core"
    return Rate(low, high, label, f"{units} not known: the range over known cores", verified=False)


def _kind(cpu: CpuFacts, core: Core) -> str | None:
    """Return the micro-architecture's key, None where it is not in the table."""
    if core.model is None:
        return None
    for key, kind in cpu_rates().microarchitecture.items():
        if (
            kind.vendor == cpu.vendor
            and (not kind.families or cpu.family in kind.families)
            and kind.atom == core.atom
            and any(first <= core.model <= last for first, last in kind.models)
        ):
            return key
    return None


def _clock(cpu: CpuFacts) -> tuple[float | None, str]:
    """Return the clock of cores without a maximum of their own, and the source of all clocks."""
    maxima = sorted({core.max_mhz for core in cpu.cores if core.max_mhz is not None})
    if maxima:
        span = f"{maxima[0]:g}" if len(maxima) == 1 else f"{maxima[0]:g}-{maxima[-1]:g}"
        return cpu.nominal_mhz, (
            f"{span} MHz, cpufreq's maximum: the boost of one core; all cores together, and"
            " AVX-512 or AMX code, run lower"
        )
    boost = cpu_rates().boost_mhz.get(cpu.name or "")
    if isinstance(boost, float):
        return (
            boost,
            f"{boost:g} MHz, highest boost of this model ({cpu_rates().boost_mhz['source']})",
        )
    if cpu.nominal_mhz is None:
        return None, "not known: no cpufreq, and no clock in /proc/cpuinfo"
    return cpu.nominal_mhz, (
        f"{cpu.nominal_mhz:g} MHz, nominal ({cpu.nominal_source}): no cpufreq"
        f"{' in this virtual machine' if cpu.virtual else ''}; boost is above it, so that more than"
        " 100 % can be measured"
    )


def _usable(cpu: CpuFacts, clock: float | None) -> list[CoreRates]:
    """Return the cores to count: under a quota the fastest, the last of them in part."""
    cores = [CoreRates(core.max_mhz or clock, core_rates(cpu, core)) for core in cpu.cores]
    cores.sort(key=_speed, reverse=True)
    left = usable_cores(cpu)
    counted = []
    for core in cores:
        if left <= 0:
            break
        counted.append(core._replace(part=min(1.0, left)))
        left -= 1.0
    return counted


def _speed(core: CoreRates) -> float:
    fp32 = core.rates.get("fp32")
    return (core.clock_mhz or 1.0) * (fp32.high if fp32 is not None else 0.0)


def _ceilings(cpu: CpuFacts, cores: list[CoreRates]) -> tuple[events.Ceiling, ...]:
    """Sum over the cores what all of them can do natively."""
    precisions = [key for key in RATE_LABELS if all(key in core.rates for core in cores)]
    return tuple(_ceiling(cpu, key, cores) for key in precisions)


def _ceiling(cpu: CpuFacts, precision: str, cores: list[CoreRates]) -> events.Ceiling:
    high = low = per_clock = 0.0
    for core in cores:
        rate = core.rates[precision]
        hertz = (core.clock_mhz or 0.0) * 1e6 * core.part
        high += rate.high * hertz
        low += rate.low * hertz
        per_clock += rate.high * core.part
    rate = cores[0].rates[precision]
    each = {core.rates[precision].high for core in cores}
    span = "/".join(f"{value:g}" for value in sorted(each, reverse=True))
    if rate.low != rate.high:
        span = f"{rate.low:g}-{rate.high:g}"
    return events.Ceiling(
        precision=precision,
        ops_per_second=high,
        origin="range" if low < high else "computed",
        source=f"cores x rate per clock x clock; rate: {rate.source}",
        ops_per_second_low=low if low < high else None,
        ops_per_clock=per_clock,
        rated_clock_mhz=high / per_clock / 1e6,
        verified=all(core.rates[precision].verified for core in cores),
        note=f"{usable_cores(cpu):g} cores x {span} per clock ({rate.instructions})",
    )


def _missing(cpu: CpuFacts, cores: list[CoreRates]) -> str | None:
    """Say why there is no ceiling at all, None where there is one."""
    if cpu.system == "Darwin":
        return (
            "no ceiling for this CPU: on macOS matrix products run on units of Accelerate whose"
            " rate is not published; a NEON or AVX ceiling would be far too low"
        )
    if cpu.system != "Linux" or not cores:
        return f"no ceiling for this CPU: its model and clock cannot be read on {cpu.system}"
    if not cores[0].rates:
        return f"no ceiling for this CPU: no vector instruction set known ({cpu.machine})"
    if any(core.clock_mhz is None for core in cores):
        return (
            f"no ceiling for this CPU: its clock cannot be read ({cpu.machine}, no cpufreq);"
            f" a core does {cores[0].rates['fp32'].high:g} FP32 operations per clock"
        )
    return None


def _absent(cpu: CpuFacts, found: set[str]) -> dict[str, str]:
    """Say of every precision without native instructions that it is emulated or not there."""
    widest = vector_set(cpu)
    label = _LABELS[widest] if widest is not None else cpu.machine
    reasons = {
        "tf32": "a Tensor Core type, not on a CPU",
        "fp16_acc32": f"emulated: no native FP16 on this CPU ({label})",
        "fp16_acc16": "a Tensor Core type, not on a CPU",
        "bf16": f"emulated: no native BF16 on this CPU ({label})",
        "fp8_acc32": f"no native FP8 on this CPU ({label})",
        "int8": f"emulated: no INT8 dot product on this CPU ({label})",
        "fp4": f"no native FP4 on this CPU ({label})",
    }
    if "fp16_vec" in found:
        del reasons["fp16_acc32"]
    return {key: reason for key, reason in reasons.items() if key not in found}


def _notes(cpu: CpuFacts) -> tuple[str, ...]:
    if not cpu.cores:
        return ()
    count = len(cpu.cores)
    notes = [f"{count} physical cores of {cpu.logical_cpus} logical CPUs in the affinity mask"]
    if cpu.quota_cpus is not None and cpu.quota_cpus < count:
        notes.append(f"cgroup quota: {cpu.quota_cpus:g} CPUs")
    if cpu.cores_are_logical:
        notes.append("topology not readable: logical CPUs counted as cores")
    if cpu.virtual:
        notes.append("virtual machine: its cores may be hardware threads that share one core")
    return tuple(notes)
