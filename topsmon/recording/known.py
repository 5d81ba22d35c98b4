"""What a state knows as events: with them at its head a file of a recording stands alone."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from topsmon import events
from topsmon.device_state import DeviceState, PrecisionState
from topsmon.devices.stamp import stamp
from topsmon.run_state import RunState
from topsmon.state import State


def known_events(state: State) -> list[events.AnyEvent]:
    """Return the latest of everything, in an order in which a fresh state takes it.

    Histories are not in it: a series of samples begins anew.
    """
    first = (state.hello, state.host, state.host_sample)
    found: list[events.AnyEvent] = [event for event in first if event is not None]
    found += state.problems.values()
    for device in state.ordered():
        found += _device(device)
    found += state.workers.values()
    for device in state.ordered():
        found += _prober(device)
    for run in state.runs.values():
        found += _run(run)
    return found


def _device(device: DeviceState) -> Iterator[events.AnyEvent]:
    yield device.identity
    for event in (
        device.ceilings,
        device.status,
        device.sample,
        device.processes,
        device.slices,
    ):
        if event is not None:
            yield event
    yield from device.xids


def _prober(device: DeviceState) -> Iterator[events.AnyEvent]:
    prober = device.prober
    if prober.ready is not None:
        yield prober.ready
    for precision in device.rates.values():
        yield from _rates(device, precision)
    yield from device.probes.values()
    for probe, reason in device.refused.items():
        yield _refusal(device, probe, reason)
    if prober.measuring is not None:
        yield events.ProbeStarted(
            **stamp(device.identity.source), device=device.key, precision=prober.measuring
        )
    elif prober.idle_reason is not None:
        yield events.ProberIdle(
            **stamp(device.identity.source), device=device.key, reason=prober.idle_reason
        )


def _rates(device: DeviceState, precision: PrecisionState) -> Iterator[events.AnyEvent]:
    """Rates of one precision; the wrong one first and the latest last, as the fold needs them."""
    if precision.remembered is not None:
        yield msgspec.structs.replace(precision.remembered, earlier_session=True)
    if precision.wrong is not None and precision.wrong is not precision.latest:
        yield precision.wrong
    for result in precision.by_shape.values():
        if result is not precision.latest and result is not precision.wrong:
            yield result
    if precision.latest is not None:
        yield precision.latest
    if precision.unsupported is not None:
        yield _refusal(device, precision.key, precision.unsupported)


def _refusal(device: DeviceState, precision: str, reason: str) -> events.AnyEvent:
    return events.ProbeUnsupported(
        **stamp(device.identity.source), device=device.key, precision=precision, reason=reason
    )


def _run(run: RunState) -> Iterator[events.AnyEvent]:
    yield run.identity
    if run.buckets:
        buckets = tuple(run.buckets[step] for step in sorted(run.buckets))
        yield events.RunHistory(
            time=run.identity.time,
            monotonic=run.identity.monotonic,
            source=run.identity.source,
            run=run.key,
            stride=run.stride,
            buckets=buckets,
        )
    yield from run.happened
    if run.sample is not None:
        yield run.sample
    if run.status is not None:
        yield run.status
