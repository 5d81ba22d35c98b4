"""Clock, power and reasons during a burst, from libraries that are made up or compiled here."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading

import pytest

from topsmon.probes import nvml
from topsmon.probes.nvml import Held, Link, Nvml, Reading, Sampler, held

SOURCE = """
#include <string.h>
typedef struct device *device_t;
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, device_t *device) {
    if (strcmp(uuid, "GPU-7")) return 6;
    *device = (device_t)0x123456789abcdefUL;
    return 0;
}
static int known(device_t device) { return device == (device_t)0x123456789abcdefUL; }
int nvmlDeviceGetClockInfo(device_t device, int type, unsigned *clock) {
    *clock = type == 1 ? 1755 : 9999;
    return known(device) ? 0 : 2;
}
int nvmlDeviceGetPowerUsage(device_t device, unsigned *power) {
    *power = 312500;
    return known(device) ? 0 : 2;
}
int nvmlDeviceGetTotalEnergyConsumption(device_t device, unsigned long long *energy) {
    *energy = 187443000000ULL;
    return known(device) ? 0 : 2;
}
int nvmlDeviceGetCurrPcieLinkGeneration(device_t device, unsigned *value) {
    *value = 4;
    return known(device) ? 0 : 2;
}
int nvmlDeviceGetCurrPcieLinkWidth(device_t device, unsigned *value) {
    *value = 8;
    return known(device) ? 0 : 2;
}
int nvmlDeviceGetMaxPcieLinkGeneration(device_t device, unsigned *value) {
    *value = 5;
    return known(device) ? 0 : 2;
}
int nvmlDeviceGetMaxPcieLinkWidth(device_t device, unsigned *value) {
    *value = 16;
    return known(device) ? 0 : 2;
}
#ifdef NEW
int nvmlDeviceGetCurrentClocksEventReasons(device_t device, unsigned long long *mask) {
    *mask = 0x8000000000000004ULL;
    return known(device) ? 0 : 2;
}
#endif
int nvmlDeviceGetCurrentClocksThrottleReasons(device_t device, unsigned long long *mask) {
    *mask = 0x20;
    return known(device) ? 0 : 2;
}
"""


@pytest.fixture(scope="module")
def compile_driver(tmp_path_factory):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("driver")

    def build(*options):
        source, library = folder / "nvml.c", folder / f"libnvml{len(options)}.so"
        source.write_text(SOURCE)
        subprocess.run(
            [compiler, "-shared", "-fPIC", *options, "-o", library, source], check=True, timeout=60
        )
        return ctypes.CDLL(str(library))

    return build


def test_readings_come_through_the_real_binary_interface(compile_driver):
    reading = Nvml("GPU-7", compile_driver("-DNEW")).read()
    assert reading == Reading(1755, 0x8000000000000004, 312.5)


def test_energy_and_the_link_come_through_it_too(compile_driver):
    driver = Nvml("GPU-7", compile_driver("-DNEW"))
    assert driver.energy_joules() == 187_443_000.0
    assert driver.pcie_link() == Link(4, 8, 5, 16)


def test_an_old_driver_has_the_reasons_under_their_old_name(compile_driver):
    assert Nvml("GPU-7", compile_driver()).read().event_mask == 0x20


def test_an_unknown_gpu_is_an_error_in_words(compile_driver):
    with pytest.raises(OSError, match="nvmlDeviceGetHandleByUUID answered 6"):
        Nvml("GPU-8", compile_driver())


def test_no_library_is_an_error_in_words(monkeypatch):
    monkeypatch.setattr(nvml, "LIBRARY", "libno-such-driver.so.1")
    with pytest.raises(OSError, match="libno-such-driver"):
        Nvml("GPU-7")


class Laptop:
    """A driver with few answers."""

    def __init__(self, code: int) -> None:
        self.nvmlInit_v2 = lambda: 0
        self.nvmlDeviceGetHandleByUUID = lambda uuid, handle: 0
        self.nvmlDeviceGetPowerUsage = lambda handle, value: code


def test_what_the_driver_does_not_give_is_none():
    assert Nvml("GPU-7", Laptop(3)).read() == Reading(None, None, None)


def test_no_counter_and_no_link_are_none():
    driver = Nvml("GPU-7", Laptop(3))
    assert driver.energy_joules() is None
    assert driver.pcie_link() == Link(None, None, None, None)


def test_a_burst_by_hand():
    readings = [
        Reading(1700, 0x4, 300.0),
        Reading(1800, 0x0, 320.0),
        Reading(1750, 0x20, None),
        Reading(None, None, 310.0),
        Reading(0, None, None),
    ]
    assert held(readings) == Held(1750.0, "NVML, median of the burst", 0x24, 310.0)


def test_nothing_read_is_nothing_held():
    assert held([]) == Held(None, "", None, None)
    assert held([Reading(None, 0, None)]).event_mask == 0


def test_the_sampler_looks_while_it_is_let():
    looked = threading.Event()

    def read():
        looked.set()
        return Reading(1500, 0, 200.0)

    sampler = Sampler(read)
    sampler.start()
    assert looked.wait(60)
    assert sampler.finish().clock_mhz == 1500.0


def test_a_driver_that_hangs_costs_the_reading_alone():
    release = threading.Event()

    def read():
        release.wait(30)
        return Reading(1500, 0, 200.0)

    sampler = Sampler(read)
    sampler.start()
    assert sampler.finish() == Held()
    release.set()
