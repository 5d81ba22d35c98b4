"""Invented processes on the invented machines: two jobs of several ranks, services, odd ones."""

from __future__ import annotations

from screen_demo import GIB, NOW, WALL, eight, stamp

from topsmon import events
from topsmon.state import State

LAUNCH = (("torchrun", 48200), ("bash", 48011), ("tmux: server", 2110))
SERVE = (("bash", 30100), ("sshd", 30090), ("sshd", 900))


def ancestors(chain: tuple[tuple[str, int], ...]) -> tuple[events.Ancestor, ...]:
    return tuple(events.Ancestor(pid=pid, name=name) for name, pid in chain)


def entry(pid: int, command: str, chain=LAUNCH, age: float = 3 * 3600 + 12 * 60, **fields):
    """A process of this system with everything known."""
    values = {
        "name": command.partition(" ")[0].rpartition("/")[2],
        "user": "ada",
        "cpu_cores": 0.98,
        "command": command,
        "parent_pid": chain[0][1] if chain else 1,
        "host_memory_bytes": int(6.4 * GIB),
        "started": WALL - age,
        "start_ticks": pid * 7,
        "ancestors": ancestors(chain),
    }
    return events.ProcessEntry(pid=pid, **{**values, **fields})


def on(device: str, *entries: events.ProcessEntry, at: float = NOW, **fields) -> events.Processes:
    return events.Processes(**stamp(at=at), device=device, entries=entries, **fields)


def crowd(ticks: int = 2) -> State:
    """Eight ranks of a training on eight GPUs, a server on two of them, and odd ones."""
    state = eight(ticks=ticks, capped=None)
    server = "/opt/tritonserver/bin/tritonserver --model-repository=/srv/models --http-port 8000"
    for index in range(8):
        rank = entry(
            48213 + index,
            f"/home/ada/lm/venv/bin/python3 -u train.py --amp bf16 --config configs/7b.yaml"
            f" --rank {index}",
            memory_bytes=int((49.6 + index) * GIB),
            sm_ratio=0.93 - index / 100,
            memory_busy_ratio=0.47 - index / 100,
            cpu_cores=1.02 + index / 50,
        )
        others = []
        if index < 2:
            others.append(
                entry(
                    30121,
                    server,
                    SERVE,
                    age=6 * 86400 + 5 * 3600,
                    user="triton",
                    memory_bytes=int(11.2 * GIB),
                    sm_ratio=0.04,
                    memory_busy_ratio=0.01,
                    cpu_cores=4.37,
                    host_memory_bytes=int(31.5 * GIB),
                )
            )
        if index == 2:
            others.append(
                entry(
                    51544, "python3 eval.py --checkpoint 18000", (), age=700, user="bo", state="Z",
                    memory_bytes=int(3.1 * GIB), cpu_cores=0.0, host_memory_bytes=0, parent_pid=1,
                )
            )  # fmt: skip
            others.append(
                entry(
                    51600, "训练脚本 --数据 /srv/数据集/中文语料库/第一部分", (),
                    age=42, user="李雷", memory_bytes=int(1.5 * GIB), sm_ratio=0.12,
                    memory_busy_ratio=0.03, cpu_cores=None,
                )
            )  # fmt: skip
        if index == 3:
            others.append(
                events.ProcessEntry(
                    pid=1904417, name="python3", memory_bytes=int(2.2 * GIB), local=False,
                    sm_ratio=0.31, memory_busy_ratio=0.08,
                )
            )  # fmt: skip
            others.append(
                entry(
                    60011, "python3 -m topsmon.probes --device GPU-00000003", (), age=95,
                    memory_bytes=int(0.6 * GIB), own=True, sm_ratio=0.03, memory_busy_ratio=0.01,
                )
            )  # fmt: skip
        if index == 4:
            others.append(
                entry(
                    2755, "/usr/lib/xorg/Xorg vt7 -displayfd 3 -auth /run/user/42/gdm/Xauthority",
                    (("gdm-x-session", 2744),), user="root", kind="graphics",
                    age=41 * 86400, memory_bytes=int(0.1 * GIB), cpu_cores=0.01,
                    host_memory_bytes=int(0.2 * GIB),
                )
            )  # fmt: skip
        state.apply(on(f"GPU-{index:08d}", rank, *others), NOW)
    return state
