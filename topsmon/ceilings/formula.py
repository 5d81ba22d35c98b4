"""Peak rates: operations per second = SMs x operations per clock per SM x clock.

Dense, one multiply-add counts as two operations. Tensor types run at the tensor clock where a board
has one; everything else, FP64 Tensor Cores included, at the vector clock.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from topsmon import events
from topsmon.ceilings.database import Architecture, Board, BoardClass, rates
from topsmon.ceilings.lookup import normal, pci_device
from topsmon.units import RATE_LABELS

VECTOR_TYPES = frozenset({"fp64", "fp64_tensor", "fp32", "fp16_vec", "bf16_vec", "int8_dp4a"})
SPARSE_FROM_CC = 8.0
SPARSE_FACTOR = 2.0
INT4_ENDS_WITH_CC = 9.0
COARSEST_ROUNDING = 0.03


class Clocks(NamedTuple):
    """Rated clocks in MHz; `vector_low` is the lower end where sources disagree."""

    vector: float
    tensor: float
    vector_low: float | None = None

    def of(self, precision: str) -> float:
        """Return the clock that a precision's peak belongs to."""
        return self.vector if precision in VECTOR_TYPES else self.tensor


def ops_per_second(sms: float, ops_per_clock: float, clock_mhz: float) -> float:
    """Return a peak in operations per second."""
    return sms * ops_per_clock * clock_mhz * 1e6


def held(ceiling: events.Ceiling, clock_mhz: float) -> float | None:
    """Return a ceiling in operations per second at a clock that is held.

    None where neither the rate per clock nor the clock of the rated figure is known.
    """
    if ceiling.ops_per_clock is not None:
        return ceiling.ops_per_clock * clock_mhz * 1e6
    if ceiling.rated_clock_mhz:
        return ceiling.ops_per_second * clock_mhz / ceiling.rated_clock_mhz
    return None


def memory_bandwidth(bus_bits: int, clock_mhz: float) -> float:
    """Return bytes per second of a memory bus; NVML's clock is half the data rate of any type."""
    return 2 * clock_mhz * 1e6 * bus_bits / 8


def fp32_lanes_per_sm(cc: str) -> int | None:
    """Return FP32 lanes ("CUDA cores") per SM: the driver's core count / this = SMs."""
    architecture = rates().architecture.get(cc)
    return None if architecture is None else int(architecture.ops_per_clock["fp32"] / 2)


def sparse_factor(cc: str, precision: str) -> float | None:
    """Return 2:4 sparse / dense, None where the Tensor Cores have no sparse mode for it."""
    if precision in VECTOR_TYPES or float(cc) < SPARSE_FROM_CC:
        return None
    return rates().architecture[cc].sparse_factor.get(precision, SPARSE_FACTOR)


def class_of_name(name: str) -> str:
    """Return the class of a board that is in no table: GeForce parts halve the listed rates."""
    return "geforce" if "geforce" in _words(name) else "pro"


def lacks_tensor_cores(cc: str | None, name: str, pci_device_id: str | None) -> bool:
    """Tell Turing chips without Tensor Cores (GTX 16, MX, T series) from those with them."""
    table = rates().no_tensor_cores
    if cc not in table.cc:
        return False
    device = pci_device(pci_device_id)
    if device is not None and any(first <= device <= last for first, last in table.pci_ranges):
        return True
    return not table.words.isdisjoint(word.upper() for word in _words(name))


def _words(name: str) -> list[str]:
    return re.split(r"[^a-z0-9-]+", normal(name))


def rate_per_clock(architecture: Architecture, kind: BoardClass, precision: str) -> float | None:
    """Return operations per clock per SM on a class of board, None where there is no such rate."""
    ops = architecture.ops_per_clock.get(precision)
    if ops is None or not kind.formula:
        return None
    return ops / 2 if is_halved(architecture, kind, precision) else ops


def is_halved(architecture: Architecture, kind: BoardClass, precision: str) -> bool:
    """Tell whether a class of board runs a precision at half the architecture's rate."""
    return precision in kind.halves or (kind.halves_listed and precision in architecture.halved)


def clocks_of(board: Board) -> Clocks | None:
    """Return a board's rated clocks, None where they are not known."""
    if board.boost_mhz is None:
        return None
    return Clocks(board.boost_mhz, board.tensor_boost_mhz or board.boost_mhz, board.boost_low_mhz)


def is_rounded(published: float, computed: float) -> bool:
    """Tell whether `published` is `computed` rounded or cut to the digits that are printed."""
    difference = abs(published - computed)
    return difference <= _last_digit(published) and difference <= COARSEST_ROUNDING * computed


def _last_digit(value: float) -> float:
    """Return the unit of the last printed digit: 284 -> 1, 15.7 -> 0.1, 154.85 -> 0.01."""
    _, _, decimals = repr(value).partition(".")
    return 1.0 if isinstance(value, int) else 10.0 ** -len(decimals)


def absent_reason(cc: str, precision: str, architecture: Architecture) -> str:
    """Say why a precision has no ceiling on an architecture."""
    if precision in architecture.unknown:
        return f"rate on sm_{sm(cc)} not known: {architecture.unknown[precision]}"
    if precision == "bf16" and float(cc) < SPARSE_FROM_CC:
        return f"emulated: no native BF16 on sm_{sm(cc)}"
    missing = RATE_LABELS[precision][0].partition(",")[0].removesuffix(" Tensor Core")
    if precision == "fp64_tensor":
        missing = "FP64 Tensor Cores"
    elif precision == "fp16_acc16":
        missing = "Tensor Cores"
    elif precision == "int8" or (precision == "int4" and float(cc) >= INT4_ENDS_WITH_CC):
        missing += " Tensor Core type"
    return f"no {missing} on sm_{sm(cc)}"


def sm(cc: str) -> str:
    """Return the digits of a compute capability: "8.6" -> "86"."""
    return cc.replace(".", "")
