"""torch.amp.GradScaler and its subclasses: what they scale, skip, and make of their scale.

The deprecated torch.cuda.amp.GradScaler and torch.cpu.amp.GradScaler inherit everything;
torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler overrides `scale`, `unscale_` and
`update` (torch/amp/grad_scaler.py and that file, 2.4 to 2.13). Nothing of theirs that would make
the host wait for a device is called: neither get_scale() nor state_dict(), nor item() on a device.
"""

from __future__ import annotations

import sys
import weakref
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from . import mirror
from .patches import around
from .records import CALIBRATION_STEPS, NAN, Step, calibration_steps

if TYPE_CHECKING:
    from .recorder import Recorder

PLAIN, SHARDED = "torch.amp.grad_scaler", "torch.distributed.fsdp.sharded_grad_scaler"
IDLE_STEPS = 16
"""After so many steps of the main optimizer without it, a scaler is no longer part of the run."""

_version = attrgetter("_version")
"""How often a tensor was changed in place; torch keeps that on the host."""


class Watched:
    """What is known of one scaler. `scale` and `tracker` are the mirror, None while not known.

    `mirrored`: update() is torch's own kernel. `seen_scale` and `seen_tracker` are the scaler's
    tensors, `versions` theirs when the mirror was last right. `tried` counts this step's
    optimizers, `states` is what the scaler has of them, `found` are tensors that tell of inf or
    NaN later.
    """

    __slots__ = (
        "calibration",
        "found",
        "found_inf",
        "last_step",
        "mirrored",
        "reference",
        "scale",
        "seen_scale",
        "seen_tracker",
        "settled_scale",
        "states",
        "tracker",
        "tried",
        "versions",
    )

    def __init__(self, reference: Any) -> None:
        self.reference = reference
        self.scale: float | None = None
        self.tracker = -1
        self.seen_scale: Any = None
        self.seen_tracker: Any = None
        self.versions = (0, 0)
        self.settled_scale = NAN
        self.calibration = CALIBRATION_STEPS
        self.mirrored = False
        self.tried = 0
        self.states: Any = None
        self.found_inf = False
        self.found: list[Any] = []
        self.last_step: Step | None = None

    def scale_now(self) -> float:
        """The scale that gradients have now, NaN if it is not known."""
        return NAN if self.scale is None else self.scale

    def loss_divisor(self) -> float:
        """What a loss is multiplied by when backward() is called on it without scale()."""
        return 1.0


class ScalerWatch:
    """All scalers of the run. `current` is the one used last, `inside` the one whose step() runs.

    `outstanding` counts scaled losses whose backward pass has not been seen yet; `pending`: one has
    been since the last step(). `awaited`: a foreign scaler has let the optimizer step. `idle`
    counts steps of the main optimizer since the current scaler was used. A scaler's private fields
    are read from its `vars`: a disabled one does not have them.
    """

    def begin(self, recorder: Recorder) -> None:
        """A run begins."""
        self.recorder = recorder
        self.known: dict[int, Watched] = {}
        self.current: Any = None
        self.inside: Any = None
        self.outstanding = 0
        self.pending = False
        self.awaited = False
        self._unscaled: Any = None
        self.idle = 0
        self._fired = 0
        self._stepping: Any = None

    def busy(self) -> bool:
        """True while a scaler's update() is what ends a step."""
        return self.current is not None and self.idle <= IDLE_STEPS

    def used(self, watched: Any) -> None:
        """Remember that a scaler takes part in this step."""
        self.current = watched
        self.idle = 0

    def loss_divisor(self) -> float:
        """What a loss must be divided by that backward() is called on without scale()."""
        return self.current.loss_divisor() if self.busy() else 1.0

    def scale_now(self) -> float:
        """The scale of the gradients of the current scaler, NaN if it is not known."""
        return NAN if self.current is None else self.current.scale_now()

    def unscaled(self, optimizer: int | None = None) -> bool:
        """True if the loop has had the gradients of this optimizer (an id), or of any, unscaled."""
        states = self.current.states if self.current is not None else None
        if not states:
            return False
        if optimizer is not None:
            state = states.get(optimizer)
            return state is not None and state["stage"] is self._unscaled
        return any(state["stage"] is self._unscaled for state in states.values())

    # Bodies of the hooks --------------------------------------------------------------------------

    def before_scale(self, args: Any, kwargs: Any) -> None:
        """scale(outputs): a loss, unscaled."""
        watched = self.meet(args[0])
        if watched is None:
            return
        self.current = watched
        self.idle = 0
        self.outstanding += 1
        # The same object until update() puts another in its place.
        watched.states = vars(args[0])["_per_optimizer_states"]
        self.recorder.losses.note(args[1] if len(args) > 1 else kwargs.get("outputs"))

    def failed_unscale(self, args: Any, error: BaseException) -> None:
        """unscale_(optimizer) raised, perhaps before the run could describe itself."""
        if len(args) > 1 and self.meet(args[0]) is not None:
            self.recorder.optimizers.meet(args[1])
        self.failed(args, error)

    def before_step(self, args: Any, kwargs: Any) -> None:
        """step(optimizer): note whether the optimizer's own hooks fire in it."""
        watched = self.meet(args[0])
        if watched is None:
            return
        optimizers = self.recorder.optimizers
        known = self._stepping = optimizers.meet(_optimizer_of(args, kwargs))
        known.scaled_by_us = True
        optimizers.newest = known.reference
        self.current = self.inside = watched
        self.idle = 0
        self._fired = optimizers.fired

    def after_step(self, args: Any, kwargs: Any, _result: Any) -> None:
        """An ordinary optimizer whose hooks have not fired was skipped.

        One that is aware of scaling is called in any case, and skips inside. Then, and where hooks
        cannot be relied on, the scaler's own finding is read.
        """
        watched, self.inside = self.inside, None
        if watched is None:
            return
        watched.tried += 1
        self.pending = False
        recorder, known = self.recorder, self._stepping
        # Had its step, be it skipped: what comes next needs a new backward pass.
        known.scaled, known.plain = recorder.losses.scaled, recorder.losses.plain
        optimizers, optimizer = recorder.optimizers, _optimizer_of(args, kwargs)
        aware = getattr(optimizer, "_step_supports_amp_scaling", False)
        if optimizers.fired != self._fired and not aware:
            return
        if not aware and optimizers.hooks_alive(optimizer):
            skipped = True
        else:
            tensors = _found_inf_tensors(args[0], optimizer)
            away = [tensor for tensor in tensors if not tensor.is_cpu]
            watched.found.extend(away)
            skipped = any(tensor.item() > 0.0 for tensor in tensors if tensor.is_cpu)
            if away:
                self.recorder.examiner.after_unknown(optimizer)
        if skipped:
            watched.found_inf = True
            self.recorder.examiner.after_skip(optimizer)

    def failed_step(self, args: Any, error: BaseException) -> None:
        """step() raised."""
        self.inside = None
        self.failed(args, error)

    def failed(self, _args: Any, error: BaseException) -> None:
        """Any method raised: often the first word of a mistake in the loop."""
        self.recorder.endings.passing(error)

    def after_update(self, args: Any, kwargs: Any, _result: Any) -> None:
        """update() has ended a step, or set the scale by hand.

        What optimizers' states held before it is still at hand: it puts new ones in their place.
        """
        watched, fields = self.meet(args[0]), vars(args[0])
        if watched is None or fields["_scale"] is None:
            return
        if self.recorder.queue:
            self.recorder.deliver()
        if watched.states is not None and len(watched.states) != watched.tried:
            self._take_found(watched)
        new_scale = args[1] if len(args) > 1 else kwargs.get("new_scale")
        if new_scale is None and (not watched.mirrored or _follows(watched, fields)):
            _follow(watched, fields)
        else:
            _reseed(watched, fields)
            if watched.scale is None and isinstance(new_scale, float):
                watched.scale = mirror.single(new_scale)
        watched.states = None
        if watched.tried:
            self._finish(watched, fields)

    def _take_found(self, watched: Watched) -> None:
        """Count the optimizers that were unscaled, but not stepped: the loop decides for itself."""
        for state in watched.states.values():
            if state["stage"] is self._unscaled:
                watched.tried += 1
                for tensor in state["found_inf_per_device"].values():
                    if not tensor.is_cpu:
                        watched.found.append(tensor)
                    elif tensor.item() > 0.0:
                        watched.found_inf = True

    def after_load(self, args: Any, _kwargs: Any, _result: Any) -> None:
        """load_state_dict() leaves what it has loaded in host fields as well."""
        watched, fields = self.meet(args[0]), vars(args[0])
        if watched is not None:
            _seed_from_host(watched, fields)
            _remember(watched, fields)

    def arrived(self, step: Step) -> None:
        """Set a scaler's mirror from its own values, unless it has been updated since."""
        watched = step.watched
        if watched is not None and watched.last_step is step and watched.mirrored:
            watched.scale, watched.tracker = step.scale, step.tracker

    def _finish(self, watched: Watched, fields: dict[str, Any]) -> None:
        step = self.recorder.step
        step.watched = watched
        step.skipped = watched.found_inf
        if watched.found:
            step.found, watched.found = watched.found, []
            step.away = True
        if watched.scale is None:
            step.scale_tensors = fields["_scale"], fields["_growth_tracker"]
            step.away = True
        else:
            step.scale, step.tracker = watched.scale, watched.tracker
        watched.last_step = step
        watched.tried, watched.found_inf = 0, False
        self.recorder.finish()

    def meet(self, scaler: Any) -> Watched | None:
        """What is known of an enabled scaler, None for a disabled one."""
        watched = self.known.get(id(scaler))
        if watched is None:
            watched = self._first_met(scaler)
        return watched if vars(scaler).get("_enabled") else None

    def _first_met(self, scaler: Any) -> Watched:
        key, known, fields = id(scaler), self.known, vars(scaler)
        self._unscaled = sys.modules[PLAIN].OptState.UNSCALED
        # Another scaler may get the same id once this one is gone.
        watched = Watched(weakref.ref(scaler, lambda _: known.pop(key, None)))
        known[key] = watched
        self.recorder.open()
        if fields.get("_enabled"):
            watched.mirrored = _update_is_torchs(scaler)
            watched.calibration = calibration_steps(float(fields["_init_scale"]))
            if fields["_scale"] is None:
                _seed_from_host(watched, fields)
            else:
                _reseed(watched, fields)
            _remember(watched, fields)
        if fields.get("_enabled") or len(known) == 1:
            self.recorder.identify(scaler=_constants(scaler))
        return watched


_HOOKS = {
    "scale": ("before_scale", None, "failed"),
    "unscale_": (None, None, "failed_unscale"),
    "step": ("before_step", "after_step", "failed_step"),
    "update": (None, "after_update", "failed"),
    "load_state_dict": (None, "after_load", None),
}


def patch(recorder: Recorder) -> None:
    """Put the hooks around the scaler classes that the run has imported."""
    for module, kind in ((PLAIN, "GradScaler"), (SHARDED, "ShardedGradScaler")):
        owner = getattr(sys.modules.get(module), kind, None)
        if owner is None:
            continue
        for method, names in _HOOKS.items():
            bodies = [name and getattr(recorder.scalers, name) for name in names]
            recorder.patches.put(owner, method, partial(_around, recorder, bodies))


def _around(recorder: Recorder, bodies: list[Any], original: Any) -> Any:
    return around(recorder, original, *bodies)


def _optimizer_of(args: Any, kwargs: Any) -> Any:
    return args[1] if len(args) > 1 else kwargs["optimizer"]


def _constants(scaler: Any) -> dict[str, Any]:
    """The fields of events.Scaler; a disabled scaler has no constants."""
    fields = vars(scaler)
    return {
        "kind": type(scaler).__name__,
        "enabled": bool(fields.get("_enabled")),
        "init_scale": fields.get("_init_scale"),
        "growth_factor": fields.get("_growth_factor"),
        "backoff_factor": fields.get("_backoff_factor"),
        "growth_interval": fields.get("_growth_interval"),
    }


def _found_inf_tensors(scaler: Any, optimizer: Any) -> list[Any]:
    state = vars(scaler)["_per_optimizer_states"].get(id(optimizer))
    return [] if state is None else list(state["found_inf_per_device"].values())


def _follow(watched: Watched, fields: dict[str, Any]) -> None:
    """Do on the host what update() has done on the device; where that cannot be known, ask it."""
    if not watched.mirrored or watched.scale is None or watched.found:
        _read(watched, fields)
    elif watched.found_inf:
        watched.scale, watched.tracker = mirror.after_skip(watched.scale, fields["_backoff_factor"])
    else:
        watched.scale, watched.tracker = mirror.after_step(
            watched.scale, watched.tracker, fields["_growth_factor"], fields["_growth_interval"]
        )


def _read(watched: Watched, fields: dict[str, Any]) -> None:
    """Take scale and tracker from host memory; those of a device are not known now."""
    if fields["_scale"].is_cpu:
        watched.scale = fields["_scale"].item()
        watched.tracker = int(fields["_growth_tracker"].item())
    else:
        watched.scale = None


def _reseed(watched: Watched, fields: dict[str, Any]) -> None:
    """The scale was set from outside: that is neither a growth nor a back-off."""
    _read(watched, fields)
    _remember(watched, fields)
    watched.settled_scale = watched.scale_now()


def _seed_from_host(watched: Watched, fields: dict[str, Any]) -> None:
    """Before the first scale(), and after load_state_dict(), these fields are what counts."""
    watched.scale = mirror.single(float(fields["_init_scale"]))
    watched.tracker = int(fields["_init_growth_tracker"])
    watched.settled_scale = watched.scale


def _remember(watched: Watched, fields: dict[str, Any]) -> None:
    """Note that the mirror is right for the scaler's tensors as they are now."""
    scale, tracker = fields["_scale"], fields["_growth_tracker"]
    watched.seen_scale, watched.seen_tracker = scale, tracker
    if scale is not None:
        watched.versions = _version(scale), _version(tracker)


def _follows(watched: Watched, fields: dict[str, Any]) -> bool:
    """True if one update() is all that has changed the scaler's tensors since the last one.

    It changes the scale in place once; that the tracker changes too is not counted by torch.
    """
    scale, tracker = fields["_scale"], fields["_growth_tracker"]
    versions = _version(scale), _version(tracker)
    expected = watched.versions[0] + 1, watched.versions[1]
    if watched.seen_scale is None:  # made by the first scale()
        watched.seen_scale, watched.seen_tracker = scale, tracker
    same = watched.seen_scale is scale and watched.seen_tracker is tracker
    watched.versions = versions
    return same and versions == expected


def _update_is_torchs(scaler: Any) -> bool:
    """True if update() ends in torch._amp_update_scale_: the sharded one does not on CPUs."""
    owner = next((kind for kind in type(scaler).__mro__ if "update" in vars(kind)), None)
    module = getattr(owner, "__module__", None)
    return module == PLAIN or (module == SHARDED and vars(scaler).get("_device") != "cpu")
