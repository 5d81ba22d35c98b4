"""Rule: a benchmark whose result is wrong. The worst of all: it may corrupt silently."""

from __future__ import annotations

from collections.abc import Iterator

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.diagnosis.words import board, finding, label
from topsmon.state import State
from topsmon.units import plain


def wrong_result(state: State, _now: float) -> Iterator[events.Finding]:
    """Every device with a wrong result in this session, even if later ones were right."""
    for device in state.ordered():
        wrong = [rate.wrong for rate in device.rates.values() if rate.wrong is not None]
        if not wrong:
            continue
        newest = max(wrong, key=lambda result: result.monotonic)
        again = device.rates[newest.precision].latest
        healed = again is not None and again.correct is True
        yield finding(
            newest,
            device,
            code="wrong-result",
            severity="fail",
            word="FAIL",
            title=f"{', '.join(label(result.precision) for result in wrong)} results are wrong",
            cause="silent corruption"
            + (": later results were right, so it comes and goes" * healed),
            evidence=(*(_numbers(result) for result in wrong), *_identity(device)),
            remedy=_remedy(device),
            command="dcgmi diag -r 3" if device.identity.kind == "gpu" else "",
            basis="relative Frobenius error against an FP64 reference on sampled rows",
        )


def _numbers(result: events.RateMeasured) -> str:
    error = "not finite" if result.relative_error is None else f"{result.relative_error:.1e}"
    limit = "" if result.error_limit is None else f", limit {result.error_limit:.0e}"
    shape = "" if result.shape is None else " " + "x".join(str(side) for side in result.shape)
    return f"{label(result.precision)}{shape}: relative error {error}{limit}"


def _identity(device: DeviceState) -> tuple[str, ...]:
    uuid = device.identity.uuid
    return (f"{board(device)} {plain(uuid, 80)}",) if uuid else (board(device),)


def _remedy(device: DeviceState) -> str:
    if device.identity.kind == "cpu":
        return "Stop trusting results of this machine; test its memory; try another torch build."
    return "Stop using this board; run the vendor's field diagnostics; check ECC errors and Xids."
