"""Every shipped scenario loads, and the real nvidia-ml-py reads from it what it should."""

import re

import pytest

from topsmon import ceilings, events
from topsmon.simulated import SCENARIOS, load
from topsmon.units import PRECISIONS

WORDS = {"ok", "note", "SLOW", "HOT", "LOST", "STALE", "FAIL", "FULL", "SHARED", "N/A"}
UNKNOWN_BOARDS = {"NVIDIA FutureCard X1", "GRID A100D-40C"}
JETSON = "Orin"
MIG = ("mig", "mig-7", "mig-removed", "visible-mig")
FAILING_INIT = {
    "no-library": 12,
    "no-driver": 9,
    "mismatch": 18,
    "no-permission": 4,
    "unknown-error": 999,
    "container-lost": 999,
}
MIB = 1 << 20


def test_those_that_the_program_promises_are_there() -> None:
    promised = """h100-8 rtx4090 power-cap thermal laptop no-driver mismatch no-permission gpu-lost
        hang hang-all zero-devices unknown-board pcie-narrow memory-full shared crash mig
        driver-470 gb10 bad-name no-library"""
    assert set(promised.split()) <= set(SCENARIOS)


@pytest.mark.parametrize("name", SCENARIOS)
def test_heading_and_rates_are_complete(name: str) -> None:
    heading, scenario = SCENARIOS[name], load(name)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
    assert heading.title
    assert heading.description
    assert "\n" not in heading.description
    assert len(heading.description) < 90
    assert heading.expected in WORDS
    for rate in scenario.rates.measured.values():
        assert rate.source
    if scenario.devices and name not in ("unknown-board", "gb10", "gb10-zero", *MIG):
        told = {*scenario.rates.measured, *scenario.rates.unsupported}
        assert told == set(PRECISIONS)
    assert not set(scenario.rates.measured) & set(scenario.rates.unsupported)


def identity(device) -> events.Device:
    """A device of a scenario as the poller would describe it."""

    def whole(field: str) -> int:
        return int(device.numbers.get(field, "0")[0])

    return events.Device(
        time=0.0,
        monotonic=0.0,
        source="",
        device=device.texts["uuid"],
        kind="gpu",
        index=0,
        name=device.texts["name"],
        pci_device_id=f"{whole('pci_device_id') >> 16:04X}",
        compute_capability=(
            f"{whole('compute_capability_major')}.{whole('compute_capability_minor')}"
        ),
        sm_clock_max_mhz=whole("sm_clock_max_mhz"),
    )


@pytest.mark.parametrize("name", SCENARIOS)
def test_boards_carry_their_own_pci_id(name: str) -> None:
    """Names and PCI ids belong together, so that ceilings are found by either."""
    for device in load(name).devices:
        board_name = device.texts["name"]
        if (
            board_name in {*UNKNOWN_BOARDS, JETSON}
            or not board_name.isascii()
            or device.parent >= 0
        ):
            continue
        board = ceilings.find_board_by_name(board_name)
        assert board is not None
        pci_id = f"{int(device.numbers['pci_device_id'][0]) >> 16:04X}"
        assert pci_id in {entry.split(":")[0] for entry in board.pci_ids}


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_board_computes_faster_than_its_ceiling_at_the_held_clock(name: str) -> None:
    scenario = load(name)
    for device in scenario.devices[:1]:
        if device.texts["name"] == JETSON:
            continue
        known = ceilings.for_device(identity(device), sm_count=_sm_count(device))
        by_key = {ceiling.precision: ceiling for ceiling in known.rates}
        for key, rate in scenario.rates.measured.items():
            keys = [wanted for wanted in PRECISIONS[key].ceilings if wanted in by_key]
            if keys and not rate.emulated:
                per_clock = by_key[keys[0]].ops_per_clock
                assert per_clock is not None
                held = per_clock * scenario.rates.clock_mhz * 1e6
                assert 0.5 < rate.tera * 1e12 / held < 1.0, key


def _sm_count(device) -> int | None:
    return int(device.numbers["sm_count"][0]) if "sm_count" in device.numbers else None


def test_h100_values(simulate) -> None:
    """One device in full, against its scenario file and the public specification."""
    simulation = simulate("h100-8", seconds=0.0)
    reading = simulation.read()
    assert reading["driver"] == "580.95.05"
    assert reading["cuda"] == 13000
    assert len(reading["devices"]) == 8
    third = reading["devices"][3]
    assert third["Name"] == "NVIDIA H100 80GB HBM3"
    assert third["UUID"].startswith("GPU-")
    assert third["CudaComputeCapability"] == [9, 0]
    assert third["Architecture"] == 9
    assert third["NumGpuCores"] == 132 * 128
    assert third["MemoryBusWidth"] == 5120
    assert third["MinorNumber"] == third["Index"] == 3
    assert third["EnforcedPowerLimit"] == third["PowerManagementDefaultLimit"] == 700_000
    assert third["PowerManagementLimitConstraints"] == [200_000, 700_000]
    assert third["TotalEnergyConsumption"] == (5_123_000 + 3 * 37_000) * 1000
    assert third["MaxClocks"] == [1980, 1980, 2619, 1545]
    assert third["CustomerBoost"] == 1980
    assert third["Clocks"][2:] == [2619, 1470]
    assert 1751 <= third["Clocks"][1] <= 1759
    assert third["Temperature"] == third["TemperatureV"] == 61
    assert third["Thresholds"] == [92, 89, 95, 87]
    assert third["MarginTemperature"] == 26
    assert 86 <= third["Utilization"]["gpu"] <= 88
    assert 48 <= third["Utilization"]["memory"] <= 50
    assert third["Memory"]["total"] == 81559 * MIB
    assert third["Memory"]["reserved"] == 557 * MIB
    assert third["Memory"]["used"] == 62920 * MIB
    assert third["Memory"]["free"] == (81559 - 557 - 62920) * MIB
    assert third["MemoryV1"]["used"] == (557 + 62920) * MIB
    assert third["MemoryV1"]["free"] == third["Memory"]["free"]
    assert third["Pci"] == {
        "busId": "00000000:4B:00.0",
        "busIdLegacy": "0000:4B:00.0",
        "domain": 0,
        "bus": 0x4B,
        "device": 0,
        "pciDeviceId": 0x233010DE,
        "pciSubSystemId": 0x16C110DE,
    }
    assert third["Fields"]["82"] == 80
    assert third["Fields"]["83"] == third["TotalEnergyConsumption"]
    assert third["Fields"]["185"] == 638_000
    assert 636_000 <= third["Fields"]["186"] <= 644_000
    assert third["Fields"]["94"] == 0
    assert third["Fields"]["999"] == {"error": 2}
    assert third["CurrentClocksEventReasons"] == 0
    assert third["SupportedClocksEventReasons"] == 511
    assert third["MigMode"] == [0, 0]
    assert third["EccMode"] == [1, 1]
    assert third["PersistenceMode"] == 1
    assert third["Compute"] == third["Graphics"] == []
    assert third["Attributes"] == {"error": 3}


@pytest.mark.parametrize("name", ["h100-8", "driver-535"])
def test_no_two_devices_or_fields_can_be_mixed_up(simulate, name: str) -> None:
    devices = simulate(name, seconds=4.2).read()["devices"]
    for pick in (
        lambda d: d["UUID"],
        lambda d: d["Pci"]["busId"],
        lambda d: d["PowerUsage"] // 1000,
        lambda d: d["TotalEnergyConsumption"],
        lambda d: d["Temperature"],
        lambda d: d["Clocks"][1],
        lambda d: d["Utilization"]["gpu"],
        lambda d: d["Utilization"]["memory"],
        lambda d: d["Memory"]["used"],
        lambda d: d["Fields"]["82"],
    ):
        assert len({pick(device) for device in devices}) == len(devices)
    for device in devices:
        assert len(set(device["Thresholds"])) == 4
        assert len(set(device["Memory"].values())) == 4
        assert device["Utilization"]["gpu"] != device["Utilization"]["memory"]
        assert device["Clocks"][1] not in (device["Clocks"][2], device["Clocks"][3])
        assert device["Temperature"] != device["Fields"]["82"]


@pytest.mark.parametrize(
    "name", sorted(set(SCENARIOS) - {"hang-all", "slow-driver"} - set(FAILING_INIT))
)
def test_at_the_start_each_device_can_be_read(simulate, name: str) -> None:
    reading = simulate(name).read()
    physical = [device for device in load(name).devices if device.parent < 0]
    assert len(reading["devices"]) == len(physical)
    for index, device in enumerate(reading["devices"]):
        if name == "gpu-lost-at-start" and index == 1:
            assert device == {"error": 15}
            continue
        expected = {"error": "unicode"} if name == "bad-name" else physical[index].texts["name"]
        assert device["Name"] == expected
        told = "power_watts" in physical[index].numbers
        assert isinstance(device["PowerUsage"], int) if told else device["PowerUsage"]["error"] == 3


@pytest.mark.parametrize(("name", "code"), FAILING_INIT.items())
def test_init_fails_with_its_code(simulate, name: str, code: int) -> None:
    assert simulate(name).read() == {"error": code}


def test_version_of_the_library_is_told_after_a_failed_init(simulate) -> None:
    code = (
        "try: n.nvmlInit()\n"
        "except n.NVMLError: pass\n"
        "r = []\n"
        "for f in (n.nvmlSystemGetNVMLVersion, n.nvmlSystemGetDriverVersion):\n"
        "    try: r.append(f())\n"
        "    except n.NVMLError as e: r.append(e.value)"
    )
    assert simulate("mismatch").result(code) == ["13.580.95.05", 1]


def test_power_cap(simulate) -> None:
    devices = simulate("power-cap").read()["devices"]
    capped = devices.pop(3)
    assert capped["EnforcedPowerLimit"] == 350_000
    assert capped["PowerManagementDefaultLimit"] == 700_000
    assert capped["CurrentClocksEventReasons"] == 0x4
    assert 1151 <= capped["Clocks"][1] <= 1159
    assert capped["PowerUsage"] <= 350_000
    assert all(d["EnforcedPowerLimit"] == 700_000 for d in devices)
    assert all(d["CurrentClocksEventReasons"] == 0 for d in devices)


def test_thermal_gets_worse(simulate) -> None:
    simulation = simulate("thermal")
    early = simulation.read()["devices"]
    simulation.clock(20)
    late = simulation.read()["devices"]
    assert [d["CurrentClocksEventReasons"] for d in early] == [0, 0, 0, 0, 0, 0x20, 0, 0][:8]
    assert late[5]["CurrentClocksEventReasons"] == 0x68
    assert (early[5]["Temperature"], late[5]["Temperature"]) == (86, 91)
    assert early[5]["Clocks"][1] > 1400 > 1000 > late[5]["Clocks"][1]


def test_rtx4090_rests_and_then_boosts_above_rated(simulate) -> None:
    simulation = simulate("rtx4090")
    rest = simulation.read()["devices"][0]
    assert rest["CurrentClocksEventReasons"] == 1
    assert rest["Clocks"][1] == 210
    assert (rest["CurrPcieLinkGeneration"], rest["MaxPcieLinkGeneration"]) == (1, 4)
    assert rest["PerformanceState"] == 8
    assert rest["EccMode"] == {"error": 3}
    for seconds in (6, 8.25, 10.5, 15):
        simulation.clock(seconds)
        device = simulation.read()["devices"][0]
        assert 2745 <= device["Clocks"][1] <= 2790
        assert device["PerformanceState"] == 2
        assert device["CurrPcieLinkGeneration"] == 4
    # 21 W for 15 s and 382 W more for the last 9 s
    assert device["TotalEnergyConsumption"] == (812_000 + 21 * 15 + 382 * 9) * 1000


def test_narrow_link(simulate) -> None:
    devices = simulate("pcie-narrow").read()["devices"]
    assert [device["CurrPcieLinkWidth"] for device in devices] == [16, 4, 16, 16]
    assert [device["MaxPcieLinkWidth"] for device in devices] == [16, 16, 16, 16]


def test_laptop_lacks_what_laptops_lack(simulate) -> None:
    device = simulate("laptop").read()["devices"][0]
    absent = {name for name, value in device.items() if value == {"error": 3}}
    assert {
        "EnforcedPowerLimit",
        "PowerManagementLimit",
        "PowerManagementDefaultLimit",
        "PowerManagementLimitConstraints",
        "TotalEnergyConsumption",
        "EccMode",
        "PersistenceMode",
        "MigMode",
    } <= absent
    assert device["Fields"]["82"] == {"error": 3}
    assert 1642 <= device["Clocks"][1] <= 1658


def test_gb10_memory(simulate) -> None:
    assert simulate("gb10").read()["devices"][0]["Memory"] == {"error": 3}
    zero = simulate("gb10-zero").read()["devices"][0]["Memory"]
    assert zero == {"total": 0, "reserved": 0, "free": 0, "used": 0}


def test_shared_lists_processes_as_they_come(simulate) -> None:
    simulation = simulate("shared")
    first, second = simulation.read()["devices"]
    none = 0xFFFFFFFF
    assert first["Compute"] == [
        [4193101, 40312 * MIB, none, none],
        [4193102, 20480 * MIB, none, none],
    ]
    assert first["ComputeV2"] == first["Compute"]
    assert [process[0] for process in first["Graphics"]] == [4193103]
    assert second["Compute"] == []
    simulation.clock(10)
    assert [p[0] for p in simulation.read()["devices"][1]["Compute"]] == [4193104]


def test_mig_instances(simulate) -> None:
    simulation = simulate("mig")
    code = (
        "n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0); r = [n.nvmlDeviceGetCount()]\n"
        "for i in range(n.nvmlDeviceGetMaxMigDeviceCount(h)):\n"
        "    try: m = n.nvmlDeviceGetMigDeviceHandleByIndex(h, i)\n"
        "    except n.NVMLError as e: r.append(e.value); continue\n"
        "    parent = n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(m)\n"
        "    a = n.nvmlDeviceGetAttributes_v2(m)\n"
        "    r.append([n.nvmlDeviceGetName(m)[-8:], n.nvmlDeviceGetUUID(m)[:4],\n"
        "      a.multiprocessorCount, a.memorySizeMB, n.nvmlDeviceGetIndex(parent),\n"
        "      n.nvmlDeviceIsMigDeviceHandle(m).value, n.nvmlDeviceIsMigDeviceHandle(h).value])\n"
        "try: n.nvmlDeviceGetUtilizationRates(h)\n"
        "except n.NVMLError as e: r.append(e.value)"
    )
    assert simulation.result(code) == [
        1,
        [" 3g.40gb", "MIG-", 60, 40320, 0, 1, 0],
        [" 3g.40gb", "MIG-", 60, 40321, 0, 1, 0],
        [" 1g.10gb", "MIG-", 16, 9984, 0, 1, 0],
        6, 6, 6, 6, 3,
    ]  # fmt: skip


def test_memory_errors_are_counted_per_type_and_counter(simulate) -> None:
    read = simulate("ecc").result(
        "n.nvmlInit()\n"
        "ask, rows, kinds = n.nvmlDeviceGetTotalEccErrors, n.nvmlDeviceGetRemappedRows, (0, 1)\n"
        "boards = [n.nvmlDeviceGetHandleByIndex(i) for i in (1, 2)]\n"
        "r = [[ask(b, kind, life) for kind in kinds for life in kinds] for b in boards]\n"
        "r += [list(rows(b)) for b in boards]"
    )
    assert read == [[0, 0, 0, 0], [214, 611, 3, 5], [0, 0, 0, 0], [0, 3, 1, 0]]


def test_boards_without_ecc_do_not_support_its_counters(simulate) -> None:
    code = (
        "n.nvmlInit()\n"
        "r, board = [], n.nvmlDeviceGetHandleByIndex(0)\n"
        "for ask in (lambda: n.nvmlDeviceGetTotalEccErrors(board, 1, 0),"
        " lambda: n.nvmlDeviceGetRemappedRows(board)):\n"
        "    try: ask()\n"
        "    except n.NVMLError as error: r.append(error.value)\n"
    )
    assert simulate("rtx4090").result(code) == [3, 3]
