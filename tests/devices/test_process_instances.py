"""Lists of processes: kinds of contexts, MIG instances, namespaces."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml
from poller_process import Simulate

from topsmon.devices.nvml import Capabilities, Driver, Unavailable, Watch
from topsmon.devices.process_lists import NO_INSTANCE, Held, Key, ProcessLists


def row(pid: int, used: int | None, instance: int = NO_INSTANCE) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=used, gpuInstanceId=instance)


def read(instances: dict[int, str] | None = None, **lists: Any) -> Any:
    """Read the lists of "gpu" and of instances; an int is an error code."""

    def asked(answers: dict[str, Any]) -> Any:
        def call(handle: str) -> Any:
            answer = answers.get(handle, [])
            if isinstance(answer, int):
                raise pynvml.NVMLError(answer)
            return answer

        return call

    functions = {
        f"nvmlDeviceGet{kind}RunningProcesses_v3": asked(answers) for kind, answers in lists.items()
    }
    driver = Driver(
        SimpleNamespace(
            NVMLError=pynvml.NVMLError,
            NVMLLibraryMismatchError=pynvml.NVMLLibraryMismatchError,
            **functions,
        )
    )
    capabilities = Capabilities(driver, Watch())
    return ProcessLists(driver, Watch()).read(capabilities, "gpu", 0.0, instances)


def test_a_process_with_both_contexts_is_one_with_all_its_memory() -> None:
    found = read(
        Compute={"gpu": [row(7, 500), row(8, 20)]}, Graphics={"gpu": [row(7, 500), row(9, None)]}
    )
    assert found == {
        Key(7): Held(500, "both"),
        Key(8): Held(20, "compute"),
        Key(9): Held(None, "graphics"),
    }


def test_processes_belong_to_their_instances() -> None:
    found = read({1: "one", 2: "two"}, Compute={"gpu": [row(7, 5, 1), row(8, 6, 2), row(7, 9, 2)]})
    assert found == {Key(7, 1): Held(5), Key(8, 2): Held(6), Key(7, 2): Held(9)}


def test_instances_tell_where_the_gpu_does_not() -> None:
    """Without privileges the list of the whole GPU is refused, or names no instance."""
    refused = read(
        {1: "one", 2: "two"},
        Compute={"gpu": pynvml.NVML_ERROR_NO_PERMISSION, "one": [row(7, 5)], "two": [row(8, 6, 2)]},
    )
    assert refused == {Key(7, 1): Held(5), Key(8, 2): Held(6)}
    unnamed = read({1: "one"}, Compute={"gpu": [row(7, 5), row(9, 1)], "one": [row(7, 5)]})
    assert unnamed == {Key(7, 1): Held(5), Key(9): Held(1)}


def test_a_refusal_by_all_is_a_reason() -> None:
    refused = dict.fromkeys(("gpu", "one"), pynvml.NVML_ERROR_NO_PERMISSION)
    answer = read({1: "one"}, Compute=refused)
    assert isinstance(answer, Unavailable)
    assert "no permission" in answer.reason


def test_an_instance_that_has_gone_costs_no_other() -> None:
    gone = {"one": pynvml.NVML_ERROR_INVALID_ARGUMENT, "two": [row(8, 6)]}
    assert read({1: "one", 2: "two"}, Compute=gone) == {Key(8, 2): Held(6)}


def test_instances_reach_the_stream(simulate: Simulate) -> None:
    processes = simulate("mig").processes()
    assert processes.entries is not None
    assert [(one.pid, one.gpu_instance, one.memory_bytes) for one in processes.entries] == [
        (4193201, 1, 20120 << 20),
        (4193202, 2, 11390 << 20),
    ]
    assert "MIG mode" in processes.reason


def test_pids_of_the_host_are_named_by_the_driver_alone(simulate: Simulate) -> None:
    entries = simulate("host-pids", foreign_pids=True).processes().entries
    assert entries is not None
    assert [(one.pid, one.name, one.local, one.user, one.started) for one in entries] == [
        (4194001, "python3", False, None, None),
        (4194002, "tritonserver", False, None, None),
    ]


def test_a_list_that_outgrows_its_buffer_is_asked_for_again(simulate: Simulate) -> None:
    poller = simulate("process-table-grows", seconds=5, process_seconds=0.1)
    entries = poller.processes().entries
    assert entries is not None
    assert [one.pid for one in entries] == [4193701, 4193702]
