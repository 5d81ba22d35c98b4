"""The command that starts ranks: torchrun with our rank program, or that program alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

RANK_PROGRAM = Path(__file__).parent.parent / "distributed"
THREADS = "OMP_NUM_THREADS"


class Nodes(NamedTuple):
    """Several machines, each with a topsmon of its own: this one's number, where they all meet."""

    machines: int = 1
    number: int = 0
    meeting: str = ""


def torchrun_command(
    python: str, ranks_here: int, nodes: Nodes, folder: Path, order: Sequence[str]
) -> list[str]:
    """Torchrun over `ranks_here` ranks on this machine. `order`: options of the rank program.

    "--" keeps torchrun from taking our options for its own (pytorch#120601). The static rendezvous
    gives rank 0 to node 0, which the c10d one does not.
    """
    command = [python, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks_here)]
    command += ["--max-restarts", "0", "--log-dir", str(folder / "logs")]
    if nodes.machines == 1:
        command += ["--standalone"]
    else:
        command += ["--nnodes", str(nodes.machines), "--node-rank", str(nodes.number)]
        command += ["--rdzv-backend", "static", "--rdzv-endpoint", nodes.meeting]
        command += ["--rdzv-id", "topsmon"]
    return [*command, "--", str(RANK_PROGRAM), *order]


def rank_command(python: str, order: Sequence[str]) -> list[str]:
    """One rank, whose place is in the environment."""
    return [python, str(RANK_PROGRAM), *order]


def environment(
    inherited: Mapping[str, str],
    *,
    folder: Path,
    devices: Sequence[str],
    threads: int | None,
    more: Mapping[str, str],
) -> dict[str, str]:
    """The environment of the ranks. `devices`: UUIDs of the GPUs to use, all where it is empty.

    `folder` takes what torchrun writes for itself and does not remove.
    """
    found = {**inherited, **more, "PYTHONSAFEPATH": "1", "TMPDIR": str(folder)}
    if devices:
        found["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    if threads is not None:
        found.setdefault(THREADS, str(threads))
    return found
