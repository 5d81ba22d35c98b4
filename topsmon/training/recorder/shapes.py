"""Samples and tokens a step, and the time spent waiting for the data loader.

Batches of torch's DataLoader tell both. Without one, the sizes come from the arguments of the
model's forward passes, looked at in one step of about a hundred.
"""

from __future__ import annotations

import math
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

from . import compiled
from .facts import unwrapped
from .slots import in_the_way
from .tensors import tensors_in, torch_of_run

EVERY = 100
"""Steps between two looks at the model's arguments."""
TOKEN_KEYS = ("input_ids", "tokens", "decoder_input_ids")
"""Names that language models give to their first argument; other arguments may come before it."""


class Sizes(NamedTuple):
    """NaN: not known."""

    samples: float = math.nan
    tokens: float = math.nan


class Batch(NamedTuple):
    """Of one step. NaN: not known; `workers` None: no data loader was seen."""

    samples: float
    tokens: float
    data_wait_seconds: float
    workers: int | None


def sizes_of(value: Any) -> Sizes:
    """Sizes of a batch: of its first tensor with dimensions, or of the one called input_ids.

    A first tensor of integers with two dimensions is a batch of token sequences.
    """
    for tensor in _candidates(value):
        if not tensor.dim():
            continue
        samples = float(tensor.shape[0])
        kind = tensor.dtype
        whole = not (kind.is_floating_point or kind.is_complex or kind == torch_of_run().bool)
        if whole and tensor.dim() == 2:
            return Sizes(samples, samples * float(tensor.shape[1]))
        return Sizes(samples)
    return Sizes()


def _candidates(value: Any) -> Iterator[Any]:
    for part in value if isinstance(value, tuple) else (value,):
        if isinstance(part, dict):
            for key in TOKEN_KEYS:
                yield from tensors_in(dict.get(part, key), 1)
    yield from tensors_in(value)


class Loader:
    """Times `next()` of DataLoader iterators and measures their batches.

    Batches fetched without gradients enabled, or while the model is not in training mode, are
    validation and do not count: most loops switch gradients off only around the forward pass.
    """

    def __init__(self) -> None:
        self.model: weakref.ref[Any] | None = None
        self.seconds = 0.0
        self.samples = self.tokens = 0.0
        self.batches = 0
        self.batches_seen = 0
        self.workers: int | None = None
        self.thread: int | None = None
        self._inside = False
        self._original: Any = None
        self._replacement: Any = None

    def install(self) -> None:
        """Wrap `_BaseDataLoaderIter.__next__` once, if torch.utils.data has been imported."""
        module = sys.modules.get("torch.utils.data.dataloader")
        if module is None or self._replacement is not None:
            return
        kind = module._BaseDataLoaderIter  # noqa: SLF001  what all iterators have in common
        original = kind.__next__
        loader = self

        def timed_next(iterator: Any) -> Any:
            if loader._inside or loader.thread not in {None, threading.get_ident()}:
                return original(iterator)
            loader._inside = True
            start = time.perf_counter()
            try:
                batch = original(iterator)
            finally:
                loader._inside = False
                loader.seconds += time.perf_counter() - start
            try:
                loader._note(iterator, batch)
            except Exception:  # noqa: BLE001  nothing of ours may reach the training loop
                loader.samples = loader.tokens = math.nan
            return batch

        self._original, self._replacement = original, timed_next
        kind.__next__ = timed_next

    def uninstall(self) -> None:
        """Put the original back, unless somebody else has wrapped ours since."""
        module = sys.modules.get("torch.utils.data.dataloader")
        if module is None or self._replacement is None:
            return
        kind = module._BaseDataLoaderIter  # noqa: SLF001
        if kind.__next__ is self._replacement:
            kind.__next__ = self._original
        self._original = self._replacement = None

    def _note(self, iterator: Any, batch: Any) -> None:
        model = self.model() if self.model is not None else None
        if not torch_of_run().is_grad_enabled() or (model is not None and not model.training):
            return
        sizes = sizes_of(tuple(batch) if isinstance(batch, list) else batch)
        self.workers = int(getattr(iterator, "_num_workers", 0))
        self.batches += 1
        self.batches_seen += 1
        self.samples += sizes.samples
        self.tokens += sizes.tokens

    def take(self) -> tuple[int, Sizes, float]:
        """Batches, their sizes and the seconds waited since the last call, in the step's thread."""
        taken = self.batches, Sizes(self.samples, self.tokens), self.seconds
        self.batches, self.samples, self.tokens, self.seconds = 0, 0.0, 0.0, 0.0
        self.thread = threading.get_ident()
        return taken


class _Glance:
    """A look at the arguments of all the model's forward passes in a step, by a global pre-hook.

    Those of the first module of the model that is called count, the model itself as a rule.
    Nothing is attached to the user's modules.
    """

    def __init__(self) -> None:
        self.sizes = Sizes()
        self.calls = 1
        self._found: list[Sizes] = []
        self._first: int | None = None
        self._handle: Any = None
        self._known: frozenset[int] = frozenset()
        self._root: Any = None

    @property
    def waiting(self) -> bool:
        """True while the hook is in place."""
        return self._handle is not None

    def arm(self, model: Any) -> None:
        """Look at the forward passes of the model, or of a module in it, with gradients."""
        self._found, self._first = [], None
        if self._root is None or self._root() is not model:
            self._root = weakref.ref(model)
            self._known = frozenset(id(module) for module in model.modules())
        module = sys.modules["torch.nn.modules.module"]
        self._handle = module.register_module_forward_pre_hook(self._seen)

    def finish(self, backward_calls: int) -> bool:
        """End the look with the step; False if it has seen nothing."""
        self.disarm()
        if not self._found:
            return False
        self.calls = backward_calls
        self.sizes = Sizes(
            sum(one.samples for one in self._found), sum(one.tokens for one in self._found)
        )
        return True

    def disarm(self) -> None:
        """Take the hook away."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.remove()

    def _seen(self, module: Any, args: Any) -> None:
        try:
            key, torch = id(module), torch_of_run()
            if key not in self._known or (self._first or key) != key or in_the_way():
                return
            # In a backward pass it is checkpointing that computes a forward pass again.
            if not torch.is_grad_enabled() or torch._C._current_graph_task_id() != -1:  # noqa: SLF001
                return
            self._first = key
            # A global hook is not given the arguments by name; they lie in the caller's frame.
            named = sys._getframe(1).f_locals.get("kwargs", {})  # noqa: SLF001
            found = sizes_of((*args, named) if isinstance(named, dict) else args)
            if not math.isnan(found.samples):
                self._found.append(found)
        except Exception:  # noqa: BLE001  nothing of ours may reach the forward pass
            self.disarm()


class Shapes:
    """Sizes of each step; what the user has given wins."""

    def __init__(self, tokens: float | None = None, samples: float | None = None) -> None:
        self.tokens, self.samples = tokens, samples
        self.loader = Loader()
        self._glance = _Glance()
        self._next, self._every = 1, EVERY

    @property
    def batches_seen(self) -> int:
        """Training batches that came from a DataLoader."""
        return self.loader.batches_seen

    def install(self) -> None:
        """Begin to watch data loaders."""
        self.loader.install()

    def uninstall(self) -> None:
        """Stop all watching."""
        self.loader.uninstall()
        self._glance.disarm()

    def idle(self, step: int) -> bool:
        """True if `take` would tell the same as before: no loader, no look under way or due."""
        return not (self.loader.batches_seen or self._glance.waiting or step >= self._next)

    def take(self, step: int, backward_calls: int, model: Any) -> Batch:
        """Sizes of the step that has just ended; arms the next look when it is time."""
        batches, loaded, waited = self.loader.take()
        calls = max(1, backward_calls)
        if self.loader.model is None and model is not None:
            self.loader.model = weakref.ref(unwrapped(model))
        if self._glance.waiting:
            if not self._glance.finish(calls):
                # It has seen nothing in a whole step, so it is tried less and less often.
                self._every *= 4
                self._next = step + self._every
        elif step >= self._next:
            # The model becomes known during the first steps.
            self._next = step + (self._every if model is not None or step > EVERY else 1)
            if model is not None and not compiled.reason(model):
                self._glance.arm(model)
        seen = self._glance.sizes
        # A loop without an own batch a step may draw several steps from one, or use no loader.
        loaded_known = batches and not math.isnan(loaded.samples)
        share = calls / self._glance.calls  # the last step of an epoch may accumulate less
        sizes = loaded if loaded_known else Sizes(seen.samples * share, seen.tokens * share)
        if loaded_known and math.isnan(sizes.tokens) and seen.samples:
            sizes = Sizes(sizes.samples, seen.tokens / seen.samples * sizes.samples)
        return Batch(
            sizes.samples if self.samples is None else self.samples,
            sizes.tokens if self.tokens is None else self.tokens,
            waited if self.batches_seen else math.nan,
            self.loader.workers,
        )
