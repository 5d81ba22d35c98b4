"""topsmon doctor: what works here and what does not, why, and what to do.

Each check is a function `(Patient) -> Iterator[Result]`, listed in `CHECKS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from topsmon.doctor import driver, machine, measuring, program, runs, terminal
from topsmon.doctor.model import Patient, Result

Check = Callable[[Patient], Iterable[Result]]

CHECKS: tuple[Check, ...] = (
    program.python,
    program.binding,
    program.settings,
    program.state_folder,
    driver.driver,
    driver.device_nodes,
    driver.devices,
    driver.silent_readings,
    machine.usable_cpus,
    machine.cpu_clock,
    machine.processes,
    measuring.torch,
    measuring.compiler,
    terminal.terminal,
    terminal.encoding,
    terminal.colours,
    runs.folder,
    runs.way_in,
    runs.attach,
)


def examine(patient: Patient) -> Iterator[Result]:
    """Yield the results in order. A check that itself fails is a result too."""
    for check in CHECKS:
        yield from _run(check, patient)


def _run(check: Check, patient: Patient) -> Iterator[Result]:
    try:
        yield from check(patient)
    except Exception as error:  # noqa: BLE001 - the doctor must finish the round
        yield Result(
            id=check.__name__.replace("_", "-"),
            state="fail",
            finding=f"the check itself failed: {type(error).__name__}: {error}",
            remedy="Report this with topsmon doctor --bundle FILE.",
        )


__all__ = ["CHECKS", "Patient", "Result", "examine"]
