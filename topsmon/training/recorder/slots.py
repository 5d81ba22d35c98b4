"""Asynchronous reads of device values: pinned slots and events, asked later, never waited for.

A read enqueues one small copy on the tensors' current stream and returns. A later `poll` hands the
values over once the copy's event has passed. Where no slot is free the read is dropped and counted.
Values on the CPU are handed over at once. The calls used are those of "Use pinned memory buffers"
and of torch.cuda.Event in PyTorch's notes on CUDA semantics.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from .tensors import local, torch_of_run

SMALL, SMALL_SLOTS = 64, 8
LARGE_SLOTS = 2
"""Large slots hold one value a parameter or a module; they are made when first needed."""


class CudaLayer:
    """What slots need of CUDA (and of ROCm, which torch gives the same name)."""

    def immediate(self, tensor: Any) -> bool:
        """True for memory that the host reads without waiting for a device."""
        return bool(tensor.is_cpu)

    def supported(self, tensor: Any) -> bool:
        """True for devices that can copy to pinned memory in the background."""
        return bool(tensor.is_cuda)

    def blocked(self) -> bool:
        """True while reads are not allowed: a CUDA graph is being captured or code compiled."""
        return in_the_way()

    def pinned(self, elements: int) -> Any:
        """Page-locked host memory. Made outside inference mode, so that it stays writable."""
        torch = torch_of_run()
        with torch.inference_mode(False):
            return torch.empty(elements, dtype=torch.float64, device="cpu", pin_memory=True)

    def event(self) -> Any:
        """An event without timing."""
        return torch_of_run().cuda.Event()

    def copy(self, target: Any, source: Any, event: Any) -> None:
        """Enqueue the copy and the event behind it on the current stream of the source's device."""
        torch = torch_of_run()
        with torch.cuda.device(source.device):
            target.copy_(source.to(torch.float64), non_blocking=True)
            event.record(torch.cuda.current_stream(source.device))


def in_the_way() -> bool:
    """True while hooks must do nothing: torch.compile traces, or a CUDA graph is captured."""
    torch = torch_of_run()
    if torch.compiler.is_compiling():
        return True
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


class _Slot:
    __slots__ = ("buffer", "capacity", "count", "deliver", "event", "events")

    def __init__(self, layer: Any, capacity: int) -> None:
        self.buffer, self.capacity = layer.pinned(capacity), capacity
        # An event belongs to the device on which it was first recorded.
        self.events: dict[Any, Any] = {}
        self.event: Any = None
        self.count = 0
        self.deliver: Any = None


class Slots:
    """Reads in flight, delivered in the order in which they were asked for."""

    def __init__(self, layer: Any = None) -> None:
        self.dropped = 0
        self._layer = layer or CudaLayer()
        self._free: list[_Slot] = []
        self._made = {True: 0, False: 0}
        self._flying: deque[_Slot] = deque()

    @property
    def pending(self) -> int:
        """Reads that have not arrived yet."""
        return len(self._flying)

    def can_read(self, tensor: Any) -> bool:
        """False for devices whose values cannot be had without waiting, such as mps."""
        return bool(self._layer.immediate(tensor) or self._layer.supported(tensor))

    def read(self, tensors: Sequence[Any], then: Callable[[list[float]], None]) -> bool:
        """Have `then(values)` called with all values of these tensors in order, as floats.

        False: dropped, because no slot is free, the device cannot do it, or the values of a tensor
        are spread over processes.
        """
        whole = [local(tensor) for tensor in tensors]
        if not whole or any(tensor is None for tensor in whole):
            return False
        parts: list[Any] = [_host(part) if self._layer.immediate(part) else part for part in whole]
        away = [part for part in parts if not isinstance(part, list)]
        if not away:
            then([value for part in parts for value in part])
            return True
        slot = None
        if all(self._layer.supported(part) for part in away) and not self._layer.blocked():
            slot = self._take(sum(part.numel() for part in away))
        if slot is None:
            self.dropped += 1
            return False
        self._send(slot, away)
        counts = [part if isinstance(part, list) else part.numel() for part in parts]
        slot.deliver = lambda values: then(_merge(counts, values))
        self._flying.append(slot)
        return True

    def poll(self) -> None:
        """Hand over what has arrived, oldest first; stop at the first that has not."""
        if not self._flying or self._layer.blocked():
            return
        while self._flying and self._flying[0].event.query():
            slot = self._flying.popleft()
            deliver, slot.deliver = slot.deliver, None
            values = slot.buffer[: slot.count].tolist()
            self._free.append(slot)
            deliver(values)

    def _take(self, count: int) -> _Slot | None:
        small = count <= SMALL
        fitting = [slot for slot in self._free if slot.capacity >= count]
        chosen = min(fitting, key=lambda slot: slot.capacity, default=None)
        if chosen is not None and (chosen.capacity == SMALL) == small:
            self._free.remove(chosen)
            return chosen
        if not small:
            outgrown = [slot for slot in self._free if SMALL < slot.capacity < count]
            for slot in outgrown:
                self._free.remove(slot)
                self._made[False] -= 1
        if self._made[small] >= (SMALL_SLOTS if small else LARGE_SLOTS):
            return None
        self._made[small] += 1
        return _Slot(self._layer, SMALL if small else 1 << (count - 1).bit_length())

    def _send(self, slot: _Slot, tensors: list[Any]) -> None:
        torch = torch_of_run()
        device = tensors[0].device
        with torch.no_grad():
            flat = [tensor.detach().reshape(-1).to(device, non_blocking=True) for tensor in tensors]
            joined = torch.cat(flat) if len(flat) > 1 else flat[0]
            slot.count = int(joined.numel())
            if device not in slot.events:
                slot.events[device] = self._layer.event()
            slot.event = slot.events[device]
            self._layer.copy(slot.buffer[: slot.count], joined, slot.event)


def _host(tensor: Any) -> list[float]:
    if not tensor.dim():
        return [float(tensor.item())]
    values = tensor.detach().reshape(-1).tolist()
    return [float(value) for value in values]


def _merge(counts: list[Any], values: list[float]) -> list[float]:
    """Put values from the device between those that were read at once."""
    merged: list[float] = []
    position = 0
    for count in counts:
        if isinstance(count, list):
            merged.extend(count)
        else:
            merged.extend(values[position : position + count])
            position += count
    return merged
