"""nvmlDeviceGetFieldValues: each entry has a code, a type and a value of its own."""

import pytest

FIELDS = """
def fields(h, ids):
    def value(v):
        kinds = {1: 'uiVal', 3: 'ullVal', 5: 'siVal'}
        return [v.nvmlReturn, getattr(v.value, kinds[v.valueType]) if v.nvmlReturn == 0 else None]
    return [value(v) for v in n.nvmlDeviceGetFieldValues(h, ids)]
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
"""
ALL_LINKS = 0xFFFFFFFF
ONE = {"title": "t", "description": "d", "expected": "ok"}
# id: value at 10 s in the units of NVML (ns, mJ, mW, degC), from the file every-signal.json
EVERY = {
    29: 4, 30: 9, 31: 1,
    38: 107, 45: 109, 52: 101, 59: 103,
    74: 910_110_000_000, 75: 920_120_000_000, 76: 930_130_000_000, 77: 940_140_000_000,
    78: 950_150_000_000, 79: 960_160_000_000,
    82: 72, 83: (5_123_000 + 6130) * 1000, 91: 18, 94: 61, 95: 62,
    142: 5, 143: 7, 144: 1, 145: 0,
    173: 63, 174: 64, 175: 65, 176: 66, 177: 67, 178: 68, 179: 69, 180: 70, 181: 73, 182: 74,
    183: 75,
    185: 614_000, 186: 615_000, 187: 200_000, 188: 700_000,
    193: -8, 194: -2, 195: -1, 196: 0,
    197: 7_102_150_000_000, 198: 9_603_480_000_000,
    269: 970_170_000_000, 270: 980_180_000_000, 271: 990_190_000_000,
}  # fmt: skip


def test_every_field_has_its_own_value(simulate) -> None:
    found = simulate("every-signal", seconds=10).result(f"{FIELDS}r = fields(h, {list(EVERY)!r})")
    assert dict(zip(EVERY, found, strict=True)) == {key: [0, v] for key, v in EVERY.items()}


def test_unknown_and_unsupported_entries_leave_their_neighbours_alone(simulate) -> None:
    found = simulate("rtx4090").result(f"{FIELDS}r = fields(h, [186, 82, 9999, 91, 94])")
    assert [code for code, _ in found] == [0, 3, 2, 3, 0]


def test_nvlink_counters_are_those_of_the_link_in_the_scope(simulate) -> None:
    content = {
        **ONE,
        "device": {
            "nvlink_count": 4, "nvlink_active": 1, "nvlink_transmit_kib": {"count": [100, 10]},
            "links": {"1": {"nvlink_transmit_kib": 7}, "2": {"nvlink_active": 0}},
        },
    }  # fmt: skip
    ids = [138, (138, 1), (138, 2), (138, 3), (138, 4), (138, ALL_LINKS), (139, 0)]
    found = simulate(content, seconds=5).result(f"{FIELDS}r = fields(h, {ids!r})")
    assert found == [
        [0, 150], [0, 7], [3, None], [0, 150], [2, None], [0, 150 + 7 + 150], [3, None]
    ]  # fmt: skip


def test_nvlink_5_counts_bytes(simulate) -> None:
    ids = [(202, 17), (204, 17), (138, 17), (201, 0), (203, 0)]
    found = simulate("b200", seconds=2).result(f"{FIELDS}r = fields(h, {ids!r})")
    assert found == [
        [0, 9_100_000_000_000 + 5_600_000_000], [0, 9_600_000_000_000 + 6_200_000_000], [3, None],
        [0, 81_042_000_000], [0, 84_046_000_000],
    ]  # fmt: skip


def test_byte_counters_wrap_and_energy_starts_again(simulate) -> None:
    simulation = simulate("counters-wrap")
    readings = []
    for seconds in (1, 2, 7.9, 8, 9):
        simulation.clock(seconds)
        readings.append([v for _, v in simulation.result(f"{FIELDS}r = fields(h, [197, 83])")])
    sent, energy = zip(*readings, strict=True)
    assert sent[:2] == (4_215_040_000, (4_000_000_000 + 2 * 215_040_000) % 2**32)
    assert sent[1] < sent[0]
    assert energy == (5_123_612_000, 5_124_224_000, 5_127_834_800, 0, 612_000)


def test_throttle_counters_follow_the_event_mask(simulate) -> None:
    """Power 2 s to 5 s and from 8 s on; thermal in software from 5 s to 6 s, in hardware after."""
    mask = {"steps": [[0, 0], [2, 4], [5, 32], [6, 64], [8, 4]]}
    simulation = simulate({**ONE, "device": {"clock_event_mask": mask}})
    found = {}
    for seconds in (0, 3.5, 7, 10):
        simulation.clock(seconds)
        entries = simulation.result(f"{FIELDS}r = fields(h, [74, 75, 269, 270, 271, 78])")
        found[seconds] = [value / 1e9 for _, value in entries]
    assert found == {
        0: [0, 0, 0, 0, 0, 0],
        3.5: [1.5, 0, 0, 0, 0, 0],
        7: [3, 2, 1, 1, 0, 0],
        10: [5, 3, 1, 2, 0, 0],
    }


def test_a_scenario_may_give_throttle_counters_itself(simulate) -> None:
    device = {"clock_event_mask": 4, "throttle_power_seconds": {"count": [7, 0.25]},
              "throttle_thermal_seconds": None}  # fmt: skip
    found = simulate({**ONE, "device": device}, seconds=4).result(
        f"{FIELDS}r = fields(h, [74, 75])"
    )
    assert found == [[0, 8_000_000_000], [3, None]]


def test_time_stamps_jump_where_the_scenario_says(simulate) -> None:
    simulation = simulate("timestamps-jump")
    stamps = []
    for seconds in (5, 6, 9):
        simulation.clock(seconds)
        stamps.append(
            simulation.result(f"{FIELDS}r = n.nvmlDeviceGetFieldValues(h, [83])[0].timestamp")
        )
    assert [stamp - stamps[0] for stamp in stamps] == [0, 86_401_000_000, -3_596_000_000]


@pytest.mark.parametrize("count", [0, 1])
def test_lists_of_any_length(simulate, count: int) -> None:
    assert len(simulate("idle").result(f"{FIELDS}r = fields(h, [186] * {count})")) == count
