"""Devices that do not answer, the driver library, topsmon's own children."""

import time

import pytest
from machines import (
    FUTURE_CARD,
    NOW,
    TRAINING,
    WALL,
    codes,
    cpu,
    gpu,
    header,
    machine,
    only,
    processes,
    rate,
    samples,
    status,
    titles,
)

from topsmon import events
from topsmon.diagnosis import device_word, diagnose
from topsmon.state import State


def problem(code: str | None, message: str = "", remedy: str = "") -> events.Problem:
    return events.Problem(**header(1.0), subject="nvml", code=code, message=message, remedy=remedy)


def worker(name: str, condition: str, restarts: int = 0, detail: str = "") -> events.Worker:
    return events.Worker(
        **header(2.0), worker=name, condition=condition, restarts=restarts, detail=detail
    )


def test_nothing_off_is_no_finding() -> None:
    state = machine(gpu(0), gpu(1), cpu(), samples(0), samples(1))
    assert diagnose(state, NOW) == ()
    assert [device_word(device, ()) for device in state.ordered()] == ["ok", "ok", "N/A"]


def test_an_empty_state_is_no_finding() -> None:
    assert diagnose(State(), NOW) == ()


def test_a_lost_gpu_is_named_with_the_time_and_the_others_stay_ok() -> None:
    lost = status("lost", since=60.0, seconds=62.0, index=1, detail="NVML GpuIsLost")
    state = machine(gpu(0), gpu(1), samples(0), samples(1, clock_event_mask=0x40), lost)
    found = only(state)
    since = time.strftime("%H:%M:%S", time.localtime(WALL + 60))
    assert (found.severity, found.word, found.device) == ("fail", "LOST", "GPU-1")
    assert found.title == f"GPU 1  lost since {since}: NVIDIA H100 80GB HBM3"
    assert found.cause == "NVML GpuIsLost"
    words = {device.label: device_word(device, (found,)) for device in state.ordered()}
    assert words == {"GPU 0": "ok", "GPU 1": "LOST"}


def test_rates_of_a_lost_gpu_are_not_judged() -> None:
    lost = status("lost", since=60.0, seconds=62.0)
    assert codes(machine(gpu(), samples(), rate("bf16", 100.0), lost)) == ["device-lost"]


def test_a_lost_gpu_that_comes_back_is_no_finding() -> None:
    back = status("ok", since=98.0, seconds=98.0)
    assert codes(machine(gpu(), status("lost", 60.0, 60.0), back, samples())) == []


def test_a_hung_driver_call_is_named_with_its_age() -> None:
    # The call began at 85; the poller said so at 90; it is now 100.
    hung = status("stalled", since=85.0, seconds=90.0, detail="nvmlDeviceGetPowerUsage")
    found = only(machine(gpu(), samples(), hung))
    assert (found.severity, found.word) == ("fail", "STALE")
    assert found.title == "GPU 0  driver not answering for 15 s (nvmlDeviceGetPowerUsage)"


def test_a_hung_driver_call_is_named_once() -> None:
    told = "driver not answering: nvmlDeviceGetUtilizationRates, 11 s"
    found = only(machine(gpu(), samples(), status("stalled", 85.0, 96.0, detail=told)))
    assert found.title == "GPU 0  driver not answering for 15 s (nvmlDeviceGetUtilizationRates)"


@pytest.mark.parametrize(
    ("interval", "late", "is_late"),
    [(0.5, 0.9, False), (0.5, 1.2, True), (2.0, 3.9, False), (2.0, 4.2, True), (0.1, 0.9, False)],
)
def test_samples_are_stale_after_two_intervals(interval: float, late: float, is_late: bool) -> None:
    state = machine(gpu(), samples())
    state.interval = interval
    found = codes(state, NOW - 0.1 + late)
    assert found == (["samples-stale"] if is_late else [])


def test_without_an_asked_interval_that_of_the_samples_counts() -> None:
    assert codes(machine(gpu(), samples(count=6)), NOW + 1.2) == ["samples-stale"]  # 2 Hz
    assert codes(machine(gpu(), samples(count=1)), NOW + 60) == []  # one sample has no interval


def test_no_samples_are_due_while_paused_or_just_resumed() -> None:
    state = machine(gpu(), samples())
    state.interval, state.sampling_since = 0.5, None
    assert codes(state, NOW + 60) == []
    state.sampling_since = NOW + 59.5
    assert codes(state, NOW + 60) == []
    assert codes(state, NOW + 61) == ["samples-stale"]


def test_old_samples_are_not_judged() -> None:
    hot = machine(gpu(), samples(clock_event_mask=0x40))
    hot.interval = 0.5
    assert codes(hot) == ["thermal-slowdown"]
    assert codes(hot, NOW + 10) == ["samples-stale"]


def test_a_device_in_error_could_not_be_measured_which_is_no_failure() -> None:
    found = only(machine(gpu(), status("error", 50.0, 50.0, detail="no permission")))
    assert (found.severity, found.word) == ("warn", "N/A")
    assert found.title == "GPU 0  cannot be read: no permission"


def test_a_sleeping_laptop_gpu_is_no_finding() -> None:
    state = machine(gpu(), samples(), status("asleep", 50.0, 50.0))
    assert codes(state, NOW + 600) == []
    assert device_word(state.devices["GPU-0"], ()) == "N/A"


def test_no_library_on_a_machine_without_gpu_is_a_note() -> None:
    remedy = "Install the driver, or start the container with GPU access."
    found = only(machine(cpu(), problem("no-library", "No NVIDIA driver library.", remedy)))
    assert (found.severity, found.code, found.remedy) == ("info", "nvml-no-library", remedy)


def test_no_gpu_in_the_machine_is_the_least_of_all_notes() -> None:
    ready = events.ProberReady(
        **header(2.0), device="cpu", torch_version="2", python="3", threads=2, default_threads=1
    )
    invalid = rate("fp32", 0.1, device="cpu", valid=False, cpu_share=0.5)
    absent = problem("no-device", "No NVIDIA GPU in this machine.")
    state = machine(cpu(), absent, ready, invalid)
    assert codes(state) == ["cpu-time-missing", "threads-too-few", "nvml-no-device"]
    assert diagnose(state, NOW)[-1].severity == "info"


@pytest.mark.parametrize(
    ("subject", "code", "severity", "word"),
    [
        ("CUDA_VISIBLE_DEVICES", "order", "info", "note"),
        ("selection", "unknown-device", "warn", "note"),
        ("sensors", "news-of-tomorrow", "warn", "note"),
        ("nvml", "news-of-tomorrow", "fail", "FAIL"),
        ("poller", "crashed", "fail", "FAIL"),
    ],
)
def test_a_problem_weighs_what_its_subject_does(
    subject: str, code: str, severity: str, word: str
) -> None:
    told = events.Problem(**header(1.0), subject=subject, code=code, message="It is so.")
    found = only(machine(cpu(), told))
    assert (found.severity, found.word, found.code) == (severity, word, f"{subject}-{code}")
    assert found.cause == ""


def crashed_for_good() -> list[events.AnyEvent]:
    hello = events.Hello(**header(98.0), version="1", schema=1, role="poller", pid=2)
    told = events.Problem(
        **header(97.0), subject="poller", code="crashed", message="driver library crashed: SIGSEGV"
    )
    return [told, hello]


def test_gpus_that_are_not_read_any_more_are_not_said_to_be_measured() -> None:
    state = machine(
        gpu(0),
        samples(0, clock_event_mask=0x40),
        processes(TRAINING),
        events.ProbeStarted(**header(96.0), device="GPU-0", precision="bf16"),
        cpu(),
        crashed_for_good(),
    )
    assert codes(state) == ["poller-crashed", "device-not-read"]
    since = time.strftime("%H:%M:%S", time.localtime(WALL + 97))
    findings = diagnose(state, NOW)
    assert findings[1].title == f"GPU 0  not read since {since}"
    words = [device_word(device, findings) for device in state.ordered()]
    assert words == ["N/A", "N/A"]
    assert codes(state, NOW + 60) == ["poller-crashed", "device-not-read"]


def test_a_wrong_result_outlives_the_reading_of_its_gpu() -> None:
    wrong = rate("bf16", 600.0, correct=False, relative_error=0.5)
    state = machine(gpu(0), samples(0), wrong, crashed_for_good())
    assert codes(state) == ["poller-crashed", "wrong-result", "device-not-read"]


def test_a_poller_given_up_leaves_no_gpu_read() -> None:
    state = machine(gpu(0), samples(0), worker("poller", "failed", 3, "killed by SIGSEGV"))
    assert codes(state) == ["poller-failed", "device-not-read"]


@pytest.mark.parametrize(
    ("code", "severity", "word"),
    [
        ("mismatch", "fail", "FAIL"),
        ("not-loaded", "fail", "FAIL"),
        ("container-lost", "fail", "FAIL"),
        ("nvml-999", "fail", "FAIL"),
        ("stalled", "fail", "STALE"),
        ("permission", "warn", "N/A"),
        ("no-gpu", "warn", "N/A"),
    ],
)
def test_driver_problems(code: str, severity: str, word: str) -> None:
    message = "Driver/library version mismatch: kernel module 535.1, library 550.2."
    found = only(machine(cpu(), problem(code, message, "Reboot, or reload the module.")))
    assert (found.severity, found.word) == (severity, word)
    assert found.title == message[:-1]
    assert found.remedy == "Reboot, or reload the module."


def test_a_problem_that_is_over_is_no_finding() -> None:
    assert codes(machine(cpu(), problem("not-loaded"), problem(None))) == []


def test_a_driver_problem_ranks_above_a_slow_gpu_and_a_lost_gpu_above_all() -> None:
    state = machine(
        gpu(0),
        gpu(1),
        gpu(2),
        samples(0),
        samples(1, clock_event_mask=0x8),
        status("lost", 60.0, 60.0, index=2),
        problem("nvml-999", "NVML cannot start."),
    )
    assert codes(state) == ["device-lost", "nvml-nvml-999", "hw-slowdown"]


def test_equally_bad_devices_come_in_order() -> None:
    groups = [[*gpu(index), *samples(index, clock_event_mask=0x40)] for index in (2, 0, 1)]
    state = machine(*groups)
    assert [finding.device for finding in diagnose(state, NOW)] == ["GPU-0", "GPU-1", "GPU-2"]


def test_a_restarted_worker_is_named() -> None:
    found = only(machine(cpu(), gpu(), samples(), worker("prober GPU-0", "restarted", 1, "killed")))
    assert found.title == "worker restarted: benchmarks of GPU 0, 1 time"
    assert (found.severity, found.cause) == ("warn", "killed")
    running = only(machine(cpu(), worker("poller", "running", 2)))
    assert (running.severity, running.title) == ("info", "worker restarted: device poller, 2 times")


def test_a_poller_that_crashes_for_good_is_a_failure() -> None:
    found = only(machine(cpu(), worker("poller", "failed", 3, "killed by SIGSEGV")))
    assert (found.severity, found.cause) == ("fail", "killed by SIGSEGV")
    assert found.title == "device poller crashed 4 times and was given up"


def test_a_prober_that_never_ran_says_so_once_for_all_devices() -> None:
    words = "exit code 69: no torch"
    state = machine(
        gpu(0),
        gpu(1),
        samples(0),
        samples(1),
        worker("prober GPU-0", "failed", 0, words),
        worker("prober GPU-1", "failed", 0, words),
    )
    found = only(state)
    assert (found.severity, found.title) == ("info", f"no benchmarks: {words}")
    assert found.evidence == ("benchmarks of GPU 0, benchmarks of GPU 1",)


def test_a_prober_that_crashes_again_and_again_is_a_warning() -> None:
    found = only(machine(gpu(), samples(), worker("prober GPU-0", "failed", 5, "killed")))
    assert (found.severity, found.code) == ("warn", "prober-failed")


def test_a_healthy_running_worker_is_no_finding() -> None:
    assert codes(machine(gpu(), samples(), worker("poller", "running"))) == []


def test_an_unknown_board_is_said_in_words() -> None:
    state = machine(gpu(0, FUTURE_CARD), samples())
    assert titles(state) == ["GPU 0  no ceiling known for NVIDIA FutureCard X1"]
    assert diagnose(state, NOW)[0].severity == "info"
    assert device_word(state.devices["GPU-0"], diagnose(state, NOW)) == "ok"
