"""Ceilings of a GPU: the board's published peaks, else the formula, else the words to say so."""

from __future__ import annotations

import time
from typing import NamedTuple

import msgspec

from topsmon import events
from topsmon.ceilings import formula, links, lookup
from topsmon.ceilings.database import Architecture, Board, BoardClass, rates
from topsmon.units import RATE_LABELS

TERA = 1e12
_NOT_MISSED = frozenset({"int8_dp4a", "bf16_vec"})
"""Vector types that no probe asks for: their absence is worth no words."""
EXPLAINED_DIFFERENCE = 0.015
MEMORY_SLICES = 8


class Part(NamedTuple):
    """What the peaks are computed from.

    `share` is the part of the board's SMs in use (1 outside MIG). `class_known` is False where the
    name does not tell whether the listed rates are halved. `capped` are precisions without a known
    rate.
    """

    cc: str
    architecture: Architecture
    kind: BoardClass
    sms: int
    share: float
    clocks: formula.Clocks | None
    board: Board | None = None
    class_known: bool = True
    capped: tuple[str, ...] = ()
    tensor_cores: bool = True


def for_device(
    device: events.Device,
    *,
    sm_count: int | None = None,
    rated_clock_mhz: float | None = None,
    pcie_generation: int | None = None,
    pcie_width: int | None = None,
) -> events.Ceilings:
    """Return the ceilings of a GPU.

    `sm_count` is that of torch where known: right under MIG, where NVML tells the whole board's.
    `rated_clock_mhz` is CUDA's clock rate, the rated boost; it serves boards that are in no table.
    `pcie_generation` and `pcie_width` are the widest that the driver reports.
    """
    match = lookup.identify(device, sm_count)
    return _ceilings(device, match, sm_count, rated_clock_mhz, (pcie_generation, pcie_width))


def for_slice(device: events.Device, part: events.Slice) -> events.Ceilings:
    """Return the ceilings of one MIG instance of a GPU: those of its own SMs and memory slices.

    An instance has memory slices of an eighth of the GPU's memory and of its bandwidth each (NVIDIA
    Multi-Instance GPU User Guide, "GPU Memory Slice").
    """
    own = msgspec.structs.replace(device, mig=True)
    if part.sm_count is None:
        why = f"no ceiling known for {part.profile or 'this instance'}: its SMs are not known"
        return msgspec.structs.replace(
            for_device(own),
            unknown=why,
            rates=(),
            absent={},
            memory_bandwidth_bytes_per_second=None,
        )
    found = for_device(own, sm_count=part.sm_count)
    board = lookup.identify(device).board
    memory = links.memory_of(board, device, whole=True)
    total = device.memory_total_bytes
    if total is None and board is not None and board.memory_gib:
        total = int(board.memory_gib * 2**30)
    if memory.bytes_per_second is None or not total or not part.memory_total_bytes:
        return found
    eighths = max(1, round(MEMORY_SLICES * part.memory_total_bytes / total))
    return msgspec.structs.replace(
        found,
        memory_bandwidth_bytes_per_second=memory.bytes_per_second * eighths / MEMORY_SLICES,
        memory_bandwidth_source=f"{eighths} of {MEMORY_SLICES} memory slices; {memory.source}",
    )


def for_board(board: Board) -> events.Ceilings:
    """Return the ceilings of a board that need not be here."""
    return _ceilings(device_of(board), lookup.Match(board, "name"))


def _ceilings(
    device: events.Device,
    match: lookup.Match,
    sm_count: int | None = None,
    rated_clock_mhz: float | None = None,
    link: tuple[int | None, int | None] = (None, None),
) -> events.Ceilings:
    board = match.board
    cc = device.compute_capability or (board.cc if board is not None else None)
    sms = sm_count or device.sm_count or (board.sms if board is not None else None)
    notes = list(match.notes)
    whole = not device.mig or (board is not None and sms == board.sms)
    memory = links.memory_of(board, device, whole=whole)
    pcie = links.pcie_of(board, cc, *link)
    nvlink = links.nvlink_of(board)
    notes += memory.notes
    clocks, clock_source = _clocks(device, board, rated_clock_mhz, notes)
    unknown = _missing(device.name, cc, sms, clocks, board)
    found: tuple[events.Ceiling, ...] = ()
    absent: dict[str, str] = {}
    if unknown is None and cc is not None and sms is not None:
        part = _part(device, board, cc, sms, clocks)
        found, absent = peaks(part)
        notes += _remarks(device, part)
    return events.Ceilings(
        time=device.time,
        monotonic=device.monotonic,
        source=device.source,
        device=device.device,
        board=board.key if board is not None else None,
        matched_by=match.how or ("computed from architecture" if found else None),
        unknown=unknown,
        rates=found,
        absent=absent,
        memory_bandwidth_bytes_per_second=memory.bytes_per_second,
        memory_bandwidth_source=memory.source,
        l2_bytes=int(board.l2_mib * 2**20) if board is not None and whole else None,
        pcie_bytes_per_second=pcie.bytes_per_second,
        pcie_source=pcie.source,
        nvlink_bytes_per_second=nvlink.bytes_per_second,
        nvlink_source=nvlink.source,
        clock_source=clock_source,
        notes=tuple(notes),
    )


def device_of(board: Board) -> events.Device:
    """Return a board as an event of a device, for what is asked about a board that is not here."""
    return events.Device(
        time=time.time(),
        monotonic=time.monotonic(),
        source="board table",
        device=board.key,
        kind="gpu",
        index=0,
        name=board.names[0],
        pci_device_id=board.pci_ids[0].partition(":")[0] if board.pci_ids else None,
        pci_subsystem_id=board.pci_ids[0].partition(":")[2] or None if board.pci_ids else None,
        compute_capability=board.cc,
        architecture=rates().architecture[board.cc].name,
        sm_count=board.sms,
        memory_total_bytes=int(board.memory_gib * 2**30) if board.memory_gib else None,
        sm_clock_max_mhz=int(board.boost_mhz) if board.boost_mhz else None,
    )


def peaks(part: Part) -> tuple[tuple[events.Ceiling, ...], dict[str, str]]:
    """Return the ceiling of every precision that has one, and the reasons for the others."""
    found: list[events.Ceiling] = []
    absent: dict[str, str] = {}
    for precision in RATE_LABELS:
        ceiling = None if _reason(part, precision) else _peak(part, precision)
        if ceiling is not None:
            found.append(ceiling)
        elif precision not in _NOT_MISSED:
            absent[precision] = _reason(part, precision) or formula.absent_reason(
                part.cc, precision, part.architecture
            )
    return tuple(found), absent


def _reason(part: Part, precision: str) -> str | None:
    """Why this board has no known rate where its architecture may have one."""
    if precision in part.capped:
        return "capped on this board, the rate is not known"
    supported = precision in part.architecture.ops_per_clock
    if not part.tensor_cores and supported and precision not in formula.VECTOR_TYPES:
        return "no Tensor Cores on this chip"
    if supported and not part.kind.formula and precision not in _published(part.board):
        return part.kind.why
    return None


def _published(board: Board | None) -> dict[str, int | float]:
    return {} if board is None else board.published


def _peak(part: Part, precision: str) -> events.Ceiling | None:
    ops = formula.rate_per_clock(part.architecture, part.kind, precision)
    printed = _published(part.board).get(precision)
    clock = part.clocks.of(precision) if part.clocks is not None else None
    computed = None
    if ops is not None and clock is not None:
        computed = formula.ops_per_second(part.sms, ops, clock)
    if computed is None and printed is None:
        return None
    value, low, notes = computed or 0.0, None, _notes(part, precision)
    if printed is not None:
        full = computed / part.share / TERA if computed is not None else None
        if full is None or not formula.is_rounded(printed, full):
            value = printed * TERA * part.share
        if full is not None and abs(printed / full - 1) > EXPLAINED_DIFFERENCE:
            reason = part.board.exceptions.get(precision, "") if part.board is not None else ""
            notes.append(f"the formula gives {full:.4g}: {reason}")
    elif ops is not None and computed is not None:
        low = _low_end(part, precision, computed)
    factor = formula.sparse_factor(part.cc, precision) if part.kind.formula else None
    whole_published = printed is not None and part.share == 1
    return events.Ceiling(
        precision=precision,
        ops_per_second=value,
        origin="published" if whole_published else "range" if low is not None else "computed",
        source=_source(part, printed is not None),
        ops_per_second_low=low,
        sparse_ops_per_second=value * factor if factor is not None else None,
        published_ops_per_second=printed * TERA if printed is not None else None,
        ops_per_clock=ops * part.sms if ops is not None else None,
        rated_clock_mhz=clock if ops is not None else None,
        verified=_verified(part, precision),
        note="; ".join(notes),
    )


def _low_end(part: Part, precision: str, computed: float) -> float | None:
    """Return the lower end where a rate or a clock is uncertain, None where it is not."""
    low = computed
    clocks = part.clocks
    if clocks is not None and clocks.vector_low is not None:
        low *= clocks.vector_low / clocks.vector
    disputed = part.board is not None and part.board.half_rate_disputed
    if precision in part.architecture.halved and (disputed or not part.class_known):
        low /= 2
    return low if low < computed else None


def _notes(part: Part, precision: str) -> list[str]:
    notes = []
    if formula.is_halved(part.architecture, part.kind, precision):
        notes.append(part.kind.why)
    listed = precision in part.architecture.halved
    if listed and part.board is not None and part.board.half_rate_disputed:
        notes.append("sources disagree between full and half rate")
    elif listed and not part.class_known:
        notes.append("half rate on GeForce boards, and this name does not tell")
    elif listed and part.board is None and not part.kind.halves_listed:
        notes.append("full rate assumed: not a GeForce board")
    if precision in part.architecture.note:
        notes.append(part.architecture.note[precision])
    clocks = part.clocks
    if clocks is not None and clocks.of(precision) != clocks.vector:
        notes.append(f"at the tensor clock, {clocks.tensor:g} MHz")
    if part.share != 1:
        notes.append(f"{part.sms} SMs in use")
    return notes


def _source(part: Part, printed: bool) -> str:
    if printed and part.board is not None:
        return part.board.published_source
    hardware = f"; hardware: {part.board.hardware_source}" if part.board is not None else ""
    return f"SMs x rate per clock x clock; rate: {part.architecture.source}{hardware}"


def _verified(part: Part, precision: str) -> bool | None:
    if precision in _published(part.board) and part.board is not None:
        return part.board.published_verified and precision not in part.board.published_unverified
    return False if precision in part.architecture.unverified else None


def _part(
    device: events.Device, board: Board | None, cc: str, sms: int, clocks: formula.Clocks | None
) -> Part:
    known = lookup.name_is_readable(device.name)
    kind = board.class_ if board is not None else formula.class_of_name(device.name)
    capped = board.capped if board is not None else _capped(device.name)
    return Part(
        cc=cc,
        architecture=rates().architecture[cc],
        kind=rates().class_[kind],
        sms=sms,
        share=sms / board.sms if board is not None else 1.0,
        clocks=clocks,
        board=board,
        class_known=board is not None or known,
        capped=capped,
        tensor_cores=not formula.lacks_tensor_cores(cc, device.name, device.pci_device_id),
    )


def _capped(name: str) -> tuple[str, ...]:
    for known, precisions in rates().capped_names.items():
        if lookup.normal(known) == lookup.normal(name):
            return precisions
    return ()


def _clocks(
    device: events.Device, board: Board | None, rated_mhz: float | None, notes: list[str]
) -> tuple[formula.Clocks | None, str]:
    """Return the clocks of the peaks and where they come from."""
    known = formula.clocks_of(board) if board is not None else None
    if known is not None and board is not None:
        source = f"rated boost {known.vector:g} MHz ({board.hardware_source})"
        if known.tensor != known.vector:
            source += f"; tensor clock {known.tensor:g} MHz ({board.tensor_boost_source})"
        return known, source
    if rated_mhz is not None:
        return formula.Clocks(rated_mhz, rated_mhz), f"rated boost {rated_mhz:g} MHz (CUDA)"
    if device.sm_clock_max_mhz is None:
        return None, "rated boost not known"
    notes.append(
        "the clock is the driver's maximum, not the rated boost: the ceilings are too high where"
        " they differ (RTX 4090: 3105 against 2520 MHz)"
    )
    maximum = float(device.sm_clock_max_mhz)
    return formula.Clocks(maximum, maximum), f"driver's maximum SM clock {maximum:g} MHz"


def _missing(
    name: str, cc: str | None, sms: int | None, clocks: formula.Clocks | None, board: Board | None
) -> str | None:
    """Say why nothing can be computed, None where it can."""
    if cc is None:
        why = "it is not in the board table, and its compute capability is not known"
    elif cc not in rates().architecture:
        why = f"the rates of its architecture (compute capability {cc}) are not known"
    elif sms is None:
        why = "it is not in the board table, and its number of SMs is not known"
    elif clocks is None and not _published(board):
        why = "its clock is not known"
    else:
        return None
    return f"no ceiling known for {name}: {why}. No other board's figure is used."


def _remarks(device: events.Device, part: Part) -> list[str]:
    """Return what holds for the device as a whole."""
    remarks = []
    if part.board is not None:
        if part.board.note:
            remarks.append(part.board.note)
        if part.share != 1:
            remarks.append(
                f"{part.sms} of {part.board.sms} SMs"
                + (" (MIG slice)" if device.mig else ": the driver's count differs from the table")
            )
        elif device.mig:
            remarks.append("MIG is on: these are the ceilings of the whole board")
    elif part.architecture.tensor_clock_lower:
        remarks.append(
            "known boards of this architecture run their Tensor Cores up to"
            f" {part.architecture.tensor_clock_lower:.0%} below the vector clock"
        )
    return remarks
