"""A driver library with NVML's binary interface that plays scenarios instead of reading a GPU."""

from __future__ import annotations

from topsmon.simulated.build import prepare
from topsmon.simulated.scenario import Scenario, ScenarioInfo, info, load, names
from topsmon.simulated.values import SimulationError

SCENARIOS: dict[str, ScenarioInfo] = {name: info(name) for name in names()}
"""The scenarios that topsmon ships, by name; `str()` of an entry is its one-line description."""

__all__ = ["SCENARIOS", "Scenario", "ScenarioInfo", "SimulationError", "info", "load", "prepare"]
