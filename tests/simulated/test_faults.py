"""What goes wrong on purpose: error codes, hangs, crashes, missing calls, live changes."""

import json
import signal
import time
from pathlib import Path

import pynvml as nvml
import pytest

from topsmon.simulated import load, table

TWO = {
    "title": "t",
    "description": "d",
    "expected": "ok",
    "count": 2,
    "device": {"name": "Test", "power_watts": {"each": [100, 50]}, "busy_percent": 7,
               "memory_busy_percent": 3, "temperature_celsius": 40},
}  # fmt: skip
READ = (
    "def read(i, f=n.nvmlDeviceGetPowerUsage):\n"
    "    try: return f(n.nvmlDeviceGetHandleByIndex(i))\n"
    "    except n.NVMLError as e: return -e.value\n"
)


def given(*faults: dict) -> dict:
    return {**TWO, "faults": list(faults)}


def test_a_return_code_hits_one_call_of_one_device(simulate) -> None:
    simulation = simulate(
        given({"call": "nvmlDeviceGetPowerUsage", "device": 1, "return": "NoPermission"})
    )
    code = READ + "n.nvmlInit(); r = [read(0), read(1), read(1, n.nvmlDeviceGetName)]"
    assert simulation.result(code) == [100_000, -4, "Test"]


@pytest.mark.parametrize("code", [2, 3, 4, 6, 10, 15, 16, 999])
def test_every_return_code_reaches_python(simulate, code: int) -> None:
    simulation = simulate(given({"call": "nvmlDeviceGetPowerUsage", "return": code}))
    assert simulation.result(READ + "n.nvmlInit(); r = read(0)") == -code


def test_a_fault_starts_and_ends_with_scenario_time(simulate) -> None:
    simulation = simulate(
        given({"call": "nvmlDevice*", "device": 0, "return": "GpuIsLost", "start": 8, "end": 16})
    )
    code = READ + "n.nvmlInit(); r = [read(0), read(1)]"
    results = []
    for seconds in (7.99, 8, 15.99, 16):
        simulation.clock(seconds)
        results.append(simulation.result(code))
    assert results == [[100_000, 150_000], [-15, 150_000], [-15, 150_000], [100_000, 150_000]]


def test_a_lost_gpu_loses_its_handle_by_every_way(simulate) -> None:
    simulation = simulate("gpu-lost", seconds=9)
    uuid = load("gpu-lost").devices[2].texts["uuid"]
    code = (
        "n.nvmlInit(); r = [n.nvmlDeviceGetCount()]\n"
        "for f, a in ((n.nvmlDeviceGetHandleByIndex, 2),\n"
        f"             (n.nvmlDeviceGetHandleByUUID, {uuid!r}),\n"
        "             (n.nvmlDeviceGetHandleByPciBusId, '0000:3B:00.0'),\n"
        "             (n.nvmlDeviceGetHandleByPciBusId, '00000000:4b:00.0'),\n"
        "             (n.nvmlDeviceGetHandleByUUID, 'GPU-nonesuch'),\n"
        "             (n.nvmlDeviceGetHandleByIndex, 4)):\n"
        "    try: r.append(n.nvmlDeviceGetIndex(f(a)))\n"
        "    except n.NVMLError as e: r.append(-e.value)"
    )
    assert simulation.result(code) == [4, -15, -15, -15, 3, -6, -2]


def test_a_fault_starts_and_heals_by_number_of_calls(simulate) -> None:
    simulation = simulate(
        given({"call": "nvmlDeviceGetPowerUsage", "return": "Unknown", "after": 2, "count": 3})
    )
    code = READ + "n.nvmlInit(); r = [read(0) for _ in range(7)]"
    assert simulation.result(code) == [100_000, 100_000, -999, -999, -999, 100_000, 100_000]


def test_one_field_of_a_batch_fails_alone(simulate) -> None:
    content = given({"call": "field:186", "return": "Unknown"})
    content["device"] = {**content["device"], "power_average_watts": 90, "power_instant_watts": 95}
    code = (
        "n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0)\n"
        "r = [[v.nvmlReturn, v.value.uiVal] for v in n.nvmlDeviceGetFieldValues(h, [185, 186])]"
    )
    assert simulate(content).result(code) == [[0, 90_000], [999, 0]]


def test_latency_is_waited_for(simulate) -> None:
    simulation = simulate(given({"call": "nvmlDeviceGetPowerUsage", "latency": 0.05}))
    code = (
        "import time\nn.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0)\n"
        "t = time.monotonic(); n.nvmlDeviceGetPowerUsage(h); r = time.monotonic() - t"
    )
    assert simulation.result(code) >= 0.05


def test_a_hang_stops_its_own_thread_alone(simulate) -> None:
    """With a daemon thread a device, the other device answers and the process ends at once."""
    simulation = simulate("hang", seconds=6)
    code = (
        "import threading, time\n"
        "n.nvmlInit(); r = {}\n"
        "def poll(i):\n"
        "    r[i] = n.nvmlDeviceGetUtilizationRates(n.nvmlDeviceGetHandleByIndex(i)).gpu\n"
        "threads = [threading.Thread(target=poll, args=(i,), daemon=True) for i in range(4)]\n"
        "[t.start() for t in threads]\n"
        "[t.join(2) for t in threads if t is not threads[1]]\n"
        "r = [sorted(r), threads[1].is_alive()]"
    )
    assert simulation.result(code) == [[0, 2, 3], True]


def test_a_fault_may_strike_every_so_many_calls(simulate) -> None:
    fault = {"call": "nvmlDeviceGetPowerUsage", "return": "Unknown"}
    simulation = simulate(given({**fault, "after": 1, "every": 3, "count": 2}))
    code = READ + "n.nvmlInit(); r = [read(0) < 0 for _ in range(9)]"
    assert simulation.result(code) == [False, True, False, False, True, *[False] * 4]


def test_a_hang_of_some_seconds_ends(simulate) -> None:
    simulation = simulate(given({"call": "nvmlDeviceGetPowerUsage", "hang": 0.1}))
    assert simulation.result(READ + "n.nvmlInit(); r = read(1)") == 150_000


def test_a_crash_kills_the_process_as_a_driver_bug_would(simulate) -> None:
    simulation = simulate("crash", seconds=5)
    code = "n.nvmlInit(); n.nvmlDeviceGetUtilizationRates(n.nvmlDeviceGetHandleByIndex(0))"
    assert simulation.run(code).returncode == 0
    simulation.clock(6)
    assert simulation.run(code).returncode == -signal.SIGSEGV


def test_a_null_handle_used_is_a_segmentation_fault(simulate) -> None:
    simulation = simulate(
        given({"call": "nvmlDeviceGetHandleByIndex_v2", "device": 1, "null_handle": True})
    )
    code = "n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(1); assert not h\n"
    assert simulation.run(code).returncode == 0
    assert simulation.run(code + "n.nvmlDeviceGetPowerUsage(h)").returncode == -signal.SIGSEGV


def test_a_handle_that_failed_is_null(simulate) -> None:
    simulation = simulate("gpu-lost-at-start")
    code = (
        "n.nvmlInit(); h = n.c_nvmlDevice_t()\n"
        "r = [n.nvmlLib.nvmlDeviceGetHandleByIndex_v2(1, n.byref(h)), bool(h)]"
    )
    assert simulation.result(code) == [15, False]


def test_nothing_answers_before_init_or_after_shutdown(simulate) -> None:
    simulation = simulate(TWO)
    code = (
        "n.nvmlInit(); n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0); r = []\n"
        "for _ in range(2):\n"
        "    n.nvmlShutdown()\n"
        "    try: r.append(n.nvmlDeviceGetPowerUsage(h))\n"
        "    except n.NVMLError as e: r.append(-e.value)"
    )
    assert simulation.result(code) == [100_000, -1]


def real_symbols(release: int) -> set[str]:
    lines = (Path(__file__).parent / f"symbols-{release}.txt").read_text().splitlines()
    return {line for line in lines if not line.startswith("#")}


@pytest.mark.parametrize(
    ("name", "release"),
    [("h100-8", None), ("driver-535", 535), ("driver-470", 470)],
    ids=["580", "535", "470"],
)
def test_old_drivers_have_the_calls_that_the_real_ones_have(
    simulate, name: str, release: int | None
) -> None:
    every = table.exported_calls()
    code = f"n.nvmlInit(); r = [c for c in {sorted(every)!r} if hasattr(n.nvmlLib, c)]"
    known = every if release is None else every & real_symbols(release)
    assert set(simulate(name).result(code)) == known
    assert release is None or len(known) < len(every)


def test_exported_calls_exist_in_the_wrapper() -> None:
    """A misspelt export would never be called; the wrapper names every call it makes."""
    wrapper = Path(nvml.__file__).read_text()
    # Init_v2 is for other clients.
    for call in table.exported_calls() - {"nvmlInit_v2"}:
        assert f'"{call}"' in wrapper or f"def {call}(" in wrapper, call


def test_a_call_that_470_lacks_is_function_not_found(simulate) -> None:
    device = simulate("driver-470").read()["devices"][1]
    assert device["TemperatureV"] == device["Memory"] == device["NumGpuCores"] == {"error": 13}
    assert device["Compute"] == {"error": "mismatch"}
    assert device["ComputeV2"] == []
    assert device["Temperature"] == 62
    # before driver 510 reserved memory is not counted as used
    assert device["MemoryV1"]["used"] == 11610 << 20


def test_a_process_whose_memory_is_unknown_has_none(simulate) -> None:
    content = given()
    content["device"] = {**content["device"], "processes": [{"pid": 77}]}
    assert simulate(content).read()["devices"][0]["Compute"][0][:2] == [77, None]


def test_the_table_may_change_while_it_is_read(simulate) -> None:
    simulation = simulate(TWO)
    child = simulation.start(
        "-c",
        "import sys, pynvml as n\n"
        "n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(1)\n"
        "for _ in sys.stdin:\n"
        "    try: print(n.nvmlDeviceGetPowerUsage(h), flush=True)\n"
        "    except n.NVMLError as e: print(-e.value, flush=True)",
    )

    def ask() -> int:
        assert child.stdin
        assert child.stdout
        child.stdin.write(b"\n")
        child.stdin.flush()
        return int(child.stdout.readline())

    answers = [ask()]
    simulation.change(given({"call": "nvmlDeviceGetPowerUsage", "return": "GpuIsLost"}))
    answers.append(ask())
    simulation.change({**TWO, "device": {"power_watts": 42}})
    answers.append(ask())
    simulation.change({**TWO, "device": {"name": "Test"}})
    answers.append(ask())
    assert answers == [150_000, -15, 42_000, -3]


def test_without_a_clock_file_time_runs_from_the_start(simulate) -> None:
    simulation = simulate({**TWO, "device": {"power_watts": {"count": [0, 1]}}}, seconds=None)
    simulation.environment["TOPSMON_SIMULATED_START"] = repr(time.monotonic() - 1000)
    assert 1000_000 <= simulation.result(READ + "n.nvmlInit(); r = read(0)") < 1020_000


def test_calls_are_logged_with_device_and_time(simulate) -> None:
    simulation = simulate(TWO, seconds=3.5)
    simulation.result(READ + "n.nvmlInit(); r = [read(1), n.nvmlDeviceGetCount()]")
    assert simulation.log() == [
        ["3.500000", "nvmlInitWithFlags", "-1"],
        ["3.500000", "nvmlDeviceGetHandleByIndex_v2", "1"],
        ["3.500000", "nvmlDeviceGetPowerUsage", "1"],
        ["3.500000", "nvmlDeviceGetCount_v2", "-1"],
    ]


def test_many_threads_read_while_the_table_changes(simulate) -> None:
    simulation = simulate(TWO)
    child = simulation.start(
        "-c",
        "import json, threading, time, pynvml as n\n"
        "n.nvmlInit(); seen = set(); stop = time.monotonic() + 0.4\n"
        "def poll(i):\n"
        "    h = n.nvmlDeviceGetHandleByIndex(i)\n"
        "    while time.monotonic() < stop: seen.add(n.nvmlDeviceGetPowerUsage(h))\n"
        "threads = [threading.Thread(target=poll, args=(i % 2,)) for i in range(6)]\n"
        "[t.start() for t in threads]; print('go', flush=True); [t.join() for t in threads]\n"
        "print(json.dumps(sorted(seen)))",
    )
    assert child.stdout
    child.stdout.readline()
    contents = [{**TWO, "device": {"power_watts": watts}} for watts in (1, 2)]
    while child.poll() is None:
        for content in contents:
            simulation.change(content)
    assert child.returncode == 0
    assert set(json.loads(child.stdout.read())) <= {1000, 2000, 100_000, 150_000}
