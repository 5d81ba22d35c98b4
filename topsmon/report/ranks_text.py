"""What several ranks have measured, for people: bus bandwidths over sizes, then advice."""

from __future__ import annotations

from collections.abc import Iterator

from topsmon.diagnosis.balance import Balance, Split, gradient_weights, samples
from topsmon.distributed.bus import OPERATIONS
from topsmon.launcher.document import Ranks
from topsmon.report.columns import wrap
from topsmon.units import NOT_AVAILABLE, bandwidth, binary_bytes, percent, si, significant

WIDTH = 100
EXAMPLE_BATCH = 256


def lines(ranks: Ranks, balance: Balance | None, width: int | None = None) -> list[str]:
    """Return the table and the advice, each after an empty line; nothing where nothing is known."""
    found = [*_table(ranks)]
    if balance is not None:
        found += advice(balance, width)
    return found


def _table(ranks: Ranks) -> Iterator[str]:
    """One row an operation, one column a size: time and bus bandwidth."""
    sizes = sorted({round_size(one.bytes) for one in ranks.measurements})
    if not sizes:
        return
    indicative = "" if ranks.kind == "gpu" else "; indicative only"
    yield ""
    yield (
        f"busbw in GB/s (time), {ranks.world_size} ranks, {ranks.backend}, slowest rank{indicative}"
    )
    yield "  ".join(["operation".ljust(14), *(binary_bytes(size).rjust(16) for size in sizes)])
    for operation in OPERATIONS:
        by_size = {round_size(one.bytes): one for one in ranks.of(operation)}
        if not by_size:
            continue
        cells = []
        for size in sizes:
            one = by_size.get(size)
            shown = NOT_AVAILABLE
            if one is not None:
                wrong = "" if one.correct else " WRONG"
                busbw = significant(one.busbw_bytes_per_second / 1e9)
                shown = f"{busbw} ({si(one.seconds, 's', 3)}){wrong}"
            cells.append(shown.rjust(16))
        yield "  ".join([operation.ljust(14), *cells])


def round_size(size: int) -> int:
    """The size that was asked for: numbers of ranks that are no power of two take a little off."""
    for power in range(10, 40):
        if abs(size - (1 << power)) * 100 < (1 << power):
            return 1 << power
    return size


def advice(balance: Balance, width: int | None = None) -> list[str]:
    """Return the advice with an empty line before each part."""
    found: list[str] = []
    for part in (split_lines(balance.split, width), _wrapped(_communication(balance), width)):
        found += ["", *part] if part else []
    return found


def split_lines(split: Split | None, width: int | None = None) -> list[str]:
    """Return the split of a batch over unequal devices; nothing where equal parts are as good."""
    return _wrapped(_split(split), width)


def _wrapped(told: list[str], width: int | None) -> list[str]:
    return [
        line
        for number, words in enumerate(told)
        for line in wrap(words, width or WIDTH, first="" if number == 0 else "  ", rest=4)
    ]


def _split(split: Split | None) -> list[str]:
    """Where devices are unequal: shares, and why not by memory."""
    if split is None or not split.uneven:
        return []
    counts = samples(split.shares, EXAMPLE_BATCH)
    weights = gradient_weights(counts)
    told = ["batch split over unequal devices: min(memory share, measured rate share), normalised"]
    for share, count, weight in zip(split.shares, counts, weights, strict=True):
        told.append(
            f"{share.label}: {percent(share.batch)} of the batch (memory {percent(share.memory)}, "
            f"rate {percent(share.rate)}): {count} of {EXAMPLE_BATCH} samples, loss x "
            f"{significant(weight)}"
        )
    told.append(
        f"a step takes {_longer(split.step_even, split.step_advised)} with equal parts and "
        f"{_longer(split.step_by_memory, split.step_advised)} with parts by memory alone, where a "
        "slow device with much memory holds up all others"
    )
    told.append(
        "weight gradients by n_i x world / N (the factors above): DDP's plain average would count "
        "a sample of a small part more than one of a large part"
    )
    return told


def _longer(one: float, other: float) -> str:
    change = one / other - 1.0
    return f"{percent(abs(change), 0)} {'longer' if change >= 0 else 'less'}"


def _communication(balance: Balance) -> list[str]:
    cost = balance.communication
    if cost is None or balance.parameters is None:
        return []
    gradients = f"{si(cost.gradient_bytes, 'B', 3)} of gradients"
    speed = (
        f"{bandwidth(cost.busbw_bytes_per_second)} (measured at {binary_bytes(balance.bus_bytes)})"
    )
    model = f"{si(balance.parameters, '', 3)} parameters ({balance.parameters_source})"
    told = [f"communication of a step: {model} x 4 bytes = {gradients}"]
    told.append(
        f"2(n-1)/n x bytes / busbw = {si(cost.seconds, 's', 3)} over {cost.ranks} ranks at "
        f"{speed}, less what backward hides"
    )
    if balance.compute_seconds is None or balance.communication_share is None:
        told.append(
            f"worth no change where computing takes {si(cost.enough_compute_seconds(), 's', 3)} or "
            "more between two all-reduces (10 %); below it a larger batch, or gradient "
            "accumulation: --step-seconds S gives numbers"
        )
    else:
        told.append(
            f"beside {si(balance.compute_seconds, 's', 3)} of computing "
            f"({balance.compute_source}): {percent(balance.communication_share)} of the step"
        )
        count = balance.micro_batches or 1
        if count > 1:
            told.append(
                f"{count} times the batch, where memory is free, or {count} micro-batches "
                f"accumulated: {percent(cost.share(balance.compute_seconds, count))} of the step"
            )
    told.append(
        "accumulate under model.no_sync(): gradients are then reduced once for k micro-batches, "
        "else at every one"
    )
    return told
