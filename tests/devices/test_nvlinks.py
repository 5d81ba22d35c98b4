"""NVLink: links that are up, traffic over all of them, their errors, old and new drivers."""

from __future__ import annotations

from typing import Any

import pytest
from poller_process import Read, one_gpu

KIB = 1024


def linked(**fields: Any) -> dict[str, Any]:
    return one_gpu(
        **{
            "nvlink_count": 18,
            "nvlink_active": 1,
            "nvlink_transmit_kib": {"count": [0, 1e6]},
            "nvlink_receive_kib": {"count": [0, 2e6]},
            "nvlink_crc_flit_errors": 0,
            **fields,
        }
    )


def test_a_link_that_goes_down_is_counted(read: Read) -> None:
    content = linked(links={"5": {"nvlink_active": {"steps": [[0, 1], [8, 0]]}}})
    samples = read(content, [0.0, 5.0, 12.0]).samples
    assert [(one.nvlink_links, one.nvlink_links_up) for one in samples] == [(18, 18)] * 2 + [
        (18, 17)
    ]


def test_traffic_is_the_sum_over_the_links_in_one_field(read: Read) -> None:
    result = read(linked(), [0.0, 1.0, 2.0], counters=False)
    sample = result.samples[-1]
    assert sample.nvlink_transmit_bytes_per_second == pytest.approx(18 * 1e6 * KIB)
    assert sample.nvlink_receive_bytes_per_second == pytest.approx(18 * 2e6 * KIB)
    later = [name for time, name, _ in result.calls if time >= 2]
    assert later.count("nvmlDeviceGetFieldValues") == 1


def test_nvlink_5_counts_bytes(read: Read) -> None:
    content = linked(
        nvlink_transmit_kib=None,
        nvlink_receive_kib=None,
        nvlink_transmit_bytes={"count": [0, 4e9]},
        nvlink_receive_bytes={"count": [0, 5e9]},
    )
    sample = read(content, [0.0, 1.0, 2.0, 3.0], counters=False).samples[-1]
    assert sample.nvlink_transmit_bytes_per_second == pytest.approx(18 * 4e9)
    assert sample.nvlink_receive_bytes_per_second == pytest.approx(18 * 5e9)


def test_a_driver_that_does_not_count_links_is_asked_for_each(read: Read) -> None:
    fault = {"call": "field:91", "return": "NotSupported"}
    content = {**linked(nvlink_count=6), "faults": [fault]}
    sample = read(content, [0.0, 1.0, 2.0]).samples[-1]
    assert (sample.nvlink_links, sample.nvlink_links_up) == (6, 6)
    assert sample.nvlink_transmit_bytes_per_second == pytest.approx(6 * 1e6 * KIB)


def test_a_board_without_nvlink_is_asked_once(read: Read) -> None:
    result = read(one_gpu(), [0.0, 5.0, 10.0, 15.0, 20.0])
    for sample in result.samples:
        assert sample.nvlink_links is None
        assert sample.unavailable["nvlink_links_up"] == "no NVLink on this GPU"
        assert sample.unavailable["nvlink_errors"] == "no NVLink on this GPU"
    assert [name for _, name, _ in result.calls].count("nvmlDeviceGetNvLinkState") == 1


def test_a_bridge_that_is_not_there_is_no_traffic(read: Read) -> None:
    """A PCIe board has links that are all down; their counters are not supported."""
    sample = read(linked(nvlink_active=0), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]).samples[-1]
    assert (sample.nvlink_links, sample.nvlink_links_up) == (18, 0)
    assert sample.nvlink_transmit_bytes_per_second in {None, 0}


def test_errors_are_counted_over_all_kinds_and_links(read: Read) -> None:
    content = linked(
        nvlink_crc_flit_errors=0,
        nvlink_replay_errors={"steps": [[0, 0], [4, 2]]},
        nvlink_recovery_errors=0,
        nvlink_crc_data_errors=0,
    )
    samples = read(content, [0.0, 6.0]).samples
    assert [one.nvlink_errors for one in samples] == [0, 36]
