"""Names, units and labels of the exported metrics, against a list written by hand."""

from __future__ import annotations

import msgspec
import pytest
from exported_machines import (
    GPU,
    LABELS,
    NOW,
    WALL,
    ceilings,
    gpu,
    named,
    names,
    rate,
    run,
    run_sample,
    sample,
    scrape,
    stamp,
    state,
    value,
)
from hypothesis import given
from hypothesis import strategies as st

from topsmon import events
from topsmon.exporters import device_readings
from topsmon.exporters.prometheus import Exported
from topsmon.exporters.tally import Tally

READINGS = {
    "busy_ratio": 0.83,
    "memory_busy_ratio": 0.47,
    "memory_used_bytes": 63 * 2**30,
    "memory_reserved_bytes": 2**29,
    "memory_total_bytes": 80 * 2**30,
    "sm_clock_mhz": 1755.0,
    "memory_clock_mhz": 2619.0,
    "power_watts": 655.25,
    "power_limit_watts": 690.0,
    "power_limit_default_watts": 700.0,
    "energy_joules": 5123712.5,
    "temperature_celsius": 63.0,
    "memory_temperature_celsius": 84.0,
    "temperature_margin_celsius": 24.0,
    "performance_state": 0,
    "clock_event_mask": 0x4,
    "pcie_generation": 5,
    "pcie_generation_max": 5,
    "pcie_width": 8,
    "pcie_width_max": 16,
    "ecc_enabled": True,
    "ecc_corrected_volatile": 21,
    "ecc_uncorrected_volatile": 0,
    "ecc_corrected_aggregate": 211,
    "ecc_uncorrected_aggregate": 6,
    "row_remap_pending": False,
    "row_remap_failed": False,
    "rows_remapped_corrected": 5,
    "rows_remapped_uncorrected": 7,
    "pages_retired": 13,
    "pages_retirement_pending": True,
    "fan_ratio": 0.38,
    "encoder_busy_ratio": 0.17,
    "decoder_busy_ratio": 0.19,
    "throttle_ratios": {"power": 0.25},
    "pcie_transmit_bytes_per_second": 215e6,
    "pcie_receive_bytes_per_second": 349e6,
    "pcie_replays": 61,
    "nvlink_links_up": 17,
    "nvlink_links": 18,
    "nvlink_transmit_bytes_per_second": 26e9,
    "nvlink_receive_bytes_per_second": 28e9,
    "nvlink_errors": 420,
    "persistence_mode": True,
}
COUNTERS = events.GpuCounters(
    seconds=1.0,
    graphics_active_ratio=0.82,
    sm_active_ratio=0.71,
    sm_occupancy_ratio=0.29,
    tensor_active_ratio=0.46,
    dram_active_ratio=0.36,
    fp64_active_ratio=0.05,
    fp32_active_ratio=0.11,
    fp16_active_ratio=0.07,
    integer_active_ratio=0.14,
)
EXPECTED = {
    "topsmon_gpu_busy_ratio": 0.83,
    "topsmon_gpu_memory_busy_ratio": 0.47,
    "topsmon_gpu_memory_used_bytes": 67645734912.0,
    "topsmon_gpu_memory_reserved_bytes": 536870912.0,
    "topsmon_gpu_memory_total_bytes": 85899345920.0,
    "topsmon_gpu_sm_clock_hertz": 1.755e9,
    "topsmon_gpu_memory_clock_hertz": 2.619e9,
    "topsmon_gpu_power_watts": 655.25,
    "topsmon_gpu_power_limit_watts": 690.0,
    "topsmon_gpu_power_limit_default_watts": 700.0,
    "topsmon_gpu_energy_joules_total": 5123712.5,
    "topsmon_gpu_temperature_celsius": 63.0,
    "topsmon_gpu_memory_temperature_celsius": 84.0,
    "topsmon_gpu_temperature_margin_celsius": 24.0,
    "topsmon_gpu_performance_state": 0.0,
    "topsmon_gpu_pcie_generation": 5.0,
    "topsmon_gpu_pcie_generation_max": 5.0,
    "topsmon_gpu_pcie_lanes": 8.0,
    "topsmon_gpu_pcie_lanes_max": 16.0,
    "topsmon_gpu_pcie_transmit_bytes_per_second": 215e6,
    "topsmon_gpu_pcie_receive_bytes_per_second": 349e6,
    "topsmon_gpu_pcie_replays_total": 61.0,
    "topsmon_gpu_nvlink_links_up": 17.0,
    "topsmon_gpu_nvlink_links": 18.0,
    "topsmon_gpu_nvlink_transmit_bytes_per_second": 26e9,
    "topsmon_gpu_nvlink_receive_bytes_per_second": 28e9,
    "topsmon_gpu_nvlink_errors_total": 420.0,
    "topsmon_gpu_ecc_enabled": 1.0,
    "topsmon_gpu_row_remap_pending": 0.0,
    "topsmon_gpu_row_remap_failed": 0.0,
    "topsmon_gpu_pages_retired_total": 13.0,
    "topsmon_gpu_page_retirement_pending": 1.0,
    "topsmon_gpu_fan_ratio": 0.38,
    "topsmon_gpu_encoder_busy_ratio": 0.17,
    "topsmon_gpu_decoder_busy_ratio": 0.19,
    "topsmon_gpu_persistence_mode": 1.0,
    "topsmon_gpu_graphics_active_ratio": 0.82,
    "topsmon_gpu_sm_active_ratio": 0.71,
    "topsmon_gpu_sm_occupancy_ratio": 0.29,
    "topsmon_gpu_tensor_active_ratio": 0.46,
    "topsmon_gpu_dram_active_ratio": 0.36,
    "topsmon_gpu_fp64_active_ratio": 0.05,
    "topsmon_gpu_fp32_active_ratio": 0.11,
    "topsmon_gpu_fp16_active_ratio": 0.07,
    "topsmon_gpu_integer_active_ratio": 0.14,
}
IDENTITIES = {"topsmon_build_info", "topsmon_host_info", "topsmon_gpu_info", "topsmon_mig_info"}
BOUNDED = {
    "uuid",
    "gpu",
    "precision",
    "reason",
    "condition",
    "kind",
    "counted",
    "xid",
    "code",
    "severity",
    "run",
    "rank",
    "part",
    "check",
}
"""The labels that a series without an identity may have; each has few values."""


def whole() -> Exported:
    """A machine of which everything is known."""
    made = state(
        ceilings(),
        sample(NOW - 1),
        sample(counters=COUNTERS, **READINGS),
        rate(shape=(8192, 8192, 8192), held_clock_mhz=1755.0),
        run(),
        run_sample(),
        events.Worker(**stamp(), worker="poller", condition="running", restarts=2),
    )
    tally = Tally()
    for event in (
        sample(NOW - 1),
        sample(throttle_ratios={"power": 0.25}),
        events.Xid(**stamp(NOW - 9), device=GPU, code=79),
        events.Xid(**stamp(NOW - 5), device=GPU, code=79),
    ):
        tally.add(event)
    finding = events.Finding(
        **stamp(), code="device-hot", severity="warn", word="HOT", title="hot", device=GPU
    )
    return Exported(made, lambda: [finding, finding], tally=tally)


def test_readings_have_base_units_and_the_uuid_and_index_as_labels() -> None:
    series = scrape(whole())
    labels = tuple(sorted(LABELS.items()))
    for name, expected in EXPECTED.items():
        assert named(series, name) == {labels: pytest.approx(expected)}, name


def test_counters_of_one_kind_are_told_apart_by_a_label() -> None:
    series = scrape(whole())
    ecc = "topsmon_gpu_ecc_errors_total"
    assert value(series, ecc, kind="corrected", counted="since_driver_load") == 21
    assert value(series, ecc, kind="uncorrected", counted="since_driver_load") == 0
    assert value(series, ecc, kind="corrected", counted="board_life") == 211
    assert value(series, ecc, kind="uncorrected", counted="board_life") == 6
    assert value(series, "topsmon_gpu_rows_remapped_total", kind="uncorrected") == 7


def test_achieved_and_ceiling_are_exported_and_no_ratio_of_them() -> None:
    series = scrape(whole())
    achieved = value(series, "topsmon_bench_achieved_operations_per_second", precision="bf16")
    ceiling = value(series, "topsmon_bench_ceiling_operations_per_second", precision="bf16")
    held = "topsmon_bench_ceiling_at_held_clock_operations_per_second"
    assert (achieved, ceiling) == (612e12, 989.4e12)
    assert value(series, held, precision="bf16") == pytest.approx(540672.0 * 1755e6)
    when = value(series, "topsmon_bench_last_run_timestamp_seconds", precision="bf16")
    assert when == WALL
    assert not [name for name in names(series) if "bench" in name and name.endswith("_ratio")]
    assert value(series, "topsmon_memory_bandwidth_ceiling_bytes_per_second") == 3.352e12


def test_a_rate_that_cannot_be_trusted_is_no_achieved_rate() -> None:
    name = "topsmon_bench_achieved_operations_per_second"
    for doubt in ({"valid": False}, {"correct": False}, {"emulated": True}):
        series = scrape(state(ceilings(), rate(**doubt)))  # type: ignore[arg-type]
        assert value(series, name, precision="bf16") is None, doubt


def test_throttling_is_one_series_a_reason() -> None:
    series = scrape(whole())
    active = {
        dict(labels)["reason"]: on
        for labels, on in named(series, "topsmon_gpu_throttle_active").items()
    }
    assert {reason for reason, on in active.items() if on} == {"sw_power_cap"}
    assert {"sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake"} <= set(active)
    assert "gpu_idle" not in active  # that is no throttling
    assert value(series, "topsmon_gpu_throttle_time_ratio", reason="power") == 0.25
    assert value(series, "topsmon_gpu_throttle_seconds_total", reason="power") == 0.25


def test_a_bit_of_a_newer_driver_counts_as_unknown() -> None:
    series = scrape(state(sample(clock_event_mask=0x1000)))
    assert value(series, "topsmon_gpu_throttle_active", reason="unknown") == 1.0


def test_xids_are_counted_by_number_with_the_time_of_the_last() -> None:
    series = scrape(whole())
    assert value(series, "topsmon_gpu_xid_errors_total", xid="79") == 2
    assert value(series, "topsmon_gpu_xid_last_timestamp_seconds", xid="79") == WALL - 5


def test_throttled_time_adds_up_between_scrapes() -> None:
    tally = Tally()
    for second in range(11):
        tally.add(sample(100.0 + second, throttle_ratios={"thermal": 0.5, "power": 0.1}))
    tally.add(sample(400.0, throttle_ratios={"thermal": 1.0}))  # after a pause
    assert tally.throttled(GPU) == pytest.approx({"thermal": 5.0, "power": 1.0})


def test_a_finding_that_is_told_twice_is_one_series() -> None:
    found = named(scrape(whole()), "topsmon_finding_active")
    assert [dict(labels) for labels in found] == [
        {"code": "device-hot", "severity": "warn", **LABELS}
    ]


def test_a_finding_about_a_run_names_the_device_it_trains_on() -> None:
    about = events.Finding(
        **stamp(), code="skip-rate", severity="fail", word="SKIP", title="x", run=run().run
    )
    nowhere = events.Finding(**stamp(), code="no-driver", severity="warn", word="N/A", title="x")
    found = named(
        scrape(Exported(state(run()), lambda: [about, nowhere])), "topsmon_finding_active"
    )
    assert [dict(labels).get("uuid") for labels in found] == [GPU, None]


def test_a_run_that_has_ended_alerts_nobody() -> None:
    about = events.Finding(
        **stamp(), code="run-killed", severity="fail", word="FAIL", title="x", run=run().run
    )
    ended = events.RunStatus(**stamp(), run=run().run, condition="killed", since=1.0)
    series = scrape(Exported(state(run(), ended), lambda: [about]))
    assert not named(series, "topsmon_finding_active")


def test_identity_stands_in_the_info_metrics_alone() -> None:
    series = scrape(whole())
    assert dict(next(iter(named(series, "topsmon_gpu_info")))) == {
        **LABELS,
        "name": "NVIDIA H100 80GB HBM3",
        "architecture": "Hopper",
        "compute_capability": "9.0",
        "pci_bus_id": "00000000:1B:00.0",
        "board": "h100-sxm",
        "driver_version": "580.95.05",
        "mig": "false",
    }
    assert dict(next(iter(named(series, "topsmon_host_info"))))["hostname"] == "node7"
    for name, labels in series:
        if name not in IDENTITIES:
            assert {key for key, _ in labels} <= BOUNDED, name


def test_no_pid_user_or_command_leaves_the_machine() -> None:
    text = repr(scrape(whole()))
    for secret in ("4711", "train.py", "ada", "python"):
        assert secret not in text


def test_every_family_says_its_kind() -> None:
    """Counters and they alone end in _total: the exposition's parser checks the rest."""
    from topsmon.exporters.prometheus import families

    for family in families(whole(), NOW):
        kinds = {one.name.endswith("_total") for one in family.samples}
        assert kinds == {family.type == "counter"}, family.name
        assert family.documentation.endswith("."), family.name


NOT_EXPORTED = {
    "memory_note",
    "clock_event_mask",
    "throttle_ratios",
    "unavailable",
    "compute_mode",
    "counters",
}
"""Words, and what is exported in another form."""


def test_a_new_field_of_a_sample_is_not_forgotten() -> None:
    listed = {reading.field for reading in (*device_readings.GAUGES, *device_readings.COUNTERS)}
    listed |= {one.field for one in (*device_readings.ECC_ERRORS, *device_readings.ROWS_REMAPPED)}
    own = set(events.DeviceSample.__struct_fields__) - set(events.Event.__struct_fields__)
    assert own - {"device"} == listed | NOT_EXPORTED


@given(st.sets(st.sampled_from(sorted(READINGS))))
def test_what_was_not_measured_has_no_series(unknown: set[str]) -> None:
    readings = {name: reading for name, reading in READINGS.items() if name not in unknown}
    known, everything = (names(scrape(state(sample(**some)))) for some in (readings, READINGS))
    gone = {
        reading.field
        for reading in (*device_readings.GAUGES, *device_readings.COUNTERS)
        for name in (f"topsmon_gpu_{reading.name}", f"topsmon_gpu_{reading.name}_total")
        if name in everything - known
    }
    plain = {reading.field for reading in (*device_readings.GAUGES, *device_readings.COUNTERS)}
    assert gone == unknown & plain


def test_a_device_without_a_reading_has_only_what_is_known() -> None:
    series = scrape(state())
    found = {name for name, labels in series if dict(labels).get("uuid") == GPU}
    assert found == {"topsmon_gpu_info", "topsmon_device_condition", "topsmon_bench_running"}


def test_readings_of_a_silent_device_end_and_their_age_goes_on() -> None:
    made = state(sample(**READINGS), ceilings(), rate())
    fresh, old = scrape(made, NOW + 9.0), scrape(made, NOW + 11.0)
    assert value(fresh, "topsmon_gpu_power_watts") == 655.25
    assert value(old, "topsmon_gpu_power_watts") is None
    assert value(old, "topsmon_gpu_energy_joules_total") is None
    assert value(old, "topsmon_device_sample_age_seconds") == 11.0
    name = "topsmon_bench_achieved_operations_per_second"
    assert value(old, name, precision="bf16") == 612e12  # its own time stamp tells its age


def test_a_lost_device_says_so_and_repeats_no_reading() -> None:
    lost = events.DeviceStatus(**stamp(), device=GPU, condition="lost", since=NOW)
    series = scrape(state(sample(**READINGS), lost))
    assert value(series, "topsmon_device_condition", condition="lost") == 1
    assert value(series, "topsmon_device_condition", condition="ok") == 0
    assert value(series, "topsmon_gpu_power_watts") is None


def test_a_slow_interval_is_no_silence() -> None:
    made = state(sample(**READINGS))
    made.interval = 60.0
    assert value(scrape(made, NOW + 250.0), "topsmon_gpu_power_watts") == 655.25


def test_mig_instances_have_their_own_uuid() -> None:
    part = events.Slice(
        uuid="MIG-1",
        profile="1g.10gb",
        gpu_instance=7,
        memory_used_bytes=5,
        counters=events.GpuCounters(seconds=1.0, sm_active_ratio=0.5),
    )
    lost = msgspec.structs.replace(part, uuid=None)
    slices = events.Slices(**stamp(), device=GPU, slices=(part, lost))
    series = scrape(state(gpu(mig=True), sample(), slices))
    labels = (("gpu", "3"), ("uuid", "MIG-1"))
    assert named(series, "topsmon_mig_memory_used_bytes") == {labels: 5.0}
    assert named(series, "topsmon_mig_sm_active_ratio") == {labels: 0.5}
    assert dict(next(iter(named(series, "topsmon_mig_info"))))["gpu_uuid"] == GPU


def test_the_cpu_has_metrics_of_its_own() -> None:
    cpu = events.Device(**stamp(), device="cpu", kind="cpu", index=0, name="EPYC")
    told = events.DeviceSample(**stamp(), device="cpu", busy_ratio=0.5, sm_clock_mhz=3000.0)
    load = events.HostSample(**stamp(), cpu_busy_ratio=0.25, load_1_minute=1.5)
    series = scrape(state(cpu, told, load))
    assert named(series, "topsmon_cpu_busy_ratio") == {(): 0.5}
    assert named(series, "topsmon_cpu_clock_hertz") == {(): 3e9}
    assert named(series, "topsmon_host_cpu_busy_ratio") == {(): 0.25}
    assert named(series, "topsmon_host_load1") == {(): 1.5}
    assert named(series, "topsmon_gpu_busy_ratio") == {}


def test_text_from_outside_cannot_break_a_line() -> None:
    evil = 'H100"} 1\ntopsmon_gpu_power_watts{uuid="x"} 9\x1b[2J'
    series = scrape(state(gpu(name=evil), sample(power_watts=1.0)))
    assert named(series, "topsmon_gpu_power_watts") == {tuple(sorted(LABELS.items())): 1.0}


def test_the_poller_tells_whether_it_runs() -> None:
    series = scrape(whole())
    assert named(series, "topsmon_poller_up") == {(): 1.0}
    assert named(series, "topsmon_poller_restarts_total") == {(): 2.0}
    failed = events.Worker(**stamp(), worker="poller", condition="failed")
    assert named(scrape(state(failed)), "topsmon_poller_up") == {(): 0.0}


def test_own_cost_is_there() -> None:
    series = scrape(whole())
    spent = named(series, "topsmon_exporter_cpu_seconds_total")
    assert {dict(labels)["part"] for labels in spent} == {"exporter", "children"}
    assert named(series, "topsmon_exporter_resident_memory_bytes")[("part", "exporter"),] > 2**20
