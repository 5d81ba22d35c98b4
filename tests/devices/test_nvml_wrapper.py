"""The wrapper against a stand-in with the binding's own error classes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topsmon.devices import metrics, nvml
from topsmon.devices.nvml import Call, Capabilities, Driver, Unavailable, Watch
from topsmon.devices.process_lists import Key, ProcessLists
from topsmon.devices.text import readable, valid_text


def raising(error: Exception) -> Callable[..., Any]:
    def function(*_: object) -> Any:
        raise error

    return function


def driver(**functions: Any) -> Driver:
    return Driver(
        SimpleNamespace(
            NVMLError=pynvml.NVMLError,
            NVMLLibraryMismatchError=pynvml.NVMLLibraryMismatchError,
            **functions,
        )
    )


def query(drv: Driver, *names: str) -> Any:
    return drv.query(Watch(), [Call(name) for name in names], "handle")


def row(pid: int, memory: int | None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=memory)


def test_arguments_reach_the_function() -> None:
    drv = driver(f=lambda *arguments: arguments)
    assert drv.query(Watch(), [Call("f", (1, 2))], "handle") == ("handle", 1, 2)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (3, "unsupported"),
        (13, "unsupported"),
        (25, "unsupported"),
        (4, "permission"),
        (15, "lost"),
        (1, "restart"),
        (9, "restart"),
        (18, "restart"),
        (10, "transient"),
        (20, "transient"),
        (999, "transient"),
        (12345, "transient"),
    ],
)
def test_codes_have_a_kind_and_words(code: int, kind: str) -> None:
    answer = query(driver(f=raising(pynvml.NVMLError(code))), "f")
    assert isinstance(answer, Unavailable)
    assert (answer.kind, answer.code) == (kind, code)
    assert answer.reason


def test_the_mismatch_error_which_is_no_nvml_error_is_caught() -> None:
    answer = query(driver(f=raising(pynvml.NVMLLibraryMismatchError("old"))), "f")
    assert answer == Unavailable("driver too old for f", 13, "unsupported")


def test_a_function_that_the_binding_lacks_is_unavailable() -> None:
    answer = query(driver(), "nvmlDeviceGetNews")
    assert answer.kind == "unsupported"
    assert "nvmlDeviceGetNews" in answer.reason


def test_strict_decoding_gives_the_raw_bytes() -> None:
    error = UnicodeDecodeError("utf-8", b"NVIDIA \xf8", 7, 8, "bad")
    assert query(driver(f=raising(error)), "f") == b"NVIDIA \xf8"


@pytest.mark.parametrize("error", [AttributeError("llVal"), TypeError("x"), ValueError("y")])
def test_bugs_of_the_binding_are_unavailable(error: Exception) -> None:
    assert isinstance(query(driver(f=raising(error)), "f"), Unavailable)


def test_the_newest_supported_call_answers() -> None:
    drv = driver(new=raising(pynvml.NVMLError(13)), old=lambda _: 7)
    assert query(drv, "new", "old") == 7


def test_not_supported_says_more_than_too_old() -> None:
    drv = driver(new=raising(pynvml.NVMLError(3)), old=raising(pynvml.NVMLError(13)))
    assert query(drv, "new", "old").code == 3


def test_an_error_that_passes_does_not_fall_back() -> None:
    drv = driver(new=raising(pynvml.NVMLError(999)), old=lambda _: 7)
    assert query(drv, "new", "old").code == 999


class Script:
    """A function that gives scripted answers and counts its calls."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.calls = 0

    def __call__(self, *_: object) -> Any:
        self.calls += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, int) and answer < 0:
            raise pynvml.NVMLError(-answer)
        return answer


def reader(**functions: Any) -> Callable[[float], Any]:
    capabilities = Capabilities(driver(**functions), Watch())
    calls = [Call(name) for name in functions]
    return lambda now: capabilities.read("m", calls, "handle", now)


def test_not_supported_is_off_for_good() -> None:
    script = Script(-3, 5)
    read = reader(f=script)
    assert read(0.0).code == 3
    assert read(1e9).code == 3
    assert script.calls == 1


def test_no_permission_is_tried_again_after_a_minute() -> None:
    script = Script(-4, 5)
    read = reader(f=script)
    assert read(0.0).kind == "permission"
    assert read(59.0).kind == "permission"
    assert script.calls == 1
    assert read(60.0) == 5


def test_a_transient_error_keeps_the_value_for_two_polls_and_gives_up_at_the_third() -> None:
    script = Script(5, -999, -999, -999, 6)
    read = reader(f=script)
    assert [read(0.0), read(1.0), read(2.0)] == [5, 5, 5]
    assert read(4.0).code == 999
    assert read(5.0).code == 999
    assert script.calls == 4
    assert read(14.0) == 6


def test_fast_polls_do_not_use_up_the_strikes() -> None:
    read = reader(f=Script(5, -999, -999, -999, -999, 6))
    assert [read(tick / 5) for tick in range(6)] == [5, 5, 5, 5, 5, 6]


def test_a_first_value_that_fails_is_not_made_up() -> None:
    assert isinstance(reader(f=Script(-999))(0.0), Unavailable)


def test_the_call_that_works_is_remembered() -> None:
    new, old = Script(-13), Script(1)
    read = reader(new=new, old=old)
    assert [read(0.0), read(1.0)] == [1, 1]
    assert (new.calls, old.calls) == (1, 2)


def test_loss_and_reload_are_raised() -> None:
    with pytest.raises(nvml.GpuLostError):
        reader(f=Script(-15))(0.0)
    with pytest.raises(nvml.DriverGoneError):
        reader(f=Script(-1))(0.0)


def test_insufficient_size_is_tried_once_more() -> None:
    assert reader(f=Script(-7, 5))(0.0) == 5
    script = Script(-7)
    assert reader(f=script)(0.0).code == 7
    assert script.calls == 2


def test_the_watch_reports_a_call_that_is_out_and_its_return() -> None:
    now = 0.0
    log: list[object] = []
    watch = Watch(lambda: log.append("answered"), clock=lambda: now)
    watch.begin("slow")
    now = 4.9
    assert not watch.check(5.0, lambda *what: log.append(what))
    now = 5.0
    assert watch.check(5.0, lambda *what: log.append(what))
    watch.end()
    assert log == [("slow", 0.0), "answered"]
    assert not watch.check(0.0, lambda *what: log.append(what))


def test_a_call_is_watched_while_it_runs() -> None:
    entered, leave = threading.Event(), threading.Event()

    def slow(_: object) -> int:
        entered.set()
        leave.wait(60)
        return 1

    watch = Watch()
    drv = driver(slow=slow)
    thread = threading.Thread(target=lambda: drv.query(watch, [Call("slow")], None))
    thread.start()
    assert entered.wait(60)
    seen: list[str] = []
    assert watch.check(0.0, lambda name, _: seen.append(name))
    leave.set()
    thread.join()
    assert seen == ["slow"]
    assert not watch.check(0.0, lambda name, _: seen.append(name))


@given(st.binary() | st.text(st.characters(codec=None)))
def test_text_from_outside_is_always_valid(value: bytes | str) -> None:
    text = valid_text(value)
    assert text is not None
    text.encode("utf-8")


def test_valid_text_replaces_only_what_is_unreadable() -> None:
    assert valid_text("\udcf8\udcff") == "\N{REPLACEMENT CHARACTER}" * 2
    assert valid_text(b"GB10\xff") == "GB10\N{REPLACEMENT CHARACTER}"
    assert valid_text(None) is None
    assert not readable("")
    assert not readable("\N{REPLACEMENT CHARACTER}a")


@given(st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 64) - 1))
def test_memory_never_shows_more_used_than_there_is(total: int, used: int, reserved: int) -> None:
    answer = SimpleNamespace(total=total, used=used, reserved=reserved)
    readings = metrics.memory(answer)
    shown = readings["memory_used_bytes"]
    if not isinstance(shown, Unavailable):
        assert shown <= readings["memory_total_bytes"]
    assert set(readings) == set(metrics.MEMORY_FIELDS)


def test_health_readings() -> None:
    table = {metric.name: metric for metric in metrics.HEALTH}
    assert table["ecc_enabled"].convert([1, 0]) == {"ecc_enabled": True}
    assert table["row remapping"].convert((3, 5, 1, 0)) == {
        "rows_remapped_corrected": 3,
        "rows_remapped_uncorrected": 5,
        "row_remap_pending": True,
        "row_remap_failed": False,
    }
    assert table["ecc_uncorrected_volatile"].calls == (Call("nvmlDeviceGetTotalEccErrors", (1, 0)),)
    assert table["ecc_uncorrected_aggregate"].calls[0].arguments == (1, 1)
    assert table["ecc_corrected_volatile"].calls[0].arguments == (0, 0)
    assert table["ecc_uncorrected_volatile"].convert(2) == {"ecc_uncorrected_volatile": 2}


def test_constants_are_those_of_the_binding() -> None:
    assert pynvml.nvmlMemory_v2 == metrics.MEMORY_V2
    assert metrics.CLOCK_SM == pynvml.NVML_CLOCK_SM
    assert metrics.CLOCK_MEMORY == pynvml.NVML_CLOCK_MEM
    assert metrics.SENSOR_GPU == pynvml.NVML_TEMPERATURE_GPU
    assert metrics.PERFORMANCE_STATE_UNKNOWN == pynvml.NVML_PSTATE_UNKNOWN
    assert metrics.ECC_UNCORRECTED == pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    assert metrics.ECC_AGGREGATE == pynvml.NVML_AGGREGATE_ECC
    for name in ("GPU_IS_LOST", "UNINITIALIZED", "LIB_RM_VERSION_MISMATCH", "NO_PERMISSION"):
        assert getattr(nvml, name) == getattr(pynvml, f"NVML_ERROR_{name}")
    for metric in (*metrics.LIVE, *metrics.HEALTH):
        assert all(hasattr(pynvml, call.name) for call in metric.calls), metric.name


def compute(**functions: Any) -> tuple[ProcessLists, Callable[[float], Any]]:
    drv = driver(**functions)
    lists, capabilities = ProcessLists(drv, Watch()), Capabilities(drv, Watch())
    return lists, lambda now: lists.compute(capabilities, "handle", now)


def test_a_changed_process_struct_is_read_through_the_older_call() -> None:
    garbage = Script([row(1234, 5), row(0, 1 << 60)])
    _, read = compute(
        nvmlDeviceGetComputeRunningProcesses_v3=garbage,
        nvmlDeviceGetComputeRunningProcesses_v2=lambda _: [row(1234, 5), row(99, 6)],
    )
    assert read(0.0) == {Key(1234): 5, Key(99): 6}
    assert read(1.0) == {Key(1234): 5, Key(99): 6}
    assert garbage.calls == 1


def test_rows_that_no_form_tells_right_are_dropped() -> None:
    _, read = compute(
        nvmlDeviceGetComputeRunningProcesses_v3=lambda _: [row(7, None), row(1 << 31, 3)]
    )
    assert read(0.0) == {Key(7): None}


def test_a_process_in_two_mig_instances_is_one_entry() -> None:
    _, read = compute(
        nvmlDeviceGetComputeRunningProcesses_v3=lambda _: [row(7, 10), row(7, 20), row(8, None)]
    )
    assert read(0.0) == {Key(7): 30, Key(8): None}


def test_clients_of_mps_are_compute_processes() -> None:
    _, read = compute(
        nvmlDeviceGetComputeRunningProcesses_v3=lambda _: [row(7, 10)],
        nvmlDeviceGetMPSComputeRunningProcesses_v3=lambda _: [row(9, 4)],
    )
    assert read(0.0) == {Key(7): 10, Key(9): 4}


def test_a_driver_without_any_form_is_too_old() -> None:
    answer = compute(
        nvmlDeviceGetComputeRunningProcesses=raising(pynvml.NVMLLibraryMismatchError("old"))
    )[1](0.0)
    assert isinstance(answer, Unavailable)
    assert "too old" in answer.reason
