"""Which precision for which work, from what this device has shown or is rated for.

Half types come first where they gain; 8-bit types only where they were measured to gain more, since
their error is larger by far and a library's integer path can be slower than its FP16 one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import msgspec

from topsmon import units
from topsmon.device_state import DeviceState
from topsmon.diagnosis import merits
from topsmon.diagnosis.merits import times
from topsmon.diagnosis.words import label

Workload = Literal["vision training", "language training", "language inference", "deployment"]

WORTH = 1.1
"""Below this gain over FP32 a shorter type is not worth its rounding. Chosen."""
NOT_SLOWER = 0.9
"""Enough where bytes decide and the arithmetic has only to keep up. Chosen."""
WORTH_8_BITS = 1.2
"""The gain that a step must have that costs more accuracy. Chosen."""
TIE = 1.05
"""Rates closer than this count as equal: repeated bursts differ by as much."""
MODEL_WEIGHTS = 7e9
"""Of the example for decoding."""
HALVES = ("bf16", "fp16")
EIGHT_BITS = ("fp8", "int8")
SHORT_SUMS = "FP16 accumulation"
NO_SHORTER = "no shorter type is both native and faster here"


class Option(msgspec.Struct, frozen=True):
    """A precision that could be used, or should not, and why. `label` names it in words."""

    precision: str
    label: str
    reason: str


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What to use for one kind of work on one device.

    `precision` is a key of `units.PRECISIONS`; `how` what to write in PyTorch; `evidence` the
    numbers it rests on; `alternatives` are ranked; `avoid` says what not to use.
    """

    workload: Workload
    precision: str
    label: str
    how: str
    reason: str
    evidence: tuple[str, ...] = ()
    alternatives: tuple[Option, ...] = ()
    avoid: tuple[Option, ...] = ()


@dataclass
class _Choice:
    """Advice in the making."""

    evidence: list[str] = field(default_factory=list)
    alternatives: list[Option] = field(default_factory=list)
    avoid: list[Option] = field(default_factory=list)

    def prove(self, *lines: str) -> None:
        self.evidence.extend(line for line in lines if line)

    def offer(self, key: str, reason: str, name: str = "") -> None:
        self.alternatives.append(Option(key, name or label(key), reason))

    def warn(self, key: str, reason: str, name: str = "") -> None:
        self.avoid.append(Option(key, name or label(key), reason))

    def settle(self, workload: Workload, key: str, how: str, reason: str) -> Advice:
        return Advice(
            workload=workload,
            precision=key,
            label=label(key),
            how=how,
            reason=reason,
            evidence=tuple(self.evidence),
            alternatives=tuple(self.alternatives),
            avoid=tuple(self.avoid),
        )


def advise(device: DeviceState) -> tuple[Advice, ...]:
    """Advice for each kind of work; none while too little is known of the device.

    FP32 and both half types must have been measured, be rated, or be ruled out.
    """
    if device.condition == "lost" or not _known(device):
        return ()
    return (
        _vision_training(device),
        _language_training(device),
        _language_inference(device),
        _deployment(device),
    )


def _known(device: DeviceState) -> bool:
    if merits.measured(device, "fp32") is None and merits.rated(device, "fp32") is None:
        return False
    return all(
        merits.objection(device, key) is not None or merits.gain(device, key, "fp32") is not None
        for key in HALVES
    )


def _usable(device: DeviceState, key: str, worth: float = WORTH) -> bool:
    """True for a native type that gains enough over FP32."""
    found = merits.gain(device, key, "fp32")
    return merits.objection(device, key) is None and found is not None and found.ratio >= worth


def _fastest_half(device: DeviceState, preferred: str) -> str | None:
    """The half type to use: the preferred one unless the other is clearly faster."""
    other = "fp16" if preferred == "bf16" else "bf16"
    usable = [key for key in (preferred, other) if _usable(device, key)]
    if len(usable) < 2:
        return usable[0] if usable else None
    found = merits.gain(device, other, preferred)
    return other if found is not None and found.ratio > TIE else preferred


def _vision_training(device: DeviceState) -> Advice:
    choice = _Choice()
    key = _fastest_half(device, "fp16") or "fp32"
    reason = {
        "fp16": "activations of images stay in FP16's range, and it rounds finer than BF16",
        "bf16": "the range of FP32 at the speed of a half type: no loss scaling",
    }.get(key, NO_SHORTER)
    how = _autocast(device, key)
    _rank_training(device, choice, key)
    speed_up = merits.probe_value(device, "layout", "channels_last_speedup_ratio")
    if speed_up is not None and speed_up >= TIE:
        how += "; model and input .to(memory_format=torch.channels_last)"
        choice.prove(f"channels_last makes a convolution {times(speed_up)} as fast: measured")
    elif speed_up is not None and speed_up <= 1 / TIE:
        choice.prove(f"channels_last is {times(speed_up)} as fast here: stay with contiguous")
    return choice.settle("vision training", key, how, reason)


def _language_training(device: DeviceState) -> Advice:
    choice = _Choice()
    key = next((key for key in HALVES if _usable(device, key)), "fp32")
    reason = {
        "bf16": "the range of FP32: nothing overflows that would not in FP32, no loss scaling",
        "fp16": "the only native half type; its small range needs the GradScaler",
    }.get(key, NO_SHORTER)
    _rank_training(device, choice, key)
    eight = merits.gain(device, "fp8", key)
    if (
        key != "fp32"
        and merits.objection(device, "fp8") is None
        and eight is not None
        and eight.basis == "measured"
        and eight.ratio >= WORTH_8_BITS
    ):
        kernels = "for the large linear layers, with Transformer Engine or torchao"
        choice.offer("fp8", f"{eight.words}; {kernels}{_with_error(device, 'fp8')}")
    return choice.settle("language training", key, _autocast(device, key), reason)


def _kind(device: DeviceState) -> str:
    return "cpu" if device.identity.kind == "cpu" else "cuda"


def _autocast(device: DeviceState, key: str) -> str:
    kind = _kind(device)
    return {
        "bf16": f'torch.autocast("{kind}", dtype=torch.bfloat16), no GradScaler',
        "fp16": (
            f'torch.autocast("{kind}", dtype=torch.float16) with torch.amp.GradScaler("{kind}")'
        ),
    }.get(key, "no autocast, no GradScaler")


def _rank_training(device: DeviceState, choice: _Choice, key: str) -> None:
    """Evidence for the chosen type, then what else would do and what would not."""
    _prove_rate(device, choice, key)
    choice.prove(merits.errors(device, ("bf16", "fp16", "tf32", "fp32")))
    for half in HALVES:
        if half != key:
            found = merits.gain(device, half, key)
            needs = "no GradScaler" if half == "bf16" else "needs the GradScaler"
            _rank_half(device, choice, half, f"{found.words}; {needs}" if found else needs)
    _rank_tf32(device, choice)
    if key != "fp32":
        off = f'torch.autocast("{_kind(device)}", enabled=False)'
        choice.offer("fp32", f"for layers that turn NaN, under {off}")
    short = merits.gain(device, "fp16_acc16", "fp16")
    if short is not None and short.ratio >= WORTH:
        error = _with_error(device, "fp16_acc16")
        words = f"not for training, its sums overflow from 65504 on: {short.words}{error}"
        choice.warn("fp16_acc16", words, SHORT_SUMS)


def _prove_rate(device: DeviceState, choice: _Choice, key: str, base: str = "fp32") -> None:
    found = merits.gain(device, key, base) if key != base else None
    own = merits.measured(device, key)
    if found is not None:
        choice.prove(f"{label(key)} {found.words}")
    elif own is not None:
        choice.prove(f"{label(key)} {units.rate(own, key)}: measured")


def _rank_half(
    device: DeviceState, choice: _Choice, key: str, reason: str, worth: float = WORTH
) -> None:
    """Offer a half type for a reason, or say why it must not be used."""
    against, found = merits.objection(device, key), merits.gain(device, key, "fp32")
    if against is not None:
        choice.warn(key, against)
    elif found is not None and found.ratio >= worth:
        choice.offer(key, reason)
    elif found is not None:
        choice.warn(key, f"not worth its rounding: {found.words}")


def _rank_tf32(device: DeviceState, choice: _Choice) -> None:
    """TF32 helps FP32 code where the hardware runs it faster, and nowhere else."""
    if device.identity.kind == "cpu" or merits.objection(device, "tf32") is not None:
        return
    found, by_rating = (
        merits.gain(device, "tf32", "fp32"),
        merits.rated_gain(device, "tf32", "fp32"),
    )
    if found is None:
        return
    if by_rating is not None and by_rating < WORTH:
        words = (
            f"rated {units.rate(merits.rated(device, 'tf32'), 'tf32')} on this board, the same as "
            "FP32: it rounds more for nothing"
        )
        if found.basis == "measured":
            words += f"; {found.words}"
            words += ", as FP32 kernels reach less of it" if found.ratio >= WORTH else ""
        choice.warn("tf32", words)
    elif found.ratio >= WORTH:
        how = 'for FP32 code: torch.set_float32_matmul_precision("high")'
        choice.offer("tf32", f"{how}; {found.words}")
    else:
        choice.warn("tf32", f"gains nothing here: {found.words}")


def _with_error(device: DeviceState, key: str, scaling: str = "") -> str:
    value = merits.error(device, key, scaling)
    return f"; relative error of a product {value:.1e}" if value is not None else ""


def _language_inference(device: DeviceState) -> Advice:
    """Decoding reads every weight for every token: bytes decide, not operations."""
    choice = _Choice()
    key = next((key for key in HALVES if _usable(device, key, NOT_SLOWER)), "fp32")
    reason = "decoding reads every weight for each token: memory bandwidth decides, halve the bytes"
    if key == "fp32":
        reason = "decoding is bound by memory bandwidth, and no half type is native here"
    size = 4.0 if key == "fp32" else 2.0
    _prove_decode(device, choice, key, size)
    for eight in EIGHT_BITS:
        # INT8 weights are unpacked before they are multiplied: no INT8 arithmetic is needed.
        if eight == "int8" or merits.objection(device, eight) is None:
            choice.offer(eight, _weights(device, eight, key, size), f"{label(eight)} weights")
    if key != "fp32":
        choice.warn("fp32", "twice the bytes of a half type: half the tokens/s")
    for half in HALVES:
        if half != key:
            risk = "" if half == "bf16" else "; a model trained in BF16 can overflow in it"
            _rank_half(device, choice, half, f"the same bytes{risk}", NOT_SLOWER)
    name = {"bf16": "bfloat16", "fp16": "float16"}.get(key, "float32")
    return choice.settle("language inference", key, f"load the weights in torch.{name}", reason)


def _weights(device: DeviceState, eight: str, key: str, size: float) -> str:
    outliers = merits.error(device, eight, "outliers")
    return (
        f"1 byte a weight: at most {times(size)} the tokens/s; arithmetic stays in {label(key)}, "
        "by kernels that unpack weights (torchao, bitsandbytes, llama.cpp)"
        + _with_error(device, eight, "per_row")
        + (f", {outliers:.1e} with outlier features" if outliers is not None else "")
    )


def _prove_decode(device: DeviceState, choice: _Choice, key: str, size: float) -> None:
    memory = merits.bandwidth(device)
    if memory is None:
        choice.prove("memory bandwidth is neither measured nor rated here")
        return
    speed, basis = memory
    choice.prove(
        f"{units.bandwidth(speed)} of memory ({basis}): 7 billion weights, "
        f"{MODEL_WEIGHTS * size / 1e9:.0f} GB in {label(key)}, give at most "
        f"{units.significant(speed / (MODEL_WEIGHTS * size), 2)} tokens/s at batch 1"
    )
    own = merits.measured(device, key) if basis == "measured" else merits.rated(device, key)
    if own is not None:
        choice.prove(
            f"operations a byte of weights: {2 / size:g} at batch 1; arithmetic in {label(key)} "
            f"would be the limit from {units.significant(own / speed, 2)} on"
        )


def _deployment(device: DeviceState) -> Advice:
    """Batches at the highest rate: each step to fewer bits must gain enough."""
    choice = _Choice()
    half = _fastest_half(device, "fp16") or "fp32"
    enough = [
        (ratio, eight)
        for eight in EIGHT_BITS
        if (ratio := _judge_eight_bits(device, choice, eight, half)) is not None
    ]
    enough.sort(reverse=True)
    key = enough[0][1] if enough else half
    _prove_rate(device, choice, key)
    if key != half != "fp32":
        _prove_rate(device, choice, key, half)
    choice.prove(merits.errors(device, ("fp16", "bf16", "fp8", "int8")))
    others = [Option(half, label(half), "no calibration, and less error")] if enough else []
    others += [
        Option(eight, label(eight), f"{times(ratio)} {label(half)}{_with_error(device, eight)}")
        for ratio, eight in enough[1:]
    ]
    choice.alternatives[:0] = others
    for other in HALVES:
        if other != half:
            found = merits.gain(device, other, half)
            _rank_half(device, choice, other, found.words if found else "also native")
    _rank_tf32(device, choice)
    _rank_special(device, choice, key)
    return choice.settle("deployment", key, _serving(device, key), _deployment_reason(key, half))


def _judge_eight_bits(device: DeviceState, choice: _Choice, key: str, half: str) -> float | None:
    """The measured gain over the half type if it is enough to use 8 bits; else says why not."""
    against, found = merits.objection(device, key), merits.gain(device, key, half)
    if against is not None:
        choice.warn(key, against)
        return None
    if found is None:
        return None
    if found.basis == "measured" and found.ratio >= WORTH_8_BITS:
        return found.ratio
    if found.basis == "rated":
        if found.ratio >= WORTH_8_BITS:
            choice.offer(key, f"{found.words}: measure before you rely on it")
    elif found.ratio < 1.0:
        ceiling = merits.rated(device, key)
        rating = f"; rated {units.rate(ceiling, key)}" if ceiling is not None else ""
        choice.warn(key, f"slower here by its library path: {found.words}{rating}")
    else:
        choice.warn(key, f"gains too little for its error: {found.words}")
    return None


def _rank_special(device: DeviceState, choice: _Choice, key: str) -> None:
    """FP16 accumulation, NVFP4 and 2:4 sparsity, where they were measured."""
    short = merits.gain(device, "fp16_acc16", "fp16")
    if short is not None and short.basis == "measured" and _usable(device, "fp16"):
        words = f"{short.words}; sums overflow from 65504 on{_with_error(device, 'fp16_acc16')}"
        if short.ratio >= WORTH_8_BITS:
            choice.offer("fp16_acc16", words, SHORT_SUMS)
        else:
            choice.warn("fp16_acc16", f"no gain here: {words}", SHORT_SUMS)
    four = merits.gain(device, "fp4", key)
    native = merits.objection(device, "fp4") is None
    if native and four is not None and four.basis == "measured" and four.ratio >= WORTH_8_BITS:
        choice.offer("fp4", f"{four.words}; its error is not measured here", "NVFP4")
    sparse = merits.probe_value(device, "sparsity", "speedup_ratio")
    if sparse is not None and sparse >= WORTH_8_BITS:
        words = f"{times(sparse)} dense FP16: measured; prune the model and train it again"
        choice.offer("fp16", words, "2:4 sparse FP16")
    elif sparse is not None:
        choice.warn("fp16", f"only {times(sparse)} dense FP16: measured", "2:4 sparse FP16")


def _serving(device: DeviceState, key: str) -> str:
    libraries = "torchao, ONNX Runtime, OpenVINO" if _kind(device) == "cpu" else "torchao, TensorRT"
    return {
        "fp16": "model.half(), or torch.autocast without GradScaler",
        "bf16": "model.to(torch.bfloat16), or torch.autocast without GradScaler",
        "fp8": f"FP8 weights and activations, scaled by row ({libraries})",
        "int8": f"INT8 weights and activations after calibration ({libraries})",
    }.get(key, "keep the weights in torch.float32")


def _deployment_reason(key: str, half: str) -> str:
    if key in EIGHT_BITS:
        return (
            f"the fastest type measured here, well ahead of {label(half)}; whether your model "
            "stands the error, its own accuracy must show"
        )
    return NO_SHORTER if key == "fp32" else "the fastest type here that needs no calibration"
