"""Which rank a process is, by the variables that each launcher sets."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topsmon.distributed.environment import (
    PlacementError,
    detect,
    first_host,
    parse_meeting,
    tasks_on_node,
)

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
SRUN = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "16",
    "SLURM_STEP_TASKS_PER_NODE": "8(x2)",
    "SLURM_STEP_NODELIST": "gpu-[03-04]",
}


def without(variables: dict[str, str], *names: str, **more: str) -> dict[str, str]:
    return {**{key: value for key, value in variables.items() if key not in names}, **more}


def test_torchrun() -> None:
    place = detect(TORCHRUN)
    assert place is not None
    assert place == ("torchrun", 5, 8, 1, 4, "node0", 29500)
    assert place.variables().items() >= TORCHRUN.items()


def test_open_mpi_on_one_machine_meets_on_loopback_at_a_port_of_the_job() -> None:
    first, second = (detect({**OPEN_MPI, "PMIX_NAMESPACE": job}) for job in ("a.1", "b.1"))
    assert first is not None
    assert second is not None
    assert first[:6] == ("mpirun", 1, 2, 1, 2, "127.0.0.1")
    assert 1024 < first.port < 32768
    assert first.port != second.port
    assert detect({**OPEN_MPI, "PMIX_NAMESPACE": "a.1"}) == first


def test_without_a_name_of_the_job_the_common_parent_gives_the_port() -> None:
    assert detect(OPEN_MPI, parent=77) == detect(OPEN_MPI, parent=77)
    assert detect(OPEN_MPI, parent=77) != detect(OPEN_MPI, parent=78)


def test_open_mpi_over_machines_must_be_told_where_rank_0_is() -> None:
    far = {**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "4"}
    with pytest.raises(PlacementError, match=r"MASTER_ADDR.*--rendezvous HOST:PORT"):
        detect(far)
    told, asked = detect({**far, "MASTER_ADDR": "node7"}), detect(far, meeting="node8:1234")
    assert told is not None
    assert asked is not None
    assert told.address == "node7"
    assert (asked.address, asked.port) == ("node8", 1234)


def test_srun() -> None:
    place = detect(SRUN)
    assert place is not None
    assert place[:6] == ("srun", 9, 16, 1, 8, "gpu-03")


@pytest.mark.parametrize(
    "variables",
    [
        {},
        without(SRUN, "SLURM_STEP_ID"),  # a batch script has SLURM_PROCID=0, but is no task of srun
        without(SRUN, SLURM_STEP_NUM_TASKS="1", SLURM_PROCID="0"),
        without(TORCHRUN, "MASTER_ADDR"),
        without(TORCHRUN, WORLD_SIZE="1", RANK="0"),
    ],
    ids=["nothing", "batch script", "one task", "half of torchrun", "alone"],
)
def test_no_launcher(variables: dict[str, str]) -> None:
    assert detect(variables) is None


def test_a_broken_number_is_named() -> None:
    with pytest.raises(PlacementError, match="WORLD_SIZE='many'"):
        detect({**TORCHRUN, "WORLD_SIZE": "many"})


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("gpu-[03-07,9],x1", "gpu-03"),
        ("node1", "node1"),
        ("a,b", "a"),
        ("n[1-2]-ib", "n1-ib"),
        ("", None),
    ],
)
def test_first_host_of_a_slurm_list(nodes: str, host: str | None) -> None:
    # SLURM's hostlist expressions, as "scontrol show hostnames" expands them.
    assert first_host(nodes) == host


@given(st.lists(st.tuples(st.integers(1, 16), st.integers(1, 5)), min_size=1, max_size=6))
def test_tasks_of_every_node(groups: list[tuple[int, int]]) -> None:
    text = ",".join(f"{tasks}(x{times})" if times > 1 else f"{tasks}" for tasks, times in groups)
    every = [tasks for tasks, times in groups for _ in range(times)]
    assert [tasks_on_node(text, node) for node in range(len(every))] == every
    assert tasks_on_node(text, len(every)) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [("node0:29500", ("node0", 29500)), ("[::1]:80", ("::1", 80)), ("10.0.0.1:1", ("10.0.0.1", 1))],
)
def test_meeting_places(text: str, expected: Any) -> None:
    assert parse_meeting(text) == expected


@pytest.mark.parametrize("text", ["", "node0", "node0:", ":80", "a:0", "a:65536", "-x:80", "a b:8"])
def test_no_meeting_places(text: str) -> None:
    with pytest.raises(PlacementError, match="rendezvous"):
        parse_meeting(text)
