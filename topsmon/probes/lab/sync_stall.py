"""What reading the loss costs: small training steps with and without `.item()` in each of them."""

from __future__ import annotations

from typing import Any

import torch

from .context import Context, judged, relative_error
from .products import precision

NAME = "sync_stall"
SECONDS = 1.0
OPT_IN = False

STEPS = 20
"""In one timed stretch, between two waits for the device."""
ROWS, FEATURES = 64, 256
ERROR_LIMIT = 1e-4
"""Of a mean of 64 x 256 squares that went through two FP32 layers."""
WINDOW_SECONDS = 0.4


class Step:
    """One small step: two layers, a mean square, and a running total of it on the device."""

    def __init__(self, bench: Context) -> None:
        self.inputs = bench.random(ROWS, FEATURES)
        self.first, self.second = (bench.random(FEATURES, FEATURES) / 16 for _ in range(2))

    def loss(self) -> Any:
        """The mean square of the second layer's output, still on the device."""
        hidden = torch.relu(self.inputs @ self.first)
        return (hidden @ self.second).square().mean()

    def expected(self) -> Any:
        """The same in FP64."""
        hidden = torch.relu(self.inputs.double() @ self.first.double())
        return (hidden @ self.second.double()).square().mean()


def run(bench: Context) -> dict[str, Any]:
    """Seconds per step, with the loss left on the device and with the loss read."""
    step = Step(bench)
    read: list[float] = []

    def without() -> None:
        for _ in range(STEPS):
            step.loss()
        bench.synchronize()

    def with_item() -> None:
        read[:] = [step.loss().item() for _ in range(STEPS)]
        bench.synchronize()

    with precision(bench, "fp32"):
        times = bench.compare(
            {"without": without, "with": with_item}, WINDOW_SECONDS, timer=bench.wall_timer()
        )
    plain, stalled = (times[name].median / STEPS for name in ("without", "with"))
    error = relative_error(torch.tensor(read), step.expected().cpu().expand(len(read)))
    within_noise = abs(stalled - plain) * STEPS <= max(
        spread.upper - spread.lower for spread in times.values()
    )
    return {
        **judged(error, ERROR_LIMIT),
        "values": {
            "step_seconds": plain,
            "step_with_item_seconds": stalled,
            "stall_seconds": stalled - plain,
            "stall_ratio": (stalled - plain) / plain,
        },
        "method": (
            f"stretches of {STEPS} steps (two FP32 layers of {FEATURES} on {ROWS} rows, mean "
            "square) by the wall clock, with and without .item() in each step, taking turns"
        ),
        "note": "the difference is within the noise of this measurement" if within_noise else "",
    }
