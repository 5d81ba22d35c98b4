"""Values of a simulated laboratory probe: the scenario's, at the clock or link of the moment."""

from __future__ import annotations

from typing import Protocol

from topsmon.ceilings.links import pcie
from topsmon.simulated.scenario import Lab, Scenario


class Reader(Protocol):
    """A simulated device, as far as a probe reads it."""

    scenario: Scenario

    def number(self, *fields: str) -> float | None:
        """The first of the fields that the device has."""
        ...


def values(device: Reader, name: str, lab: Lab) -> dict[str, float | None]:
    """What the probe measures now; the transfer probe also reads the link, as the real one does."""
    scale = _scale(device, lab)
    found = {
        key: value * scale if value is not None and key.endswith("_per_second") else value
        for key, value in lab.values.items()
    }
    if name == "transfer":
        found["pcie_generation"] = device.number("burst_pcie_generation", "pcie_generation")
        found["pcie_width"] = device.number("pcie_width")
    return found


def _scale(device: Reader, lab: Lab) -> float:
    """The present value of what the probe follows, as a share of its best."""
    if lab.follows == "clock":
        clock = device.number("burst_clock_mhz", "sm_clock_mhz")
        return _share(clock, device.scenario.rates.clock_mhz)
    if lab.follows == "memory clock":
        return _share(device.number("memory_clock_mhz"), device.number("memory_clock_max_mhz"))
    if lab.follows == "link":
        now = _link(device, ("burst_pcie_generation", "pcie_generation"), "pcie_width")
        return _share(now, _link(device, ("pcie_generation_max",), "pcie_width_max"))
    return 1.0


def _link(device: Reader, generations: tuple[str, ...], width: str) -> float | None:
    """Bytes per second of the link that these fields tell."""
    generation, lanes = device.number(*generations), device.number(width)
    if generation is None or lanes is None:
        return None
    return pcie(round(generation), round(lanes))


def _share(now: float | None, best: float | None) -> float:
    return 1.0 if now is None or not best else now / best
