"""Verdicts: the checks of the table over a state. Pure, so that a screen can draw them at any time.

Add a check: a row in checks.toml, and if no judge fits, a function here in `JUDGES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from topsmon import events
from topsmon.checks import inventory, lab, power_sensor, rates, together
from topsmon.checks.context import HOST, Context, Moment
from topsmon.checks.model import Check, select
from topsmon.device_state import DeviceState
from topsmon.laboratory.observed import NOTHING, Observed
from topsmon.state import State

Judge = Callable[[Context], events.CheckResult | None]

JUDGES: Mapping[str, Judge] = {
    "driver": inventory.judge_driver,
    "device": inventory.judge_device,
    "inventory": inventory.judge_inventory,
    "ecc": inventory.judge_ecc,
    "link": inventory.judge_link,
    "power": inventory.judge_power,
    "power-sensor": power_sensor.judge_power_sensor,
    "temperature": inventory.judge_temperature,
    "threads": inventory.judge_threads,
    "throttling": together.judge_throttling,
    "peers": together.judge_peers,
    "rate": rates.judge_rate,
    "accumulation-gain": rates.judge_accumulation_gain,
    "correctness": rates.judge_correctness,
    "bandwidth": lab.judge_bandwidth,
    "transfer": lab.judge_transfer,
    "latency": lab.judge_latency,
    "ratio": lab.judge_ratio,
    "alignment": lab.judge_alignment,
}

GONE = ("lost", "stalled")


def judge(
    state: State,
    moment: Moment,
    checks: Sequence[Check] | None = None,
    seen: Mapping[str, Observed] | None = None,
    devices: Sequence[str] | None = None,
) -> tuple[events.CheckResult, ...]:
    """The verdicts in the table's order: the machine's, then each device's.

    `seen` is what a run observed per device key, and of the machine under `HOST`. `devices` are the
    keys to judge, by default the GPUs, and the CPU where there is none. A device that is gone has
    one verdict, beside what was measured of it before.
    """
    chosen = select() if checks is None else checks
    seen = {} if seen is None else seen
    machine = seen.get(HOST, NOTHING)
    results = [
        result
        for check in chosen
        if "host" in check.kinds
        if (result := _verdict(Context(state, None, check, moment, machine))) is not None
    ]
    for device in judged(state, devices):
        context_of = _contexts(state, device, moment, seen.get(device.key, NOTHING))
        results.extend(_of_device(device, chosen, context_of))
    return tuple(results)


def judged(state: State, devices: Sequence[str] | None = None) -> Iterator[DeviceState]:
    """The devices to judge, in the order of the screen."""
    if devices is None:
        gpus = list(state.gpus())
        return iter(gpus or state.ordered())
    return (device for device in state.ordered() if device.key in devices)


def _contexts(
    state: State, device: DeviceState, moment: Moment, seen: Observed
) -> Callable[[Check], Context]:
    return lambda check: Context(state, device, check, moment, seen)


def _of_device(
    device: DeviceState, checks: Sequence[Check], context_of: Callable[[Check], Context]
) -> Iterator[events.CheckResult]:
    here = [check for check in checks if device.identity.kind in check.kinds]
    if device.condition in GONE:
        answers = [check for check in select() if check.judge == "device"]
        here = [*answers, *(check for check in here if check.judge != "device")]
    for check in here:
        result = _verdict(context_of(check))
        if result is None:
            continue
        if device.condition in GONE and check.judge != "device" and result.value is None:
            continue
        yield result


def _verdict(context: Context) -> events.CheckResult | None:
    return JUDGES[context.check.judge](context)
