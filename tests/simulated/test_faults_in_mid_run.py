"""Faults that come while topsmon runs: said with age, cause and remedy; the rest goes on.

Every story has a driver and a session of its own, and all of them are played at the same time.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.diagnosis import diagnose
from topsmon.session import Session, SessionOptions
from topsmon.simulated.live import Live

pytestmark = pytest.mark.real

PATIENCE_SECONDS = 100.0
ESSENTIAL = (
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetMemoryInfo*",
)


@dataclass
class Scene:
    """A driver that can be changed, and what topsmon sees of it."""

    live: Live
    session: Session

    def gpu(self, index: int) -> DeviceState:
        return next(gpu for gpu in self.session.state.gpus() if gpu.identity.index == index)

    def findings(self) -> list[events.Finding]:
        found = diagnose(self.session.state, time.monotonic())
        return [one for one in found if one.device != "cpu"]

    def codes(self) -> set[str]:
        return {finding.code for finding in self.findings()}

    def finding(self, code: str) -> events.Finding:
        return next(finding for finding in self.findings() if finding.code == code)

    def sample(self, index: int) -> events.DeviceSample:
        sample = self.gpu(index).sample
        assert sample is not None
        return sample

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            found = [(one.code, one.title) for one in self.findings()]
            assert time.monotonic() < deadline, f"not in time: {what}; there is {found}"
            await asyncio.sleep(0.05)

    async def found(self, code: str) -> events.Finding:
        await self.until(lambda: code in self.codes(), code)
        return self.finding(code)

    async def settled(self) -> set[str]:
        """Wait until no sample is late, as on a machine with much else to do; return the codes."""
        await self.until(lambda: "samples-stale" not in self.codes(), "all samples fresh")
        return self.codes()

    async def fresh(self, index: int, count: int = 3) -> events.DeviceSample:
        """Wait for new samples of a GPU; return the last."""
        for _ in range(count):
            before = self.sample(index).monotonic
            await self.until(
                lambda before=before: self.sample(index).monotonic > before,
                f"a new sample of GPU {index}",
            )
        return self.sample(index)


# The stories --------------------------------------------------------------------------------------


async def the_driver_counts_one_gpu_less(scene: Scene) -> dict[str, Any]:
    scene.live.set(3, present=0)
    scene.live.fault("nvmlDevice*", device=3, code="InvalidArgument")
    lost = await scene.found("device-lost")
    others = [await scene.fresh(index, 2) for index in range(3)]
    return {"lost": lost, "others": others, "codes": await scene.settled()}


async def the_driver_is_updated(scene: Scene) -> dict[str, Any]:
    keys = [gpu.key for gpu in scene.session.state.gpus()]
    for call in ("nvmlInit*", "nvmlDevice*", "nvmlGpm*"):
        scene.live.fault(call, code="LibRmVersionMismatch")
    mismatch = await scene.found("nvml-mismatch")
    stale = await scene.found("samples-stale")
    cpu = scene.session.state.devices["cpu"]
    # The first reading of the CPU may itself be yet to come.
    await scene.until(lambda: cpu.sample is not None, "a sample of the CPU")
    before = cpu.sample.monotonic
    await scene.until(lambda: cpu.sample.monotonic > before, "a new sample of the CPU")
    rows = {gpu.key: gpu.sample is not None for gpu in scene.session.state.gpus()}
    restarted = scene.session.state.workers["poller"].restarts
    scene.live.heal()
    await scene.until(
        lambda: not scene.codes() & {"nvml-mismatch", "samples-stale"}, "the driver works again"
    )
    await scene.fresh(0, 1)
    return {
        "mismatch": mismatch, "stale": stale, "keys": keys, "rows": rows, "restarted": restarted,
        "again": [gpu.key for gpu in scene.session.state.gpus()],
    }  # fmt: skip


async def permission_is_withdrawn(scene: Scene) -> dict[str, Any]:
    for call in ESSENTIAL:
        scene.live.fault(call, device=1, code="NoPermission")
    await scene.found("permission-lost")
    # Not all of them are asked for in the same tick.
    await scene.until(lambda: scene.sample(1).memory_used_bytes is None, "memory refused too")
    return {
        "finding": scene.finding("permission-lost"), "sample": scene.sample(1),
        "other": await scene.fresh(0, 1), "codes": await scene.settled(),
    }  # fmt: skip


async def counters_go_backwards(scene: Scene) -> dict[str, Any]:
    scene.session.set_counters(False)
    await scene.until(lambda: bool(scene.sample(0).throttle_ratios), "shares of throttled time")
    rates: list[float | None] = []
    scene.session.listeners.append(
        lambda event: (
            rates.append(event.pcie_transmit_bytes_per_second)
            if isinstance(event, events.DeviceSample)
            else None
        )
    )
    scene.live.set(
        0,
        energy_joules=17,
        pcie_transmit_bytes=4,
        pcie_receive_bytes=4,
        nvlink_transmit_kib=3,
        nvlink_receive_kib=3,
        throttle_power_seconds=0.5,
        pcie_replays=0,
    )
    await scene.until(lambda: scene.sample(0).energy_joules == 17, "the new count")
    await scene.fresh(0, 8)
    return {"rates": rates, "codes": await scene.settled(), "sample": scene.sample(0)}


async def time_stamps_jump(scene: Scene) -> dict[str, Any]:
    scene.live.set(timestamp_offset_seconds=86400)
    await scene.fresh(0, 4)
    scene.live.set(timestamp_offset_seconds=0)
    sample = await scene.fresh(0, 4)
    return {"sample": sample, "codes": await scene.settled()}


async def values_leave_their_range(scene: Scene) -> dict[str, Any]:
    scene.live.set(
        0,
        busy_percent=4294967295,
        power_watts=4000000,
        temperature_celsius=2147483632,
        memory_used_mib=1e12,
    )
    await scene.until(lambda: scene.sample(0).temperature_celsius is None, "no temperature")
    await scene.until(lambda: scene.sample(0).memory_used_bytes is None, "no memory")
    bad = scene.sample(0)
    scene.live.set(
        0, busy_percent=50, power_watts=333, temperature_celsius=44, memory_used_mib=2048
    )
    await scene.until(lambda: scene.sample(0).temperature_celsius == 44, "a temperature again")
    await scene.until(lambda: scene.sample(0).memory_used_bytes == 2 << 30, "memory again")
    return {"bad": bad, "good": scene.sample(0), "codes": await scene.settled()}


STORIES: dict[Callable[[Scene], Awaitable[dict[str, Any]]], int] = {
    the_driver_counts_one_gpu_less: 4,
    the_driver_is_updated: 2,
    permission_is_withdrawn: 2,
    counters_go_backwards: 1,
    time_stamps_jump: 1,
    values_leave_their_range: 1,
}
"""Each with its number of GPUs."""


async def play(
    story: Callable[[Scene], Awaitable[dict[str, Any]]], builds: Path, folder: Path
) -> Any:
    count = STORIES[story]
    path = folder / f"{story.__name__}.json"
    path.write_text(
        '{"title": "t", "description": "d", "expected": "ok", "extends": "h100-8",'
        f' "count": {count}}}'
    )
    live = Live(str(path), builds, folder / story.__name__, seconds=None)
    session = Session(
        SessionOptions(
            interval=0.2, simulated=str(path), environment=live.environment, benchmarks=False
        )
    )
    scene = Scene(live, session)
    await session.start()
    try:
        await scene.until(
            lambda: sum(gpu.sample is not None for gpu in session.state.gpus()) == count,
            "a sample of every GPU",
        )
        return await story(scene)
    finally:
        await session.stop()


@pytest.fixture(scope="module")
def played(builds: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("stories")

    async def all_of_them() -> dict[str, Any]:
        told = await asyncio.gather(
            *(play(story, builds, folder) for story in STORIES), return_exceptions=True
        )
        return dict(zip((story.__name__ for story in STORIES), told, strict=True))

    return asyncio.run(all_of_them())


def outcome(played: dict[str, Any], story: Callable[..., Any]) -> dict[str, Any]:
    found = played[story.__name__]
    if isinstance(found, BaseException):
        raise found
    return found


# What was said ------------------------------------------------------------------------------------


def test_a_gpu_that_left_is_lost_and_the_others_go_on(played: dict[str, Any]) -> None:
    told = outcome(played, the_driver_counts_one_gpu_less)
    lost = told["lost"]
    assert (lost.severity, lost.word) == ("fail", "LOST")
    assert re.match(r"GPU 3  lost since \d\d:\d\d:\d\d: NVIDIA H100 80GB HBM3", lost.title)
    assert "the driver does not know this GPU any more" in lost.cause
    assert "reseat or power-cycle" in lost.remedy
    assert lost.command == "sudo dmesg | grep -iE 'nvrm|xid'"
    assert all(sample.power_watts > 600 for sample in told["others"])
    assert told["codes"] == {"device-lost"}


def test_an_update_under_a_running_monitor_is_named_with_its_remedy(played: dict[str, Any]) -> None:
    told = outcome(played, the_driver_is_updated)
    mismatch, stale = told["mismatch"], told["stale"]
    assert (mismatch.severity, mismatch.word) == ("fail", "FAIL")
    assert mismatch.title.startswith("Driver/library version mismatch: kernel module ")
    assert "library 580.95.05" in mismatch.title
    assert mismatch.remedy.startswith("Reboot, or reload the module")
    # The rows stay, and say how old they are.
    assert stale.word == "STALE"
    assert re.search(r"no new sample for [\d.]+ s", stale.title)
    assert told["rows"] == dict.fromkeys(told["keys"], True)
    assert told["restarted"] == 1
    # When the driver works again the same rows live on.
    assert told["again"] == told["keys"]


def test_permission_that_is_withdrawn_takes_what_it_covers_and_no_more(
    played: dict[str, Any],
) -> None:
    told = outcome(played, permission_is_withdrawn)
    finding, sample = told["finding"], told["sample"]
    assert (finding.severity, finding.word) == ("warn", "N/A")
    assert finding.title.startswith("GPU 1  no permission any more to read ")
    for words in ("busy time", "power", "clock", "memory"):
        assert words in finding.title
    assert finding.cause == "the driver refuses what it answered before"
    assert "asked again every 60 s" in finding.basis
    assert finding.remedy
    assert (sample.power_watts, sample.busy_ratio, sample.sm_clock_mhz) == (None, None, None)
    assert "NoPermission" in sample.unavailable["power_watts"]
    assert sample.temperature_celsius is not None
    assert sample.energy_joules is not None
    assert told["other"].power_watts is not None
    assert told["codes"] == {"permission-lost"}


def test_counters_that_go_backwards_make_no_rate(played: dict[str, Any]) -> None:
    told = outcome(played, counters_go_backwards)
    assert told["codes"] == set()
    rates = [rate for rate in told["rates"] if rate is not None]
    # 215,040,000 bytes a second as the scenario says, then a counter that stands still; a sample
    # that was late on a loaded machine makes one of another size, a count that wrapped 2**64 / s.
    assert all(0 <= rate < 1e12 for rate in rates)
    sample = told["sample"]
    assert sample.pcie_transmit_bytes_per_second == 0
    assert sample.nvlink_transmit_bytes_per_second == 0
    assert sample.throttle_ratios["power"] == 0
    assert sample.energy_joules == 17


def test_time_stamps_that_jump_change_nothing(played: dict[str, Any]) -> None:
    told = outcome(played, time_stamps_jump)
    assert told["codes"] == set()
    assert 0.7 < told["sample"].busy_ratio < 0.9


def test_values_out_of_range_are_no_values_until_they_make_sense_again(
    played: dict[str, Any],
) -> None:
    told = outcome(played, values_leave_their_range)
    bad, good = told["bad"], told["good"]
    for field in ("temperature_celsius", "memory_used_bytes", "power_watts", "busy_ratio"):
        assert getattr(bad, field) is None
        assert "implausible value" in bad.unavailable[field]
        assert field not in good.unavailable
    assert bad.sm_clock_mhz is not None
    assert (good.power_watts, good.busy_ratio) == (333, 0.5)
    assert told["codes"] == set()
