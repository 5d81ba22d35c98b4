"""Rules about memory that wears out: retired pages, remapped rows, errors that grow.

Boards before Ampere retire pages, later ones remap rows. Both repair what has failed; only the end
of that, or more and more of it, is a failure.
"""

from __future__ import annotations

from collections.abc import Iterator

from topsmon import events
from topsmon.diagnosis.observe import live_gpus
from topsmon.diagnosis.words import finding, nvidia_smi
from topsmon.state import State
from topsmon.units import duration

PAGES_MOST = 63
PAGES_SOFT = 15
"""NVIDIA DCGM, dcgm_gpu_hardware_limits.h: MAX_RETIRED_PAGES and its soft limit."""
BASIS = "NVIDIA, Dynamic Page Retirement and GPU Memory Error Management"
WINDOW_SECONDS = 300.0


def pages_retired(state: State, now: float) -> Iterator[events.Finding]:
    """Pages that wait, and too many of them; a few that are retired are repaired."""
    for device in live_gpus(state, now):
        sample = device.sample
        if sample is None:
            continue
        pages, pending = sample.pages_retired, bool(sample.pages_retirement_pending)
        many = pages is not None and (pages >= PAGES_MOST or (pages >= PAGES_SOFT and pending))
        if not many and not pending:
            continue
        count = "" if pages is None else f", {pages} are retired"
        yield finding(
            sample,
            device,
            code="pages-retired" if many else "page-retirement-pending",
            severity="fail" if many else "warn",
            word="FAIL" if many else "note",
            title=f"a memory page waits to be retired{count}"
            if pending
            else f"{pages} memory pages are retired",
            cause="the board's memory keeps failing"
            if many
            else "memory errors came before; the page is in use until the driver is reloaded",
            evidence=_life(sample),
            remedy="Drain the node and have the board replaced."
            if many
            else "Reset the GPU or reboot when its jobs have ended.",
            command=nvidia_smi(state, device, "-q -d PAGE_RETIREMENT", changes=False),
            basis=f"{BASIS}; NVIDIA DCGM: at most {PAGES_MOST} pages, {PAGES_SOFT} while more come",
        )


def rows_remapped(state: State, now: float) -> Iterator[events.Finding]:
    """Rows that were remapped after uncorrectable errors: repaired, worth knowing."""
    for device in live_gpus(state, now):
        sample = device.sample
        if sample is None or not sample.rows_remapped_uncorrected or sample.row_remap_failed:
            continue
        rows = sample.rows_remapped_uncorrected
        yield finding(
            sample,
            device,
            code="rows-remapped",
            severity="info",
            word="note",
            title=f"{rows} memory {'row was' if rows == 1 else 'rows were'} remapped",
            cause="uncorrectable errors in the board's life; the memory was repaired",
            evidence=_life(sample),
            remedy="Nothing to do; watch whether they become more.",
            command=nvidia_smi(state, device, "-q -d ROW_REMAPPER", changes=False),
            basis=BASIS,
        )


def errors_rising(state: State, now: float) -> Iterator[events.Finding]:
    """Errors that come while we watch: uncorrectable ones fail, corrected ones are a note.

    Where the count since the driver was loaded is not read, the one over the board's life stands
    in for it: its growth is as good.
    """
    for device in live_gpus(state, now):
        sample = device.sample
        if sample is None:
            continue
        if sample.ecc_uncorrected_volatile is None and sample.ecc_uncorrected_aggregate is not None:
            growth = device.growth["ecc_uncorrected_aggregate"]
            rise = growth.within(float("inf"), sample.monotonic)
            if rise.added:
                yield finding(
                    sample,
                    device,
                    code="memory-errors",
                    severity="fail",
                    word="FAIL",
                    title=f"{rise.added} uncorrectable memory errors since topsmon was started",
                    cause="the board's memory is failing",
                    evidence=_life(sample),
                    remedy="Drain the node; reset the GPU; replace it if they come back.",
                    command=nvidia_smi(state, device, "-q -d ECC", changes=False),
                    basis=BASIS,
                )
        rise = device.growth["ecc_corrected_volatile"].within(WINDOW_SECONDS, sample.monotonic)
        if rise.times >= 2:
            yield finding(
                sample,
                device,
                code="corrected-errors-rising",
                severity="info",
                word="note",
                title=f"{rise.added} corrected memory errors in {duration(rise.seconds)}",
                cause="ECC has corrected them: results are right; the memory may be wearing out",
                evidence=_life(sample),
                remedy="Watch them; XID 92 tells when the driver finds them too many.",
                command=nvidia_smi(state, device, "-q -d ECC", changes=False),
                basis="growth in two readings or more",
            )


def _life(sample: events.DeviceSample) -> tuple[str, ...]:
    """What the board counted over its life."""
    counts = (
        (sample.ecc_uncorrected_aggregate, "uncorrectable errors"),
        (sample.ecc_corrected_aggregate, "corrected errors"),
        (sample.rows_remapped_corrected, "rows remapped after corrected errors"),
        (sample.rows_remapped_uncorrected, "rows remapped after uncorrectable errors"),
        (sample.pages_retired, "pages retired"),
    )
    told = [f"{count} {words}" for count, words in counts if count]
    return (f"over the board's life: {', '.join(told)}",) if told else ()
