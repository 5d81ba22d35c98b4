"""Everything about one run in lines of text: who it is, how it scales, what watching it costs."""

from __future__ import annotations

import time
from collections.abc import Iterable

from topsmon import events
from topsmon.diagnosis.training.words import scale_text
from topsmon.run_state import RunState
from topsmon.tui.training.happened import event_text, newest
from topsmon.tui.training.numbers import Fact, facts, nonfinite
from topsmon.tui.training.words import count, last_words
from topsmon.tui.view import View
from topsmon.units import duration, plain, si

Pair = tuple[str, str]
ENTRIES = {
    "run": "started by topsmon run",
    "watch": "topsmon.watch() in its code",
    "attach": "topsmon attach, while it ran",
}
"""How a recorder comes into a run, in words."""
EVENTS_SHOWN = 40


def sections(view: View, run: RunState) -> list[list[Pair]]:
    """Heads and texts, in sections."""
    return [
        _identity(view, run),
        _findings(view, run),
        [(fact.head, _fact_text(fact)) for fact in [*facts(view, run), *nonfinite(run)]],
        _model(run.identity),
        _scaler(run.identity.scaler),
        _recorder(run),
        _happened(run),
    ]


def _fact_text(fact: Fact) -> str:
    return f"{fact.value} ({fact.notes[0]})" if fact.notes else fact.value


def _known(pairs: Iterable[Pair]) -> list[Pair]:
    return [(head, text) for head, text in pairs if text]


def _identity(view: View, run: RunState) -> list[Pair]:
    identity = run.identity
    rank = ""
    if identity.rank is not None:
        of = f" of {identity.world_size}" if identity.world_size else ""
        local = f", local rank {identity.local_rank}" if identity.local_rank is not None else ""
        rank = f"{identity.rank}{of}{local}"
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(identity.started))
    where = "" if identity.local else " (seen from outside its container or host)"
    device = identity.torch_device or ""
    if identity.device_uuid:
        gpu = view.state.devices.get(identity.device_uuid)
        device += f", {gpu.label}" if gpu is not None else ""
        device += f", {identity.device_uuid}"
    return _known(
        (
            ("command", identity.command),
            ("PID", f"{identity.pid} on {identity.hostname}{where}"),
            ("rank", rank),
            ("started", f"{began}, {duration(max(0.0, view.wall - identity.started))} ago"),
            ("ended" if run.ended else "state", last_words(run)),
            ("device", device.lstrip(", ")),
            ("versions", ", ".join(_versions(identity))),
        )
    )


def _versions(identity: events.Run) -> list[str]:
    named = (("Python", identity.python_version), ("torch", identity.torch_version))
    return [f"{name} {version}" for name, version in named if version]


def _findings(view: View, run: RunState) -> list[Pair]:
    judgement = view.training.of(run)
    pairs = _known([("verdict", judgement.verdict)])
    for finding in judgement.findings:
        pairs.append((plain(finding.word, 8), finding.title))
        texts = (finding.cause, *finding.evidence, finding.remedy, finding.command)
        pairs += [("", text) for text in texts if text]
        if finding.basis:
            pairs.append(("", f"basis: {finding.basis}"))
    return pairs


def _model(identity: events.Run) -> list[Pair]:
    size = ""
    if identity.parameters is not None:
        size = si(identity.parameters, digits=4).replace(" ", "")
        if identity.embedding_parameters:
            looked_up = si(identity.embedding_parameters, digits=4).replace(" ", "")
            size += f", {looked_up} of them embeddings"
        if identity.active_parameters is not None and identity.active_note:
            passed = si(identity.active_parameters, digits=4).replace(" ", "")
            size += f", a token passes {passed}: {plain(identity.active_note, 60)}"
        types = [
            f"{si(number, digits=3).replace(' ', '')} {name.removeprefix('torch.')}"
            for name, number in identity.parameter_types.items()
        ]
        size += f" ({', '.join(types)})" if types else ""
    kinds = (
        ("transformer", identity.transformer),
        ("sharded", identity.sharded),
        ("compiled", identity.compiled),
    )
    kind = ", ".join(name for name, given in kinds if given)
    flops = ""
    if identity.flops_per_step is not None:
        bound = ", a lower bound" if identity.flops_lower_bound else ""
        flops = f"{si(identity.flops_per_step, 'FLOP')} a step, {identity.flops_source}{bound}"
    tf32 = {True: "allowed", False: "not allowed", None: ""}[identity.allow_tf32]
    return _known(
        (
            ("model", ", ".join(filter(None, (identity.model, kind)))),
            ("parameters", size),
            ("optimizers", ", ".join(identity.optimizers)),
            ("FLOPs", flops),
            ("TF32", tf32),
        )
    )


def _scaler(scaler: events.Scaler | None) -> list[Pair]:
    if scaler is None:
        return [("scaler", "none")]
    constants = (
        ("starts at", scale_text(scaler.init_scale)),
        ("grows by", _times(scaler.growth_factor)),
        (
            "after",
            "" if scaler.growth_interval is None else f"{count(scaler.growth_interval)} steps",
        ),
        ("falls by", _times(scaler.backoff_factor)),
        ("never below", scale_text(scaler.min_scale)),
    )
    words = ", ".join(f"{head} {text}" for head, text in constants if text)
    state = "" if scaler.enabled else " (disabled: it scales nothing)"
    return [("scaler", f"{scaler.kind}{state}"), *_known([("", words)])]


def _times(factor: float | None) -> str:
    return "" if factor is None else f"a factor of {factor:g}"


def _recorder(run: RunState) -> list[Pair]:
    identity = run.identity
    pairs = [("recorder", ENTRIES.get(identity.entry, identity.entry) or "entry not known")]
    if run.sample is not None and run.sample.totals.steps:
        totals = run.sample.totals
        each = totals.recorder_seconds / totals.steps * 1e6
        share = ""
        if run.sample.window.mean_step_seconds:
            share = f", {each / 1e4 / run.sample.window.mean_step_seconds:.3f}% of a step"
        pairs.append(("cost", f"{each:.0f} us a step by its own measure{share}"))
        pairs.append(
            ("dropped", f"{count(totals.dropped)} readings given up rather than waited for")
        )
        if totals.errors:
            pairs.append(("errors", f"{count(totals.errors)} of its own"))
    heads = ["cannot see", *[""] * len(identity.limits)]
    return [*pairs, *zip(heads, identity.limits, strict=False)]


def _happened(run: RunState) -> list[Pair]:
    found = newest(run.happened)[:EVENTS_SHOWN]
    return [(f"step {one.event.step}", event_text(one.event, one.times)) for one in found]
