"""Quantities as people read them: SI and IEC prefixes, cell-safe text, precisions and their units.

The whole program formats numbers here and nowhere else. `None` becomes "N/A", never 0.
"""

from __future__ import annotations

import math
import unicodedata
from typing import NamedTuple

NOT_AVAILABLE = "N/A"


class Precision(NamedTuple):
    """A precision that is measured.

    `label` is for the screen, `unit` TFLOPS (floating point) or TOPS (integer), `ceilings` the keys
    of the rates table to hold it against, the first that the device has.
    """

    key: str
    label: str
    unit: str
    ceilings: tuple[str, ...]
    long_name: str


PRECISIONS: dict[str, Precision] = {
    precision.key: precision
    for precision in (
        Precision("fp64", "FP64", "TFLOPS", ("fp64_tensor", "fp64"), "FP64"),
        Precision("fp32", "FP32", "TFLOPS", ("fp32",), "FP32 (IEEE, no TF32)"),
        Precision("tf32", "TF32", "TFLOPS", ("tf32",), "TF32"),
        Precision("fp16", "FP16", "TFLOPS", ("fp16_acc32", "fp16_vec"), "FP16, FP32 accumulate"),
        Precision("fp16_acc16", "FP16a", "TFLOPS", ("fp16_acc16",), "FP16, FP16 accumulate"),
        Precision("bf16", "BF16", "TFLOPS", ("bf16",), "BF16, FP32 accumulate"),
        Precision("fp8", "FP8", "TFLOPS", ("fp8_acc32",), "FP8 E4M3, FP32 accumulate"),
        Precision("int8", "INT8", "TOPS", ("int8", "int8_dp4a"), "INT8, INT32 accumulate"),
        Precision("fp4", "FP4", "TFLOPS", ("fp4",), "NVFP4, block-scaled"),
    )
}

RATE_LABELS: dict[str, tuple[str, str]] = {
    "fp64": ("FP64", "TFLOPS"),
    "fp64_tensor": ("FP64 Tensor Core", "TFLOPS"),
    "fp32": ("FP32", "TFLOPS"),
    "fp16_vec": ("FP16 (vector)", "TFLOPS"),
    "bf16_vec": ("BF16 (vector)", "TFLOPS"),
    "tf32": ("TF32 Tensor Core", "TFLOPS"),
    "fp16_acc32": ("FP16, FP32 accumulate", "TFLOPS"),
    "fp16_acc16": ("FP16, FP16 accumulate", "TFLOPS"),
    "bf16": ("BF16, FP32 accumulate", "TFLOPS"),
    "fp8_acc32": ("FP8, FP32 accumulate", "TFLOPS"),
    "fp8_acc16": ("FP8, FP16 accumulate", "TFLOPS"),
    "int8": ("INT8", "TOPS"),
    "int8_dp4a": ("INT8 (dp4a)", "TOPS"),
    "int4": ("INT4", "TOPS"),
    "fp6": ("FP6", "TFLOPS"),
    "fp4": ("FP4", "TFLOPS"),
}
"""Keys of the rates table, in the order of display: label and unit."""


def significant(value: float, digits: int = 3) -> str:
    """Return `value` with about `digits` significant digits and no exponent: 0.0123, 1.23, 412."""
    if value == 0:
        return "0"
    magnitude = abs(value)
    decimals = 0
    while magnitude < 10 ** (digits - 1) and decimals < digits + 3:
        magnitude *= 10
        decimals += 1
    return f"{value:.{decimals}f}"


def tera(ops_per_second: float | None, digits: int = 3) -> str:
    """Return an operation rate in units of 1e12 per second, without the unit's name."""
    if ops_per_second is None:
        return NOT_AVAILABLE
    return significant(ops_per_second / 1e12, digits)


def rate(ops_per_second: float | None, precision: str) -> str:
    """Return a rate with its unit, floating point in TFLOPS and integer in TOPS (GFLOPS below)."""
    if ops_per_second is None:
        return NOT_AVAILABLE
    unit = PRECISIONS[precision].unit if precision in PRECISIONS else "TFLOPS"
    if abs(ops_per_second) < 1e12:
        return f"{significant(ops_per_second / 1e9)} {unit.replace('T', 'G', 1)}"
    return f"{significant(ops_per_second / 1e12)} {unit}"


def percent(ratio: float | None, decimals: int = 1) -> str:
    """Return a ratio as a percentage, never clamped: 0.416 -> "41.6%", 1.07 -> "107.0%"."""
    return NOT_AVAILABLE if ratio is None else f"{ratio * 100:.{decimals}f}%"


def gibibytes(count: float | None, decimals: int = 1) -> str:
    """Return bytes in GiB (2**30) without the unit's name."""
    return NOT_AVAILABLE if count is None else f"{count / 2**30:.{decimals}f}"


def binary_bytes(count: float | None) -> str:
    """Return bytes with an IEC prefix: 17179869184 -> "16.0 GiB"."""
    if count is None:
        return NOT_AVAILABLE
    value = float(count)
    for prefix in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {prefix}" if prefix == "B" else f"{value:.1f} {prefix}"
        value /= 1024
    return f"{value:.1f} TiB"


def bandwidth(bytes_per_second: float | None) -> str:
    """Return a bandwidth in GB/s (1e9 bytes), the unit of memory and link data sheets."""
    if bytes_per_second is None:
        return NOT_AVAILABLE
    return f"{significant(bytes_per_second / 1e9)} GB/s"


def si(value: float | None, unit: str = "", digits: int = 4) -> str:
    """Return a value with an SI prefix, n to P: 8178368512 -> "8.178 G", 0.0012 s -> "1.200 ms".

    Whole numbers below 1000 are written as they are.
    """
    if value is None:
        return NOT_AVAILABLE
    if value == 0 or (abs(value) < 1000 and value == int(value)):
        return f"{value:.0f} {unit}".rstrip()
    rounded = float(f"{value:.{digits - 1}e}")
    exponent = min(max(math.floor(math.log10(abs(rounded)) / 3), -3), 5)
    scaled = rounded / 1000.0**exponent
    decimals = max(digits - 1 - math.floor(math.log10(abs(scaled))), 0)
    return f"{scaled:.{decimals}f} {SI_PREFIXES[exponent + 3]}{unit}".rstrip()


SI_PREFIXES = ("n", "u", "m", "", "k", "M", "G", "T", "P")


def watts(value: float | None) -> str:
    """Return whole watts without the unit's name."""
    return NOT_AVAILABLE if value is None else f"{value:.0f}"


def duration(seconds: float | None) -> str:
    """Return an age in the largest fitting unit: 0.4 -> "0.4 s", 75 -> "1 min", 7300 -> "2 h"."""
    if seconds is None:
        return NOT_AVAILABLE
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86400:.0f} d"


def age(seconds: float) -> str:
    """Return a process's age in at most eight cells: "42 s", "12 min", "3 h 12", "5 d 3 h"."""
    seconds = max(seconds, 0.0)
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if seconds < 60:
        return f"{int(seconds)} s"
    if hours < 1:
        return f"{minutes} min"
    if days < 2:
        return f"{hours} h {minutes % 60:02}"
    return f"{days} d {hours % 24} h" if days < 10 else f"{days} d"


CONTROL_SIGN = "\N{REPLACEMENT CHARACTER}"


def plain(text: str, limit: int = 4096) -> str:
    """Return outside text that is safe to draw: one line, no control or escape characters.

    Control, format, surrogate and line-separating characters become U+FFFD, so that a process's
    arguments can neither move the cursor nor end a row; `limit` cuts what is absurdly long.
    """
    text = text[:limit]
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        CONTROL_SIGN if unicodedata.category(char) in _UNSAFE_CATEGORIES else char for char in text
    )


_UNSAFE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def command_words(command: str, limit: int) -> str:
    """Return a command line as people know it: the program without its folder, its arguments.

    Safe to draw and at most `limit` characters. What is too long first loses the folders of its
    arguments, then whole words from its end.
    """
    words = plain(" ".join(command.split())).split(" ")
    words[0] = _without_folder(words[0])
    if len(" ".join(words)) > limit:
        words = [_without_folder(word) for word in words]
    text = " ".join(words)
    if len(text) <= limit:
        return text
    while len(words) > 1 and len(" ".join(words)) + len(CUT_SIGN) > limit:
        words.pop()
    text = " ".join(words) + CUT_SIGN
    return text if len(text) <= limit else words[0][:limit]


CUT_SIGN = " ..."


def _without_folder(word: str) -> str:
    return word.rpartition("/")[2] or word if word.startswith(("/", "./", "../", "~/")) else word
