"""Whether a measured rate may be trusted, and what a failed call means. All of it pure."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

LEAST_CPU_SHARE = 0.9
MOST_WAITING = 0.05
"""Share of wall time x threads spent waiting for a core, above which others are to blame."""
SHORT_SUM_ERROR = 6e-4
"""FP32 sums rounded once to FP16 leave about 2e-4; FP16 sums of a thousand numbers over 1e-3."""


class Check(NamedTuple):
    """`error`: relative Frobenius error, NaN where the result is not finite; `limit` judges it."""

    error: float
    limit: float

    @property
    def correct(self) -> bool:
        """True within the limit; NaN is not."""
        return self.error <= self.limit


def products_of(error: float) -> str:
    """Tell from the error of an FP32 GEMM which products ran: "ieee", "tf32" or "neither".

    TF32 keeps 10 bits of each factor's fraction: about 2.6e-4 of error with rounding and up to 1e-3
    with truncation, whatever K is. IEEE FP32 gives about 2.5e-7, and grows slowly with K.
    """
    if error <= 1e-5:
        return "ieee"
    return "tf32" if 5e-5 <= error <= 3e-3 else "neither"


class CpuUse(NamedTuple):
    """How a burst was served by the CPU: `share` of CPU time received, `threads` that ran."""

    share: float | None
    threads: int | None
    complaint: str = ""
    note: str = ""


def cpu_use(
    received: float | None, waited: float | None, threads: int | None, quota: float | None
) -> CpuUse:
    """Tell a burst that others disturbed from a library that used fewer threads than it could.

    In the second case nothing waited for a core: the rate is right, and the share is that of the
    threads that ran.
    """
    if received is None or threads is None or received >= LEAST_CPU_SHARE:
        return CpuUse(received, threads)
    if waited is not None and waited < MOST_WAITING:
        ran = max(1, round(received * threads))
        if ran < threads:
            note = f"the library used {ran} of {threads} threads"
            return CpuUse(received * threads / ran, ran, note=note)
    cause = "other processes are running"
    if quota is not None and quota < threads:
        cause = f"the cgroup allows {quota:g} CPUs"
    return CpuUse(received, threads, f"only {received * 100:.0f} % of CPU time received: {cause}")


def judge(key: str, checked: Check, complaint: str = "") -> dict[str, Any]:
    """The fields correct, valid and invalid_reason of a rate event.

    `complaint` says what else is wrong with the measurement. An FP32 GEMM that ran with TF32
    products, or TF32 with IEEE ones, is not a wrong result but the rate of something else.
    """
    reasons = [complaint] if complaint else []
    correct: bool | None = checked.correct
    wanted = {"fp32": "ieee", "tf32": "tf32"}.get(key)
    ran = products_of(checked.error)
    if wanted is not None and ran not in (wanted, "neither"):
        correct = None
        name = "TF32" if ran == "tf32" else "IEEE FP32"
        reasons.append(
            f"{name} products ran (relative error {checked.error:.1e}): "
            "see NVIDIA_TF32_OVERRIDE in the environment"
        )
    elif not correct:
        reasons.append(
            f"wrong result: relative error {checked.error:.1e}, limit {checked.limit:.0e}"
        )
    return {"correct": correct, "valid": not reasons, "invalid_reason": "; ".join(reasons)}


def accumulation_note(key: str, error: float) -> str:
    """Say if FP16 accumulation was allowed but, by the error, did not run."""
    if key == "fp16_acc16" and error < SHORT_SUM_ERROR:
        return f"by its error of {error:.1e} the library still summed in FP32"
    return ""


def inputs_of(key: str) -> str:
    """The operands in words."""
    return "random INT8 inputs (-128..127)" if key == "int8" else "random normal inputs"


_MEMORY = re.compile(
    r"out of memory|ALLOC_FAILED|can't allocate memory|not enough memory", re.IGNORECASE
)
_LIBRARY = re.compile(r"no kernel image|NOT_SUPPORTED|ARCH_MISMATCH|INVALID_VALUE", re.IGNORECASE)
_DEVICE = re.compile(
    r"CUDA error|CUDA driver error|cuBLAS|CUBLAS_STATUS|cuDNN|illegal memory access|"
    r"device-side assert|launch failure|GPU is lost",
    re.IGNORECASE,
)


def kind_of_failure(error: BaseException) -> str:
    """Sort what a torch call raised: "memory", "device" (this process's context is spoilt) or
    "library" (the call is not to be had here).
    """
    text = str(error)
    if (
        isinstance(error, MemoryError)
        or "OutOfMemory" in type(error).__name__
        or _MEMORY.search(text)
    ):
        return "memory"
    if _LIBRARY.search(text):
        return "library"
    if "AcceleratorError" in type(error).__name__ or _DEVICE.search(text):
        return "device"
    return "library"


def in_one_line(error: BaseException, limit: int = 200) -> str:
    """The message's first line, cut after a sentence; the type's name without a message."""
    lines = str(error).strip().splitlines()
    text = lines[0] if lines else type(error).__name__
    return text if len(text) <= limit else text[:limit].rpartition(". ")[0] or text[:limit]
