"""A fleet as text and as JSON, for where there is no terminal."""

from __future__ import annotations

from typing import Any

import msgspec

from topsmon import __version__
from topsmon.fleet.aggregate import Aggregate
from topsmon.fleet.metrics import METRICS
from topsmon.fleet.state import FleetState
from topsmon.fleet.trouble import Sieve, Trouble
from topsmon.fleet.words import counted, rates_words, watts_words
from topsmon.units import NOT_AVAILABLE, PRECISIONS, percent, plain

SCHEMA = "topsmon.fleet-snapshot/1"
WORST = 10
TROUBLES_SHOWN = 20


def text(fleet: FleetState, now: float, *, ascii_only: bool = False) -> str:
    """Hosts by condition, sums, quantiles of every metric, the worst with reasons.

    `now` is our monotonic clock, in s.
    """
    totals = fleet.totals(now)
    counts = ", ".join(f"{count} {name}" for name, count in sorted(totals.hosts.items()))
    live = counted(totals.live_devices, "live device")
    lines = [f"{counted(len(fleet.hosts), 'host')} ({counts}), {live}"]
    if totals.devices != totals.live_devices:
        lines[0] += f" of {totals.devices}"
    label = PRECISIONS[totals.precision].label
    achieved, ceiling = totals.achieved_ops_per_second, totals.ceiling_ops_per_second
    if achieved is None or not ceiling:
        lines.append(f"{label} {NOT_AVAILABLE}: no rate was measured")
    else:
        lines.append(
            f"{label} {rates_words(achieved, ceiling, PRECISIONS[totals.precision].unit)}"
            f" ({percent(achieved / ceiling)}) on {counted(totals.measured, 'device')}"
        )
    watts = totals.power_watts
    known = f" on {counted(totals.powered, 'device')}" if watts is not None else ""
    lines.append(f"power {NOT_AVAILABLE if watts is None else watts_words(watts)}{known}")
    head = f"{'':<18}" + "".join(f"{name:>10}" for name in ("min", "5%", "median", "95%", "max"))
    lines += ["", head + f"{'devices':>10}"]
    lines += [_row(fleet.aggregate(key, now, worst=0)) for key in METRICS]
    troubles = Sieve().update(fleet, now)
    lines += ["", counted(len(troubles), "trouble") if troubles else "nothing stands out"]
    lines += [_trouble(trouble) for trouble in troubles[:TROUBLES_SHOWN]]
    if len(troubles) > TROUBLES_SHOWN:
        lines.append(f"and {len(troubles) - TROUBLES_SHOWN} more")
    joined = "\n".join(lines)
    return joined.replace("°C", "C").encode("ascii", "replace").decode() if ascii_only else joined


def _row(found: Aggregate) -> str:
    metric = found.metric
    values = (found.low, found.p5, found.p50, found.p95, found.high)
    cells = "".join(f"{metric.words(value):>10}" for value in values)
    return f"{metric.label:<18}{cells}{found.count:>10}"


def _trouble(trouble: Trouble) -> str:
    where = f"{plain(trouble.host, 60)} {trouble.label}".rstrip()
    return f"  {trouble.word:<6} {where:<22} {trouble.text}"


def to_json(fleet: FleetState, now: float) -> bytes:
    """The same as one JSON document; None where something is not known."""
    totals = fleet.totals(now)
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "version": __version__,
        "hosts": [
            {
                "host": view.name,
                "condition": condition,
                "detail": view.detail,
                "age_seconds": None if view.seen is None else now - view.seen,
                "devices": len(view.shown),
            }
            for view, condition in fleet.conditions(now)
        ],
        "devices": totals.devices,
        "live_devices": totals.live_devices,
        "precision": totals.precision,
        "measured_devices": totals.measured,
        "achieved_ops_per_second": totals.achieved_ops_per_second,
        "ceiling_ops_per_second": totals.ceiling_ops_per_second,
        "power_watts": totals.power_watts,
        "metrics": {key: _numbers(fleet.aggregate(key, now, worst=WORST)) for key in METRICS},
        "troubles": [
            {
                "host": trouble.host,
                "device": trouble.device.key if trouble.device is not None else None,
                "label": trouble.label,
                "severity": trouble.severity,
                "word": trouble.word,
                "text": trouble.text,
            }
            for trouble in Sieve().update(fleet, now)
        ],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _numbers(found: Aggregate) -> dict[str, Any]:
    return {
        "unit": found.metric.unit.replace("°C", "celsius") or "ratio",
        "count": found.count,
        "missing": found.missing,
        "min": found.low,
        "p5": found.p5,
        "p50": found.p50,
        "p95": found.p95,
        "max": found.high,
        "worst": [
            {"host": one.host, "device": one.device.key, "value": one.value} for one in found.worst
        ],
    }
