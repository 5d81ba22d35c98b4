"""The snapshot as text and as JSON."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topsmon import ceilings, events
from topsmon.diagnosis import diagnose
from topsmon.report import once
from topsmon.report.columns import cells, wrap
from topsmon.state import State

WALL = 1_700_000_000.0
NOW = 10.0


def header(**changes: Any) -> dict[str, Any]:
    return {"time": WALL, "monotonic": 9.0, "source": "node", **changes}


def h100(index: int = 0) -> list[Any]:
    device = events.Device(
        **header(),
        device=f"GPU-{index}",
        kind="gpu",
        index=index,
        name="NVIDIA H100 80GB HBM3",
        pci_device_id="2330",
        compute_capability="9.0",
        sm_count=132,
        power_limit_default_watts=700.0,
    )
    return [device, ceilings.for_device(device)]


def sample(index: int = 0, **changes: Any) -> events.DeviceSample:
    fields = {
        "device": f"GPU-{index}",
        "busy_ratio": 0.84,
        "memory_used_bytes": 50 * 2**30,
        "memory_total_bytes": 80 * 2**30,
        "sm_clock_mhz": 1755.0,
        "power_watts": 640.0,
        "power_limit_watts": 700.0,
        "temperature_celsius": 61.0,
    }
    return events.DeviceSample(**header(), **{**fields, **changes})


def bf16(tera: float, index: int = 0, **changes: Any) -> events.RateMeasured:
    fields = {
        "device": f"GPU-{index}",
        "precision": "bf16",
        "rate_ops_per_second": tera * 1e12,
        "correct": True,
    }
    return events.RateMeasured(**header(time=WALL - 7300), **{**fields, **changes})


def machine(*found: Any) -> State:
    state = State()
    for group in found:
        for event in group if isinstance(group, list) else [group]:
            state.apply(event, event.monotonic)
    return state


def text(state: State, *, ascii_only: bool = False) -> str:
    return once.text(state, diagnose(state, NOW), NOW, ascii_only=ascii_only, wall=WALL)


def document(state: State) -> dict[str, Any]:
    return json.loads(once.to_json(state, diagnose(state, NOW), NOW, wall=WALL))


HOST = events.Host(
    **header(), hostname="ml-node-07", system="Linux", driver_version="580.65", cuda_version="13.0"
)


def test_text_of_a_healthy_gpu() -> None:
    shown = text(machine(HOST, h100(), sample(), bf16(722.0)))
    lines = shown.splitlines()
    assert lines[0].startswith("topsmon ")
    assert "ml-node-07  driver 580.65  CUDA 13.0" in lines[0]
    assert "all ok" in lines
    row = next(line for line in lines if line.startswith("GPU 0   ok "))
    assert row.split() == ["GPU", "0", "ok", "84%", "50.0/80.0", "640/700", "61", "1755"]
    assert "  BF16       989 TFLOPS       722 TFLOPS (73.0%), 2 h ago" in lines


def test_text_is_plain_and_80_columns_wide() -> None:
    lost = events.DeviceStatus(
        **header(), device="GPU-1", condition="lost", since=9.0, detail="x" * 300
    )
    shown = text(machine(HOST, h100(0), h100(1), sample(), lost))
    assert all(cells(line) <= 80 for line in shown.splitlines())
    assert all(line.isprintable() for line in shown.splitlines())
    assert "GPU 1   LOST      N/A" in shown
    assert "  BF16       989 TFLOPS       N/A" in shown


def test_the_worst_finding_comes_with_its_exact_command() -> None:
    state = machine(h100(), *(sample(power_limit_watts=350.0, clock_event_mask=4),) * 2)
    lines = text(state).splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("SLOW "))
    assert lines[place].startswith("SLOW   GPU 0  power limit 350 W of 700 W (default)")
    assert "       > sudo nvidia-smi -i 0 -pl 700" in lines[place:]


def test_a_simulated_run_says_so_first_in_text_and_json() -> None:
    hello = events.Hello(
        **header(), version="1", schema=1, role="poller", pid=1, simulated="power-cap"
    )
    state = machine(hello, h100(), sample())
    assert text(state).startswith("SIMULATED (power-cap)")
    assert document(state)["simulated"] == "power-cap"
    assert document(machine(h100()))["simulated"] is None
    assert not text(machine(h100())).startswith("SIMULATED")


def test_what_was_not_measured_is_n_a_with_its_reason_and_never_zero() -> None:
    missing = {
        "busy_ratio": None,
        "power_watts": None,
        "power_limit_watts": None,
        "unavailable": {"busy_ratio": "WSL 2 does not report it"},
    }
    state = machine(h100(), sample(**missing))
    assert "N/A busy (GPU 0): WSL 2 does not report it" in text(state)
    device = document(state)["devices"][0]
    assert device["sample"]["busy_ratio"] is None
    assert device["sample"]["power_watts"] is None
    assert device["sample"]["unavailable"] == {"busy_ratio": "WSL 2 does not report it"}


def test_json_has_units_in_its_keys_and_the_right_values() -> None:
    state = machine(HOST, h100(), sample(), bf16(722.0, held_clock_mhz=1755.0))
    found = document(state)
    assert found["schema_version"] == 1
    assert found["host"]["driver_version"] == "580.65"
    device = found["devices"][0]
    assert device["word"] == "ok"
    assert device["identity"]["name"] == "NVIDIA H100 80GB HBM3"
    assert device["sample"]["power_watts"] == 640.0
    assert device["sample"]["age_seconds"] == 1.0
    rate = next(one for one in device["rates"] if one["precision"] == "bf16")
    assert rate["unit"] == "TFLOPS"
    assert rate["rate_ops_per_second"] == 722e12
    assert rate["ceiling_ops_per_second"] == pytest.approx(989.4e12, rel=1e-3)
    assert rate["ratio"] == pytest.approx(0.730, abs=1e-3)
    # 132 SMs x 4096 x 1755 MHz = 948.9 TFLOPS
    assert rate["ceiling_at_held_clock_ops_per_second"] == pytest.approx(948.9e12, rel=1e-3)
    assert rate["measurement"]["age_seconds"] == 7300.0
    assert rate["measurement"]["earlier_session"] is False
    fp4 = next(one for one in device["rates"] if one["precision"] == "fp4")
    assert fp4["ceiling_ops_per_second"] is None
    assert "FP4" in fp4["unavailable"]["ceiling_ops_per_second"]
    assert fp4["unavailable"]["rate_ops_per_second"] == "not measured yet"


def test_json_findings() -> None:
    state = machine(h100(), bf16(300.0, held_clock_mhz=1755.0))
    found = document(state)
    assert found["worst_severity"] == "fail"
    assert found["findings"][0]["code"] == "rate-below-expected"
    assert found["findings"][0]["device"] == "GPU-0"
    assert found["devices"][0]["word"] == "SLOW"


def test_integer_rates_are_tops() -> None:
    shown = text(machine(h100(), bf16(1252.0, precision="int8")))
    assert "  INT8       1979 TOPS        1252 TOPS (63.3%), 2 h ago" in shown


def test_equal_devices_share_a_block() -> None:
    shown = text(machine(h100(0), h100(1), bf16(720.0, 0), bf16(730.0, 1)))
    assert "GPU 0 to GPU 1: NVIDIA H100 80GB HBM3" in shown
    assert "720 TFLOPS to 730 TFLOPS, 2 devices (72.8% to 73.8%)" in " ".join(shown.split())


def test_a_remembered_rate_carries_its_age() -> None:
    state = machine(h100())
    state.remember(bf16(722.0))
    assert "722 TFLOPS (73.0%), 2 h ago" in text(state)
    rates = document(state)["devices"][0]["rates"]
    measured = next(one["measurement"] for one in rates if one["precision"] == "bf16")
    assert measured["earlier_session"] is True


def test_wrong_and_emulated_rates_are_marked() -> None:
    wrong = machine(h100(), bf16(722.0, correct=False, valid=False))
    assert "WRONG RESULT" in text(wrong)
    assert "emulated" in text(machine(h100(), bf16(2.0, emulated=True)))
    assert "not valid" in text(machine(h100(), bf16(2.0, valid=False, invalid_reason="x")))


def test_an_empty_machine_and_a_problem() -> None:
    problem = events.Problem(
        **header(), subject="nvml", code="mismatch", message="Versions differ.", remedy="Reboot."
    )
    shown = text(machine(problem))
    assert "FAIL   Versions differ" in shown
    assert "       Reboot." in shown
    assert "no device could be read" in shown
    assert document(machine(problem))["problems"][0]["code"] == "mismatch"
    assert document(State())["worst_severity"] is None


def test_the_link_shows_now_and_maximum_with_an_idle_remark() -> None:
    link = {"pcie_generation": 1, "pcie_generation_max": 3, "pcie_width": 16, "pcie_width_max": 16}
    shown = text(machine(h100(), sample(busy_ratio=0.0, performance_state=8, **link)))
    assert "PCIe gen 1 x16 (idle; max gen 3 x16)" in shown


def test_a_gpu_asleep_has_its_reason_and_unified_memory_its_name() -> None:
    note = "unified with system memory; total = shared system RAM"
    asleep = events.DeviceStatus(**header(), device="GPU-0", condition="asleep", since=1.0)
    shown = text(machine(h100(0), asleep, h100(1), sample(1, memory_note=note)))
    assert "GPU 0: asleep: it is left alone, since a look would wake it" in shown
    assert f"GPU 1: memory: {note}" in shown


EVIL = "python train.py [/home/u] [bold]x\x1b[2J\x1b]0;x\x07\nline2\udcff\ud800"


def test_process_names_do_no_harm() -> None:
    entry = events.ProcessEntry(pid=12, command=EVIL, memory_bytes=2**30)
    shared = events.Processes(**header(), device="GPU-0", entries=(entry,))
    state = machine(h100(), sample(), shared)
    assert "\x1b" not in text(state)
    assert text(state, ascii_only=True).isascii()
    content = once.to_json(state, diagnose(state, NOW), NOW, wall=WALL)
    command = json.loads(content.decode("utf-8"))["devices"][0]["processes"][0]["command"]
    assert command.startswith("python train.py [/home/u] [bold]x\N{REPLACEMENT CHARACTER}[2J")


@given(st.text(st.characters(), max_size=60))
def test_json_is_valid_utf_8_and_text_one_line_a_row_whatever_the_names(name: str) -> None:
    device = events.Device(**header(), device="GPU-0", kind="gpu", index=0, name=name)
    state = machine(device, sample())
    once.to_json(state, (), NOW, wall=WALL).decode("utf-8")
    assert len(once.text(state, (), NOW, ascii_only=False, wall=WALL).splitlines()) < 30
    assert once.text(state, (), NOW, ascii_only=True, wall=WALL).isascii()


def numbers(value: object) -> list[object]:
    if isinstance(value, dict):
        return [number for item in value.values() for number in numbers(item)]
    if isinstance(value, list):
        return [number for item in value for number in numbers(item)]
    return [value] if isinstance(value, (int, float)) and not isinstance(value, bool) else []


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "busy_ratio": st.just(0.5),
            "power_watts": st.just(640.0),
            "memory_used_bytes": st.just(2**30),
            "sm_clock_mhz": st.just(1755.0),
            "pcie_width": st.just(16),
        },
    )
)
def test_json_has_no_number_where_none_was_measured(measured: dict[str, float]) -> None:
    device = events.Device(**header(), device="GPU-0", kind="gpu", index=0, name="x")
    state = machine(device, events.DeviceSample(**header(), device="GPU-0", **measured))
    shown = document(state)["devices"][0]["sample"]
    shown.pop("age_seconds")
    assert sorted(numbers(shown)) == sorted(measured.values())


@given(st.text(max_size=200), st.integers(min_value=12, max_value=100))
def test_wrapped_lines_fit_and_lose_nothing(words: str, width: int) -> None:
    lines = wrap(words, width, first="SLOW  ", rest=6)
    assert all(cells(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(("SLOW" + words).split())
