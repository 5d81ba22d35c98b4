"""Everything that is known now as Prometheus metrics.

Base units; identity only in the `_info` metrics; nothing that was not measured has a series. A
scrape reads what the session already holds: it never calls a driver and never starts a benchmark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from prometheus_client.core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from topsmon import __version__, events
from topsmon.exporters.check_file import CheckFile, add_checks
from topsmon.exporters.device_metrics import add_devices, device_labels
from topsmon.exporters.families import Families
from topsmon.exporters.own_cost import add_cost
from topsmon.exporters.run_metrics import Slots, add_runs
from topsmon.exporters.tally import Tally
from topsmon.state import State

POLLER = "poller"


@dataclass
class Exported:
    """What metrics are made of. `children` tells the PIDs of topsmon's own children."""

    state: State
    findings: Callable[[], Iterable[events.Finding]] = tuple
    tally: Tally = field(default_factory=Tally)
    slots: Slots = field(default_factory=Slots)
    checks: CheckFile | None = None
    children: Callable[[], Sequence[int]] = tuple


def families(exported: Exported, now: float) -> list[Metric]:
    """All metric families. `now` is this process's monotonic clock, in seconds."""
    made = Families()
    state = exported.state
    _add_host(made, state)
    add_devices(made, state, exported.tally, now)
    _add_findings(made, state, exported.findings())
    add_runs(made, state, exported.slots, now)
    if exported.checks is not None:
        add_checks(made, exported.checks)
    _add_poller(made, state)
    add_cost(made, exported.children())
    return list(made)


def registry_of(read: Callable[[], Iterable[Metric]]) -> CollectorRegistry:
    """A registry with nothing in it but what `read` returns at each scrape."""

    class _Reading(Collector):
        def collect(self) -> Iterable[Metric]:
            return read()

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Reading())
    return registry


def _add_host(made: Families, state: State) -> None:
    host, sample = state.host, state.host_sample
    made.info("build", "Version of topsmon.", {"version": __version__})
    if host is not None:
        made.info(
            "host",
            "Identity of the machine and its driver.",
            {
                "hostname": host.hostname,
                "system": host.system,
                "cpu": host.cpu_name,
                "driver_version": host.driver_version,
                "cuda_version": host.cuda_version,
                "container": "true" if host.container else "false",
                "simulated": state.simulated,
            },
        )
        text = "Memory of the machine."
        made.gauge("host_memory_total_bytes", text, {}, host.memory_total_bytes)
    if sample is not None:
        text = "Share of busy time of all CPUs of the machine."
        made.gauge("host_cpu_busy_ratio", text, {}, sample.cpu_busy_ratio)
        text = "Memory of the machine in use."
        made.gauge("host_memory_used_bytes", text, {}, sample.memory_used_bytes)
        text = "Load of the machine, mean of one minute."
        made.gauge("host_load1", text, {}, sample.load_1_minute)


def _add_findings(made: Families, state: State, findings: Iterable[events.Finding]) -> None:
    for finding in findings:
        device = state.devices.get(finding.device or "")
        run = state.runs.get(finding.run or "")
        if run is not None and run.ended:
            continue  # told elsewhere; nothing to alert on any more
        if device is None and run is not None:
            device = state.device_of(run)
        made.gauge(
            "finding_active",
            "1: topsmon has found this now.",
            {
                "code": finding.code,
                "severity": finding.severity,
                **(device_labels(device) if device is not None else {}),
            },
            1,
        )


def _add_poller(made: Families, state: State) -> None:
    poller = state.workers.get(POLLER)
    if poller is None:
        return
    text = "1: the process that reads the devices runs."
    made.gauge("poller_up", text, {}, poller.condition in {"running", "paused"})
    text = "How often the process that reads the devices had to be started again."
    made.counter("poller_restarts", text, {}, poller.restarts)
