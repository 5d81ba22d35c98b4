"""Ceilings of memory and links in bytes per second, each with where it comes from."""

from __future__ import annotations

from typing import NamedTuple

from topsmon import events
from topsmon.ceilings.database import Board, rates
from topsmon.ceilings.formula import memory_bandwidth

GB = 1e9
DIFFERENCE_WORTH_A_NOTE = 0.02
FULL_WIDTH = 16


class Bandwidth(NamedTuple):
    """Bytes per second or None, the source of it (or why there is none), remarks."""

    bytes_per_second: float | None
    source: str
    notes: tuple[str, ...] = ()


def pcie(generation: int, width: int) -> float | None:
    """Return bytes per second and direction after line coding, None for an unknown generation."""
    per_lane = rates().pcie.gb_per_second_per_lane.get(generation)
    return None if per_lane is None else per_lane * GB * width


def pcie_of(
    board: Board | None, cc: str | None, generation: int | None, width: int | None
) -> Bandwidth:
    """Return the ceiling of the widest link the driver reports, else that of the architecture."""
    if generation is not None and width is not None:
        return Bandwidth(
            pcie(generation, width), f"generation {generation} x{width}, maximum of the link"
        )
    architecture = rates().architecture.get(cc or "")
    lanes = FULL_WIDTH if board is None else board.pcie_width
    if architecture is None or not architecture.pcie_generation or not lanes:
        return Bandwidth(None, "no PCIe board, or generation not known")
    generation = architecture.pcie_generation
    return Bandwidth(
        pcie(generation, lanes),
        f"generation {generation} x{lanes} of the board; the slot may give less",
    )


def nvlink_of(board: Board | None) -> Bandwidth:
    """Return the ceiling of all NVLink links of a board together, per direction."""
    if board is None:
        return Bandwidth(None, "board not in the table")
    if board.nvlink_gb_per_second is None:
        return Bandwidth(None, "none in the table")
    return Bandwidth(board.nvlink_gb_per_second * GB, board.nvlink_source)


def memory_of(board: Board | None, device: events.Device | None, *, whole: bool) -> Bandwidth:
    """Return the memory bandwidth: bus width x clock as the driver reports them, else the table's.

    The driver's is preferred, since boards of one name differ; both are told where they differ by
    more than 2 %.
    """
    if not whole:
        return Bandwidth(None, "a MIG slice has a share of the bandwidth that is not readable")
    table = None
    if board is not None and board.memory_gb_per_second is not None:
        table = board.memory_gb_per_second * GB
    if device is None or not device.memory_bus_bits or not device.memory_clock_max_mhz:
        if table is None or board is None:
            return Bandwidth(None, "bus width and memory clock not known")
        return Bandwidth(table, f"board table ({board.memory}, {board.memory_bus_bits} bit)")
    reported = memory_bandwidth(device.memory_bus_bits, device.memory_clock_max_mhz)
    source = f"driver: {device.memory_bus_bits} bit x {device.memory_clock_max_mhz:g} MHz x 2"
    if table is None or abs(reported - table) <= DIFFERENCE_WORTH_A_NOTE * table:
        return Bandwidth(reported, source)
    note = (
        f"memory: the driver's bus width and clock give {reported / GB:.0f} GB/s,"
        f" the board table says {table / GB:.0f}"
    )
    return Bandwidth(reported, source, (note,))
