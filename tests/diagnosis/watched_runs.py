"""Training runs to judge: samples by hand, and steps folded as GradScaler folds them."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

from topsmon import events
from topsmon.diagnosis import of_run
from topsmon.state import State

WALL, NOW = 1_700_000_000.0, 100.0
WINDOW = 200
KEY = "1700000000-4711-0"
SCALER = events.Scaler(
    kind="torch.amp.GradScaler",
    init_scale=65536.0,
    growth_factor=2.0,
    backoff_factor=0.5,
    growth_interval=2000,
)


def stamp(seconds: float = NOW - 1) -> dict[str, Any]:
    return {"time": WALL - NOW + seconds, "monotonic": seconds, "source": "node"}


def run(**changes: Any) -> events.Run:
    fields: dict[str, Any] = {
        "run": KEY,
        "pid": 4711,
        "hostname": "node",
        "started": WALL - 500.0,
        "command": "python train.py --amp",
        "scaler": SCALER,
    }
    return events.Run(**stamp(), **{**fields, **changes})


def sample(
    step: int = 1000,
    window: dict[str, Any] | None = None,
    totals: dict[str, Any] | None = None,
    **changes: Any,
) -> events.RunSample:
    """A healthy FP16 run."""
    seen = {"steps": min(step, WINDOW), "mean_step_seconds": 0.2, "step_seconds": 0.2}
    life = {"steps": step, "scale_lowest": 65536.0, "scale_highest": 65536.0}
    fields: dict[str, Any] = {
        "run": KEY,
        "step": step,
        "stepped_at": WALL - 1,
        "loss": 2.5,
        "loss_finite": True,
        "scale": 65536.0,
        "autocast": "fp16",
        "window": events.RunWindow(**{**seen, **(window or {})}),
        "totals": events.RunTotals(**{**life, **(totals or {})}),
    }
    return events.RunSample(**stamp(), **{**fields, **changes})


def event(kind: str, step: int = 1, number: int = 1, **changes: Any) -> events.RunEvent:
    return events.RunEvent(
        **stamp(), **{"run": KEY, "number": number, "kind": kind, "step": step, **changes}
    )


def status(condition: Any, seconds_ago: float = 1.0, **changes: Any) -> events.RunStatus:
    fields = {"run": KEY, "condition": condition, "since": WALL - seconds_ago}
    return events.RunStatus(**stamp(NOW), **{**fields, **changes})


def watched(*found: events.AnyEvent) -> State:
    """A state with the run of KEY, a healthy one where no other is given."""
    state = State()
    if not any(isinstance(one, events.Run) for one in found):
        state.apply(run(), NOW - 1)
    for one in found:
        state.apply(one, one.monotonic)
    return state


def findings(*found: events.AnyEvent, now: float = NOW) -> dict[str, events.Finding]:
    """Findings about the run, by code, worst first."""
    return {one.code: one for one in of_run(watched(*found), KEY, now)}


def severities(*found: events.AnyEvent) -> dict[str, str]:
    return {code: one.severity for code, one in findings(*found).items()}


class Step(NamedTuple):
    """One optimizer step tried."""

    loss_finite: bool = True
    overflow: bool = False


def skips(count: int) -> list[Step]:
    """Steps whose finite loss overflows in the backward pass."""
    return [Step(overflow=True)] * count


def bad_losses(count: int) -> list[Step]:
    return [Step(loss_finite=False, overflow=True)] * count


def good(count: int) -> list[Step]:
    return [Step()] * count


def float32(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.inf


def folded(steps: Iterable[Step], scaler: events.Scaler = SCALER, **changes: Any) -> Any:
    """The sample after these steps; the arithmetic of torch/amp/grad_scaler.py in FP32."""
    listed = list(steps)
    scale, tracker = scaler.init_scale or 1.0, 0
    early = max(25, math.log2(scale) + 5)
    scales, grown = [], []
    for number, step in enumerate(listed, 1):
        if step.overflow:
            scale, tracker = float32(scale * (scaler.backoff_factor or 0.5)), 0
        else:
            tracker += 1
            if tracker == scaler.growth_interval:
                higher = float32(scale * (scaler.growth_factor or 2.0))
                scale, tracker = (higher if math.isfinite(higher) else scale), 0
                grown.append(number)
        scales.append(scale)
    skipped = [number for number, step in enumerate(listed, 1) if step.overflow]
    bad = [number for number, step in enumerate(listed, 1) if not step.loss_finite]
    last = listed[-1]
    first_in_window = max(1, len(listed) - WINDOW + 1)
    streaks, longest = 0, 0
    for step in listed:
        streaks = streaks + 1 if step.overflow else 0
        longest = max(longest, streaks)

    def recent(numbers: list[int]) -> int:
        return sum(number >= first_in_window for number in numbers)

    return sample(
        len(listed),
        {
            "skipped": recent(skipped),
            "growths": recent(grown),
            "nonfinite_losses": recent(bad),
            "skips_after_growth": sum(
                number >= first_in_window and any(0 < number - growth <= 3 for growth in grown)
                for number in skipped
            ),
        },
        {
            "skipped": len(skipped),
            "backoffs": len(skipped),
            "growths": len(grown),
            "calibration_skips": sum(number <= early for number in skipped),
            "longest_skip_streak": longest,
            "last_skip_step": skipped[-1] if skipped else None,
            "last_growth_step": grown[-1] if grown else None,
            "nonfinite_losses": len(bad),
            "first_nonfinite_loss_step": bad[0] if bad else None,
            "backward_overflows": len(skipped) - len(bad),
            "scale_lowest": min(scales),
            "scale_highest": max(scales),
        },
        skipped=last.overflow,
        skip_streak=streaks,
        loss=2.5 if last.loss_finite else None,
        loss_finite=last.loss_finite,
        scale=scale,
        growth_tracker=tracker,
        **changes,
    )
