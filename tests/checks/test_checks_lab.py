"""Verdicts on laboratory probes: memory, copies, latencies, sizes, overlap."""

import nodes
import pytest
from nodes import RTX_3090, RTX_5090, healthy, node, one, probe

from topsmon import ceilings, events
from topsmon.checks.outcome import exit_code
from topsmon.laboratory import Observed


def gpu(board=nodes.H100, *, l2_bytes=None, **reading) -> list[events.AnyEvent]:
    device = nodes.identity(0, board)
    ready = events.ProberReady(
        **nodes.header(), device=device.device, torch_version="2", python="p", l2_bytes=l2_bytes
    )
    return [device, ceilings.for_device(device), nodes.sample(**reading), ready]


def copy(value: float | None, **more) -> events.ProbeResult:
    return probe("memory", values={"copy_bytes_per_second": value, **more})


@pytest.mark.parametrize(
    ("share", "expected"), [(0.86, "PASS"), (0.84, "WARN"), (0.58, "WARN"), (0.56, "FAIL")]
)
def test_memory_bandwidth_is_a_share_of_bus_width_and_clock(share: float, expected: str) -> None:
    # 5120 bit x 2619 MHz x 2 = 3352.3 GB/s.
    result = one(node(gpu(), copy(share * 3352.32e9)), "dram-copy")
    assert result.state == expected
    assert result.ratio == pytest.approx(share)
    assert result.pass_limit == pytest.approx(0.85 * 3352.32e9)


def test_the_lower_memory_clock_of_geforce_compute_is_no_fault() -> None:
    # nicehash/NiceHashQuickMiner issue 206: RTX 3090 in P2, 9501 of 9751 MHz, 854.2 GB/s.
    loaded = nodes.sample(memory_clock_mhz=9501.0, performance_state=2)
    seen = {"GPU-0000": Observed(samples=(loaded,), loaded=(loaded,))}
    result = one(node(gpu(RTX_3090), copy(854.2e9)), "dram-copy", seen=seen)
    assert result.state == "PASS"
    assert result.ratio == pytest.approx(0.913, abs=1e-3)
    assert "memory clock 9501 of 9751 MHz: 93.7% of the ceiling there" in result.evidence


def test_bandwidth_of_the_cache_is_invalid() -> None:
    # NVIDIA/TileGym issue 82: RTX 5090 (1792 GB/s, 96 MB L2), fp16 4096 x N.
    state = node(gpu(RTX_5090, l2_bytes=96_000_000), copy(5019e9, buffer_bytes=67.1e6))
    result = one(state, "dram-copy")
    assert (result.state, result.unknown) == ("INVALID", True)
    assert "fit the cache" in result.cause
    assert result.ratio == pytest.approx(2.801, abs=1e-3)
    plausible = node(gpu(RTX_5090, l2_bytes=96_000_000), copy(1451e9, buffer_bytes=268.4e6))
    assert one(plausible, "dram-copy").ratio == pytest.approx(0.81, abs=1e-3)
    assert one(plausible, "dram-copy").state == "WARN"


def test_more_than_the_ceiling_is_invalid_even_if_the_cache_is_not_known() -> None:
    # RRZE-HPC/gpu-benches issue 6: 2^22 int16 filled in 5.818 us = 1.442 TB/s, 150 % of 960.
    bandwidth = 2**22 * 2 / 5.818e-6
    assert round(bandwidth / 1e12, 3) == 1.442
    rtx_5080 = {**RTX_5090, "memory_bus_bits": 256, "memory_clock_max_mhz": 15001}
    result = one(node(gpu(rtx_5080), copy(bandwidth)), "dram-copy")
    assert result.state == "INVALID"
    assert "150.2% of the ceiling" in result.cause


def test_a_zero_bandwidth_fails_and_a_missing_one_is_unknown() -> None:
    assert exit_code(nodes.check(node(gpu(), copy(0.0)), "dram-copy")) == 2
    assert exit_code(nodes.check(node(gpu(), copy(None)), "dram-copy")) == 3
    assert exit_code(nodes.check(node(gpu()), "dram-copy")) == 3


def test_a_value_that_the_probe_cannot_have_is_unsupported_with_its_reason() -> None:
    result = one(
        node(gpu(), probe("memory", values={}, unavailable={"copy_bytes_per_second": "no room"})),
        "dram-copy",
    )
    assert (result.state, result.cause) == ("UNSUPPORTED", "no room")


def test_without_a_ceiling_the_bandwidth_is_shown_without_a_verdict() -> None:
    slice_of_it = {**nodes.H100, "mig": True}
    result = one(node(gpu(slice_of_it), copy(400e9)), "dram-copy")
    assert (result.state, result.value, result.unknown) == ("NO-VERDICT", 400e9, False)
    assert "MIG slice" in result.cause


def transfer(h2d: float | None, generation: int = 5, width: int = 16, **more) -> events.ProbeResult:
    values = {
        "h2d_pinned_bytes_per_second": h2d,
        "d2h_pinned_bytes_per_second": h2d,
        "pcie_generation": generation,
        "pcie_width": width,
    }
    return probe("transfer", values={**values, **more})


def gen4(width: int = 16) -> dict[str, int]:
    return {
        "pcie_generation": 4,
        "pcie_generation_max": 4,
        "pcie_width": width,
        "pcie_width_max": width,
    }


@pytest.mark.parametrize(
    ("gigabytes", "expected"), [(50.5, "PASS"), (50.3, "WARN"), (48.1, "WARN"), (47.9, "FAIL")]
)
def test_copies_over_a_generation_5_link(gigabytes: float, expected: str) -> None:
    state = node(gpu(), transfer(gigabytes * 1e9))
    assert one(state, "h2d").state == expected
    assert one(state, "d2h").state == expected
    assert "azurehpc" in one(state, "h2d").basis


def test_achievable_copies_over_generation_4() -> None:
    # ZaidQureshi/bam issue 54: 25 GB/s on an A100, 79.3 % of 31.51.
    state = node(gpu(nodes.A100, **gen4()), transfer(25e9, 4))
    assert one(state, "h2d").state == "PASS"
    assert one(state, "h2d").ratio == pytest.approx(0.793, abs=1e-3)
    # krrishnarraj/clpeak issue 106: 20.93 GB/s on a GeForce, for which nobody published a limit.
    result = one(node(gpu(RTX_3090, **gen4()), transfer(20.93e9, 4)), "h2d")
    assert result.ratio == pytest.approx(0.664, abs=1e-3)
    assert (result.state, result.experimental) == ("WARN", True)


def test_pageable_copies_are_told_apart_and_never_a_fault_of_the_slot() -> None:
    # ZaidQureshi/bam issue 54: 10.78 GB/s is a mapped copy, 34.2 % of 31.51.
    probed = transfer(25e9, 4, h2d_pageable_bytes_per_second=10.78e9)
    result = one(node(gpu(nodes.A100, **gen4()), probed), "h2d")
    assert result.state == "PASS"
    assert "from pageable memory 10.8 GB/s: no fault of the slot" in result.evidence
    unpinned = probe(
        "transfer",
        values={"h2d_pageable_bytes_per_second": 10.78e9},
        unavailable={"h2d_pinned_bytes_per_second": "memory cannot be pinned"},
    )
    result = one(node(gpu(nodes.A100, **gen4()), unpinned), "h2d")
    assert (result.state, result.cause) == ("UNSUPPORTED", "memory cannot be pinned")


def test_a_narrowed_link_is_judged_by_what_it_could_be() -> None:
    state = node(gpu(pcie_width=4), transfer(13.8e9, 5, 4))
    result = one(state, "h2d")
    assert result.state == "FAIL"
    assert result.cause == "the link ran at gen 5 x4 of gen 5 x16"


def test_a_board_with_8_lanes_is_judged_by_its_share_and_only_warned_about() -> None:
    passed = one(node(gpu(nodes.A100, **gen4(8)), transfer(11.6e9, 4, 8)), "h2d")
    assert (passed.state, passed.pass_limit) == ("PASS", pytest.approx(11.5e9))
    assert one(node(gpu(nodes.A100, **gen4(8)), transfer(5e9, 4, 8)), "h2d").state == "WARN"


def test_copies_of_other_generations_have_no_verdict_and_no_copy_beats_its_link() -> None:
    gen6 = {"pcie_generation": 6, "pcie_generation_max": 6}
    assert one(node(gpu(**gen6), transfer(90e9, 6)), "h2d").state == "NO-VERDICT"
    assert one(node(gpu(), transfer(70e9)), "h2d").state == "INVALID"
    assert one(node(gpu(), transfer(0.0)), "h2d").state == "FAIL"


@pytest.mark.parametrize(("micro", "expected"), [(9, "PASS"), (15, "WARN"), (200, "WARN")])
def test_launch_latency_has_chosen_limits_and_never_fails(micro: float, expected: str) -> None:
    result = one(node(gpu(), probe("launch", values={"launch_seconds": micro * 1e-6})), "launch")
    assert (result.state, result.experimental) == (expected, True)


def test_overlap_has_chosen_limits_and_never_fails() -> None:
    for share, expected in ((0.81, "PASS"), (0.6, "WARN"), (0.0, "WARN")):
        result = one(node(gpu(), probe("overlap", values={"overlap_ratio": share})), "overlap")
        assert (result.state, result.experimental) == (expected, True)


def test_sizes_are_information_and_say_which_to_avoid() -> None:
    # pytorch issue 181718: 2056, a multiple of 8, is slower than the odd 2055.
    result = one(node(healthy()), "alignment")
    assert (result.state, result.unknown) == ("NO-VERDICT", False)
    assert result.value_text == "4095: 57%, 4104: 80% of 4096"
    assert result.cause == "N = 4095, 4104 loses: pad sizes to multiples of 64"
    smaller = {"rate_512_ops_per_second": 9e9, "rate_511_ops_per_second": 8.9e9}
    state = node(gpu(), probe("alignment", values=smaller, labels={"base_n": "512"}))
    assert one(state, "alignment").value_text == "511: 99% of 512"


def test_a_refused_probe_says_why() -> None:
    refused = events.ProbeUnsupported(
        **nodes.header(), device="GPU-0000", precision="overlap", reason="one copy engine"
    )
    result = one(node(gpu(), refused), "overlap")
    assert (result.state, result.cause) == ("UNSUPPORTED", "one copy engine")


def test_disturbed_probes_are_invalid() -> None:
    for name in ("memory", "transfer", "launch", "overlap", "alignment", "sync_stall"):
        state = node(gpu(), probe(name, valid=False, invalid_reason="shared: PID 7"))
        results = nodes.check(state, name)
        assert {result.state for result in results} == {"INVALID"}, name
        assert all(result.unknown for result in results)


def test_the_remedy_of_a_narrow_link_is_the_links_own() -> None:
    narrow = one(node(gpu(pcie_width=4), transfer(13.8e9, 5, 4)), "h2d")
    assert narrow.state == "FAIL"
    assert "x16 slot" in narrow.remedy
    assert "reseat" in narrow.remedy
    wide = one(node(gpu(), transfer(30e9)), "h2d")
    assert wide.state == "FAIL"
    assert "NUMA" in wide.remedy
    assert "pinned" not in wide.remedy  # the copies were from pinned memory
    assert "pass from 1.05 x 48 GB/s" in wide.basis


def test_a_launch_in_no_time_is_no_measurement() -> None:
    result = one(node(gpu(), probe("launch", values={"launch_seconds": 0.0})), "launch")
    assert (result.state, result.unknown) == ("INVALID", True)
    assert result.remedy
