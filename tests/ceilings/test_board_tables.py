"""The tables: every published peak follows from the formula, every id and name is one board's."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from topsmon.ceilings import boards, database, formula
from topsmon.ceilings.database import Board, cpu_rates, rates
from topsmon.ceilings.formula import is_rounded
from topsmon.ceilings.gpu import for_board
from topsmon.units import RATE_LABELS

ALL = [pytest.param(board, id=key) for key, board in boards().items()]
TOLERANCE = 0.015


def computed(board: Board, precision: str) -> float | None:
    """SMs x operations per clock x clock in TFLOPS, written out here once more."""
    kind = rates().class_[board.class_]
    architecture = rates().architecture[board.cc]
    ops = architecture.ops_per_clock.get(precision)
    if ops is None or board.boost_mhz is None or not kind.formula:
        return None
    if precision in kind.halves or (kind.halves_listed and precision in architecture.halved):
        ops /= 2
    vector = ("fp64", "fp64_tensor", "fp32", "fp16_vec", "bf16_vec", "int8_dp4a")
    clock = board.boost_mhz if precision in vector else board.tensor_boost_mhz or board.boost_mhz
    return board.sms * ops * clock * 1e6 / 1e12


@pytest.mark.parametrize("board", ALL)
def test_published_peaks_follow_from_the_formula_or_are_named_exceptions(board: Board) -> None:
    for precision, published in board.published.items():
        peak = computed(board, precision)
        if peak is None:
            assert board.class_ == "capped", f"{precision}: nothing to check it against"
            continue
        off = published / peak - 1
        if precision in board.exceptions:
            assert abs(off) > TOLERANCE, f"{precision}: {off:+.2%}, the exception is not needed"
            assert board.exceptions[precision].strip()
        else:
            assert abs(off) <= TOLERANCE, f"{precision}: printed {published}, computed {peak:.4g}"


def test_exceptions_name_published_values() -> None:
    for board in boards().values():
        assert set(board.exceptions) <= set(board.published), board.key


def test_most_published_values_have_a_formula() -> None:
    values = [(board, precision) for board in boards().values() for precision in board.published]
    checked = [pair for pair in values if computed(*pair) is not None]
    assert len(values) >= 350
    assert len(checked) >= len(values) - 10


@pytest.mark.parametrize("board", ALL)
def test_rows_are_plausible_and_have_sources(board: Board) -> None:
    assert board.cc in rates().architecture
    assert board.class_ in rates().class_
    assert 1 <= board.sms <= 200
    assert 32 <= board.memory_bus_bits <= 10240
    if board.boost_mhz is not None:
        assert 500 <= board.boost_mhz <= 3000
        assert (board.boost_low_mhz or 0) < board.boost_mhz
        assert (board.tensor_boost_mhz or 0) < board.boost_mhz
    if board.memory_gb_per_second is not None:
        # 1792e12 bytes/s for an RTX 5090 once stood in a public table.
        assert 50 <= board.memory_gb_per_second <= 10_000
        per_pin = board.memory_gb_per_second * 8 / board.memory_bus_bits
        assert 1 <= per_pin <= 33
    assert board.hardware_source
    assert bool(board.published) == bool(board.published_source)
    assert bool(board.pci_ids) == bool(board.pci_ids_source)
    assert bool(board.nvlink_gb_per_second) == bool(board.nvlink_source)
    for precision in (*board.published, *board.published_unverified, *board.capped):
        assert precision in RATE_LABELS
    assert set(board.published_unverified) <= set(board.published)


def test_architectures_have_known_precisions_and_sources() -> None:
    for cc, architecture in rates().architecture.items():
        assert set(architecture.ops_per_clock) <= set(RATE_LABELS), cc
        assert set(architecture.halved) <= set(architecture.ops_per_clock), cc
        assert not set(architecture.unknown) & set(architecture.ops_per_clock), cc
        assert set(architecture.unverified) <= set(architecture.ops_per_clock), cc
        assert architecture.source, cc


def test_pci_ids_are_one_boards() -> None:
    ids = Counter(pci_id for board in boards().values() for pci_id in board.pci_ids)
    assert [pci_id for pci_id, count in ids.items() if count > 1] == []
    for pci_id in ids:
        assert pci_id == pci_id.upper()
        assert [len(part) for part in pci_id.split(":")] in ([4], [4, 4, 4])


def test_names_are_shared_only_by_known_boards() -> None:
    names: dict[str, set[str]] = {}
    for board in boards().values():
        for name in board.names:
            names.setdefault(name, set()).add(board.key)
    shared = {name for name, keys in names.items() if len(keys) > 1}
    assert shared == {
        "NVIDIA GeForce RTX 2060",
        "NVIDIA GeForce RTX 2080",
        "NVIDIA GeForce RTX 3050",
        "NVIDIA GeForce RTX 3060",
        "NVIDIA GeForce RTX 3060 Ti",
        "NVIDIA GeForce RTX 3080",
        "Orin",
    }


def test_cpu_models_of_a_vendor_do_not_overlap() -> None:
    taken: dict[tuple[str, int, bool, int], str] = {}
    for key, kind in cpu_rates().microarchitecture.items():
        for family in kind.families or (0,):
            for first, last in kind.models:
                for model in range(first, last + 1):
                    place = (kind.vendor, family, kind.atom, model)
                    assert place not in taken, f"{key} and {taken[place]}: model {model}"
                    taken[place] = key


@pytest.mark.parametrize("board", ALL)
def test_every_row_gives_ceilings_or_says_why_not(board: Board) -> None:
    ceilings = for_board(board)
    assert ceilings.board == board.key
    if not board.boost_mhz and not board.published:
        assert "clock is not known" in str(ceilings.unknown)
        return
    found = {ceiling.precision for ceiling in ceilings.rates}
    assert {"fp32", "fp16_acc32"} & found
    assert not found & set(ceilings.absent)
    for ceiling in ceilings.rates:
        assert 0 < ceiling.ops_per_second < 1e17
        assert ceiling.source
        if ceiling.precision in board.published:
            printed = board.published[ceiling.precision]
            assert ceiling.origin == "published"
            assert ceiling.ops_per_second / 1e12 == pytest.approx(printed, rel=0.03)
        else:
            assert ceiling.origin in ("computed", "range")
        if ceiling.ops_per_clock and ceiling.rated_clock_mhz:
            rated = formula.held(ceiling, ceiling.rated_clock_mhz)
            assert rated == pytest.approx(computed(board, ceiling.precision) * 1e12)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("published", "peak", "expected"),
    [
        (284, 284.66, True),  # cut to whole units
        (71, 71.17, True),
        (125, 125.3, True),
        (15.7, 15.67, True),
        (12.0, 11.76, False),
        (1100, 1125.0, False),
        (362.05, 366.4, False),
        (5, 4.2, False),  # one digit must not excuse 19 %
    ],
)
def test_rounding_of_printed_figures(published: float, peak: float, *, expected: bool) -> None:
    assert is_rounded(published, peak) is expected


def test_nothing_is_parsed_before_it_is_needed() -> None:
    program = """
import sys
from topsmon import events
from topsmon.ceilings import database, for_cpu
tables = (database.boards, database.rates, database.cpu_rates)
assert [table.cache_info().currsize for table in tables] == [0, 0, 0]
for_cpu(events.Device(time=0, monotonic=0, source="", device="cpu", kind="cpu", index=0, name=""))
assert database.boards.cache_info().currsize == 0
assert not {"torch", "textual", "pynvml", "difflib"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_broken_table_is_named() -> None:
    with pytest.raises(ValueError, match=r"boards\.toml: .*missing required field"):
        database._convert("boards.toml", {"x": {"key": "x"}}, dict[str, Board])
    with pytest.raises(ValueError, match="schema 2"):
        database._check_schema("rates.toml", 2)
