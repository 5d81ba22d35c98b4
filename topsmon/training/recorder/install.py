"""The way in: put the recorder's hooks into this process, take them out, tell it what to watch."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from .given import number
from .recorder import Recorder

OFF_VARIABLE, ENTRY_VARIABLE = "TOPSMON_OFF", "TOPSMON_ENTRY"
_installed: list[Recorder] = []


def install(torch_module: Any = None) -> Recorder | None:
    """Hook what the run has imported of torch; called again, what has come since.

    Returns the recorder of this process; None where TOPSMON_OFF is set or there is no torch yet.
    Nothing is written before the process trains.
    """
    if os.environ.get(OFF_VARIABLE, "") not in ("", "0"):
        return None
    if torch_module is None and "torch" not in sys.modules:
        return None
    if not _installed:
        recorder = Recorder()
        _installed.append(recorder)
    recorder = _installed[0]
    if recorder.on:
        recorder.patch()
    return recorder


def uninstall() -> None:
    """Take everything out of this process and close the ring."""
    while _installed:
        _installed.pop().close()


def watch(
    model: Any = None,
    optimizer: Any = None,
    scaler: Any = None,
    *,
    flops_per_step: float | None = None,
    tokens_per_step: float | None = None,
    samples_per_step: float | None = None,
) -> None:
    """Watch this process, and take what is given for the run's.

    ValueError for an impossible number, in one line, before anything is watched.
    `optimizer` and `scaler` may be lists. Numbers are per optimizer step and process.
    """
    given = {
        name: None if value is None else number(name, value)
        for name, value in (
            ("flops_per_step", flops_per_step),
            ("tokens_per_step", tokens_per_step),
            ("samples_per_step", samples_per_step),
        )
    }
    import_module("torch")
    recorder = install()
    if recorder is None:
        return
    if not os.environ.get(ENTRY_VARIABLE):
        recorder.identify(entry="watch")
    recorder.call(recorder.installer.given, given, model, _several(optimizer), _several(scaler))


def _forked() -> None:
    for recorder in _installed:
        recorder.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _several(value: Any) -> Iterable[Any]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)
