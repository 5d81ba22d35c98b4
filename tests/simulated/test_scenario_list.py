"""What can go wrong with drivers, boards and hosts: each case has its scenario."""

import pytest

from topsmon.simulated import SCENARIOS, load

CASES = {
    1: ("no library", "no-library"),
    2: ("driver not loaded", "no-driver"),
    3: ("library and kernel module differ", "mismatch"),
    4: ("Unknown at init in a container", "container-lost"),
    5: ("init OK, 0 GPUs", "zero-devices"),
    6: ("H100 idle", "idle"),
    7: ("H100 under full GEMM, SwPowerCap", "full-load"),
    8: ("8 x H100, one thermal", "thermal"),
    9: ("A100, no GPM", "a100"),
    10: ("RTX 4090: no ECC, no NVLink", "rtx4090"),
    11: ("laptop GPU, power limit not supported", "laptop"),
    12: ("GB10, memory not supported", "gb10"),
    13: ("GB10, memory SUCCESS with total 0", "gb10-zero"),
    14: ("Jetson, queries not supported", "jetson"),
    15: ("Jetson, SUCCESS with nonsense", "jetson-nonsense"),
    16: ("WSL2: no utilisation, no memory per process", "wsl2"),
    17: ("vGPU guest", "vgpu"),
    18: ("MIG, memory of the parent denied, 7 instances", "mig-7"),
    19: ("MIG instance removed while running", "mig-removed"),
    20: ("driver 470 symbols", "driver-470"),
    21: ("535 process struct variant", "early-535"),
    22: ("GPU lost at start (handle fails)", "gpu-lost-at-start"),
    23: ("GPU lost in mid-run, heals", "gpu-lost-heals"),
    24: ("one call hangs", "hang"),
    25: ("every call hangs", "hang-all"),
    26: ("slow driver, 50 ms per call, 8 GPUs", "slow-driver"),
    27: ("segfault in the driver library", "crash"),
    28: ("HwSlowdown blip at a P-state change", "slowdown-blip"),
    29: ("PCIe stuck at x4 under load", "pcie-narrow"),
    30: ("double-bit ECC error and pending row remap", "ecc"),
    31: ("XID 79, 94, 119 events", "xid"),
    32: ("GPM NoPermission after N samples", "gpm-denied"),
    33: ("process utilisation above 100; NotFound; NVMLError(0)", "utilisation-nonsense"),
    34: ("host PIDs absent in /proc", "host-pids"),
    35: ("process table grows between size and fill", "process-table-grows"),
    36: ("counter wrap, energy reset", "counters-wrap"),
    37: ("Unknown on power, transient", "transient"),
    38: ("non-UTF-8 name", "bad-name"),
    39: ("unknown event bits 0x200, 0x8000", "unknown-bits"),
    40: ("CUDA_VISIBLE_DEVICES in UUID and MIG form", "visible-devices visible-mig"),
    41: ("D3cold", "asleep"),
    42: ("driver reload: Uninitialized in mid-run", "driver-reload"),
}


@pytest.mark.parametrize("number", CASES)
def test_each_case_has_a_scenario(number: int) -> None:
    for name in CASES[number][1].split():
        assert name in SCENARIOS


def test_no_scenario_stands_for_two_cases() -> None:
    names = [name for _, scenarios in CASES.values() for name in scenarios.split()]
    assert len(set(names)) == len(names) == 43


def faults(name: str) -> set[str]:
    return {str(fault.code or ("hang" if fault.hang else "")) for fault in load(name).faults}


def test_scenarios_do_what_their_cases_say() -> None:
    """Those whose point lies in the file and not in what a driver call answers."""
    assert faults("driver-reload") == {"Uninitialized"}
    assert faults("container-lost") == {"Unknown"}
    assert set(load("container-lost").files) == {".dockerenv"}
    assert "CUDA_VISIBLE_DEVICES" in load("visible-mig").environment
    assert load("visible-mig").environment["CUDA_VISIBLE_DEVICES"].startswith("MIG-")
    for name in ("visible-devices", "visible-mig"):
        uuids = {device.texts["uuid"] for device in load(name).devices}
        assert set(load(name).environment["CUDA_VISIBLE_DEVICES"].split(",")) <= uuids
    assert "gpm_supported" not in load("a100").devices[0].numbers
    assert not {"ecc_mode", "nvlink_count"} & set(load("rtx4090").devices[0].numbers)
    assert "power_limit_watts" not in load("laptop").devices[0].numbers
    assert load("jetson").devices[0].numbers == {}
    assert "microsoft" in load("wsl2").files["proc/sys/kernel/osrelease"]
    assert "etc/nv_tegra_release" in load("jetson-nonsense").files
    assert "suspended\n" in load("asleep").files.values()
    assert load("unknown-bits").devices[0].numbers["clock_event_mask"] == (str(0x8200),)
