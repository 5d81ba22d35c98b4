"""Which rank this process is, from what torchrun, srun or mpirun have put into the environment."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import NamedTuple

LOOPBACK = "127.0.0.1"
FIRST_PORT = 15000
PORTS = 20000
"""Ports that are derived from a job's number: below those that Linux gives to clients."""

LAUNCHER = "TOPSMON_LAUNCHER"
TORCHRUN = "torchrun"
SLURM = "srun"
OPEN_MPI = "mpirun"


class PlacementError(Exception):
    """The environment does not tell how the ranks find each other; the message says what to do."""


class Placement(NamedTuple):
    """One rank's place: among all `world_size`, and among the `local_world_size` of its machine."""

    launcher: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    address: str
    port: int

    def variables(self) -> dict[str, str]:
        """What torch reads with the method env://, and who the launcher is."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
            LAUNCHER: self.launcher,
        }


def detect(environment: Mapping[str, str], parent: int = 0, meeting: str = "") -> Placement | None:
    """This process's place, None outside any launcher or alone in it.

    `parent` is the process that started this one: all ranks of one mpirun on one machine share it.
    `meeting` is HOST:PORT where the ranks meet, where the environment does not tell. Raises
    PlacementError.
    """
    for find in (_torchrun, _open_mpi, _slurm):
        found = find(environment, parent, meeting)
        if found is not None:
            return found if found.world_size > 1 else None
    return None


def _torchrun(environment: Mapping[str, str], parent: int, meeting: str) -> Placement | None:  # noqa: ARG001  one signature for all
    """Torchrun, and whoever sets torch's own variables."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    if not all(name in environment for name in names):
        return None
    rank, world, local, port = (
        _number(environment, name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")
    )
    together = _number(environment, "LOCAL_WORLD_SIZE", world)
    launcher = environment.get(LAUNCHER, TORCHRUN)
    address = environment["MASTER_ADDR"].strip()
    return Placement(launcher, rank, world, local, together, address, port)


def _open_mpi(environment: Mapping[str, str], parent: int, meeting: str) -> Placement | None:
    if "OMPI_COMM_WORLD_RANK" not in environment or "OMPI_COMM_WORLD_SIZE" not in environment:
        return None
    rank = _number(environment, "OMPI_COMM_WORLD_RANK")
    world = _number(environment, "OMPI_COMM_WORLD_SIZE")
    local = _number(environment, "OMPI_COMM_WORLD_LOCAL_RANK", rank)
    together = _number(environment, "OMPI_COMM_WORLD_LOCAL_SIZE", world)
    job = environment.get("PMIX_NAMESPACE") or environment.get("OMPI_MCA_ess_base_jobid") or parent
    port = _derived_port(str(job))
    address, port = _meeting(
        environment, meeting, LOOPBACK if together == world else None, port, OPEN_MPI
    )
    return Placement(OPEN_MPI, rank, world, local, together, address, port)


def _slurm(environment: Mapping[str, str], parent: int, meeting: str) -> Placement | None:  # noqa: ARG001  one signature for all
    """A task of srun. A batch script has SLURM_PROCID too, but is no task: it has no step."""
    if "SLURM_PROCID" not in environment or "SLURM_STEP_ID" not in environment:
        return None
    size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"
    if size not in environment:
        return None
    rank, world = _number(environment, "SLURM_PROCID"), _number(environment, size)
    local = _number(environment, "SLURM_LOCALID", rank)
    here = environment.get("SLURM_STEP_TASKS_PER_NODE", "")
    node = _number(environment, "SLURM_NODEID", 0)
    together = tasks_on_node(here, node) or (world if node == 0 and local == rank else local + 1)
    hosts = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or ""
    job = f"{environment.get('SLURM_JOB_ID', '')}.{environment['SLURM_STEP_ID']}"
    first = LOOPBACK if together == world else first_host(hosts)
    address, port = _meeting(environment, meeting, first, _derived_port(job), SLURM)
    return Placement(SLURM, rank, world, local, together, address, port)


def _meeting(
    environment: Mapping[str, str],
    meeting: str,
    address: str | None,
    port: int,
    launcher: str,
) -> tuple[str, int]:
    """Address and port of rank 0: as asked, else from the environment, else as derived."""
    if meeting:
        return parse_meeting(meeting)
    address = environment.get("MASTER_ADDR") or address
    if "MASTER_PORT" in environment:
        port = _number(environment, "MASTER_PORT")
    if not address:
        raise PlacementError(
            f"{launcher} on several machines does not tell where rank 0 runs: "
            "set MASTER_ADDR to that host on all ranks, or give --rendezvous HOST:PORT"
        )
    return address, port


def parse_meeting(text: str) -> tuple[str, int]:
    """Host and port of "HOST:PORT" or "[IPv6]:PORT". Raises PlacementError."""
    host, _, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not re.fullmatch(r"[A-Za-z0-9_.:%-]+", host) or host.startswith("-"):
        raise PlacementError(f"rendezvous {text!r}: not HOST:PORT")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise PlacementError(f"rendezvous {text!r}: {port!r} is no port from 1 to 65535")
    return host, int(port)


def first_host(nodes: str) -> str | None:
    """The first host of a SLURM list: "gpu-[03-07,9],x1" -> "gpu-03"; None where it is empty."""
    found = re.match(r"([^\[\],]+)(?:\[(\w+)[^\]]*\]([^\[\],]*))?", nodes)
    if found is None:
        return None
    return "".join(part or "" for part in found.groups())


def tasks_on_node(counts: str, node: int) -> int | None:
    """SLURM's "2(x3),1" by node: nodes 0 to 2 have two tasks, node 3 one; None: not told."""
    place = 0
    for part in counts.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if found is None:
            return None
        place += int(found[2] or 1)
        if node < place:
            return int(found[1])
    return None


def _derived_port(job: str) -> int:
    """The same port for all ranks of a job, seldom that of another job."""
    return FIRST_PORT + zlib.crc32(job.encode()) % PORTS


def _number(
    environment: Mapping[str, str],
    name: str,
    default: int | None = None,
) -> int:
    text = environment.get(name, "")
    if text.isascii() and text.isdigit():
        return int(text)
    if default is not None:
        return default
    raise PlacementError(f"{name}={text!r} in the environment is no number")
