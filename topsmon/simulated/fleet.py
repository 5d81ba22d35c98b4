"""Many invented hosts that train together: "nodes=1250,gpus=8,fault=straggler:node17:3,seed=1".

All values follow from the plan and the time since its start, so that two runs of a plan tell the
same. Nodes of a job wait for their slowest GPU, as synchronous training does.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec

from topsmon import __version__, events
from topsmon.ceilings import for_device
from topsmon.simulated.values import SimulationError

PREFIX = "nodes="
FaultKind = Literal["straggler", "hot", "lost", "ecc", "gone"]
FAULT_KINDS: tuple[FaultKind, ...] = ("straggler", "hot", "lost", "ecc", "gone")
KEYS = ("nodes", "gpus", "fault", "seed")
MAX_NODES, MAX_GPUS = 20_000, 16
LOST_SECONDS, GONE_SECONDS = 3.0, 10.0
"""When a GPU falls off the bus and when a host goes silent, from the start."""
JOB_NODES = 16
"""Neighbours that train together."""
RATE_SECONDS, RUN_SECONDS = 30.0, 5.0
"""Times between two measured rates of a GPU and between two reports of a run."""
GIB = 2**30
BOARD = "NVIDIA H100 80GB HBM3"
CLOCK_MHZ, CAPPED_MHZ, HOT_MHZ = 1755.0, 1290.0, 1440.0
GOOD_RATE, CAPPED_RATE, HOT_RATE = 0.735e15, 0.548e15, 0.62e15
"""BF16 in ops/s: about 74 % of the rated 989 TFLOPS, as large GEMMs reach on this board."""
FLOPS_PER_STEP, STEP_SECONDS = 0.42 * 989.4e12 * 0.8, 0.8
"""A job of 42 % MFU while nobody waits."""


class Fault(NamedTuple):
    """What is wrong with a GPU, or with a whole node where `gpu` is None."""

    kind: FaultKind
    node: int
    gpu: int | None


@dataclass(frozen=True)
class FleetPlan:
    """The hosts node0 .. node(N-1); `text` is what the user wrote."""

    nodes: int
    gpus: int = 8
    faults: tuple[Fault, ...] = ()
    seed: int = 0
    text: str = ""

    def name(self, node: int) -> str:
        """A host's name."""
        return f"node{node}"

    def fault(self, node: int, gpu: int | None) -> FaultKind | None:
        """What is wrong with a GPU of a node (None: with the node itself)."""
        wanted = (node, gpu)
        return next((one.kind for one in self.faults if (one.node, one.gpu) == wanted), None)

    def pace(self, node: int, seconds: float) -> float:
        """Speed of the node's job, 1 where none of its GPUs is slow, 0 where it waits for ever."""
        job = node // JOB_NODES
        kinds = {one.kind for one in self.faults if one.node // JOB_NODES == job}
        if "lost" in kinds and seconds >= LOST_SECONDS:
            return 0.0
        slow = CAPPED_RATE if "straggler" in kinds else HOT_RATE if "hot" in kinds else GOOD_RATE
        return slow / GOOD_RATE

    def silent(self, node: int, seconds: float) -> bool:
        """True once a host says nothing any more."""
        return self.fault(node, None) == "gone" and seconds >= GONE_SECONDS


def parse(text: str) -> FleetPlan:
    """Read a plan. SimulationError names what is wrong with it."""
    numbers: dict[str, int] = {}
    faults: list[tuple[str, str]] = []
    for part in text.split(","):
        key, separator, value = part.strip().partition("=")
        if not separator or key not in KEYS:
            raise SimulationError(
                f"--simulate {text}: {part!r} is not KEY=VALUE with a KEY of {', '.join(KEYS)}"
            )
        if key == "fault":
            faults.append((part, value))
        elif not value.isascii() or not value.isdigit():
            raise SimulationError(f"--simulate {text}: {part!r} needs a whole number")
        elif key in numbers:
            raise SimulationError(f"--simulate {text}: {key} is given twice")
        else:
            numbers[key] = int(value[:10])
    nodes, gpus = numbers.get("nodes", 0), numbers.get("gpus", 8)
    if not 1 <= nodes <= MAX_NODES:
        raise SimulationError(f"--simulate {text}: nodes must be 1 to {MAX_NODES}")
    if not 1 <= gpus <= MAX_GPUS:
        raise SimulationError(f"--simulate {text}: gpus must be 1 to {MAX_GPUS}")
    plan = FleetPlan(nodes, gpus, seed=numbers.get("seed", 0), text=text)
    found = tuple(_fault(plan, part, value) for part, value in faults)
    return FleetPlan(nodes, gpus, found, plan.seed, text)


def _fault(plan: FleetPlan, part: str, value: str) -> Fault:
    wrong = (
        f"--simulate {plan.text}: {part!r}: write KIND:nodeN:GPU with a KIND of "
        f"{', '.join(FAULT_KINDS[:-1])}, or gone:nodeN"
    )
    kind, *where = value.split(":")
    known = next((one for one in FAULT_KINDS if one == kind), None)
    if known is None or len(where) != (1 if kind == "gone" else 2):
        raise SimulationError(wrong)
    digits = where[0].removeprefix("node"), *where[1:]
    if not all(text.isascii() and text.isdigit() and len(text) < 10 for text in digits):
        raise SimulationError(wrong)
    node, *gpu = map(int, digits)
    if node >= plan.nodes or (gpu and gpu[0] >= plan.gpus):
        last = f"the last is node{plan.nodes - 1}, GPU {plan.gpus - 1}"
        raise SimulationError(f"--simulate {plan.text}: {part!r}: there is no such GPU; {last}")
    return Fault(known, node, gpu[0] if gpu else None)


_FOUND: dict[str, events.Ceilings] = {}


def _ceilings(device: events.Device) -> events.Ceilings:
    """The ceilings of a board, looked up once and then given to all its equals."""
    found = _FOUND.get(device.name)
    if found is None:
        found = _FOUND[device.name] = for_device(device)
    return msgspec.structs.replace(
        found,
        time=device.time,
        monotonic=device.monotonic,
        source=device.source,
        device=device.device,
    )


class Stamp(NamedTuple):
    """The clocks of a moment: epoch time and monotonic time in s."""

    wall: float
    monotonic: float


class SimulatedHost:
    """One host of a plan: its events at a time since the plan's start."""

    def __init__(self, plan: FleetPlan, node: int) -> None:
        self.plan, self.node, self.name = plan, node, plan.name(node)
        chance = random.Random(f"{plan.seed}/{node}")  # noqa: S311  invented readings
        self._phases = [chance.random() for _ in range(plan.gpus)]
        self._keys = [f"GPU-{plan.seed:04x}{node:06x}{gpu:02x}" for gpu in range(plan.gpus)]
        self._faults = [plan.fault(node, gpu) for gpu in range(plan.gpus)]
        self._told_lost: set[int] = set()
        self._rated: dict[int, int] = {}
        self._reported = -1

    def begin(self, stamp: Stamp) -> Iterator[events.AnyEvent]:
        """What is told once: who speaks, the devices, their ceilings, the run on each."""
        yield events.Hello(
            time=stamp.wall,
            monotonic=stamp.monotonic,
            source=self.name,
            version=__version__,
            schema=events.SCHEMA_VERSION,
            role="poller",
            pid=1,
            simulated=self.plan.text,
        )
        yield events.Host(
            time=stamp.wall,
            monotonic=stamp.monotonic,
            source=self.name,
            hostname=self.name,
            system="simulated",
            cpu_name="simulated CPU",
            memory_total_bytes=2048 * GIB,
            driver_version="580.95.05",
            cuda_version="13.0",
        )
        for gpu, key in enumerate(self._keys):
            device = self._device(stamp, gpu, key)
            yield device
            yield _ceilings(device)
            yield self._run(stamp, gpu, key)
            yield events.Processes(
                time=stamp.wall,
                monotonic=stamp.monotonic,
                source=f"{self.name}/{key}",
                device=key,
                entries=None,
                reason="simulated fleet: it plays no processes",
            )

    def _device(self, stamp: Stamp, gpu: int, key: str) -> events.Device:
        return events.Device(
            time=stamp.wall,
            monotonic=stamp.monotonic,
            source=f"{self.name}/{key}",
            device=key,
            kind="gpu",
            index=gpu,
            name=BOARD,
            uuid=key,
            pci_bus_id=f"00000000:{0x17 + 0x10 * gpu & 0xFF:02X}:00.0",
            pci_device_id="233010DE",
            compute_capability="9.0",
            architecture="Hopper",
            sm_count=132,
            memory_total_bytes=80 * GIB,
            memory_bus_bits=5120,
            sm_clock_max_mhz=1980,
            memory_clock_max_mhz=2619,
            power_limit_default_watts=700.0,
            power_limit_max_watts=700.0,
            temperature_slowdown_celsius=87,
        )

    def _run(self, stamp: Stamp, gpu: int, key: str) -> events.Run:
        job = self.node // JOB_NODES
        rank = (self.node % JOB_NODES) * self.plan.gpus + gpu
        return events.Run(
            time=stamp.wall,
            monotonic=stamp.monotonic,
            source=self.name,
            run=f"job{job}-rank{rank}",
            pid=1000 + gpu,
            hostname=self.name,
            started=stamp.wall,
            command=f"python train.py --job {job}",
            rank=rank,
            local_rank=gpu,
            world_size=min(JOB_NODES, self.plan.nodes - job * JOB_NODES) * self.plan.gpus,
            launch=f"job{job}",
            entry="run",
            torch_device=f"cuda:{gpu}",
            device_uuid=key,
            transformer=True,
            parameter_types={"torch.bfloat16": 70_000_000_000},
            flops_per_step=FLOPS_PER_STEP,
            flops_source="given",
        )

    def tick(self, seconds: float, stamp: Stamp) -> Iterator[events.AnyEvent]:
        """What is told at a time since the plan's start."""
        if self.plan.silent(self.node, seconds):
            return
        pace = self.plan.pace(self.node, seconds)
        yield events.HostSample(
            time=stamp.wall,
            monotonic=stamp.monotonic,
            source=self.name,
            cpu_busy_ratio=0.22 + 0.04 * math.sin(seconds / 7 + self._phases[0] * 6),
            memory_used_bytes=int(612 * GIB),
        )
        for gpu, key in enumerate(self._keys):
            fault = self._faults[gpu]
            if fault == "lost" and seconds >= LOST_SECONDS:
                if gpu not in self._told_lost:
                    self._told_lost.add(gpu)
                    yield from self._fall_off(key, stamp)
                continue
            yield self._sample(gpu, key, seconds, stamp)
            if fault == "ecc" and gpu not in self._told_lost:
                self._told_lost.add(gpu)
                yield self._xid(key, stamp, 48)
            number = int(seconds / RATE_SECONDS + self._phases[gpu])
            if self._rated.get(gpu) != number:
                self._rated[gpu] = number
                yield self._rate(gpu, key, stamp)
        if int(seconds / RUN_SECONDS) != self._reported:
            self._reported = int(seconds / RUN_SECONDS)
            for gpu in range(self.plan.gpus):
                if pace > 0:
                    yield self._run_sample(gpu, seconds, pace, stamp)

    def _fall_off(self, key: str, stamp: Stamp) -> Iterator[events.AnyEvent]:
        yield self._xid(key, stamp, 79)
        yield events.DeviceStatus(
            time=stamp.wall,
            monotonic=stamp.monotonic,
            source=f"{self.name}/{key}",
            device=key,
            condition="lost",
            detail="GPU is lost",
            since=stamp.monotonic,
        )

    def _xid(self, key: str, stamp: Stamp, code: int) -> events.Xid:
        return events.Xid(
            time=stamp.wall,
            monotonic=stamp.monotonic,
            source=f"{self.name}/{key}",
            device=key,
            code=code,
        )

    def _sample(self, gpu: int, key: str, seconds: float, stamp: Stamp) -> events.DeviceSample:
        phase, fault, pace = (
            self._phases[gpu],
            self._faults[gpu],
            self.plan.pace(self.node, seconds),
        )
        swing = math.sin(seconds / 3.1 + phase * 2 * math.pi)
        straggles, hot = fault == "straggler", fault == "hot"
        slow = straggles or hot
        # Who waits for a slower one waits in a collective: busy, but at less power.
        busy = 0.975 + 0.02 * swing if pace > 0 else 1.0
        clock = CAPPED_MHZ if straggles else HOT_MHZ if hot else CLOCK_MHZ + 15 * round(2 * swing)
        power = 500.0 if straggles else (300.0 + 350.0 * (1.0 if slow else pace)) + 12 * swing
        heat = 88.0 if hot else 52.0 + 12.0 * phase + (power - 300.0) / 60.0
        return events.DeviceSample(
            time=stamp.wall,
            monotonic=stamp.monotonic,
            source=f"{self.name}/{key}",
            device=key,
            busy_ratio=busy,
            memory_busy_ratio=0.46 + 0.03 * swing,
            memory_used_bytes=int((66.0 + 4.0 * phase) * GIB),
            memory_reserved_bytes=GIB // 2,
            memory_total_bytes=80 * GIB,
            sm_clock_mhz=clock,
            memory_clock_mhz=2619.0,
            power_watts=power,
            power_limit_watts=500.0 if straggles else 700.0,
            power_limit_default_watts=700.0,
            temperature_celsius=round(heat),
            memory_temperature_celsius=round(heat) + 12,
            performance_state=0,
            clock_event_mask=0x4 if straggles else 0x20 if hot else 0,
            pcie_generation=5,
            pcie_generation_max=5,
            pcie_width=16,
            pcie_width_max=16,
            ecc_enabled=True,
            ecc_uncorrected_volatile=3 if fault == "ecc" else 0,
            ecc_uncorrected_aggregate=3 if fault == "ecc" else 0,
            ecc_corrected_volatile=0,
            row_remap_pending=fault == "ecc",
            row_remap_failed=False,
        )

    def _rate(self, gpu: int, key: str, stamp: Stamp) -> events.RateMeasured:
        fault, phase = self._faults[gpu], self._phases[gpu]
        straggles, hot = fault == "straggler", fault == "hot"
        base = CAPPED_RATE if straggles else HOT_RATE if hot else GOOD_RATE
        return events.RateMeasured(
            time=stamp.wall,
            monotonic=stamp.monotonic,
            source=f"{self.name}/{key}",
            device=key,
            precision="bf16",
            rate_ops_per_second=base * (0.985 + 0.03 * phase),
            calls=40,
            shape=(8192, 8192, 8192),
            correct=True,
            held_clock_mhz=CAPPED_MHZ if straggles else HOT_MHZ if hot else CLOCK_MHZ,
            clock_event_mask=0x4 if straggles else 0x20 if hot else 0,
            power_watts=500.0 if straggles else 655.0,
            method="simulated",
        )

    def _run_sample(self, gpu: int, seconds: float, pace: float, stamp: Stamp) -> events.RunSample:
        step_seconds = STEP_SECONDS / pace
        steps = 1000 + int(seconds / step_seconds)
        rank = (self.node % JOB_NODES) * self.plan.gpus + gpu
        return events.RunSample(
            time=stamp.wall,
            monotonic=stamp.monotonic,
            source=self.name,
            run=f"job{self.node // JOB_NODES}-rank{rank}",
            step=steps,
            stepped_at=stamp.wall,
            loss=1.8 + 0.4 * math.exp(-steps / 4000),
            loss_finite=True,
            window=events.RunWindow(
                steps=100,
                seconds=100 * step_seconds,
                step_seconds=step_seconds,
                mean_step_seconds=step_seconds,
            ),
            totals=events.RunTotals(steps=steps),
        )
