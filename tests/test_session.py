"""The session's policy: who may be measured, who is using a device, what is kept."""

import msgspec
import pytest

from topsmon import events
from topsmon.foreign_use import foreign_use, usable_cpus
from topsmon.interpreter import Interpreter
from topsmon.session import Session, SessionOptions
from topsmon.state import State

HEADER = {"time": 1.0, "monotonic": 1.0, "source": "host"}
GPU, CPU = "GPU-1", "cpu"


class Told:
    """Stands in for a prober: keeps what it was told."""

    def __init__(self) -> None:
        self.commands: list[dict[str, object]] = []
        self.pid = 4711

    def send(self, **command: object) -> None:
        self.commands.append(command)

    def words(self) -> list[object]:
        return [command["command"] for command in self.commands if command["command"] != "duty"]


def session(**options: object) -> Session:
    made = Session(SessionOptions(**options))  # type: ignore[arg-type]
    made.started = []  # type: ignore[attr-defined]

    def start(device: object) -> None:
        made.probers.running[device.key] = Told()  # type: ignore[attr-defined, assignment]

    made.probers._start = start  # type: ignore[method-assign, assignment]
    return made


def device(key: str = GPU) -> events.Device:
    kind = "cpu" if key == CPU else "gpu"
    return events.Device(**HEADER, device=key, kind=kind, index=0, name="x")  # type: ignore[arg-type]


def sample(key: str = GPU, busy: float | None = 0.0) -> events.DeviceSample:
    return events.DeviceSample(**HEADER, device=key, busy_ratio=busy)


def processes(key: str = GPU, *entries: events.ProcessEntry) -> events.Processes:
    return events.Processes(**HEADER, device=key, entries=entries)


def trainer(**changes: object) -> events.ProcessEntry:
    fields: dict[str, object] = {"pid": 12, "command": "python train.py", **changes}
    return events.ProcessEntry(**fields)  # type: ignore[arg-type]


def feed(made: Session, *more: events.AnyEvent) -> Session:
    for event in more:
        made.receive(event)
    return made


def test_a_free_gpu_is_measured_as_soon_as_its_processes_are_known() -> None:
    made = feed(session(), device(), sample())
    assert not made.probers.running
    feed(made, processes())
    assert set(made.probers.running) == {GPU}


def test_a_gpu_with_other_processes_is_not_measured_unasked() -> None:
    made = feed(session(), device(), sample(), processes(GPU, trainer()))
    assert not made.probers.running
    reason = made.state.devices[GPU].prober.idle_reason
    assert reason == "python train.py (PID 12) uses GPU 0"
    made.benchmark(GPU, True)
    assert set(made.probers.running) == {GPU}
    assert made.benchmarking(GPU)


def test_our_own_processes_are_no_others() -> None:
    made = feed(session(), device(), sample(), processes(GPU, trainer(own=True)))
    assert set(made.probers.running) == {GPU}


def test_a_gpu_busy_with_unseen_work_is_not_measured() -> None:
    made = feed(session(), device(), sample(busy=0.4), processes())
    assert not made.probers.running
    assert "40% busy" in str(made.state.devices[GPU].prober.idle_reason)
    feed(made, sample(busy=0.0))
    assert set(made.probers.running) == {GPU}


def test_a_gpu_whose_users_cannot_be_seen_is_not_measured_unasked() -> None:
    hidden = events.Processes(**HEADER, device=GPU, entries=None, reason="no permission")
    made = feed(session(), device(), sample(busy=None), hidden)
    assert not made.probers.running
    reason = made.state.devices[GPU].prober.idle_reason
    assert reason == "cannot see who uses GPU 0 (no permission)"
    made.benchmark(GPU, True)
    assert set(made.probers.running) == {GPU}


def test_a_gpu_whose_load_alone_is_known_is_measured_while_idle() -> None:
    hidden = events.Processes(**HEADER, device=GPU, entries=None, reason="not supported")
    made = feed(session(), device(), sample(busy=0.0), hidden)
    assert set(made.probers.running) == {GPU}


@pytest.mark.parametrize(("code", "measured"), [(94, False), (79, False), (13, True), (63, True)])
def test_a_gpu_that_wants_a_reset_gets_no_more_work(code: int, measured: bool) -> None:
    # NVIDIA's XID catalogue: 79 off the bus, 94 contained memory error; 13 and 63 ask for nothing.
    xid = events.Xid(**HEADER, device=GPU, code=code)
    made = feed(session(), device(), xid, sample(), processes())
    assert bool(made.probers.running) is measured
    if not measured:
        assert f"XID {code}" in str(made.state.devices[GPU].prober.idle_reason)
        made.benchmark(GPU, True)
        assert not made.probers.running


def test_measuring_gives_way_when_somebody_comes_and_resumes_when_they_leave() -> None:
    made = feed(session(), device(), sample(), processes())
    told: Told = made.probers.running[GPU]  # type: ignore[assignment]
    feed(made, processes(GPU, trainer()), processes(GPU, trainer()), processes())
    assert told.words() == ["pause", "resume"]


def test_asking_raises_the_duty_and_taking_it_back_lowers_it() -> None:
    made = feed(session(), device(), sample(), processes())
    told: Told = made.probers.running[GPU]  # type: ignore[assignment]
    feed(made, sample())
    made.benchmark(None, True)
    made.benchmark(None, False)
    duties = [command["value"] for command in told.commands if command["command"] == "duty"]
    assert duties == [0.03, 0.5, 0.03]


def test_a_paused_session_measures_nothing() -> None:
    made = feed(session(), device(), sample(), processes())
    told: Told = made.probers.running[GPU]  # type: ignore[assignment]
    made.pause(True)
    made.pause(False)
    assert told.words() == ["pause", "resume"]


@pytest.mark.parametrize("condition", ["lost", "stalled", "asleep", "error"])
def test_a_device_that_does_not_answer_is_left_alone(condition: events.DeviceCondition) -> None:
    status = events.DeviceStatus(**HEADER, device=GPU, condition=condition, since=1.0)
    assert not feed(session(), device(), status, sample(), processes()).probers.running


def test_a_rate_measured_beside_others_is_marked() -> None:
    made = feed(session(), device(), sample(), processes(GPU, trainer()))
    rate = events.RateMeasured(**HEADER, device=GPU, precision="fp32", rate_ops_per_second=1e12)
    feed(made, rate)
    shown = made.state.devices[GPU].rates["fp32"].best
    assert shown is not None
    assert not shown.valid
    assert shown.invalid_reason == "shared: python train.py (PID 12) uses GPU 0"
    assert shown.rate_ops_per_second == 1e12


def test_the_cpu_is_measured_where_there_is_no_gpu() -> None:
    assert set(feed(session(), device(CPU), sample(CPU), processes(CPU)).probers.running) == {CPU}
    both = feed(session(), device(), device(CPU), sample(CPU), processes(CPU))
    assert not both.probers.running
    both.benchmark(CPU, True)
    assert set(both.probers.running) == {CPU}


def test_a_loaded_cpu_is_not_measured_and_a_little_load_does_not_matter() -> None:
    little = trainer(cpu_cores=0.2 * usable_cpus())
    much = trainer(cpu_cores=0.9 * usable_cpus())
    assert feed(session(), device(CPU), sample(CPU), processes(CPU, little)).probers.running
    made = feed(session(), device(CPU), sample(CPU), processes(CPU, much))
    assert not made.probers.running
    assert "python train.py" in str(made.state.devices[CPU].prober.idle_reason)


def test_in_a_container_our_own_prober_is_not_taken_for_somebody_else() -> None:
    state = State()
    host_pid = trainer(pid=99_001, local=False, command=None)
    ready = events.ProberReady(**HEADER, device=GPU, torch_version="2", python="3")
    for event in (device(), sample(), processes(GPU, host_pid)):
        state.apply(event, 1.0)
    assert foreign_use(state.devices[GPU]) is not None
    state.apply(ready, 1.0)
    assert foreign_use(state.devices[GPU]) is None
    state.apply(processes(GPU, host_pid, trainer(pid=99_002, local=False)), 1.0)
    assert foreign_use(state.devices[GPU]) is not None


def test_names_of_processes_cannot_carry_escapes() -> None:
    evil = trainer(command="python train.py [/home/u] [bold]x\x1b[2J")
    made = feed(session(), device(), sample(), processes(GPU, evil))
    assert "\x1b" not in str(made.state.devices[GPU].prober.idle_reason)


def test_no_benchmarks_means_none() -> None:
    assert not feed(session(benchmarks=False), device(), sample(), processes()).probers.running


def test_a_precision_that_ends_its_worker_twice_is_left_out() -> None:
    made = feed(session(), device(), sample(), processes())
    started = events.ProbeStarted(**HEADER, device=GPU, precision="fp8")
    crashed = events.Worker(
        **HEADER, worker=f"prober {GPU}", condition="restarted", detail="killed by SIGSEGV"
    )
    feed(made, started, crashed)
    assert "fp8" in made.probers._wanted(GPU)
    feed(made, started, crashed)
    assert "fp8" not in made.probers._wanted(GPU)
    assert "fp32" in made.probers._wanted(GPU)
    assert "SIGSEGV" in str(made.state.devices[GPU].rates["fp8"].unsupported)
    told: Told = made.probers.running[GPU]  # type: ignore[assignment]
    made.probers._started(GPU)
    (command,) = [c for c in told.commands if c["command"] == "precisions"]
    assert "fp8" not in command["keys"]  # type: ignore[operator]


def test_a_prober_speaks_of_its_device_under_the_key_of_the_row() -> None:
    made = feed(session(), device("gpu-0"), sample("gpu-0"), processes("gpu-0"))
    made.probers.interpreter = Interpreter("/usr/bin/python3")
    asleep = msgspec.structs.replace(device("gpu-0"), uuid="GPU-77")
    feed(made, asleep)
    command = made.probers._command(made.state.devices["gpu-0"])
    assert command is not None
    assert command[command.index("--device") + 1] == "GPU-77"
    rate = events.RateMeasured(**HEADER, device="GPU-77", precision="fp32", rate_ops_per_second=1.0)
    made.probers._receive_from("gpu-0", rate)
    assert made.state.devices["gpu-0"].rates["fp32"].latest is not None


def test_a_bandwidth_measured_beside_others_is_marked_as_a_rate_is() -> None:
    made = feed(session(), device(), sample(), processes(GPU, trainer()))
    found = events.ProbeResult(
        **HEADER, device=GPU, probe="memory", values={"copy_bytes_per_second": 1e12}
    )
    feed(made, found)
    kept = made.state.devices[GPU].probes["memory"]
    assert not kept.valid
    assert kept.invalid_reason == "shared: python train.py (PID 12) uses GPU 0"
    assert kept.values == {"copy_bytes_per_second": 1e12}
