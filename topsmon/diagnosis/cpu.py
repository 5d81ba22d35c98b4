"""Rules about measuring on a CPU: time that was not received, threads that do not fit."""

from __future__ import annotations

from collections.abc import Iterator

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.diagnosis.observe import other_processes
from topsmon.diagnosis.words import finding, label, process
from topsmon.state import State
from topsmon.units import percent, plain

LEAST_SHARE = 0.9
AVX2_SHARES = (0.35, 0.52)
"""Shares of the AVX-512 ceiling that AVX2 kernels reach."""


def cpu_time_missing(state: State, _now: float) -> Iterator[events.Finding]:
    """Rates measured with less CPU time than the threads asked for say nothing about the CPU."""
    for device in state.ordered():
        results = [
            rate.best
            for rate in device.rates.values()
            if rate.best is not None and not rate.is_remembered and _short_of_time(rate.best)
        ]
        if not results:
            continue
        least = min(results, key=lambda result: result.cpu_share or 0.0)
        yield finding(
            least,
            device,
            code="cpu-time-missing",
            severity="info",
            word="note",
            title=f"rates not valid: only {percent(least.cpu_share, 0)} of the CPU time received",
            cause=_who(state, device) or plain(least.invalid_reason, 160),
            evidence=tuple(
                f"{label(result.precision)}: {percent(result.cpu_share, 0)}" for result in results
            ),
            remedy="Measure again when the machine is quiet, or where more CPU time is allowed.",
            basis=f"CPU time / (wall time x threads) under {LEAST_SHARE}",
        )


def _short_of_time(result: events.RateMeasured) -> bool:
    return (
        not result.valid
        and result.correct is not False
        and result.cpu_share is not None
        and result.cpu_share < LEAST_SHARE
    )


def _who(state: State, device: DeviceState) -> str:
    """Who uses the CPU, "" where that is not known."""
    others = [entry for entry in other_processes(device) if entry.cpu_cores]
    if others:
        first = max(others, key=lambda entry: entry.cpu_cores or 0.0)
        return f"{process(first)} uses {first.cpu_cores:.1f} cores"
    load = state.host_sample.load_1_minute if state.host_sample is not None else None
    return f"others use the CPU (load {load:.1f})" if load is not None and load >= 1 else ""


def threads_misfit(state: State, _now: float) -> Iterator[events.Finding]:
    """Torch would take more threads than there are cores, or fewer.

    Too many slow down every program here. Too few are often wanted (a launcher gives each of its
    processes one), and topsmon measures with the fitting number: only a hint.
    """
    for device in state.ordered():
        ready = device.prober.ready
        if ready is None or ready.default_threads is None or ready.threads is None:
            continue
        default, fitting = ready.default_threads, ready.threads
        if default == fitting:
            continue
        many = default > fitting
        yield finding(
            ready,
            device,
            code="threads-too-many" if many else "threads-too-few",
            severity="warn" if many else "info",
            word="SLOW" if many else "note",
            title=f"torch takes {default} {'thread' if default == 1 else 'threads'} by default, "
            f"{fitting} {'fits' if fitting == 1 else 'fit'} the usable cores",
            cause=(
                "threads wait for each other on the same cores"
                if many
                else "a program with this setting leaves usable cores idle; topsmon does not"
            ),
            evidence=tuple(plain(note, 240) for note in ready.notes if "thread" in note),
            remedy=f"Set OMP_NUM_THREADS={fitting} for your programs; topsmon measures with "
            f"{fitting}.",
            command=f"export OMP_NUM_THREADS={fitting}",
            basis=(
                "more threads than cores slow down every program that keeps torch's default"
                if many
                else "a hint: fewer threads may be wanted, as torchrun sets one for each process"
            ),
        )


def narrow_vectors(state: State, _now: float) -> Iterator[events.Finding]:
    """A rate that fits AVX2 kernels on an AVX-512 CPU: half the lanes, whatever the CPU can do.

    AVX2 has half the FP32 lanes of AVX-512, so 35 to 52 % of the AVX-512 ceiling at the clock held
    is 70 to 104 % of the AVX2 one.
    """
    for device in state.ordered():
        ceiling, result = device.ceiling("fp32"), device.rates["fp32"].best
        ratio = device.held_ratio("fp32")
        if device.identity.kind != "cpu" or ceiling is None or result is None or ratio is None:
            continue
        if "AVX-512" not in ceiling.note or not result.valid or result.correct is False:
            continue
        if not AVX2_SHARES[0] <= ratio <= AVX2_SHARES[1]:
            continue
        native = device.held_ratio("bf16")
        better = native is not None and native > AVX2_SHARES[1]
        yield finding(
            result,
            device,
            code="library-without-avx512",
            severity="info",
            word="note",
            title=f"FP32 {percent(ratio, 0)} of the AVX-512 ceiling: the rate fits AVX2 kernels",
            cause="most likely the library has no AVX-512 kernels; the CPU is not slow",
            evidence=(
                f"{percent(2 * ratio, 0)} of the AVX2 ceiling at the clock held",
                *((f"BF16 reaches {percent(native, 0)} of its ceiling",) if better else ()),
            ),
            remedy="torch.__config__.show() names the BLAS; on AMD CPUs, MKL takes AVX2."
            + (" BF16 is the fast type here." if better else ""),
            basis="AVX2 has 8 FP32 lanes, AVX-512 has 16",
        )
