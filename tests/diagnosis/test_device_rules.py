"""Power limit, PCIe link, memory, busy time, input, CPU: each positive, negative, and guarded."""

from typing import Any

import pytest
from machines import (
    LAPTOP_4070,
    NOW,
    TRAINING,
    codes,
    cpu,
    gpu,
    header,
    machine,
    only,
    processes,
    rate,
    sample,
    samples,
)

from topsmon import events
from topsmon.diagnosis import device_word, diagnose
from topsmon.diagnosis.link import describe, raw_bytes_per_second
from topsmon.diagnosis.memory import fill_ratio
from topsmon.diagnosis.sharing import is_sawtooth

LOWERED = {"power_limit_watts": 350.0, "power_watts": 348.0, "sm_clock_mhz": 1155.0}


def host(**changes: Any) -> events.Host:
    return events.Host(**header(1.0), hostname="node", system="Linux", **changes)


# Power limit --------------------------------------------------------------------------------------


def test_a_lowered_limit_that_holds_the_clock_down() -> None:
    found = only(machine(gpu(3), samples(3, clock_event_mask=0x4, **LOWERED)))
    assert (found.word, found.severity, found.code) == ("SLOW", "warn", "power-limit-low")
    assert found.title == "GPU 3  power limit 350 W of 700 W (default), clock 1155 MHz"
    assert found.cause == "power limit is set to 350 W (default 700 W)"
    assert found.command == "sudo nvidia-smi -i 3 -pl 700"


def test_power_at_the_lowered_limit_counts_where_no_reason_is_reported() -> None:
    found = only(machine(gpu(), samples(clock_event_mask=None, **LOWERED)))
    assert found.severity == "warn"


def test_a_lowered_limit_that_is_not_reached_is_a_note() -> None:
    idle = {"power_limit_watts": 350.0, "power_watts": 90.0, "busy_ratio": 0.0}
    state = machine(gpu(), samples(**idle))
    assert only(state).severity == "info"
    assert device_word(state.devices["GPU-0"], diagnose(state, NOW)) == "ok"


def test_a_burst_held_down_by_the_lowered_limit_counts_between_bursts() -> None:
    idle = {"power_limit_watts": 350.0, "power_watts": 90.0, "busy_ratio": 0.0}
    burst = rate("fp64", 40.0, held_clock_mhz=1100.0, clock_event_mask=0x4)
    assert only(machine(gpu(), samples(**idle), burst)).severity == "warn"
    other_reason = rate("fp64", 40.0, held_clock_mhz=1100.0, clock_event_mask=0x10)
    assert only(machine(gpu(), samples(**idle), other_reason)).severity == "info"


@pytest.mark.parametrize(
    "changes",
    [
        {"clock_event_mask": 0x4},  # at the default limit: normal under load
        {"power_limit_watts": 699.0, "clock_event_mask": 0x4},  # rounding of the driver
        {"power_limit_watts": 750.0},
        {"power_limit_watts": None, "clock_event_mask": 0x4},
    ],
)
def test_no_power_finding(changes: dict[str, Any]) -> None:
    assert codes(machine(gpu(), samples(**changes))) == []


def test_no_power_finding_where_the_default_is_unknown() -> None:
    board = gpu(power_limit_default_watts=None)
    assert codes(machine(board, samples(clock_event_mask=0x4, **LOWERED))) == []


def test_a_laptop_held_at_55_of_105_watts() -> None:
    held = {"power_limit_watts": 55.0, "power_watts": 54.0, "sm_clock_mhz": 1230.0}
    found = only(machine(gpu(0, LAPTOP_4070), samples(clock_event_mask=0x4, **held)))
    assert found.title == "GPU 0  power limit 55 W of 105 W possible, clock 1230 MHz"
    assert "charger" in found.remedy
    assert "nvidia-powerd" in found.remedy
    assert "-pl" not in found.command  # nvidia-smi cannot raise a laptop's limit


@pytest.mark.parametrize(
    "changes",
    [
        {"power_limit_watts": 55.0, "power_watts": 9.0, "busy_ratio": 0.0},  # at rest
        {"power_limit_watts": None, "power_watts": 54.0},  # the limit is not supported
    ],
)
def test_a_resting_laptop_or_one_without_a_limit_is_no_finding(changes: dict[str, Any]) -> None:
    assert codes(machine(gpu(0, LAPTOP_4070), samples(**changes))) == []


def test_commands_fit_containers_and_windows() -> None:
    board = gpu(3, uuid="GPU-abc")
    lowered = samples(3, clock_event_mask=0x4, **LOWERED)
    inside = only(machine(host(container=True), board, lowered))
    assert inside.command == "sudo nvidia-smi -i GPU-abc -pl 700"  # indices differ on the host
    assert inside.remedy.startswith("On the host of this container, ")
    windows = only(machine(host(wsl=True), board, lowered))
    assert windows.command == "nvidia-smi -i 3 -pl 700"
    assert windows.remedy.startswith("In an administrator shell of Windows, ")


# PCIe link ----------------------------------------------------------------------------------------


def test_a_narrow_link_under_load() -> None:
    narrow = {"pcie_generation": 4, "pcie_generation_max": 4, "pcie_width": 4}
    found = only(machine(gpu(), samples(count=6, **narrow)))
    assert (found.word, found.severity) == ("SLOW", "warn")
    assert found.title == "GPU 0  PCIe link gen 4 x4 of gen 4 x16 under load"
    # 16 GT/s x 128/130 / 8 = 1.969 GB/s a lane: 7.9 of 31.5 GB/s.
    assert found.evidence == ("7.9 of 31.5 GB/s per direction",)
    assert found.command == "sudo lspci -vv -s 0000:17:00.0 | grep LnkSta"


@pytest.mark.parametrize(
    "changes",
    [
        # generation 1 of 3 at rest, as so often taken for a fault
        {"pcie_generation": 1, "pcie_generation_max": 3, "performance_state": 8, "busy_ratio": 0.0},
        # a video decoder keeps it busy in a low performance state
        {"pcie_generation": 1, "performance_state": 8, "busy_ratio": 0.9},
        {"pcie_width": None, "pcie_generation": None},
        {"pcie_width_max": None, "pcie_generation_max": None, "pcie_generation": 1},
    ],
)
def test_no_link_finding(changes: dict[str, Any]) -> None:
    assert codes(machine(gpu(), samples(**changes))) == []


def test_a_burst_of_our_own_is_no_load() -> None:
    link = {"pcie_generation": 1, "busy_ratio": 0.0}
    rest = [sample(NOW - 2 + 0.5 * turn, **link) for turn in range(3)]
    burst = sample(NOW - 0.2, pcie_generation=1, busy_ratio=1.0)
    assert codes(machine(gpu(), rest, burst)) == []


def test_load_is_told_by_power_where_busy_time_is_not_available() -> None:
    narrow = {"pcie_width": 4, "busy_ratio": None}
    assert codes(machine(gpu(), samples(count=6, **narrow))) == ["pcie-link-low"]
    assert codes(machine(gpu(), samples(count=6, power_watts=80.0, **narrow))) == []


def test_a_link_that_was_read_at_rest_says_nothing_of_the_load_after_it() -> None:
    """The link is read every 2 s, busy time with every sample: for 2 s they are not of one time."""
    link = {"pcie_generation": 1}
    rest = [sample(NOW - 6 + 0.1 * turn, busy_ratio=0.0, **link) for turn in range(40)]
    load = [sample(NOW - 2 + 0.1 * turn, busy_ratio=1.0, **link) for turn in range(20)]
    assert codes(machine(gpu(), rest, load)) == []
    more = [sample(NOW + 0.1 * turn, busy_ratio=1.0, **link) for turn in range(6)]
    state = machine(gpu(), rest, load, more)
    assert [found.code for found in diagnose(state, NOW + 0.6)] == ["pcie-link-low"]


def test_link_in_words() -> None:
    idle = sample(1.0, pcie_generation=1, pcie_generation_max=3)
    assert describe(idle, loaded=False) == "gen 1 x16 (idle; max gen 3 x16)"
    assert describe(sample(1.0), loaded=False) == "gen 5 x16"
    assert describe(sample(1.0, pcie_width=None), loaded=True) is None


@pytest.mark.parametrize(
    ("generation", "gigabytes"), [(1, 4.0), (2, 8.0), (3, 15.75), (4, 31.5), (5, 63.0)]
)
def test_raw_link_rates(generation: int, gigabytes: float) -> None:
    """PCIe x16 after line coding, as commonly tabulated."""
    assert raw_bytes_per_second(generation, 16) == pytest.approx(gigabytes * 1e9, rel=1e-3)


# Memory -------------------------------------------------------------------------------------------


def test_memory_nearly_full_names_the_holders() -> None:
    full = samples(memory_used_bytes=78 * 2**30, memory_total_bytes=80 * 2**30)
    small = events.ProcessEntry(pid=7, name="nvtop", memory_bytes=2**20)
    found = diagnose(machine(gpu(), full, processes(small, TRAINING)), NOW)[0]
    assert (found.word, found.severity) == ("FULL", "warn")
    assert found.title == "GPU 0  memory 97.5% full: 78.0 of 80.0 GiB"
    assert found.evidence[0] == "40.0 GiB python train.py (PID 4711)"


def test_what_the_driver_reserves_cannot_be_had_either() -> None:
    # 75 + 2 of 80 GiB are 96.25 %.
    used = {"memory_used_bytes": 75 * 2**30, "memory_total_bytes": 80 * 2**30}
    assert codes(machine(gpu(), samples(**used))) == []
    assert codes(machine(gpu(), samples(memory_reserved_bytes=2 * 2**30, **used))) == [
        "memory-full"
    ]


def test_a_16_gib_card_at_87_6_percent_is_not_full() -> None:
    used = {"memory_used_bytes": 15057551360, "memory_total_bytes": 17179869184}
    assert fill_ratio(sample(1.0, **used)) == pytest.approx(0.876, abs=5e-4)
    assert codes(machine(gpu(), samples(**used))) == []


@pytest.mark.parametrize(
    "changes",
    [{"memory_used_bytes": None}, {"memory_total_bytes": None}, {"memory_total_bytes": 0}],
)
def test_memory_that_was_not_measured_is_no_finding(changes: dict[str, Any]) -> None:
    assert codes(machine(gpu(), samples(**changes))) == []


# Busy, starved, shared ----------------------------------------------------------------------------

IDLING = {
    "busy_ratio": 1.0,
    "power_watts": 95.0,
    "power_limit_watts": 400.0,
    "memory_busy_ratio": 0.02,
}


def test_busy_all_the_time_at_a_quarter_of_the_power_is_a_hint() -> None:
    board = gpu(power_limit_default_watts=400.0)
    found = only(machine(board, samples(count=10, **IDLING)))
    assert (found.code, found.severity) == ("busy-not-working", "info")
    assert found.title == "GPU 0  busy 100% of the time at 24% of its power"
    assert found.evidence == (
        "24% of the power limit on average",
        "memory busy 2% of the time",
    )


@pytest.mark.parametrize(
    ("count", "changes"),
    [
        (10, {"power_watts": 130.0}),
        (10, {"memory_busy_ratio": 0.9}),  # bound by memory: working
        (10, {"busy_ratio": 0.5}),
        (4, {}),  # too short to say
        (10, {"power_watts": None}),
    ],
)
def test_no_hint_busy_not_working(count: int, changes: dict[str, Any]) -> None:
    board = gpu(power_limit_default_watts=400.0)
    assert codes(machine(board, samples(count=count, **{**IDLING, **changes}))) == []


def test_a_sawtooth_of_another_process_looks_input_bound() -> None:
    teeth = [
        sample(NOW - 0.1 - 0.5 * back, busy_ratio=0.9 if back % 4 < 2 else 0.0)
        for back in reversed(range(24))
    ]
    found = diagnose(machine(gpu(), teeth, processes(TRAINING)), NOW)
    hint = next(one for one in found if one.code == "input-bound")
    assert hint.severity == "info"
    assert hint.title == "GPU 0  works in bursts, 45% busy on average: looks input-bound"
    assert "no fault of the GPU" in hint.cause
    # our own bursts have the same pattern
    own = events.ProcessEntry(pid=1, own=True)
    assert "input-bound" not in codes(machine(gpu(), teeth, processes(own)))


@pytest.mark.parametrize(
    ("busy", "expected"),
    [
        ([0.0, 0.9] * 8, True),
        ([0.9] * 16, False),
        ([0.0] * 16, False),
        ([0.0] * 8 + [0.9] * 8, False),  # one change: a run that has begun
        ([0.5] * 16, False),
        ([0.0, 0.9] * 5, False),  # too short
    ],
)
def test_sawtooth(busy: list[float], expected: bool) -> None:
    assert is_sawtooth(busy) is expected


def test_memory_held_without_work_is_a_hint_after_a_while() -> None:
    held = [sample(NOW - 0.1 - 0.5 * back, busy_ratio=0.0) for back in reversed(range(60))]
    found = codes(machine(gpu(), held, processes(TRAINING)))
    assert found == ["device-shared", "input-bound"]
    assert codes(machine(gpu(), held[:30], processes(TRAINING)), held[29].monotonic) == [
        "device-shared"
    ]


def test_own_processes_do_not_share_a_device() -> None:
    own = events.ProcessEntry(pid=1, name="topsmon", own=True)
    assert codes(machine(gpu(), samples(), processes(own))) == []
    unreadable = events.Processes(**header(1.0), device="GPU-0", entries=None, reason="WSL 2")
    assert codes(machine(gpu(), samples(), unreadable)) == []


def test_in_a_container_one_host_pid_is_our_own_prober() -> None:
    ready = events.ProberReady(**header(2.0), device="GPU-0", torch_version="2", python="3")
    prober = events.ProcessEntry(pid=90001, local=False)
    other = events.ProcessEntry(pid=90002, local=False, name="python")
    assert codes(machine(gpu(), samples(), ready, processes(prober))) == []
    assert codes(machine(gpu(), samples(), ready, processes(prober, other))) == ["device-shared"]
    assert codes(machine(gpu(), samples(), processes(prober))) == ["device-shared"]


def test_names_from_outside_cannot_draw() -> None:
    evil = events.ProcessEntry(pid=5, command="evil\x1b[2J\nline2\udcff")
    found = only(machine(gpu(), samples(), processes(evil)))
    assert found.title.isprintable()
    assert found.evidence[0].isprintable()


# CPU ----------------------------------------------------------------------------------------------


def cpu_rate(share: float, valid: bool) -> events.RateMeasured:
    return events.RateMeasured(
        **header(NOW - 5),
        device="cpu",
        precision="fp32",
        rate_ops_per_second=16.8e9,
        shape=(512, 512, 512),
        correct=True,
        valid=valid,
        invalid_reason="" if valid else "only 55 % of CPU time received",
        cpu_share=share,
        threads=2,
    )


def test_a_cpu_rate_without_the_cpu_time_names_who_took_it() -> None:
    taker = processes(TRAINING, device="cpu")
    found = diagnose(machine(cpu(), cpu_rate(0.55, False), taker), NOW)
    missing = next(one for one in found if one.code == "cpu-time-missing")
    assert missing.severity == "info"
    assert missing.title == "CPU  rates not valid: only 55% of the CPU time received"
    assert missing.cause == "python train.py (PID 4711) uses 1.5 cores"


def test_a_cpu_rate_with_its_time_is_no_finding() -> None:
    assert codes(machine(cpu(), cpu_rate(0.97, True))) == []


def test_the_load_is_named_where_the_taker_is_unknown() -> None:
    load = events.HostSample(**header(NOW), load_1_minute=3.5)
    assert only(machine(cpu(), cpu_rate(0.55, False), load)).cause == (
        "others use the CPU (load 3.5)"
    )


@pytest.mark.parametrize(
    ("default", "fitting", "code"),
    [(32, 2, "threads-too-many"), (1, 2, "threads-too-few"), (2, 2, None), (None, 2, None)],
)
def test_threads_that_do_not_fit_the_cores(
    default: int | None, fitting: int, code: str | None
) -> None:
    ready = events.ProberReady(
        **header(2.0),
        device="cpu",
        torch_version="2",
        python="3",
        threads=fitting,
        default_threads=default,
        usable_cpus=2,
    )
    found = diagnose(machine(cpu(), ready), NOW)
    assert [one.code for one in found] == ([code] if code else [])
    if found:
        assert found[0].severity == ("warn" if code == "threads-too-many" else "info")
        assert found[0].word == ("SLOW" if code == "threads-too-many" else "note")
        number = "1 thread" if default == 1 else "32 threads"
        assert f"torch takes {number} by default, 2 fit the usable cores" in found[0].title
        assert f"OMP_NUM_THREADS={fitting}" in found[0].remedy


def test_a_process_is_named_by_its_program_and_arguments() -> None:
    long_path = "/root/.pyenv/versions/3.11.7/bin/python3 train.py --epochs 3"
    entry = events.ProcessEntry(pid=13238, command=long_path, memory_bytes=2**30)
    shared = only(machine(gpu(), samples(), processes(entry)))
    assert shared.title == "GPU 0  used by python3 train.py --epochs 3 (PID 13238)"
    assert shared.evidence[0].startswith("python3 train.py --epochs 3 (PID 13238)")


def test_the_cpu_is_shared_only_where_it_is_measured_and_really_taken() -> None:
    ready = events.ProberReady(
        **header(2.0), device="cpu", torch_version="2", python="3", threads=2, usable_cpus=2
    )
    light = events.ProcessEntry(pid=5, name="sshd", cpu_cores=0.1)
    assert codes(machine(cpu(), ready, processes(light, device="cpu"))) == []
    assert codes(machine(cpu(), ready, processes(TRAINING, device="cpu"))) == ["device-shared"]
    beside_gpu = machine(gpu(), samples(), cpu(), processes(TRAINING, device="cpu"))
    assert codes(beside_gpu) == []


def test_a_cpu_range_is_compared_with_its_upper_end() -> None:
    # 8 cores at 2.5 GHz with AVX-512: 640 GFLOPS with one FMA unit, 1280 with two; 774.95 measured.
    ceilings = events.Ceilings(
        **header(1.0),
        device="cpu",
        rates=(
            events.Ceiling(
                precision="fp32",
                ops_per_second=1280e9,
                ops_per_second_low=640e9,
                origin="range",
                source="one or two FMA units",
            ),
        ),
    )
    result = events.RateMeasured(
        **header(NOW), device="cpu", precision="fp32", rate_ops_per_second=774.95e9, correct=True
    )
    state = machine(cpu(), ceilings, result)
    assert state.devices["cpu"].ratio("fp32") == pytest.approx(0.605, abs=1e-3)
    assert codes(state) == []
