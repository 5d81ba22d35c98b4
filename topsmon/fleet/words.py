"""Sums over many devices in words."""

from __future__ import annotations

from topsmon.units import significant


def counted(count: int, noun: str) -> str:
    """A count with its noun: "1 host", "2 hosts"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def watts_words(watts: float) -> str:
    """Power of many devices: "655 W", "24.3 kW", "6.50 MW"."""
    if watts < 1e4:
        return f"{watts:.0f} W"
    return f"{significant(watts / 1e3)} kW" if watts < 1e6 else f"{significant(watts / 1e6)} MW"


def rates_words(achieved: float, ceiling: float, unit: str) -> str:
    """Two sums of rates in one unit, that of the ceiling: "7.35 of 9.89 EFLOPS"."""
    scales = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"))
    factor, prefix = next((scale for scale in scales if ceiling >= scale[0]), scales[-1])
    text = f"{significant(achieved / factor)} of {significant(ceiling / factor)}"
    return f"{text} {unit.replace('T', prefix, 1)}"
