"""Draw a benchmark's document from what is known of the devices."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from topsmon import __version__, events
from topsmon.ceilings.measured import at_top_clock
from topsmon.device_state import DeviceState
from topsmon.diagnosis import clock_events
from topsmon.report.bench import model
from topsmon.report.bench.precisions import result
from topsmon.report.bench.probes import bandwidths, energy, latencies, pcie, sustained
from topsmon.report.bench.words import grouped
from topsmon.state import State
from topsmon.units import PRECISIONS, plain

PROBES_SHOWN = ("memory", "cache", "transfer", "launch")
GPU_ONLY: Mapping[str, str] = MappingProxyType(
    {
        "transfer": "a CPU has no transfer between host and device",
        "overlap": "a CPU has no transfer between host and device to overlap with work",
        "sparsity": "2:4 sparse products are measured on GPUs alone",
    }
)
"""Why a CPU has no number of a probe."""
NOTHING: Mapping[str, str] = MappingProxyType({})


def document(
    state: State,
    keys: Iterable[str],
    simulated: str | None = None,
    *,
    asked: Sequence[str] = (),
    missing: Mapping[str, str] = NOTHING,
    wall: float | None = None,
) -> model.BenchDocument:
    """Return what was found of the devices with these keys.

    `asked` are the precisions and probes that were to be measured, `missing` says by device why not
    all of them were. `wall` is the time of the benchmark in epoch seconds, the clock's if None.
    """
    host = state.host
    devices = [state.devices[key] for key in keys]
    return model.BenchDocument(
        schema_version=model.SCHEMA_VERSION,
        topsmon_version=__version__,
        time_unix_seconds=time.time() if wall is None else wall,
        devices=tuple(
            _device(state, device, asked, missing.get(device.key, "")) for device in devices
        ),
        hostname=_safe(host.hostname) if host is not None else None,
        driver_version=_safe(host.driver_version) if host is not None else None,
        cuda_version=_safe(host.cuda_version) if host is not None else None,
        simulated=_safe(simulated),
        version=__version__,
    )


def _safe(text: str | None) -> str | None:
    return None if text is None else plain(text, 200)


def _device(
    state: State, device: DeviceState, asked: Sequence[str], missing: str
) -> model.BenchDevice:
    identity, ceilings = device.identity, device.ceilings
    watts = energy(device.probes.get("energy"))
    found = [result(state, device, key, watts) for key in PRECISIONS]
    precisions = tuple(one for one in found if one is not None)
    return model.BenchDevice(
        device=device.key,
        kind=identity.kind,
        index=identity.index,
        label=device.label,
        name=plain(identity.name, 100),
        uuid=_safe(identity.uuid),
        pci_bus_id=_safe(identity.pci_bus_id),
        board=ceilings.board if ceilings is not None else None,
        mig=identity.mig,
        no_ceiling=_safe(ceilings.unknown) if ceilings is not None else None,
        at_top_clock=at_top_clock(ceilings),
        conditions=_conditions(device, precisions),
        precisions=precisions,
        bandwidths=bandwidths(device),
        latencies=latencies(device),
        energy=watts,
        sustained=sustained(device.probes.get("sustained")),
        not_measured=_not_measured(device, precisions, asked, missing),
        notes=tuple(_notes(device.probes)),
    )


def _conditions(
    device: DeviceState, precisions: tuple[model.PrecisionResult, ...]
) -> model.Conditions:
    identity, sample, ready = device.identity, device.sample, device.prober.ready
    masks = [
        burst.clock_event_mask
        for one in precisions
        for burst in one.bursts
        if burst.clock_event_mask is not None
    ]
    return model.Conditions(
        torch_version=_safe(ready.torch_version) if ready is not None else None,
        threads=ready.threads if ready is not None else None,
        power_limit_watts=sample.power_limit_watts if sample is not None else None,
        power_limit_default_watts=identity.power_limit_default_watts,
        sm_clock_max_mhz=identity.sm_clock_max_mhz,
        memory_clock_max_mhz=identity.memory_clock_max_mhz,
        clocks_set=any(mask & clock_events.CLOCKS_SETTING for mask in masks) if masks else None,
        ecc_enabled=sample.ecc_enabled if sample is not None else None,
        temperature_celsius=sample.temperature_celsius if sample is not None else None,
        pcie=pcie(device.probes.get("transfer")),
    )


def _not_measured(
    device: DeviceState,
    precisions: tuple[model.PrecisionResult, ...],
    asked: Sequence[str],
    missing: str,
) -> dict[str, str]:
    """Why a precision or a probe that was asked for has no number."""
    have = {one.precision for one in precisions}
    reasons = {}
    for key, known in device.rates.items():
        if key in have:
            continue
        if known.unsupported is not None:
            reasons[key] = known.unsupported
        elif known.latest is not None:
            reasons[key] = known.latest.invalid_reason or "no rate was read"
    reasons |= device.refused
    for name, probe in device.probes.items():
        if any(value is not None for value in probe.values.values()):
            have.add(name)
        else:
            reasons[name] = probe.invalid_reason or "no value was read"
    silent = "" if device.condition == "ok" else f"the device is {device.condition}"
    for key in asked:
        if key not in have:
            never = GPU_ONLY.get(key, "") if device.identity.kind == "cpu" else ""
            reasons.setdefault(key, never or missing or silent or "no result came")
    return {key: plain(reason, 300) for key, reason in reasons.items()}


def _notes(probes: Mapping[str, events.ProbeResult]) -> Iterable[str]:
    """Notes of the probes that have no place of their own for them, equal ones once."""
    pairs = [
        (name, plain(note, 300))
        for name in PROBES_SHOWN
        if name in probes and probes[name].note
        for note in probes[name].note.split("; ")
    ]
    return (f"{names}: {note}" for names, note in grouped(pairs))
