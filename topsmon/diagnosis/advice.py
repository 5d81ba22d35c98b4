"""Which precision for which work, from what this device has shown or is rated for.

Half types come first where they gain, 8-bit types only where they were measured to gain more: their
error is a hundred times larger, and a library's integer path can be slower than its FP16 one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import msgspec

from topsmon import units
from topsmon.diagnosis import merits
from topsmon.diagnosis.merits import times
from topsmon.diagnosis.words import label
from topsmon.state import DeviceState

Workload = Literal["vision training", "language training", "language inference", "deployment"]

WORTH = 1.1
"""Below this gain over FP32 a shorter type is not worth its rounding. Chosen."""
WORTH_8_BIT = 1.2
"""The same for a step that costs more accuracy. Chosen."""
TIE = 1.05
"""Rates closer than this count as equal: repeated bursts differ by as much."""
MODEL_WEIGHTS = 7e9
HALVES = ("bf16", "fp16")
EIGHT_BITS = ("fp8", "int8")


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
        self.evidence.extend(line for line in lines if line and line not in self.evidence)

    def offer(self, key: str, reason: str, name: str = "") -> None:
        self.alternatives.append(Option(key, name or label(key), reason))

    def warn(self, key: str, reason: str, name: str = "") -> None:
        self.avoid.append(Option(key, name or label(key), reason))

    def settle(self, workload: Workload, key: str, how: str, reason: str, name: str = "") -> Advice:
        return Advice(
            workload=workload,
            precision=key,
            label=name or label(key),
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


def _autocast(device: DeviceState, key: str) -> str:
    kind = "cpu" if device.identity.kind == "cpu" else "cuda"
    if key == "fp32":
        return "no autocast, no GradScaler"
    if key == "bf16":
        return f'torch.autocast("{kind}", dtype=torch.bfloat16), no GradScaler'
    return f'torch.autocast("{kind}", dtype=torch.float16) with torch.amp.GradScaler("{kind}")'


def _vision_training(device: DeviceState) -> Advice:
    choice = _Choice()
    key = _fastest_half(device, "fp16") or "fp32"
    how, reason = _autocast(device, key), _FP32_REASON
    if key == "fp16":
        reason = "activations of images stay in FP16's range, and it rounds finer than BF16"
    elif key == "bf16":
        reason = "the range of FP32 at the speed of a half type: no loss scaling"
    _rank_training(device, choice, key)
    speed_up = merits.probe_value(device, "layout", "channels_last_speedup_ratio")
    if speed_up is not None and speed_up >= TIE:
        how += "; model and input .to(memory_format=torch.channels_last)"
        choice.prove(f"a convolution runs {times(speed_up)} as fast in channels_last: measured")
    elif speed_up is not None and speed_up <= 1 / TIE:
        choice.prove(f"channels_last is slower here, {times(speed_up)}: keep contiguous tensors")
    return choice.settle("vision training", key, how, reason)


def _language_training(device: DeviceState) -> Advice:
    choice = _Choice()
    key = next((key for key in HALVES if _usable(device, key)), "fp32")
    reason = {
        "bf16": "the range of FP32: gradients of deep transformers do not overflow, no loss scaling",
        "fp16": "the only native half type: its small range needs the GradScaler",
    }.get(key, _FP32_REASON)
    _rank_training(device, choice, key)
    eight = merits.gain(device, "fp8", key)
    if (
        key != "fp32"
        and merits.objection(device, "fp8") is None
        and eight is not None
        and eight.basis == "measured"
        and eight.ratio >= WORTH_8_BIT
    ):
        choice.offer(
            "fp8",
            f"{eight.words}; for the large linear layers, with Transformer Engine or torchao"
            f"{_with_error(device, 'fp8')}",
        )
    return choice.settle("language training", key, _autocast(device, key), reason)


_FP32_REASON = "no shorter type is both native and faster here"


def _rank_training(device: DeviceState, choice: _Choice, key: str) -> None:
    """Evidence for the chosen type, then what else would do and what would not."""
    _prove_gain(device, choice, key)
    choice.prove(merits.errors(device, ("bf16", "fp16", "tf32", "fp32")))
    for half in HALVES:
        if half == key:
            continue
        if _usable(device, half):
            found = merits.gain(device, half, key)
            how = "no GradScaler" if half == "bf16" else "needs the GradScaler"
            choice.offer(half, f"{found.words if found is not None else ''}; {how}".lstrip("; "))
        else:
            _warn_unusable(device, choice, half)
    _judge_tf32(device, choice, key)
    if key != "fp32":
        choice.offer("fp32", "for parts that turn NaN: autocast(enabled=False) around them")
    if merits.objection(device, "fp16_acc16") is None and merits.rated(device, "fp16_acc16"):
        choice.warn(
            "fp16_acc16",
            "sums in FP16 overflow beyond 65504 and round at every step: not for training"
            f"{_with_error(device, 'fp16_acc16')}",
            "FP16 accumulation",
        )


def _prove_gain(device: DeviceState, choice: _Choice, key: str) -> None:
    found = merits.gain(device, key, "fp32") if key != "fp32" else None
    if found is not None:
        choice.prove(found.words)
    elif key == "fp32" and (own := merits.measured(device, "fp32")) is not None:
        choice.prove(f"FP32 {units.rate(own, 'fp32')}: measured")


def _warn_unusable(device: DeviceState, choice: _Choice, key: str) -> None:
    reason = merits.objection(device, key)
    found = merits.gain(device, key, "fp32")
    if reason is not None:
        choice.warn(key, reason)
    elif found is not None:
        choice.warn(key, f"not worth its rounding: {found.words}")


def _judge_tf32(device: DeviceState, choice: _Choice, key: str) -> None:
    """TF32 helps FP32 code where the hardware runs it faster, and nowhere else."""
    if device.identity.kind == "cpu" or merits.objection(device, "tf32") is not None:
        return
    by_rating, found = (
        merits.rated_gain(device, "tf32", "fp32"),
        merits.gain(device, "tf32", "fp32"),
    )
    if by_rating is not None and by_rating < WORTH:
        own = units.rate(merits.rated(device, "tf32"), "tf32")
        words = (
            f"its ceiling, {own}, is that of FP32 on this board: it rounds more and gains nothing"
        )
        if found is not None and found.basis == "measured" and found.ratio >= WORTH:
            words = (
                f"its ceiling, {own}, is that of FP32 on this board; what it gains, the library's "
                f"FP32 kernels leave: {found.words}"
            )
        choice.warn("tf32", f"{words}; a half type does more" if key != "fp32" else words)
    elif found is not None and found.ratio >= WORTH:
        choice.offer(
            "tf32",
            f'for FP32 code, one line: torch.set_float32_matmul_precision("high"); {found.words}',
        )
    elif found is not None:
        choice.warn("tf32", f"gains nothing here: {found.words}")


def _with_error(device: DeviceState, key: str, scaling: str = "") -> str:
    value = merits.error(device, key, scaling)
    return f"; relative error of a product {value:.1e}" if value is not None else ""


def _language_inference(device: DeviceState) -> Advice:
    """Decoding reads every weight for every token: bytes decide, not operations."""
    choice = _Choice()
    key = next((key for key in HALVES if _usable(device, key)), "fp32")
    reason = (
        "decoding reads every weight for each token: memory bandwidth decides, so halve the bytes"
    )
    if key == "fp32":
        reason = "decoding is bound by memory bandwidth, and no half type is native and faster here"
    element = 4.0 if key == "fp32" else 2.0
    _prove_decode(device, choice, key, element)
    factor = times(element)
    for eight in EIGHT_BITS:
        if merits.objection(device, eight) is None or eight == "int8":
            choice.offer(
                eight,
                f"1 byte a weight: at most {factor} the tokens/s, arithmetic stays in {label(key)}; "
                "needs kernels that unpack weights (torchao, bitsandbytes, llama.cpp)"
                f"{_with_error(device, eight, 'per_row')}{_with_outliers(device, eight)}",
                f"{label(eight)} weights",
            )
    if key != "fp32":
        choice.warn("fp32", "twice the bytes of a half type: half the tokens/s")
    for half in HALVES:
        if half != key:
            _offer_or_warn_half(device, choice, half)
    workload: Workload = "language inference"
    how = "load the weights in torch." + {"bf16": "bfloat16", "fp16": "float16"}.get(key, "float32")
    return choice.settle(workload, key, how, reason)


def _offer_or_warn_half(device: DeviceState, choice: _Choice, key: str) -> None:
    if _usable(device, key):
        risk = "" if key == "bf16" else "; a model trained in BF16 can overflow in it"
        choice.offer(key, f"the same bytes{risk}")
    else:
        _warn_unusable(device, choice, key)


def _with_outliers(device: DeviceState, key: str) -> str:
    value = merits.error(device, key, "outliers")
    return f", {value:.1e} with outlier features" if value is not None else ""


def _prove_decode(device: DeviceState, choice: _Choice, key: str, element: float) -> None:
    memory = merits.bandwidth(device)
    if memory is None:
        choice.prove("memory bandwidth is neither measured nor rated here")
        return
    speed, basis = memory
    choice.prove(
        f"{units.bandwidth(speed)} of memory ({basis}): 7 billion weights, "
        f"{units.bandwidth(MODEL_WEIGHTS * element).removesuffix('/s')} in {label(key)}, "
        f"give at most {units.significant(speed / (MODEL_WEIGHTS * element), 2)} tokens/s at batch 1"
    )
    own = merits.measured(device, key) if basis == "measured" else merits.rated(device, key)
    if own is not None:
        choice.prove(
            f"a weight of {element:.0f} bytes gives 2 operations a token; {label(key)} is compute-"
            f"bound only from {units.significant(own / speed, 2)} operations a byte"
        )


def _deployment(device: DeviceState) -> Advice:
    """Batches at the highest rate: each step to fewer bits must gain enough."""
    choice = _Choice()
    key = _fastest_half(device, "fp16") or "fp32"
    half = key
    candidates = []
    for eight in EIGHT_BITS:
        found = _judge_eight_bits(device, choice, eight, half)
        if found is not None:
            candidates.append((found, eight))
    if candidates:
        best, key = max(candidates)
        _prove_gain(device, choice, key)
        for found, eight in sorted(candidates, reverse=True)[1:]:
            choice.offer(
                eight, f"{times(found)} {label(half)}{_with_error(device, eight, 'per_row')}"
            )
        words = merits.gain(device, key, half)
        choice.prove(words.words if words is not None else "")
        choice.alternatives.insert(0, Option(half, label(half), f"the safe choice: no calibration"))
    else:
        _prove_gain(device, choice, key)
    choice.prove(merits.errors(device, ("fp16", "bf16", "fp8", "int8")))
    for other in HALVES:
        if other != half:
            _offer_or_warn_half(device, choice, other)
    _judge_tf32(device, choice, key)
    _judge_special(device, choice, half, key)
    return choice.settle("deployment", key, _serving(key), _deployment_reason(key, half))


def _judge_eight_bits(device: DeviceState, choice: _Choice, key: str, half: str) -> float | None:
    """The measured gain over the half type if it is enough to use 8 bits; else says why not."""
    reason, found = merits.objection(device, key), merits.gain(device, key, half)
    if reason is not None:
        choice.warn(key, reason)
    elif found is None:
        return None
    elif found.basis == "rated":
        if found.ratio >= WORTH_8_BIT:
            choice.offer(
                key, f"{found.words}: measure it before relying on it (topsmon bench {key})"
            )
    elif found.ratio >= WORTH_8_BIT:
        return found.ratio
    elif found.ratio < 1.0:
        ceiling = merits.rated(device, key)
        rating = f"; rated {units.rate(ceiling, key)}" if ceiling is not None else ""
        choice.warn(
            key,
            f"slower here: {found.words}{rating}. The library's path is to blame, not the device",
        )
    else:
        choice.warn(key, f"gains too little for its error: {found.words}")
    return None


def _judge_special(device: DeviceState, choice: _Choice, half: str, key: str) -> None:
    """FP16 accumulation, NVFP4 and 2:4 sparsity, where they were measured."""
    if half == "fp16" or _usable(device, "fp16"):
        short = merits.gain(device, "fp16_acc16", "fp16")
        if short is not None and short.basis == "measured":
            words = f"{short.words}; sums overflow beyond 65504{_with_error(device, 'fp16_acc16')}"
            if short.ratio >= WORTH_8_BIT:
                choice.offer("fp16_acc16", words, "FP16 accumulation")
            else:
                choice.warn("fp16_acc16", f"no gain here: {words}", "FP16 accumulation")
    four = merits.gain(device, "fp4", key)
    if (
        four is not None
        and four.basis == "measured"
        and four.ratio >= WORTH_8_BIT
        and merits.objection(device, "fp4") is None
    ):
        choice.offer("fp4", f"{four.words}; its error is not measured here", "NVFP4")
    sparse = merits.probe_value(device, "sparsity", "speedup_ratio")
    if sparse is not None and sparse >= WORTH_8_BIT:
        words = f"{times(sparse)} dense FP16, measured; the model must be pruned and trained again"
        choice.offer("fp16", words, "2:4 sparse FP16")
    elif sparse is not None:
        choice.warn("fp16", f"only {times(sparse)} dense FP16: measured", "2:4 sparse FP16")


def _serving(key: str) -> str:
    return {
        "fp32": "keep the weights in torch.float32",
        "fp16": "model.half(), or torch.autocast without GradScaler",
        "bf16": "model.to(torch.bfloat16), or torch.autocast without GradScaler",
        "fp8": "FP8 weights and activations, one scale a row (torchao, Transformer Engine, TensorRT)",
        "int8": "INT8 weights and activations after calibration (torchao, TensorRT, ONNX Runtime)",
    }[key]


def _deployment_reason(key: str, half: str) -> str:
    if key in EIGHT_BITS:
        return (
            f"the fastest type measured here, over {label(half)} by more than its error costs most "
            "models: check the accuracy of yours"
        )
    if key == "fp32":
        return _FP32_REASON
    return "the fastest type here that needs no calibration"
