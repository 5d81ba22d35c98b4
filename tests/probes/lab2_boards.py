"""Made-up boards for the probes that ask what a device has natively."""

from __future__ import annotations

from lab_machine import Clock, Machine

from topsmon.probes import machine
from topsmon.probes.precisions import DeviceFacts

MIB = 1 << 20


class Board(Machine):
    """A GPU of a compute capability, or a CPU with instruction-set flags."""

    def __init__(self, *, name="Made Up", capability=None, flags=frozenset(), **options) -> None:
        super().__init__(Clock(), "cpu" if capability is None else "gpu", **options)
        self.facts = DeviceFacts(self.facts.kind, name, capability)
        self._flags = frozenset(flags)

    def emulation(self, gemm):
        if self.facts.capability is None:
            return machine.emulation(gemm.key, self._flags)
        return "no native BF16" if gemm.key == "bf16" and self.facts.capability < (8, 0) else None


def gpu(major=9, minor=0, **options) -> Board:
    return Board(capability=(major, minor), **{"free": 64 * MIB, "cache": MIB, **options})


def cpu(*flags, **options) -> Board:
    return Board(flags=flags, **{"free": 64 * MIB, "cache": MIB, "threads": 1, **options})
