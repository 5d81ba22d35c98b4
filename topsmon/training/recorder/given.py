"""Numbers that the user gives for a step: what is impossible is refused in words."""

from __future__ import annotations

FLOPS = "flops_per_step"
FLOPS_LEAST, FLOPS_MOST = 1.0, 1e22
"""1e17 FLOP/s, several times the highest rated ceiling of a board, for more than a day a step."""
COUNT_LEAST, COUNT_MOST = 1e-9, 1e15
"""Tokens or samples a step: more are a slip, and the sum over a run stays exact."""


def number(name: str, value: object) -> float:
    """Return the number given for a step and rank; ValueError in one line."""
    least, most = limits(name)
    try:
        # A text is none, even one of digits; NumPy's and torch's scalars are.
        found = float("nan") if isinstance(value, (str, bytes)) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError):
        found = float("nan")
    if least <= found <= most:
        return found
    what = "give a positive number or leave it out"
    if found > most:
        what = f"at most {most:g} is possible; give that of one optimizer step and rank"
    raise ValueError(f"{name} is {value!r:.60}; {what}")


def limits(name: str) -> tuple[float, float]:
    """Return the least and the most that are possible."""
    return (FLOPS_LEAST, FLOPS_MOST) if name == FLOPS else (COUNT_LEAST, COUNT_MOST)
