"""Makes a scenario of the simulated driver out of a trace of a real one (`nvml_trace.py`).

    python tests/gpu/trace_scenario.py trace.json scenario.json

Gauges become steps at the times at which they were read, counters grow evenly between readings (or
between some of many), codes other than NotSupported become faults. What the simulated driver cannot
play is named and left out.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from trace_fields import ALL_LINKS, FIELD_IDS, METRICS, MIB, READERS, SUMS, Fields

from topsmon.devices import nvml
from topsmon.simulated import table

MOST_STEPS, MOST_SLOPES = 15, 7
"""What an expression of the driver's table holds."""
SLOPE_TOLERANCE = 0.01
SLACK_SECONDS = 0.01
"""A value is there a little before the moment at which it was read."""
COUNTERS = ("energy_joules", "_bytes", "_kib", "_packets", "_seconds")
SYSTEM = -1
SYSTEM_CALLS = ("nvmlGpmSampleAlloc",)
"""Calls of no device whose failure says something of them all."""
KINDS = {"Compute": "compute", "Graphics": "graphics", "MPSCompute": "mps"}


class Track:
    """What was read of one device: values of fields over time, what is not supported, codes."""

    def __init__(self) -> None:
        self.points: dict[str, list[tuple[float, Any]]] = {}
        self.absent: set[str] = set()
        self.codes: dict[str, list[tuple[float, int]]] = {}
        self.processes: dict[tuple[int, str], dict[str, Any]] = {}
        self.lists: dict[str, list[float]] = {}
        self.sampled: list[float] = []

    def put(self, at: float, fields: Fields) -> None:
        for field, value in fields.items():
            self.points.setdefault(field, []).append((at, value))

    def code(self, name: str, at: float, code: int) -> None:
        self.codes.setdefault(name, []).append((at, code))


def convert(trace: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the scenario, and what of the trace it leaves out."""
    tracks = [Track() for _ in range(trace["devices"])]
    left_out: dict[str, None] = {}
    newest: int | None = None
    system = Track()
    for at, name, device, arguments, code, value, _latency in trace["calls"]:
        if name == "nvmlGpmSampleGet":
            newest = device
        if isinstance(device, str):
            left_out.setdefault("MIG instances")
            continue
        if device == SYSTEM and name in SYSTEM_CALLS:
            system.code(name, at, code)
        elif name == "nvmlGpmMetricsGet" and newest is not None and code == 0:
            _metrics(tracks[newest], value)
        elif 0 <= device < len(tracks) and not _take(
            tracks[device], at, name, arguments, code, value
        ):
            left_out.setdefault(f"{name} (code {code})")
    scenario = {
        "title": "Recorded",
        "description": f"Recorded with driver {trace['driver']}: {trace['devices']} GPUs",
        "expected": "ok",
        "driver": {"version": trace["driver"] or "0", "cuda": trace["cuda"] or "0.0"},
        "count": len(tracks),
        "devices": {str(index): _device(track) for index, track in enumerate(tracks)},
        "faults": [
            *_faults(SYSTEM, system.codes),
            *(fault for index, track in enumerate(tracks) for fault in _faults(index, track.codes)),
        ],
        **_host(trace.get("host", {})),
    }
    return scenario, list(left_out)


def _host(facts: dict[str, Any]) -> dict[str, Any]:
    files = {}
    if facts.get("wsl"):
        files["proc/sys/kernel/osrelease"] = "microsoft-standard-WSL2\n"
    if facts.get("jetson"):
        files["etc/nv_tegra_release"] = "# recorded\n"
    return {"files": files} if files else {}


def _take(track: Track, at: float, name: str, arguments: list[Any], code: int, value: Any) -> bool:
    """Note one answer; False where the simulated driver has no such call."""
    call = _symbol(name, arguments)
    if name == "nvmlDeviceGetFieldValues" and code == 0:
        for field, scope, one_code, number in value:
            _take_field(track, at, field, scope, one_code, number)
        track.code(call, at, code)
        return True
    if name in {"nvmlGpmSampleGet", "nvmlDeviceGetFieldValues"}:
        if name == "nvmlGpmSampleGet" and code == 0:
            track.sampled.append(at)
        track.code(call, at, code)
        return True
    if "RunningProcesses" in name:
        if code == 0:
            _take_processes(track, at, name, value)
        track.code(call, at, code)
        return True
    reader = READERS.get(name)
    if reader is None or call not in table.exported_calls():
        # A call that neither driver has is no loss.
        return code in {nvml.FUNCTION_NOT_FOUND, nvml.NOT_SUPPORTED}
    if code == 0:
        track.put(at, reader(arguments, value))
    if code != nvml.NOT_SUPPORTED:
        track.code(call, at, code)
    return True


def _take_field(track: Track, at: float, number: int, scope: int, code: int, value: Any) -> None:
    known = FIELD_IDS.get(number)
    if known is None or code not in {0, nvml.NOT_SUPPORTED}:
        track.code(f"field:{number}", at, code)
        return
    field, divisor = known
    if code == nvml.NOT_SUPPORTED:
        track.absent.add(field)
        return
    track.code(f"field:{number}", at, code)
    if field.startswith("nvlink_") and field != "nvlink_count":
        # A sum over all links is played by one of them.
        summed = number in SUMS or scope == ALL_LINKS
        field = f"{field}.{'sum' if summed else scope}"
    track.put(at, {field: value if divisor == 1 else value / divisor})


def _metrics(track: Track, metrics: list[list[Any]]) -> None:
    """The means since the sample before: that is when the values began."""
    begun = track.sampled[-2] if len(track.sampled) > 1 else 0.0
    for number, code, value in metrics:
        field = METRICS.get(number)
        if field is None or code == nvml.NOT_SUPPORTED:
            continue
        if code == 0:
            track.put(begun + SLACK_SECONDS, {field: value})
        track.code(f"gpm:{number}", begun, code)


def _take_processes(track: Track, at: float, name: str, rows: list[dict[str, Any]]) -> None:
    kind = KINDS[name.removeprefix("nvmlDeviceGet").partition("RunningProcesses")[0]]
    seen_before = track.lists.setdefault(kind, [])
    for row in rows:
        process = track.processes.setdefault(
            (row["pid"], kind),
            {"pid": row["pid"], "kind": kind, "start": at if seen_before else 0.0},
        )
        used = row.get("usedGpuMemory")
        process["memory_mib"] = None if used is None else used / MIB
        process["last"] = at
    seen_before.append(at)


def _device(track: Track) -> dict[str, Any]:
    # What has a value of its own, or one that is derived, where the scenario says nothing.
    fields: dict[str, Any] = dict.fromkeys(("uuid", "pci_bus_id", *sorted(track.absent)), None)
    links: dict[str, dict[str, Any]] = {}
    active = _first_active(track)
    for field, points in track.points.items():
        name, _, part = field.partition(".")
        expression = _expression(name, points)
        if not part:
            fields[name] = expression
        elif part == "sum":
            fields.setdefault(name, 0)
            links.setdefault(active, {})[name] = expression
        else:
            links.setdefault(part, {})[name] = expression
    if any("nvlink_active" in link for link in links.values()):
        fields["nvlink_active"] = 0
    if links:
        fields["links"] = links
    fields["gpm_supported"] = int(bool(track.sampled))
    fields["processes"] = list(_processes(track))
    return fields


def _first_active(track: Track) -> str:
    up = (
        field.partition(".")[2]
        for field, points in track.points.items()
        if field.startswith("nvlink_active.") and points[-1][1]
    )
    return next(up, "0")


def _processes(track: Track) -> Iterator[dict[str, Any]]:
    for process in track.processes.values():
        after = [at for at in track.lists[process["kind"]] if at > process["last"]]
        shown = {key: value for key, value in process.items() if key != "last"}
        yield {**shown, "end": after[0]} if after else shown


def _expression(field: str, points: list[tuple[float, Any]]) -> Any:
    """A value of the scenario language that is what was read when it was read."""
    values = [value for _, value in points]
    if isinstance(values[0], str) or all(value == values[0] for value in values):
        return values[0]
    if field.endswith(COUNTERS) and values == sorted(values):
        return {"steps": list(_slopes(points))}
    kept = [points[0]]
    for at, value in points[1:]:
        if value != kept[-1][1]:
            kept.append((at, value))
    if len(kept) > MOST_STEPS:
        kept = [kept[place * len(kept) // MOST_STEPS] for place in range(MOST_STEPS)]
    later = [[max(at - SLACK_SECONDS, 1e-6), value] for at, value in kept[1:]]
    return {"steps": [[0, kept[0][1]], *later]}


def _slopes(points: list[tuple[float, float]]) -> Iterator[list[Any]]:
    """Even growth from corner to corner."""
    corners = [points[0]]
    for (at, value), (later, grown) in itertools.pairwise(points[1:]):
        before = (value - corners[-1][1]) / (at - corners[-1][0])
        if abs((grown - value) / (later - at) - before) > SLOPE_TOLERANCE * before:
            corners.append((at, value))
    if len(corners) > MOST_SLOPES:
        corners = [corners[place * len(corners) // MOST_SLOPES] for place in range(MOST_SLOPES)]
    corners.append(points[-1])
    for place, ((at, value), (later, grown)) in enumerate(itertools.pairwise(corners)):
        growth = {"count": [value, (grown - value) / (later - at), at]}
        yield [at if place else 0, growth]


def _faults(index: int, codes: dict[str, list[tuple[float, int]]]) -> Iterator[dict[str, Any]]:
    """Runs of one code that is neither success nor NotSupported, as far as calls tell."""
    for call, told in codes.items():
        kinds = {code for _, code in told}
        if kinds <= {0} or (call.startswith("field:") and kinds == {nvml.NOT_SUPPORTED}):
            continue
        begun: tuple[float, int] | None = None
        for at, code in [*told, (float("inf"), 0)]:
            if begun is not None and code != begun[1]:
                end = {} if at == float("inf") else {"end": at - SLACK_SECONDS}
                start = 0.0 if begun[0] == told[0][0] else begun[0] - SLACK_SECONDS
                acts = {"return": begun[1], "start": max(start, 0.0), **end}
                yield {"call": call, "device": index, **acts}
                begun = None
            if begun is None and code != 0:
                begun = (at, code)


def _symbol(name: str, arguments: list[Any]) -> str:
    """The driver's own name of a function of nvidia-ml-py."""
    if name == "nvmlDeviceGetMemoryInfo" and arguments:
        return "nvmlDeviceGetMemoryInfo_v2"
    return name


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 64
    scenario, left_out = convert(json.loads(Path(sys.argv[1]).read_text()))
    Path(sys.argv[2]).write_text(json.dumps(scenario, indent=1) + "\n")
    for words in left_out:
        print(f"not played: {words}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
