"""Training runs as a recorder would tell of them: every step is simulated by GradScaler's rules."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from screen_demo import NOW, WALL, stamp

from topsmon import events
from topsmon.state import State

GIB = 2**30
SCALER = events.Scaler(
    kind="torch.amp.GradScaler",
    init_scale=65536.0,
    growth_factor=2.0,
    backoff_factor=0.5,
    growth_interval=2000,
)
BUCKETS = 256
WINDOW = 200


def never(step: int, scale: float) -> bool:
    return False


def always(step: int, scale: float) -> bool:
    return True


def falling_loss(step: int) -> float:
    """A loss that falls as losses do, the same at each run."""
    return 2.1 + 8.7 * math.exp(-step / 2600) + 0.06 * math.sin(step / 37) + 0.03 * math.sin(step)


def usual_norm(step: int) -> float:
    return 0.9 + 2.4 * math.exp(-step / 1500) + 0.25 * math.sin(step / 53) ** 2


@dataclass
class Training:
    """One run to simulate. `overflows` tells whether a step is skipped at a scale."""

    steps: int
    key: str = "1780000000-48213-0"
    overflows: Callable[[int, float], bool] = never
    loss: Callable[[int], float] = falling_loss
    norm: Callable[[int], float] = usual_norm
    scaler: events.Scaler | None = SCALER
    step_seconds: float = 0.215
    age: float = 0.4
    """Seconds since the newest step."""
    clip: float | None = 1.0
    identity: dict = field(default_factory=dict)
    sample: dict = field(default_factory=dict)
    window: dict = field(default_factory=dict)
    totals: dict = field(default_factory=dict)
    told: list[tuple[str, int, dict]] = field(default_factory=list)
    """Events besides those of the scaler: kind, step, other fields."""

    def events(self) -> list[events.AnyEvent]:
        """Everything that a source of events would send at once."""
        self._walk()
        return [self._run(), self._history(), *self._happened(), self._sample()]

    def _walk(self) -> None:
        self.scales: list[float | None] = []
        self.skips: list[bool] = []
        self.growths: list[int] = []
        scale, tracker = (self.scaler.init_scale, 0) if self.scaler else (None, 0)
        self._events: list[tuple[str, int, dict]] = []
        for step in range(1, self.steps + 1):
            skipped = scale is not None and self.overflows(step, scale)
            if skipped:
                if not (self.skips and self.skips[-1]):
                    self._events.append(("skip", step, {}))
                scale, tracker = _float32(scale * self.scaler.backoff_factor), 0
                self._events.append(("back-off", step, {"values": {"scale": scale}}))
            elif scale is not None:
                tracker += 1
                if tracker == self.scaler.growth_interval:
                    scale, tracker = scale * self.scaler.growth_factor, 0
                    self.growths.append(step)
                    self._events.append(("growth", step, {"values": {"scale": scale}}))
            self.scales.append(scale)
            self.skips.append(skipped)
        self.tracker = tracker

    def _at(self, step: int) -> float:
        """Wall-clock time of a step."""
        return WALL - self.age - (self.steps - step) * self.step_seconds

    def _run(self) -> events.Run:
        values = {
            "pid": 48213,
            "hostname": "ml-node-07",
            "started": self._at(0) - 8,
            "command": "python train.py --config configs/base.yaml",
            "entry": "run",
            "python_version": "3.11.7",
            "torch_version": "2.13.0+cu130",
            "torch_device": "cuda:0",
            "device_uuid": "GPU-00000000",
            "model": "GPT",
            "parameters": 123_653_376,
            "embedding_parameters": 39_383_808,
            "parameter_types": {"torch.float32": 123_653_376},
            "transformer": True,
            "optimizers": ("AdamW",),
            "scaler": self.scaler,
        }
        return events.Run(**stamp(), run=self.key, **{**values, **self.identity})

    def _history(self) -> events.RunHistory:
        stride = 1
        while stride * BUCKETS < self.steps:
            stride *= 2
        buckets = [
            self._bucket(first, min(first + stride, self.steps + 1))
            for first in range(1, self.steps + 1, stride)
        ]
        return events.RunHistory(**stamp(), run=self.key, stride=stride, buckets=tuple(buckets))

    def _bucket(self, first: int, end: int) -> events.HistoryBucket:
        steps = range(first, end)
        scales = [scale for step in steps if (scale := self.scales[step - 1]) is not None]
        losses = [self.loss(step) for step in steps]
        finite = [loss for loss in losses if math.isfinite(loss)]
        norms = [norm for step in steps if math.isfinite(norm := self.norm(step))]
        return events.HistoryBucket(
            first_step=first,
            steps=len(steps),
            skipped=sum(self.skips[step - 1] for step in steps),
            scale_lowest=min(scales, default=None),
            scale_highest=max(scales, default=None),
            loss_mean=sum(finite) / len(finite) if finite else None,
            nonfinite_losses=len(losses) - len(finite),
            gradient_norm_highest=max(norms, default=None),
            mean_step_seconds=self.step_seconds,
        )

    def _happened(self) -> list[events.RunEvent]:
        told = sorted([*self._events, *self.told], key=lambda one: one[1])
        return [
            events.RunEvent(
                time=self._at(step),
                monotonic=NOW,
                source="ml-node-07",
                run=self.key,
                number=number,
                kind=kind,
                step=step,
                **values,
            )
            for number, (kind, step, values) in enumerate(told, 1)
        ]

    def _sample(self) -> events.RunSample:
        last = self.steps
        first = max(1, last - WINDOW + 1)
        losses = [self.loss(step) for step in range(1, last + 1)]
        bad = [step for step, loss in enumerate(losses, 1) if not math.isfinite(loss)]
        streaks = [len(run) for run in _runs(self.skips)]
        streak = streaks[-1] if self.skips[-1] else 0
        norms = sorted(norm for s in range(first, last + 1) if math.isfinite(norm := self.norm(s)))
        loss, norm = losses[-1], self.norm(last)
        early = max(25, int(math.log2(self.scaler.init_scale)) + 5) if self.scaler else 25
        skipped = [step for step, skip in enumerate(self.skips, 1) if skip]
        known = [scale for scale in self.scales if scale is not None]
        window = {
            "steps": last - first + 1,
            "seconds": (last - first + 1) * self.step_seconds,
            "skipped": sum(self.skips[first - 1 :]),
            "growths": sum(step >= first for step in self.growths),
            "nonfinite_losses": sum(step >= first for step in bad),
            "step_seconds": self.step_seconds,
            "mean_step_seconds": self.step_seconds * 1.01,
            "high_step_seconds": self.step_seconds * 1.12,
            "data_wait_ratio": 0.012,
            "tokens_per_second": 147456 / (self.step_seconds * 1.01),
            "samples_per_second": 144 / (self.step_seconds * 1.01),
            "tokens_per_step": 147456.0,
            "samples_per_step": 144.0,
            "backward_calls_per_step": 1.0,
            "gradient_norm_median": norms[len(norms) // 2] if norms else None,
            "gradient_norm_deviation": 0.08 if norms else None,
            "gradient_norm_highest": norms[-1] if norms else None,
            "clip_calls": last - first + 1 if self.clip else 0,
            "clipped_ratio": 0.34 if self.clip else None,
        }
        totals = {
            "steps": last,
            "skipped": len(skipped),
            "growths": len(self.growths),
            "backoffs": len(skipped),
            "calibration_skips": sum(step <= early for step in skipped),
            "longest_skip_streak": max(streaks, default=0),
            "last_skip_step": skipped[-1] if skipped else None,
            "last_growth_step": self.growths[-1] if self.growths else None,
            "nonfinite_losses": len(bad),
            "first_nonfinite_loss_step": bad[0] if bad else None,
            "backward_overflows": sum(step not in set(bad) for step in skipped),
            "scale_lowest": min(known, default=None),
            "scale_highest": max(known, default=None),
            "clip_calls": last if self.clip else 0,
            "recorder_seconds": last * 19e-6,
            "tokens": last * 147456.0,
            "samples": last * 144.0,
        }
        values = {
            "step": last,
            "stepped_at": self._at(last),
            "skipped": self.skips[-1],
            "skip_streak": streak,
            "loss": loss if math.isfinite(loss) else None,
            "loss_finite": math.isfinite(loss),
            "scale": self.scales[-1],
            "growth_tracker": self.tracker if self.scaler else None,
            "gradient_norm": norm if math.isfinite(norm) else None,
            "gradient_norm_finite": math.isfinite(norm),
            "clip_max_norm": self.clip,
            "learning_rate": 6e-4,
            "autocast": "fp16" if self.scaler else "bf16",
            "memory_bytes": int(41.2 * GIB),
            "memory_peak_bytes": int(62.1 * GIB),
            "window": events.RunWindow(**{**window, **self.window}),
            "totals": events.RunTotals(**{**totals, **self.totals}),
        }
        return events.RunSample(**stamp(), run=self.key, **{**values, **self.sample})


def _float32(value: float) -> float:
    import struct

    return struct.unpack("<f", struct.pack("<f", value))[0]


def _runs(flags: list[bool]) -> list[list[bool]]:
    """Unbroken sequences of True."""
    found: list[list[bool]] = []
    for before, flag in zip([False, *flags], flags, strict=False):
        if flag and before:
            found[-1].append(flag)
        elif flag:
            found.append([flag])
    return found


def status(
    key: str, condition: events.RunCondition, detail: str, age: float, exit_code: int | None = None
) -> events.RunStatus:
    return events.RunStatus(
        **stamp(), run=key, condition=condition, since=WALL - age, detail=detail,
        exit_code=exit_code,
    )  # fmt: skip


def _probes(step: int, scale: float) -> bool:
    """Two skips at the start, then one after each growth to 262144."""
    return step <= 2 or scale > 131072


def healthy(steps: int = 18442, **changes) -> list[events.AnyEvent]:
    """An FP16 run in good health: skips at the start and single ones after growths."""
    return Training(steps, overflows=_probes, **changes).events()


def calibrating(**changes) -> list[events.AnyEvent]:
    """The first twelve steps: the scale comes down until one step succeeds."""
    given = {"key": "1780000001-5100-0", "identity": {"pid": 5100, "command": "python tune.py"}}
    return Training(
        12, overflows=lambda step, scale: scale > 256, step_seconds=0.4, **{**given, **changes}
    ).events()


def collapsing(steps: int = 220, **changes) -> list[events.AnyEvent]:
    """A loss that is NaN from step 40 on: the scale halves at each step until it is 0."""
    given = {
        "key": "1780000002-6200-0",
        "identity": {
            "pid": 6200, "command": "python finetune.py --fp16", "model": "LlamaForCausalLM",
            "parameters": 6_738_415_616, "embedding_parameters": 131_072_000,
            "torch_device": "cuda:1", "device_uuid": "GPU-00000001",
        },
        "step_seconds": 0.43,
        "window": {"tokens_per_step": 4096.0, "tokens_per_second": 4096 / 0.43,
                   "samples_per_step": 1.0, "samples_per_second": 1 / 0.43},
        "loss": lambda step: falling_loss(step) if step < 40 else math.nan,
        "norm": lambda step: usual_norm(step) if step < 40 else math.nan,
        "told": [
            ("nonfinite-loss", 40, {}),
            (
                "nonfinite-output", 41,
                {"names": ("model.layers.7.self_attn.softmax",), "message": "Softmax"},
            ),
            (
                "nonfinite-gradients", 41,
                {
                    "names": ("model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
                              "model.layers.0.self_attn.k_proj.weight"),
                    "values": {"parameters": 148.0, "bad": 148.0},
                },
            ),
        ],
    }  # fmt: skip
    return Training(
        steps, overflows=lambda step, scale: step >= 40, **{**given, **changes}
    ).events()


def backward_overflow(steps: int = 900, **changes) -> list[events.AnyEvent]:
    """Finite losses, but one layer's gradients overflow in every fourth step of the last 300."""
    name = "decoder.blocks.11.mlp.fc2.weight"
    told = [
        (
            "nonfinite-gradients", step,
            {"names": (name,), "values": {"parameters": 148.0, "bad": 1.0}},
        )
        for step in (700, 760, 820, 896)
    ]  # fmt: skip
    given = {
        "key": "1780000003-7300-0",
        "identity": {"pid": 7300, "command": "python -m seq2seq.train --amp"},
        "told": told,
        "clip": None,
    }
    return Training(
        steps, overflows=lambda step, scale: step > 600 and step % 4 == 0, **{**given, **changes}
    ).events()


def clip_before_unscale(steps: int = 3000, **changes) -> list[events.AnyEvent]:
    """Clipping sees gradients that are still scaled: norms of 65536 times their size."""
    given = {
        "key": "1780000004-8400-0",
        "identity": {"pid": 8400, "command": "python gan.py"},
        "norm": lambda step: usual_norm(step) * 65536,
        "loss": lambda step: 4.2 + 0.02 * math.sin(step / 11),
        "totals": {"scaled_clips": steps},
        "window": {"clipped_ratio": 1.0},
        "told": [
            ("scaled-clip", 1, {"values": {"norm": 2.1e5, "max_norm": 1.0, "scale": 65536.0}})
        ],
    }
    return Training(steps, **{**given, **changes}).events()


def crashed(**changes) -> list[events.AnyEvent]:
    """Ended by an exception."""
    key = "1780000005-9500-0"
    message = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has 79.2 GiB in total"
    given = {
        "key": key,
        "age": 200.0,
        "identity": {"pid": 9500, "command": "python train.py --batch 64"},
        "told": [
            ("exception", 812, {"names": ("OutOfMemoryError",), "message": message}),
            ("end", 812, {"message": "exit code 1", "values": {"exit_code": 1.0}}),
        ],
    }
    detail = f"exit code 1: OutOfMemoryError: {message}"
    return [
        *Training(812, overflows=_probes, **{**given, **changes}).events(),
        status(changes.get("key", key), "failed", detail, 198.0, 1),
    ]


def killed(**changes) -> list[events.AnyEvent]:
    """Ended by SIGKILL, hours ago."""
    key = "1780000006-9600-0"
    given = {
        "key": key,
        "age": 7300.0,
        "identity": {"pid": 9600, "command": "python pretrain.py"},
        "told": [("end", 5120, {"message": "signal SIGKILL"})],
    }
    return [
        *Training(5120, overflows=_probes, **{**given, **changes}).events(),
        status(changes.get("key", key), "killed", "signal SIGKILL", 7298.0, 137),
    ]


def finished(**changes) -> list[events.AnyEvent]:
    """Ended with exit code 0."""
    key = "1780000007-9700-0"
    given = {
        "key": key,
        "age": 4000.0,
        "identity": {"pid": 9700, "command": "python train.py --epochs 1"},
        "told": [("end", 2400, {"message": "exit code 0", "values": {"exit_code": 0.0}})],
    }
    return [
        *Training(2400, overflows=_probes, **{**given, **changes}).events(),
        status(changes.get("key", key), "finished", "exit code 0", 3990.0, 0),
    ]


def bf16(steps: int = 4000, **changes) -> list[events.AnyEvent]:
    """BF16 autocast: no loss scaler, nothing is ever skipped."""
    given = {
        "key": "1780000008-9800-0",
        "scaler": None,
        "identity": {"pid": 9800, "command": "python vit.py"},
    }
    return Training(steps, **{**given, **changes}).events()


def ranks(count: int = 8, slow: int | None = 5, steps: int = 2600) -> list[events.AnyEvent]:
    """One launch on eight GPUs; one rank is a few steps behind and slower."""
    found: list[events.AnyEvent] = []
    for rank in range(count):
        behind = rank == slow
        found += Training(
            steps - 2 * behind,
            key=f"1780000010-{3000 + rank}-{rank}",
            overflows=_probes,
            step_seconds=0.36 + 0.02 * behind,
            age=0.2 + 0.3 * behind,
            identity={
                "pid": 3000 + rank,
                "command": "python pretrain.py --config 8b.yaml",
                "rank": rank,
                "local_rank": rank,
                "world_size": count,
                "launch": "launch-1",
                "torch_device": f"cuda:{rank}",
                "device_uuid": f"GPU-{rank:08d}",
            },
        ).events()
    return found


def with_runs(state: State, *sources: list[events.AnyEvent]) -> State:
    """Feed runs into a state."""
    for source in sources:
        for event in source:
            state.apply(event, NOW)
    return state


def with_energy(state: State, watts: float = 650.0) -> State:
    """Give the living runs the energy that a GPU of their own would have told at a mean power."""
    for run in state.runs.values():
        if run.ended or run.sample is None:
            continue
        window = run.sample.window
        run.joules_per_step = watts * window.mean_step_seconds
        run.joules_per_token = run.joules_per_step / window.tokens_per_step
    return state
