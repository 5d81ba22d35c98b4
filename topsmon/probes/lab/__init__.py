"""The laboratory: one module a probe, each loaded only when its turn comes.

A probe's module has NAME, SECONDS (its time budget at full length), OPT_IN (True: run only when
named) and `run(bench)`, which returns fields of a `probe` event or raises `UnsupportedError`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from .context import Context

PROBES = (
    "memory",
    "cache",
    "transfer",
    "launch",
    "batching",
    "alignment",
    "layout",
    "overlap",
    "sync_stall",
    "quantisation",
    "sparsity",
    "convolution",
    "attention_prefill",
    "attention_decode",
    "message_passing",
    "energy",
    "fusion",
    "sustained",
)
"""Names of all probes, each a module of this folder, in the order in which they run by default."""


class Probe(Protocol):
    """What a probe's module has. `SECONDS` is the time it takes at full length, at most."""

    NAME: str
    SECONDS: float
    OPT_IN: bool
    run: Callable[[Context], dict[str, Any]]


def load(name: str) -> Probe:
    """The module of a probe."""
    return cast("Probe", import_module(f".{name}", __name__))
