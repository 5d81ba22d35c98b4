"""Verdicts on what the driver tells: memory errors, link, power, heat, throttling, lost GPUs."""

import nodes
import pytest
from nodes import healthy, node, one, sample

from topsmon import ceilings, events
from topsmon.checks.context import HOST
from topsmon.checks.outcome import exit_code
from topsmon.laboratory import Observed


def gpu(*, readings=(), board=nodes.H100, **reading) -> list[events.AnyEvent]:
    device = nodes.identity(0, board)
    samples = readings or (sample(**reading),)
    return [device, ceilings.for_device(device), *samples]


def problem(code: str, message: str = "It does not work.") -> events.Problem:
    return events.Problem(
        **nodes.header(), subject="nvml", code=code, message=message, remedy="Do this."
    )


@pytest.mark.parametrize(
    ("code", "state", "exit_with"),
    [
        ("mismatch", "FAIL", 2),
        ("not-loaded", "FAIL", 2),
        ("stalled", "FAIL", 2),
        ("permission", "NO-VERDICT", 3),
        ("no-gpu", "NO-VERDICT", 3),
        ("no-library", "UNSUPPORTED", 3),
    ],
)
def test_a_driver_that_does_not_work(code: str, state: str, exit_with: int) -> None:
    results = nodes.check(node(problem(code)), quick=True)
    assert [result.state for result in results] == [state]
    assert (results[0].cause, results[0].remedy) == ("It does not work", "Do this.")
    assert exit_code(results) == exit_with


@pytest.mark.parametrize("code", ["stalled", "crashed", "ended", "no-process"])
def test_one_quick_look_gives_no_verdict_on_a_driver_that_it_could_not_read(code: str) -> None:
    seen = {HOST: Observed(quick=True)}
    results = nodes.check(node(problem(code)), quick=True, seen=seen)
    assert [result.state for result in results] == ["NO-VERDICT"]
    assert exit_code(results) == 3


def test_a_remark_of_another_source_is_no_fault_of_the_driver() -> None:
    remark = events.Problem(
        **nodes.header(), subject="CUDA_VISIBLE_DEVICES", code="order", message="Indexes differ."
    )
    assert one(node(healthy(), remark), "driver").state == "PASS"


def test_the_driver_passes_with_its_version() -> None:
    assert one(node(healthy()), "driver").value_text == "580.95.05, CUDA 13.0"


def test_uncorrectable_errors_fail() -> None:
    result = one(node(gpu(ecc_uncorrected_volatile=3, ecc_uncorrected_aggregate=7)), "ecc")
    assert (result.state, result.value, result.value_text) == ("FAIL", 3.0, "3 uncorrectable")
    assert "7 uncorrectable over the board's life" in result.evidence
    assert "GPU-0000" in result.evidence
    assert "Drain" in result.remedy


def test_row_remapping() -> None:
    assert one(node(gpu(row_remap_failed=True)), "ecc").state == "FAIL"
    waiting = one(node(gpu(row_remap_pending=True)), "ecc")
    assert (waiting.state, waiting.cause) == ("WARN", "a memory row waits to be remapped")


def test_old_and_corrected_errors_pass_and_are_told() -> None:
    result = one(node(gpu(ecc_uncorrected_aggregate=2, ecc_corrected_volatile=41)), "ecc")
    assert result.state == "PASS"
    assert len(result.evidence) == 2


def test_boards_without_ecc_and_with_ecc_off() -> None:
    nothing = {
        "ecc_enabled": None,
        "ecc_uncorrected_volatile": None,
        "row_remap_pending": None,
        "row_remap_failed": None,
    }
    reason = "not supported by this device (NVML NotSupported)"
    without = one(node(gpu(**nothing, unavailable={"ecc_enabled": reason})), "ecc")
    assert (without.state, without.cause, without.unknown) == ("UNSUPPORTED", reason, False)
    unread = one(node(gpu(**nothing, unavailable={"ecc_enabled": "timed out"})), "ecc")
    assert (unread.state, unread.unknown) == ("NO-VERDICT", True)
    assert one(node(gpu(**nothing)), "ecc").unknown
    off = one(node(gpu(ecc_enabled=False)), "ecc")
    assert (off.state, off.unknown) == ("NO-VERDICT", False)


REST = {"busy_ratio": 0.0, "performance_state": 8, "pcie_generation": 1}


def test_a_link_that_rests_is_no_fault() -> None:
    result = one(node(gpu(**REST)), "link", quick=True)
    assert (result.state, result.unknown) == ("NO-VERDICT", False)
    assert result.value_text == "gen 1 x16 (idle; max gen 5 x16)"
    loaded = sample(pcie_generation=5)
    seen = {"GPU-0000": Observed(loaded=(sample(**REST), loaded))}
    assert one(node(gpu(**REST)), "link", seen=seen).state == "PASS"


def test_a_link_that_stays_narrow_under_load_warns() -> None:
    narrow = sample(pcie_width=4)
    seen = {"GPU-0000": Observed(loaded=(sample(pcie_width=4, pcie_generation=1), narrow))}
    result = one(node(gpu(**REST)), "link", seen=seen)
    assert (result.state, result.value_text, result.threshold_text) == (
        "WARN",
        "gen 5 x4",
        "gen 5 x16",
    )
    # 32 GT/s x 128/130 / 8 = 3.938 GB/s a lane.
    assert "15.8 of 63.0 GB/s per direction" in result.evidence
    assert result.command == "sudo lspci -vv -s 0000:17:00.0 | grep LnkSta"


def test_the_transfer_probe_reads_the_link_under_load() -> None:
    narrow = {**nodes.PROBES["transfer"], "pcie_width": 8}
    state = node(gpu(**REST), nodes.probe("transfer", values=narrow))
    assert one(state, "link").value_text == "gen 5 x8"


def test_a_board_without_a_link_of_its_own() -> None:
    nothing = dict.fromkeys(
        ("pcie_generation", "pcie_generation_max", "pcie_width", "pcie_width_max")
    )
    reason = "integrated GPU: it has no memory and no PCIe link of its own"
    state = node(gpu(**nothing, unavailable=dict.fromkeys(nothing, reason)))
    assert one(state, "link").state == "UNSUPPORTED"


def test_a_lowered_power_limit_warns_only_where_it_bites() -> None:
    resting = {"power_limit_watts": 350.0, "power_watts": 80.0}
    quiet = one(node(gpu(**resting)), "power")
    assert (quiet.state, quiet.value_text) == ("PASS", "350 W")
    assert "lower limit was set" in quiet.cause
    capped = {"power_limit_watts": 350.0, "power_watts": 348.0, "clock_event_mask": 4}
    readings = tuple(sample(0, seconds, **capped) for seconds in (98.0, 98.5, 99.0))
    biting = one(node(gpu(readings=readings)), "power")
    assert (biting.state, biting.threshold_text) == ("WARN", "default 700 W")
    assert biting.command == "sudo nvidia-smi -i 0 -pl 700"


@pytest.mark.parametrize(
    ("celsius", "state"), [(62, "PASS"), (85, "WARN"), (89, "FAIL"), (0, "INVALID")]
)
def test_temperature_against_the_boards_own_threshold(celsius: float, state: str) -> None:
    result = one(node(gpu(temperature_celsius=celsius)), "temperature")
    assert result.state == state
    assert result.unknown == (state == "INVALID")


def test_the_hottest_moment_counts() -> None:
    hot = sample(temperature_celsius=90.0)
    seen = {"GPU-0000": Observed(samples=(hot, sample()))}
    assert one(node(gpu()), "temperature", seen=seen).value == 90.0


def test_a_missing_temperature_is_not_healthy() -> None:
    assert one(node(gpu(temperature_celsius=None)), "temperature").unknown
    reason = {"temperature_celsius": "not supported by this device (NVML NotSupported)"}
    result = one(node(gpu(temperature_celsius=None, unavailable=reason)), "temperature")
    assert result.state == "UNSUPPORTED"


def masks(*values: int) -> list[events.AnyEvent]:
    keys = list(nodes.H100_TERA)
    return [
        nodes.rate(key, 100.0, clock_event_mask=mask)
        for key, mask in zip(keys, values, strict=False)
    ]


@pytest.mark.parametrize(
    ("bursts", "state"),
    [
        ((0, 0, 0), "PASS"),
        ((4, 4, 4), "PASS"),  # software power cap alone
        ((1, 0, 2), "PASS"),
        ((0, 0x20, 0x20), "FAIL"),
        ((0x48, 0x40, 0), "FAIL"),  # two reasons at once
        ((0x80, 0x84, 0), "FAIL"),
        ((0, 8, 0), "WARN"),  # once: a change of the performance state
        ((8,), "FAIL"),  # the only burst there was
    ],
)
def test_throttling_in_bursts(bursts: tuple[int, ...], state: str) -> None:
    result = one(node(gpu(), *masks(*bursts)), "throttling")
    assert result.state == state


def test_throttling_names_all_reasons_and_the_heat() -> None:
    readings = tuple(
        sample(0, seconds, clock_event_mask=0x68, sm_clock_mhz=975.0, temperature_celsius=91.0)
        for seconds in (98.0, 99.0)
    )
    seen = {"GPU-0000": Observed(samples=readings, loaded=readings)}
    result = one(node(gpu()), "throttling", seen=seen)
    assert result.state == "FAIL"
    assert result.value_text == "HW thermal slowdown, SW thermal slowdown, HW slowdown"
    assert "91 C (slowdown at 89 C)" in result.evidence
    assert "975 MHz (max 1980)" in result.evidence
    assert "fans" in result.remedy


def test_no_reading_of_the_reasons_is_unknown() -> None:
    assert one(node(gpu(clock_event_mask=None)), "throttling").unknown


def lost(condition: str = "lost", **more) -> events.DeviceStatus:
    return events.DeviceStatus(
        **nodes.header(99.0), device="GPU-0000", condition=condition, since=95.0, **more
    )


def test_a_lost_gpu_fails_and_hides_what_was_never_measured() -> None:
    results = nodes.check(node(gpu(), lost()), "bf16", "memory")
    assert [(result.check, result.state) for result in results] == [("device", "FAIL")]
    assert "GPU-0000" in results[0].evidence
    assert exit_code(results) == 2


def test_what_a_lost_gpu_did_before_is_kept() -> None:
    results = nodes.check(node(gpu(), nodes.rate("bf16", 794.5), lost()), "device", "bf16")
    assert [(result.check, result.state) for result in results] == [
        ("device", "FAIL"),
        ("bf16", "PASS"),
    ]


def test_a_gpu_whose_driver_hangs_fails() -> None:
    stalled = lost("stalled", detail="nvmlDeviceGetPowerUsage")
    assert one(node(gpu(), stalled), "device").value_text == "STALE"


def test_a_gpu_that_cannot_be_read_or_sleeps_is_unknown() -> None:
    for condition in ("error", "asleep"):
        result = one(node(gpu(), lost(condition)), "device")
        assert (result.state, result.unknown) == ("NO-VERDICT", True)


def test_torch_and_the_driver_must_see_the_same_device() -> None:
    def ready(**fields) -> events.ProberReady:
        return events.ProberReady(
            **nodes.header(), device="GPU-0000", torch_version="2", python="p", **fields
        )

    fine = ready(sm_count=132, memory_total_bytes=int(79.1 * 2**30))
    assert one(node(gpu(), fine), "inventory").state == "PASS"
    result = one(node(gpu(), ready(memory_total_bytes=8 * 2**30)), "inventory")
    assert (result.state, "8.0 GiB" in result.cause) == ("WARN", True)


def test_a_device_that_others_use_is_not_judged() -> None:
    seen = {"GPU-0000": Observed(refused="python train.py (PID 12) uses GPU 0")}
    results = nodes.check(node(gpu(**REST)), "bf16", "memory", "link", "correctness", seen=seen)
    assert {result.state for result in results} == {"INVALID"}
    assert all("train.py" in result.cause for result in results)
    assert exit_code(results) == 3


def test_the_reason_of_a_missing_measurement_is_told() -> None:
    seen = {"GPU-0000": Observed(missing="interrupted")}
    assert one(node(gpu()), "bf16", seen=seen).cause == "interrupted"


def powers(watts: float, joules_per_second: float, seconds: float = 5.0):
    """Samples at 4 Hz whose energy counter is read once a second."""
    return tuple(
        sample(0, step / 4, power_watts=watts, energy_joules=(step // 4) * joules_per_second)
        for step in range(int(seconds * 4) + 1)
    )


def test_power_samples_against_the_energy_counter() -> None:
    # ml-energy/zeus issue 181: 187.443 J in 5.0045 s, 65.32 W by the samples: 1.74 times.
    loaded = powers(65.32, 187.443 / 5.0045)
    seen = {"GPU-0000": Observed(samples=loaded, loaded=loaded)}
    result = one(node(gpu()), "power-sensor", seen=seen)
    assert (result.state, result.experimental) == ("WARN", True)
    assert result.value == pytest.approx(0.744, abs=2e-3)
    assert "energy counter 37.5 W, power samples 65.3 W" in result.cause
    at_rest = {"GPU-0000": Observed(samples=loaded)}
    result = one(node(gpu()), "power-sensor", seen=at_rest)
    assert (result.state, result.unknown) == ("NO-VERDICT", False)
    agreeing = powers(400.0, 390.0)
    seen = {"GPU-0000": Observed(samples=agreeing, loaded=agreeing)}
    assert one(node(gpu()), "power-sensor", seen=seen).state == "PASS"


def test_power_is_compared_only_over_a_steady_time() -> None:
    unsteady = (*powers(100.0, 400.0, 3.0), sample(0, 4.0, power_watts=700.0, energy_joules=1e4))
    for readings in (unsteady, powers(65.0, 37.0, 1.5), ()):
        seen = {"GPU-0000": Observed(samples=readings, loaded=readings)}
        state = node(gpu(energy_joules=5.0))
        assert one(state, "power-sensor", seen=seen).state == "NO-VERDICT"
    reason = "not supported by this device (NVML NotSupported)"
    state = node(gpu(energy_joules=None, unavailable={"energy_joules": reason}))
    assert one(state, "power-sensor").state == "UNSUPPORTED"


def test_slowdowns_of_a_busy_gpu_are_seen_though_it_is_not_measured() -> None:
    hot = tuple(sample(0, seconds, clock_event_mask=0x40) for seconds in (98.0, 99.0))
    seen = {"GPU-0000": Observed(samples=hot, refused="python train.py (PID 12) uses GPU 0")}
    assert one(node(gpu()), "throttling", seen=seen).state == "FAIL"


def test_a_machine_without_a_gpu_needs_no_driver_version() -> None:
    cpu = events.Device(**nodes.header(1.0), device="cpu", kind="cpu", index=0, name="EPYC")
    state = node(nodes.host(driver_version=None, cuda_version=None), cpu)
    result = one(state, "driver")
    assert (result.state, result.cause) == ("UNSUPPORTED", "no NVIDIA GPU here")
    with_gpu = node(nodes.host(driver_version=None, cuda_version=None), gpu())
    assert one(with_gpu, "driver").unknown


@pytest.mark.parametrize("name", ["inventory", "throttling", "ecc"])
def test_a_driver_that_tells_nonsense_is_not_believed(name: str) -> None:
    names = ("power_watts", "sm_clock_mhz", "temperature_celsius")
    nonsense = dict.fromkeys(names, "implausible value 0 from the driver")
    doubted = one(node(gpu(unavailable=nonsense, **dict.fromkeys(names))), name)
    assert (doubted.state, doubted.unknown) == ("INVALID", True)
    assert doubted.remedy
    few = {"power_watts": nonsense["power_watts"]}
    assert one(node(gpu(unavailable=few, power_watts=None)), name).state == "PASS"


def test_a_device_that_stopped_answering_in_the_run_has_no_verdict() -> None:
    seen = {"GPU-0000": Observed(unanswered="no answer since then; time ran out after 30 s")}
    result = one(node(gpu()), "device", seen=seen)
    assert (result.state, result.unknown) == ("NO-VERDICT", True)


def test_threads_are_told_as_far_as_they_are_known() -> None:
    cpu = events.Device(**nodes.header(1.0), device="cpu", kind="cpu", index=0, name="EPYC")
    told = {**nodes.header(), "device": "cpu", "torch_version": "2.13.0", "python": "p"}

    def threads(**known: int) -> events.CheckResult:
        return one(node(cpu, events.ProberReady(**told, **known)), "threads")

    assert threads(threads=8, default_threads=8).state == "PASS"
    alone = threads(threads=8)
    assert (alone.state, alone.value_text, alone.unknown) == ("NO-VERDICT", "8", False)
    assert threads().unknown
