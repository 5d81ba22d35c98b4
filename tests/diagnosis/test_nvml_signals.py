"""Rules over NVML's further signals: each positive, negative, and the nearest false alarm."""

from typing import Any

import pytest
from machines import (
    A100,
    H100,
    NOW,
    RTX_3090,
    TRAINING,
    codes,
    gpu,
    header,
    machine,
    only,
    processes,
    sample,
    samples,
)

from topsmon import events
from topsmon.diagnosis import diagnose
from topsmon.state import State

SXM = {**H100, "name": "NVIDIA H100 80GB HBM3"}


def over_time(field: str, *values: Any, step: float = 5.0, **more: Any) -> list[events.AnyEvent]:
    """One sample every `step` seconds with the field's values, the last just before NOW."""
    last = len(values) - 1
    return [
        sample(NOW - 0.1 - step * (last - place), **{field: value, **more})
        for place, value in enumerate(values)
    ]


def found(state: State, code: str) -> events.Finding:
    matching = [one for one in diagnose(state, NOW) if one.code == code]
    assert len(matching) == 1, codes(state)
    return matching[0]


# Throttled time -----------------------------------------------------------------------------------


def throttled(share: float, reason: str = "hw_thermal", count: int = 8, **changes: Any) -> State:
    ratios = {reason: share, "power": 0.9, "sync_boost": 0.9, "board_limit": 0.9}
    return machine(gpu(), samples(count=count, throttle_ratios=ratios, **changes))


def test_time_that_is_counted_between_samples_is_a_fault() -> None:
    one = only(throttled(0.2))
    assert (one.code, one.severity, one.word) == ("thermal-slowdown", "warn", "HOT")
    assert one.evidence == ("clocks held down for 20% of the latest time",)
    assert "counters of throttled time" in one.basis
    assert only(throttled(0.2, "power_brake")).code == "power-brake"


def test_time_is_evidence_beside_the_bits() -> None:
    one = only(throttled(0.6, clock_event_mask=0x40))
    assert one.severity == "fail"
    assert one.evidence == (
        "clocks event reasons 0x40: HW thermal slowdown",
        "clocks held down for 60% of the latest time",
    )


@pytest.mark.parametrize(
    ("share", "changes"),
    [
        (0.02, {}),  # a blip at a change of the performance state
        (0.2, {"count": 3}),  # too short to say
        (0.95, {"count": 12}),  # nearly always, and no bit in twelve samples: not believed
        (0.2, {"reason": "reliability"}),  # by design
    ],
)
def test_no_fault_by_counted_time(share: float, changes: dict[str, Any]) -> None:
    assert codes(throttled(share, **changes)) == []


def test_one_long_reading_is_no_fault() -> None:
    quiet = [
        sample(NOW - 6 + turn * 0.5, throttle_ratios={"hw_thermal": 0.0}) for turn in range(11)
    ]
    blip = sample(NOW - 0.2, throttle_ratios={"hw_thermal": 1.0})
    assert codes(machine(gpu(), quiet, blip)) == []


def test_a_driver_that_counts_no_time_says_nothing() -> None:
    assert codes(machine(gpu(), samples(count=8, throttle_ratios={}))) == []


# PCIe replays -------------------------------------------------------------------------------------


def test_replays_that_rise() -> None:
    state = machine(gpu(), over_time("pcie_replays", 4000, 4175, 4350))
    one = only(state)
    assert (one.code, one.severity, one.word) == ("pcie-replays", "warn", "SLOW")
    assert one.title == "GPU 0  PCIe link sends again: 350 replays in 10 s"
    assert one.evidence == ("4350 replays since the driver was loaded", "link gen 5 x16")
    assert one.command.startswith("sudo lspci -vv -s 0000:17:00.0")


@pytest.mark.parametrize(
    "values",
    [
        (4000, 4000, 4000),  # counted before we looked
        (0, 500, 500, 500),  # once, as after a reset
        (0, 4, 8),  # 8 in the first minute: DCGM's limit is more than 8
        (None, None),
        (4000, 9, 10),  # the driver was reloaded
    ],
)
def test_no_replay_finding(values: tuple[int | None, ...]) -> None:
    assert codes(machine(gpu(), over_time("pcie_replays", *values))) == []


def test_slow_growth_over_minutes_is_within_the_limit() -> None:
    values = [10 + 7 * turn for turn in range(10)]  # 7 a minute for nine minutes
    assert codes(machine(gpu(), over_time("pcie_replays", *values, step=60.0))) == []


# NVLink -------------------------------------------------------------------------------------------


def links(up: int | None, index: int = 0, total: int | None = 18, **changes: Any) -> Any:
    return samples(index, nvlink_links=total, nvlink_links_up=up, **changes)


def test_links_that_go_down() -> None:
    state = machine(gpu(), [sample(NOW - 30, nvlink_links=18, nvlink_links_up=18)], links(16))
    one = only(state)
    assert (one.code, one.severity, one.word) == ("nvlink-down", "warn", "SLOW")
    assert one.title == "GPU 0  16 of 18 NVLinks up"
    assert "have gone down" in one.cause


def test_fewer_links_than_an_equal_gpu() -> None:
    state = machine(gpu(0), gpu(1), links(18, 0), links(17, 1))
    one = only(state)
    assert (one.device, one.severity) == ("GPU-1", "warn")
    assert "equal GPU" in one.cause


def test_an_sxm_board_alone_with_a_link_missing_is_a_note() -> None:
    one = only(machine(gpu(0, SXM), links(17)))
    assert (one.severity, one.word) == ("info", "note")


@pytest.mark.parametrize(
    ("board", "up", "total"),
    [
        (SXM, 18, 18),
        (SXM, 0, 18),  # no fabric in this machine, or its manager is not running
        (RTX_3090, 0, 4),  # no bridge
        ({**H100, "name": "NVIDIA H100 PCIe", "pci_device_id": "2331"}, 6, 18),  # one bridge
        (RTX_3090, None, None),
        (SXM, None, 18),
    ],
)
def test_no_link_is_down(board: dict[str, Any], up: int | None, total: int | None) -> None:
    assert "nvlink-down" not in codes(machine(gpu(0, board), links(up, total=total)))


def test_different_boards_are_not_compared() -> None:
    state = machine(gpu(0, A100), gpu(1, RTX_3090), links(12, 0, 12), links(0, 1, 12))
    assert codes(state) == []


def test_nvlink_errors_that_grow() -> None:
    one = only(machine(gpu(), over_time("nvlink_errors", 404, 475, 546)))
    assert (one.code, one.severity, one.word) == ("nvlink-errors", "warn", "SLOW")
    assert one.title == "GPU 0  NVLink errors: 142 in 10 s"
    few = only(machine(gpu(), over_time("nvlink_errors", 404, 405, 407)))
    assert (few.severity, few.word) == ("info", "note")


@pytest.mark.parametrize("values", [(404, 404, 404), (404, 900, 900), (None, None)])
def test_nvlink_errors_of_before_are_quiet(values: tuple[int | None, ...]) -> None:
    assert codes(machine(gpu(), over_time("nvlink_errors", *values))) == []


# Memory that wears out ----------------------------------------------------------------------------


def worn(**fields: Any) -> State:
    return machine(gpu(), samples(**fields))


def test_a_page_that_waits_to_be_retired() -> None:
    one = only(worn(pages_retired=3, pages_retirement_pending=True, ecc_uncorrected_aggregate=2))
    assert (one.code, one.severity, one.word) == ("page-retirement-pending", "warn", "note")
    assert one.title == "GPU 0  a memory page waits to be retired, 3 are retired"
    assert one.evidence == ("over the board's life: 2 uncorrectable errors, 3 pages retired",)


@pytest.mark.parametrize(("pages", "pending"), [(63, False), (15, True), (17, True)])
def test_too_many_retired_pages_fail(pages: int, pending: bool) -> None:
    one = only(worn(pages_retired=pages, pages_retirement_pending=pending))
    assert (one.code, one.severity) == ("pages-retired", "fail")


@pytest.mark.parametrize(
    "fields",
    [
        {"pages_retired": 62, "pages_retirement_pending": False},  # repaired, within the limit
        {"pages_retired": 0, "pages_retirement_pending": False},
        {"pages_retired": None, "pages_retirement_pending": None},
        {"rows_remapped_uncorrected": 0, "rows_remapped_corrected": 3},
        {"ecc_uncorrected_aggregate": 9, "ecc_uncorrected_volatile": 0},
    ],
)
def test_repaired_or_unread_memory_is_quiet(fields: dict[str, Any]) -> None:
    assert codes(worn(**fields)) == []


def test_a_pending_page_without_a_count_is_told_without_one() -> None:
    assert only(worn(pages_retirement_pending=True)).title == (
        "GPU 0  a memory page waits to be retired"
    )


def test_remapped_rows_are_a_note() -> None:
    one = only(worn(rows_remapped_uncorrected=1))
    assert (one.code, one.severity) == ("rows-remapped", "info")
    assert one.title == "GPU 0  1 memory row was remapped"
    assert only(worn(rows_remapped_uncorrected=1, row_remap_failed=True)).code == "memory-errors"


def test_the_life_s_count_stands_in_for_one_that_is_not_read() -> None:
    grows = over_time("ecc_uncorrected_aggregate", 4, 4, 6)
    one = only(machine(gpu(), grows))
    assert (one.code, one.severity) == ("memory-errors", "fail")
    assert one.title == "GPU 0  2 uncorrectable memory errors since topsmon was started"
    assert codes(machine(gpu(), over_time("ecc_uncorrected_aggregate", 4, 4, 4))) == []


def test_corrected_errors_that_come_while_we_watch_are_a_note() -> None:
    one = only(machine(gpu(), over_time("ecc_corrected_volatile", 3, 5, 8)))
    assert (one.code, one.severity) == ("corrected-errors-rising", "info")
    assert "results are right" in one.cause
    assert codes(machine(gpu(), over_time("ecc_corrected_volatile", 3, 8, 8))) == []


# Heat ---------------------------------------------------------------------------------------------


def test_little_margin_is_a_note_before_clocks_go_down() -> None:
    state = machine(gpu(), samples(temperature_celsius=87.0, temperature_margin_celsius=2.0))
    one = only(state)
    assert (one.code, one.severity) == ("thermal-margin-low", "info")
    assert one.title == "GPU 0  87 C, 2 C below the slowdown"
    # Without the driver's own figure: 89 - 87.
    derived = only(machine(gpu(), samples(temperature_celsius=87.0)))
    assert derived.title == one.title
    over = only(machine(gpu(), samples(temperature_celsius=90.0, temperature_margin_celsius=-1.0)))
    assert over.title == "GPU 0  90 C, at the slowdown"


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature_celsius": 83.0},  # a target temperature held by design
        {"temperature_celsius": 83.0, "temperature_margin_celsius": 6.0},
        {"temperature_celsius": None, "temperature_margin_celsius": None},
        {"temperature_celsius": 88.0, "count": 3},
    ],
)
def test_enough_margin_is_quiet(changes: dict[str, Any]) -> None:
    assert codes(machine(gpu(), samples(**changes))) == []


def test_once_clocks_go_down_only_that_is_told() -> None:
    hot = {"temperature_celsius": 89.0, "memory_temperature_celsius": 99.0}
    one = only(machine(gpu(), samples(clock_event_mask=0x20, **hot)))
    assert one.code == "thermal-slowdown"
    assert "memory 99 C" in one.evidence


def test_hot_memory() -> None:
    one = only(machine(gpu(), samples(memory_temperature_celsius=97.0)))
    assert (one.code, one.word) == ("memory-hot", "HOT")
    assert one.title == "GPU 0  memory at 97 C (maximum about 95 C)"
    assert codes(machine(gpu(), samples(memory_temperature_celsius=94.0))) == []
    # GDDR6X is made for more.
    board = gpu(0, RTX_3090, power_limit_default_watts=700.0)
    assert codes(machine(board, samples(memory_temperature_celsius=100.0))) == []
    blip = [*samples(count=3, memory_temperature_celsius=80.0)]
    assert codes(machine(gpu(), blip, sample(NOW, memory_temperature_celsius=99.0))) == []


def test_a_fan_that_stands_while_the_gpu_is_hot() -> None:
    one = only(machine(gpu(), samples(fan_ratio=0.0, temperature_celsius=80.0)))
    assert (one.code, one.severity, one.word) == ("fan-stands", "warn", "HOT")
    assert one.title == "GPU 0  fan at 0% and the GPU at 80 C"
    races = only(machine(gpu(), samples(fan_ratio=1.0, temperature_celsius=80.0)))
    assert (races.code, races.severity) == ("fan-at-full-speed", "info")


@pytest.mark.parametrize(
    "changes",
    [
        {"fan_ratio": 0.0, "temperature_celsius": 45.0},  # stands at rest by design
        {"fan_ratio": None, "temperature_celsius": 80.0},  # a board without fans
        {"fan_ratio": 0.7, "temperature_celsius": 80.0},
        {"fan_ratio": 1.0, "temperature_celsius": 60.0},  # set so by its owner
        {"fan_ratio": 0.0, "temperature_celsius": None},
    ],
)
def test_fans_that_do_as_they_should(changes: dict[str, Any]) -> None:
    assert codes(machine(gpu(), samples(**changes))) == []


# Settings -----------------------------------------------------------------------------------------


def test_a_compute_mode_that_keeps_programs_off() -> None:
    prohibited = only(machine(gpu(), samples(compute_mode="prohibited")))
    assert (prohibited.code, prohibited.severity) == ("compute-mode", "warn")
    assert "no CUDA program" in prohibited.cause
    assert prohibited.command == "sudo nvidia-smi -i 0 -c DEFAULT"
    exclusive = found(
        machine(gpu(), samples(compute_mode="exclusive-process"), processes(TRAINING)),
        "compute-mode",
    )
    assert exclusive.severity == "info"
    assert "python train.py (PID 4711) has it" in exclusive.cause


def test_an_exclusive_mode_explains_why_probing_failed() -> None:
    failed = events.Worker(
        **header(NOW - 5), worker="prober GPU-0", condition="failed", detail="devices unavailable"
    )
    state = machine(gpu(), samples(compute_mode="exclusive-process"), failed)
    assert "another program may have it" in found(state, "compute-mode").cause


@pytest.mark.parametrize("mode", ["default", None, "exclusive-process"])
def test_a_mode_that_keeps_nobody_off_is_quiet(mode: str | None) -> None:
    assert codes(machine(gpu(), samples(compute_mode=mode))) == []


@pytest.mark.parametrize(
    ("name", "on", "told"),
    [
        ("NVIDIA H100 80GB HBM3", False, True),
        ("Tesla V100-SXM2-16GB", False, True),
        ("NVIDIA L40S", False, True),
        ("NVIDIA A10G", False, True),
        ("NVIDIA H100 80GB HBM3", True, False),
        ("NVIDIA H100 80GB HBM3", None, False),
        ("NVIDIA GeForce RTX 4090", False, False),  # a desktop keeps the driver loaded itself
        ("NVIDIA RTX A6000", False, False),
        ("NVIDIA GB10", False, False),
        ("NVIDIA T1000", False, False),
    ],
)
def test_persistence_mode_matters_on_servers(name: str, on: bool | None, told: bool) -> None:
    state = machine(gpu(0, {**H100, "name": name}), samples(persistence_mode=on))
    assert [code for code in codes(state) if code == "persistence-off"] == (
        ["persistence-off"] if told else []
    )


def test_the_default_power_limit_is_that_of_now() -> None:
    lowered = {"power_limit_watts": 350.0, "power_watts": 90.0, "busy_ratio": 0.0}
    unknown = gpu(power_limit_default_watts=None)
    state = machine(unknown, samples(power_limit_default_watts=700.0, **lowered))
    assert only(state).title.startswith("GPU 0  power limit 350 W of 700 W (default)")
    same = machine(gpu(), samples(power_limit_default_watts=350.0, **lowered))
    assert codes(same) == []


# Permissions --------------------------------------------------------------------------------------

DENIED = "no permission (NVML NoPermission)"


def refused(*fields: str) -> events.DeviceSample:
    changes = {**dict.fromkeys(fields), "unavailable": dict.fromkeys(fields, DENIED)}
    return sample(NOW - 0.1, **changes)


def test_permission_that_is_lost_in_mid_run() -> None:
    state = machine(gpu(), samples(count=5), refused("power_watts", "sm_clock_mhz"))
    one = found(state, "permission-lost")
    assert (one.severity, one.word) == ("warn", "N/A")
    assert one.title == "GPU 0  no permission any more to read power, clock"


def test_permission_that_never_was_is_a_note() -> None:
    one = found(machine(gpu(), refused("temperature_celsius")), "permission-missing")
    assert (one.severity, one.word) == ("info", "note")


def test_what_is_not_supported_is_no_matter_of_permission() -> None:
    missing = sample(NOW - 0.1, power_watts=None, unavailable={"power_watts": "not supported"})
    assert codes(machine(gpu(), samples(), missing)) == []
    inside = machine(gpu(mig=True), refused("memory_used_bytes"))  # a container with an instance
    assert codes(inside) == []


def test_counters_that_are_refused_in_mid_run() -> None:
    lost = samples(unavailable={"counters": f"GPM: {DENIED}"})
    container = events.Host(**header(1.0), hostname="n", system="Linux", container=True)
    one = only(machine(container, gpu(), lost))
    assert (one.code, one.severity, one.word) == ("counters-lost", "info", "note")
    assert "SYS_ADMIN" in one.remedy


@pytest.mark.parametrize(
    "reason",
    [
        "no GPM on this device (NVML NotSupported)",
        "GPM is sampled only while it is shown, and not by a single look",
        "two readings are needed",
    ],
)
def test_counters_that_are_not_there_or_not_asked_for_are_quiet(reason: str) -> None:
    assert codes(machine(gpu(), samples(unavailable={"counters": reason}))) == []
