"""Theoretical ceilings of GPUs and CPUs, each with its source."""

from __future__ import annotations

from topsmon.ceilings.cpu import for_cpu
from topsmon.ceilings.cpu_facts import CpuFacts, read_cpu_facts
from topsmon.ceilings.database import Board, boards
from topsmon.ceilings.formula import fp32_lanes_per_sm, held, memory_bandwidth, ops_per_second
from topsmon.ceilings.gpu import for_device, for_slice
from topsmon.ceilings.links import pcie
from topsmon.ceilings.lookup import find_board_by_name, identify

__all__ = [
    "Board",
    "CpuFacts",
    "boards",
    "find_board_by_name",
    "for_cpu",
    "for_device",
    "for_slice",
    "fp32_lanes_per_sm",
    "held",
    "identify",
    "memory_bandwidth",
    "ops_per_second",
    "pcie",
    "read_cpu_facts",
]
