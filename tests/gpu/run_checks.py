"""Measure every precision on a real GPU and write the figures as JSON, in under three minutes.

    python tests/gpu/run_checks.py figures.json

Exits with 1 if a result is wrong or a figure is implausible; every complaint is in the JSON too.
Needs torch with CUDA and a GPU; topsmon is taken from the checkout that this file lies in.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

PLAUSIBLE = (0.2, 1.3)
"""Achieved / rated: below, the wrong call or ceiling; above, more than any boost explains."""
PROBES = Path(__file__).parents[2] / "topsmon" / "probes"


def gpu_uuid() -> str:
    """UUID of the first GPU that torch sees, as NVML writes it."""
    import torch

    uuid = str(torch.cuda.get_device_properties(0).uuid)
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def ceilings_of(device) -> dict[str, float]:
    """Rated ceilings in ops/s of the probe device, by the rates' keys."""
    from topsmon import ceilings, events

    major, minor = device.facts.capability
    identity = events.Device(
        time=time.time(),
        monotonic=time.monotonic(),
        source="gpu-check",
        device="GPU-check",
        kind="gpu",
        index=0,
        name=device.facts.name,
        compute_capability=f"{major}.{minor}",
    )
    ready = device.ready()
    found = ceilings.for_device(
        identity, sm_count=ready["sm_count"], rated_clock_mhz=ready["clock_rate_mhz"]
    )
    return {rate.precision: rate.ops_per_second for rate in found.rates}


def measure(bench, key: str, rated: dict[str, float]) -> dict:
    """All shapes of a precision; returns its figures with the complaints about them."""
    from topsmon.probes.errors import UnsupportedError
    from topsmon.units import PRECISIONS

    try:
        bursts = [bench.burst(key, 0)]
        shapes = bench.shapes(bench.gemms[key], bench.budget_bytes())
        bursts = [bench.burst_of(key, shape) for shape in shapes]
    except UnsupportedError as refusal:
        return {"unsupported": str(refusal), "complaints": []}
    except (RuntimeError, TypeError, AttributeError) as error:
        return {"failed": str(error)[:500], "complaints": [f"{key}: {type(error).__name__}"]}
    best = max(bursts, key=lambda burst: burst["rate_ops_per_second"])
    ceiling = next((rated[name] for name in PRECISIONS[key].ceilings if name in rated), None)
    ratio = best["rate_ops_per_second"] / ceiling if ceiling else None
    complaints = [
        f"{key} {burst['shape']}: {burst['invalid_reason']}"
        for burst in bursts
        if burst["correct"] is not True or not burst["valid"]
    ]
    if ratio is not None and not best["emulated"] and not PLAUSIBLE[0] <= ratio <= PLAUSIBLE[1]:
        complaints.append(f"{key}: ratio {ratio:.2f} is implausible")
    if best["held_clock_mhz"] is None:
        complaints.append(f"{key}: the held clock was not read")
    return {
        "best": best,
        "bursts": bursts,
        "ceiling_ops_per_second": ceiling,
        "ratio": ratio,
        "complaints": complaints,
    }


def talk_to_prober(uuid: str) -> dict:
    """A real prober for some seconds: time to the first number, and to the end after a stop."""
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, str(PROBES), "--device", uuid, "--duty", "0.5"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        first = None
        measured = set()
        for line in child.stdout:
            event = json.loads(line)
            if event["type"] == "rate":
                first = first or time.monotonic() - began
                measured.add(event["precision"])
            if len(measured) >= 4 or time.monotonic() - began > 60:
                break
        asked = time.monotonic()
        child.stdin.write(b'{"command":"stop"}\n')
        child.stdin.flush()
        code = child.wait(10)
    return {
        "first_rate_seconds": first,
        "measured": sorted(measured),
        "stop_seconds": time.monotonic() - asked,
        "exit_code": code,
        "complaints": [] if first is not None and code == 0 else ["the prober did not measure"],
    }


def main() -> int:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("gpu-figures.json")
    import torch

    if not torch.cuda.is_available():
        print("no GPU that torch can use", file=sys.stderr)
        return 3
    uuid = gpu_uuid()
    os.environ["CUDA_VISIBLE_DEVICES"] = uuid

    from topsmon.probes.bursts import Bench
    from topsmon.probes.devices import open_device

    device = open_device(uuid)
    bench = Bench(device)
    rated = ceilings_of(device)
    figures: dict = {
        "torch": str(torch.__version__),
        "uuid": uuid,
        "ready": device.ready(),
        "capability": device.facts.capability,
        "precisions": {},
    }
    for key in bench.gemms:
        figures["precisions"][key] = found = measure(bench, key, rated)
        print(summary(key, found), flush=True)
        target.write_text(json.dumps(figures, indent=1))
    figures["prober"] = talk_to_prober(uuid)
    complaints = [text for found in figures["precisions"].values() for text in found["complaints"]]
    figures["complaints"] = complaints + figures["prober"]["complaints"]
    target.write_text(json.dumps(figures, indent=1))
    print(f"prober: {figures['prober']}")
    for complaint in figures["complaints"]:
        print(f"COMPLAINT {complaint}")
    print(f"figures are in {target}")
    return 1 if figures["complaints"] else 0


def summary(key: str, found: dict) -> str:
    """One line of the table."""
    if "best" not in found:
        return f"{key:<11} {found.get('unsupported') or found.get('failed')}"
    best = found["best"]
    ratio = "no ceiling" if found["ratio"] is None else f"{found['ratio']:.1%}"
    return (
        f"{key:<11} {best['rate_ops_per_second'] / 1e12:9.1f} T/s  {ratio:>10}  "
        f"{'x'.join(map(str, best['shape'])):<18} error {best['relative_error']:.1e}  "
        f"{best['held_clock_mhz']} MHz  {best['power_watts']} W  {best['note']}"
    )


if __name__ == "__main__":
    sys.exit(main())
