"""What measures: a Python with torch; and the compiler that the simulated driver needs."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

from topsmon import interpreter
from topsmon.doctor.model import Patient, Result

TORCH_SECONDS = 60.0
"""A cold import of a CUDA build from a network disk takes long."""
OLDEST = (2, 4)
_ASK = """
import json, sys
import torch
answer = {"version": torch.__version__, "python": sys.version.split()[0]}
answer["cuda"] = torch.version.cuda
try:
    answer["devices"] = torch.cuda.device_count()
    if answer["devices"]:
        torch.zeros(1, device="cuda")
except Exception as error:
    answer["trouble"] = str(error).splitlines()[0][:300]
print("\\n" + json.dumps(answer))
"""


def torch(patient: Patient) -> Iterator[Result]:
    """Whether a torch is here, old enough it must not be, and whether it can use the GPUs."""
    found = asyncio.run(interpreter.find(patient.python, patient.environment))
    if found.path is None:
        yield Result(
            id="torch",
            state="warn",
            finding=f"{found.problem.partition(':')[0]}: nothing can be measured",
            remedy=interpreter.INSTALL_HINT.capitalize() + ".",
        )
        return
    answer = _ask(found.path)
    if isinstance(answer, str):
        yield Result(
            id="torch",
            state="fail",
            finding=f"{found.path}: torch cannot be imported: {answer}",
            remedy="Reinstall torch there, or name another interpreter with --python PATH.",
        )
        return
    yield _judge(
        found.path, answer, gpus=0 if patient.state.simulated else len(list(patient.state.gpus()))
    )


def _judge(path: str, answer: dict[str, Any], gpus: int) -> Result:
    version = str(answer["version"])
    build = f"CUDA {answer['cuda']}" if answer.get("cuda") else "CPU build"
    finding = f"torch {version} ({build}) on Python {answer['python']} ({path})"
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < OLDEST:
        return Result(
            id="torch",
            state="warn",
            finding=f"{finding} is older than 2.4, which topsmon is tested from on",
            remedy="pip install -U torch",
        )
    if trouble := answer.get("trouble"):
        return Result(
            id="torch",
            state="fail",
            finding=f"{finding} cannot use the GPU: {trouble}",
            remedy="Install the torch build that fits the driver (pytorch.org/get-started).",
        )
    if gpus and not answer.get("devices"):
        return Result(
            id="torch",
            state="warn",
            finding=f"{finding} sees none of the {gpus} GPU(s): only the CPU is measured",
            remedy="Install a CUDA build of torch; look at CUDA_VISIBLE_DEVICES.",
        )
    return Result(id="torch", state="ok", finding=finding)


def _ask(path: str) -> dict[str, Any] | str:
    """Import torch in a child; return what it says, or in words why it says nothing."""
    try:
        done = subprocess.run(
            [path, "-c", _ASK],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TORCH_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {TORCH_SECONDS:.0f} s"
    except OSError as error:
        return str(error.strerror)
    lines = done.stdout.decode(errors="replace").strip().splitlines()
    if done.returncode == 0 and lines:
        try:
            answer: dict[str, Any] = json.loads(lines[-1])
        except ValueError:
            return "it printed something else than its version"
        return answer
    words = done.stderr.decode(errors="replace").strip().splitlines()
    if done.returncode < 0:
        return f"ended by signal {-done.returncode}"
    return words[-1][:300] if words else f"exit code {done.returncode}"


def compiler(patient: Patient) -> Iterator[Result]:
    """The C compiler that builds the simulated driver."""
    path = shutil.which("cc", path=patient.environment.get("PATH")) or shutil.which(
        "gcc", path=patient.environment.get("PATH")
    )
    yield Result(
        id="compiler",
        state="ok" if path else "n/a",
        finding=f"{path}: topsmon --simulate works" if path else "none: no topsmon --simulate",
    )
