"""A script that ends by itself, and one that raises SystemExit without sys.exit()."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from topsmon.training.reader import RingReader

SCRIPT = """
import json, os, sys
import torch
from topsmon.training.recorder import install
recorder = install.install()
import torch._dynamo
torch.set_num_threads(1)
def train():
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()
ending, codes = "parent", {}
for name in ("raise", "words", "sys.exit", "end", "early"):
    pid = os.fork()
    if pid == 0:
        ending = name
        break
    codes[name] = pid, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
if ending == "parent":
    print(json.dumps(codes), flush=True)
    os._exit(0)
train()
if ending == "raise":
    raise SystemExit(3)
if ending == "words":
    raise SystemExit("bad thing")
if ending == "sys.exit":
    sys.exit(7)
if ending == "early":
    import atexit
    def called():
        atexit._run_exitfuncs()
    called()
    os._exit(5)
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The exit code and the "end" of each ending, by its name, and what was written to stderr."""
    folder = tmp_path_factory.mktemp("endings")
    folder.chmod(0o700)
    path = folder / "script.py"
    path.write_text(SCRIPT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOPSMON_DIR", str(folder))
        command = [sys.executable, "-W", "ignore", str(path)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    told = {}
    for ring in Path(folder).glob("*.ring"):
        reader = RingReader(ring)
        ends = [one for _, one in reader.happenings() if one.kind == "end"]
        told[reader.identity().run.pid] = [(one.message, one.values) for one in ends]
    codes = json.loads(done.stdout)
    return {name: (code, told[pid]) for name, (pid, code) in codes.items()}, done.stderr


@pytest.mark.parametrize(
    ("ending", "code", "end"),
    [
        ("raise", 3, ("exit code not known", {})),
        ("words", 1, ("exit code not known", {})),
        ("sys.exit", 7, ("exit code 7", {"exit_code": 7.0})),
        ("end", 0, ("exit code 0", {"exit_code": 0.0})),
        # Whoever calls the exit functions himself may still end in any way.
        ("early", 5, ("exit code not known", {})),
    ],
)
def test_an_exit_code_is_told_only_where_it_is_certain(ended, ending, code, end):
    assert ended[0][ending] == (code, [end])


def test_what_python_prints_of_it_is_as_without(ended):
    assert ended[1] == "bad thing\n"
