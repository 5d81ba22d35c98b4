"""Check topsmon on a real GPU: read everything, time every call, compare, measure; a few minutes.

    python tests/gpu/field_check.py out.json [SECONDS]

Writes out.json: `trace` (a replay for the simulated driver, see trace_scenario.py), `latencies` of
every NVML call in seconds, `compared` with nvidia-smi, `rates` of GEMM, and `complaints`.
Exits with 0 if there is no complaint, 1 if there is, 3 without a GPU. UUIDs are not written.
Needs a driver; torch with CUDA for the rates. topsmon is taken from the checkout of this file.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from nvml_trace import Recorder, has_driver, record  # noqa: E402 - beside this file

from topsmon.devices import nvml, startup  # noqa: E402 - of the checkout that this file lies in

REPEATS = 50
MOST_SECONDS = 1.0
"""For all repeats of one call."""
SLOW_SECONDS = 0.1
"""A call that takes longer at the median holds up its GPU's samples."""
PROBES = ROOT / "topsmon" / "probes"
ONCE = (
    "nvmlInit",
    "nvmlEvent",
    "nvmlGpm",
    "nvmlSystem",
    "nvmlDeviceGetHandle",
    "nvmlDeviceGetCount",
)
"""Beginnings of the names of calls that are not repeated."""


class Compared(NamedTuple):
    """A column of nvidia-smi's query, our field for it, and how far they may be apart."""

    column: str
    ours: Callable[[dict[str, Any], dict[str, Any]], Any]
    tolerance: float = 0.0
    share: float = 0.0


MIB = 1 << 20


def _sample(field: str, unit: float = 1.0) -> Callable[[dict[str, Any], dict[str, Any]], Any]:
    return lambda identity, sample: None if sample[field] is None else sample[field] / unit


COMPARED = (
    Compared("name", lambda identity, sample: identity["name"]),
    Compared("memory.total", _sample("memory_total_bytes", MIB), 1.0),
    Compared("memory.used", _sample("memory_used_bytes", MIB), 64.0, 0.02),
    Compared("power.draw", _sample("power_watts"), 10.0, 0.25),
    Compared("enforced.power.limit", _sample("power_limit_watts"), 1.0),
    Compared("temperature.gpu", _sample("temperature_celsius"), 4.0),
    Compared("clocks.sm", _sample("sm_clock_mhz"), 60.0, 0.15),
    Compared("clocks.max.sm", lambda identity, sample: identity["sm_clock_max_mhz"], 1.0),
    Compared("utilization.gpu", _sample("busy_ratio", 0.01), 30.0),
    Compared("pcie.link.gen.current", _sample("pcie_generation")),
    Compared("pcie.link.width.current", _sample("pcie_width")),
    Compared("ecc.errors.uncorrected.volatile.total", _sample("ecc_uncorrected_volatile")),
    Compared("fan.speed", _sample("fan_ratio", 0.01), 5.0),
)
ABSENT = ("[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "[Insufficient Permissions]", "")


# Timing -----------------------------------------------------------------------------------------


def time_calls() -> dict[str, dict[str, Any]]:
    """Median and 95th percentile of each call that topsmon makes, in seconds, by its name.

    Of the first GPU. The calls are those that a short recording makes, repeated.
    """
    binding = startup.load_binding()
    driver, watch = Recorder(binding), nvml.Watch()
    assert startup.initialise(driver, watch, container=False) is None
    handle = driver.call(watch, "nvmlDeviceGetHandleByIndex", 0)
    latencies: dict[str, dict[str, Any]] = {}
    for name, arguments in _distinct_calls():
        times, begun = [], time.perf_counter()
        answer: Any = None
        while len(times) < REPEATS and time.perf_counter() - begun < MOST_SECONDS:
            start = time.perf_counter()
            answer = nvml.Driver.call(driver, watch, name, handle, *arguments)
            times.append(time.perf_counter() - start)
        label = " ".join([name, *(str(one) for one in arguments)])[:120]
        latencies[label] = {
            "median_seconds": statistics.median(times),
            "p95_seconds": sorted(times)[int(0.95 * (len(times) - 1))],
            "calls": len(times),
            "code": answer.code if isinstance(answer, nvml.Unavailable) else 0,
        }
    return dict(sorted(latencies.items(), key=lambda item: -item[1]["median_seconds"]))


def _distinct_calls() -> Iterator[tuple[str, list[Any]]]:
    known = set()
    for _, name, device, arguments, *_ in record(0.0)["calls"]:
        key = (name, json.dumps(arguments))
        if device == 0 and not name.startswith(ONCE) and key not in known:
            known.add(key)
            pairs = name == "nvmlDeviceGetFieldValues"
            yield name, [[tuple(one) for one in arguments[0]]] if pairs else arguments


# nvidia-smi ---------------------------------------------------------------------------------------


def query(program: str) -> list[dict[str, str]]:
    """What nvidia-smi says of each GPU, by column."""
    columns = [compared.column for compared in COMPARED]
    done = subprocess.run(
        [program, f"--query-gpu={','.join(columns)}", "--format=csv,noheader,nounits"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    rows = csv.reader(done.stdout.splitlines(), skipinitialspace=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def compare(trace: dict[str, Any], rows: list[dict[str, str]]) -> tuple[list[Any], list[str]]:
    """Put both sides by side; a complaint for each pair that is too far apart."""
    latest = {index: sample for _, index, sample in trace["samples"]}
    table, complaints = [], []
    if len(rows) != trace["devices"]:
        complaints.append(f"nvidia-smi lists {len(rows)} GPUs, topsmon {trace['devices']}")
    for index, row in enumerate(rows[: trace["devices"]]):
        for compared in COMPARED:
            theirs = row[compared.column].strip()
            ours = compared.ours(trace["identities"][index], latest[index])
            fits = agree(ours, theirs, compared)
            table.append([index, compared.column, ours, theirs, fits])
            if not fits:
                complaints.append(f"GPU {index} {compared.column}: {ours}, nvidia-smi {theirs}")
    return table, complaints


def agree(ours: Any, theirs: str, compared: Compared) -> bool:
    """True where both say the same, N/A included."""
    if theirs in ABSENT or ours is None:
        return theirs in ABSENT and ours is None
    if isinstance(ours, str):
        return ours == theirs
    try:
        number = float(theirs)
    except ValueError:
        return False
    return abs(number - ours) <= max(compared.tolerance, compared.share * abs(number))


# Load ---------------------------------------------------------------------------------------------


@contextmanager
def load() -> Iterator[bool]:
    """A prober that computes on the first GPU meanwhile; False where torch cannot."""
    uuid = _torch_uuid()
    if uuid is None:
        yield False
        return
    with subprocess.Popen(
        [sys.executable, str(PROBES), "--device", uuid, "--duty", "0.9"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    ) as prober:
        try:
            yield True
        finally:
            assert prober.stdin is not None
            prober.stdin.close()
            prober.wait(20)


def _torch_uuid() -> str | None:
    code = (
        "import torch; u = str(torch.cuda.get_device_properties(0).uuid);"
        "print(u if u.startswith(('GPU-', 'MIG-')) else 'GPU-' + u)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def activity(trace: dict[str, Any], quiet_seconds: float) -> tuple[dict[str, Any], list[str]]:
    """What the counters of the first GPU said at rest and under our own load."""
    told: dict[str, Any] = {}
    for when, early in (("rest", True), ("load", False)):
        samples = [
            sample
            for at, index, sample in trace["samples"]
            if index == 0 and (at < quiet_seconds) == early
        ]
        told[when] = {
            "busy_ratio": _highest(samples, "busy_ratio"),
            "power_watts": _highest(samples, "power_watts"),
            "tensor_active_ratio": _highest(
                [sample["counters"] for sample in samples if sample["counters"]],
                "tensor_active_ratio",
            ),
        }
    busy = told["load"]["busy_ratio"]
    return told, [f"busy {busy} under our own load"] if busy is not None and busy < 0.3 else []


def _highest(samples: list[dict[str, Any]], field: str) -> Any:
    return max((one[field] for one in samples if one[field] is not None), default=None)


def measure(path: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """The rates of every precision, by run_checks.py."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "run_checks.py"), str(path)],
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    if done.returncode == 3 or not path.is_file():
        return None, [] if done.returncode == 3 else [f"no rates: {done.stderr[-300:]}"]
    figures = json.loads(path.read_text())
    path.unlink()
    figures.pop("uuid", None)
    return figures, figures["complaints"]


# All of it ----------------------------------------------------------------------------------------


def snapshot() -> tuple[int, list[str]]:
    """The exit code of one snapshot, and whether it could be read."""
    done = subprocess.run(
        [sys.executable, "-m", "topsmon", "--once", "--json"],
        cwd=ROOT, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    try:
        document = json.loads(done.stdout)
    except ValueError:
        return done.returncode, [f"--once --json printed no JSON: {done.stderr[-300:]!r}"]
    missing = [
        device["label"]
        for device in document["devices"]
        if device["sample"] is None and device["condition"] == "ok"
    ]
    return done.returncode, [f"no sample of {label} in the snapshot" for label in missing]


def check(seconds: float, rates_path: Path) -> dict[str, Any]:
    """Everything; complaints of all parts together."""
    out: dict[str, Any] = {"python": sys.version, "complaints": []}

    def take(key: str, found: tuple[Any, list[str]]) -> None:
        out[key], complaints = found
        out["complaints"] += complaints

    print("recording at rest, then under load", flush=True)
    quiet = record(seconds / 2)
    program = shutil.which("nvidia-smi")
    if program is None:
        out["compared"] = None
    else:
        take("compared", compare(quiet, query(program)))
    with load() as loaded:
        if loaded:
            # The prober loads torch first.
            time.sleep(10)
        out["trace"] = record(seconds / 2) if loaded else quiet
        if loaded:
            joined = _joined(quiet, out["trace"], seconds / 2)
            out["trace"] = joined
            take("activity", activity(joined, seconds / 2))
    print("timing every call", flush=True)
    out["latencies"] = time_calls()
    slow = [name for name, one in out["latencies"].items() if one["median_seconds"] > SLOW_SECONDS]
    out["complaints"] += [f"{name} takes long" for name in slow]
    take("snapshot_exit_code", snapshot())
    print("measuring rates", flush=True)
    take("rates", measure(rates_path))
    return out


def _joined(first: dict[str, Any], second: dict[str, Any], offset: float) -> dict[str, Any]:
    """Two traces as one: the second begins `offset` s after the first; set-up is told once."""
    again = [[at + offset, *rest] for at, *rest in second["calls"] if at > 0]
    samples = [[at + offset, *rest] for at, *rest in second["samples"]]
    return {
        **first,
        "calls": first["calls"] + again,
        "samples": first["samples"] + samples,
    }


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 64
    target = Path(sys.argv[1])
    if not has_driver():
        print("no NVML driver with a GPU here", file=sys.stderr)
        return 3
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 20.0
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    out = check(seconds, target.with_suffix(".rates.json"))
    target.write_text(json.dumps(out) + "\n")
    for name, one in list(out["latencies"].items())[:12]:
        print(
            f"{one['median_seconds'] * 1e6:9.0f} us  p95 {one['p95_seconds'] * 1e6:9.0f} us  {name}"
        )
    for complaint in out["complaints"]:
        print(f"COMPLAINT {complaint}")
    print(f"{target}: {len(out['trace']['calls'])} calls, {len(out['complaints'])} complaints")
    return 1 if out["complaints"] else 0


if __name__ == "__main__":
    sys.exit(main())
