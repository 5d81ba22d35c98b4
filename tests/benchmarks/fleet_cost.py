"""Measure what a fleet costs: decoding its lines, keeping them, looking at them.

    python tests/benchmarks/fleet_cost.py [--devices 10000] [--ticks 10] [--screen]

All lines of one second are made first, which is the hosts' cost and not ours. Shares are CPU time a
second at 1 Hz in one process; the ratios are to decoding alone in the same run, so that they hold
on other machines. Latency is the time from the first line of a host's second to the new
distribution. `--screen` also runs the real screen on a simulated fleet in a pseudo-terminal.
Figures depend on the machine and are only reported.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import resource
import select
import statistics
import struct
import sys
import termios
import time
from collections.abc import Callable

import psutil

from topsmon import events
from topsmon.fleet.metrics import METRICS
from topsmon.fleet.state import FleetState
from topsmon.fleet.trouble import Sieve
from topsmon.simulated.fleet import FleetPlan, SimulatedHost, Stamp, parse

GPUS = 8
LOOKS_A_SECOND = 2
CPU_PERCENT = 10.0


def cpu_seconds(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def lines_of(plan: FleetPlan, ticks: int) -> tuple[list[bytes], list[list[list[bytes]]]]:
    """The first lines of all hosts, and for every second the lines of each host."""
    hosts = [SimulatedHost(plan, node) for node in range(plan.nodes)]
    first = [events.encode(event) for host in hosts for event in host.begin(Stamp(0.0, 0.0))]
    seconds = [
        [[events.encode(event) for event in host.tick(tick, Stamp(tick, tick))] for host in hosts]
        for tick in range(ticks)
    ]
    return first, seconds


def fold(fleet: FleetState, decoder: events.LineDecoder, lines: list[bytes], now: float) -> None:
    for line in lines:
        event = decoder.decode(line)
        if event is not None:
            fleet.receive(event.source.partition("/")[0], event, now)


def measure(devices: int, ticks: int) -> None:
    plan = parse(f"nodes={max(1, devices // GPUS)},gpus={GPUS},fault=straggler:node0:3")
    first, seconds = lines_of(plan, ticks)
    fleet, decoder, sieve = FleetState(), events.LineDecoder(), Sieve()
    resident = psutil.Process().memory_info().rss
    begin = cpu_seconds(lambda: fold(fleet, decoder, first, 0.0))
    costs: dict[str, list[float]] = {"decode": [], "decode and keep": [], "look": [], "sieve": []}
    latencies = []
    for tick, hosts in enumerate(seconds[1:], 1):  # the first second also brings the rates
        lines = [line for host in hosts for line in host]
        costs["decode"].append(cpu_seconds(lambda lines=lines: list(map(decoder.decode, lines))))
        together = 0.0
        for host in hosts:
            started = time.perf_counter()
            together += cpu_seconds(lambda host=host, tick=tick: fold(fleet, decoder, host, tick))
            latencies.append(time.perf_counter() - started)
        costs["decode and keep"].append(together)
        begun = time.perf_counter()
        costs["look"].append(cpu_seconds(lambda tick=tick: fleet.aggregate("busy", tick)))
        costs["sieve"].append(cpu_seconds(lambda tick=tick: sieve.update(fleet, tick)))
        latencies[-1] += time.perf_counter() - begun
    grown = (psutil.Process().memory_info().rss - resident) / 2**20
    report_costs(plan, {name: statistics.median(found) for name, found in costs.items()}, begin)
    lines = sum(map(len, seconds[-1]))
    size = sum(len(line) for host in seconds[-1] for line in host) / 1e6
    print(f"  {lines} lines and {size:.1f} MB a second; {grown:.0f} MiB kept")
    print(f"  a host's second folded in {statistics.median(latencies) * 1000:.2f} ms (median)")
    whole = statistics.median(costs["decode and keep"]) + statistics.median(costs["look"])
    print(f"  from the first line of a burst of all to the new distribution {whole * 1000:.0f} ms")
    for name in METRICS:
        took = cpu_seconds(lambda name=name: fleet.aggregate(name, float(ticks)))
        print(f"  distribution of {name:<12} {took * 1000:6.1f} ms")


def report_costs(plan: FleetPlan, costs: dict[str, float], begin: float) -> None:
    keep = costs["decode and keep"] - costs["decode"]
    looks = LOOKS_A_SECOND * costs["look"]
    total = costs["decode and keep"] + looks + costs["sieve"]
    print(f"{plan.nodes * plan.gpus} devices on {plan.nodes} hosts at 1 Hz, % of a core")
    rows = (
        ("decoding the lines", costs["decode"]),
        ("keeping the latest", keep),
        (f"distribution, {LOOKS_A_SECOND} a second", looks),
        ("looking for trouble, once a second", costs["sieve"]),
        ("together", total),
    )
    for name, cost in rows:
        print(f"  {name:<36}{cost * 100:6.2f} %   {cost / costs['decode']:5.2f} x decoding")
    met = "met" if total * 100 <= CPU_PERCENT else "NOT MET"
    print(f"  bar {CPU_PERCENT:g} %: {met}; identities and ceilings, once: {begin:.2f} s")


def measure_screen(devices: int, seconds: float) -> None:
    """CPU and bytes of the real screen with its simulated hosts as a child."""
    plan = f"nodes={max(1, devices // GPUS)},gpus={GPUS},fault=straggler:node17:3"
    command = [sys.executable, "-m", "topsmon", "--simulate", plan]
    pid, master = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color"}
        environment.pop("COLORTERM", None)
        os.execve(command[0], command, environment)
    read(master, 15.0)
    screen = psutil.Process(pid)
    children = screen.children(recursive=True)
    before = cpu_of([screen]), cpu_of(children)
    written = read(master, seconds)
    own, others = cpu_of([screen]) - before[0], cpu_of(children) - before[1]
    memory = screen.memory_info().rss / 2**20
    os.write(master, b"q")
    read(master, 1.0)
    os.close(master)
    os.waitpid(pid, 0)
    print(f"screen of {devices} devices at 120x40")
    print(f"  CPU of the screen          {own / seconds * 100:6.1f} % of a core")
    print(f"  CPU of the simulated hosts {others / seconds * 100:6.1f} % of a core")
    print(f"  written                    {written / seconds / 1000:6.1f} kB/s")
    print(f"  memory                     {memory:6.0f} MiB")


def read(master: int, seconds: float) -> int:
    written, end = 0, time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        ready, _, _ = select.select([master], [], [], left)
        if ready:
            try:
                written += len(os.read(master, 65536))
            except OSError:
                break
    return written


def cpu_of(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=10_000)
    parser.add_argument("--ticks", type=int, default=10, help="seconds of lines to fold")
    parser.add_argument("--screen", action="store_true", help="run the real screen as well")
    options = parser.parse_args()
    measure(options.devices, max(2, options.ticks))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"  {peak:.0f} MiB at the most, the prepared lines among them")
    if options.screen:
        measure_screen(options.devices, 15.0)


if __name__ == "__main__":
    main()
