"""The doctor: each trouble is named with its remedy; what is absent is no fault."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from topsmon import doctor, events
from topsmon.cli import root
from topsmon.doctor import bundle, driver, machine, measuring, model
from topsmon.doctor.model import Patient, Result
from topsmon.state import State

STAMP = {"time": 1.0, "monotonic": 1.0, "source": "box17"}


@pytest.fixture(autouse=True)
def own_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    (tmp_path / "XDG_RUNTIME_DIR").mkdir(mode=0o700)


def topsmon_doctor(*options: str, **environment: str) -> tuple[int, dict[str, list[dict]]]:
    done = subprocess.run(
        [sys.executable, "-m", "topsmon", "doctor", "--json", *options],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
        timeout=120,
        check=False,
    )
    found: dict[str, list[dict]] = {}
    assert done.stdout, done.stderr.decode()
    for check in json.loads(done.stdout)["checks"]:
        found.setdefault(check["id"], []).append(check)
    return done.returncode, found


def answering(tmp_path: Path, answer: str, code: int = 0) -> str:
    """A stand-in for a Python, with no torch to load: it says that it has one, then answers."""
    script = tmp_path / "python"
    script.write_text(
        "#!/bin/sh\n"
        "case \"$2\" in *find_spec*) echo 'torch is here'; exit 0;; esac\n"
        f"{answer}\n"
        f"exit {code}\n"
    )
    script.chmod(0o755)
    return str(script)


WORKING = 'echo \'{"version":"2.13.0","python":"3.11.7","cuda":null,"devices":0}\''


def patient(*collected: events.Event, **fields: object) -> Patient:
    state = State()
    for event in collected:
        state.apply(event, 1.0)
    return Patient(state, 0.1, **fields)


def host(**fields: object) -> events.Host:
    return events.Host(**STAMP, hostname="box17", system="Linux", **fields)


@pytest.mark.real
@pytest.mark.parametrize(
    ("scenario", "state", "words"),
    [
        ("no-library", "n/a", "No NVIDIA driver library"),
        ("no-driver", "fail", "kernel module is not loaded"),
        ("mismatch", "fail", "version mismatch"),
        ("unknown-error", "fail", "999"),
        ("zero-devices", "warn", "no GPU visible"),
    ],
)
def test_a_driver_that_does_not_work_is_named_with_its_remedy(
    scenario: str, state: str, words: str, tmp_path: Path
) -> None:
    code, found = topsmon_doctor("--simulate", scenario, "--python", answering(tmp_path, WORKING))
    (driver,) = found["driver"]
    assert driver["state"] == state
    assert words in driver["finding"]
    assert driver["remedy"]
    assert (code == 2) == (state == "fail")


@pytest.mark.real
def test_a_working_driver_has_one_result_a_gpu(tmp_path: Path) -> None:
    _, found = topsmon_doctor("--simulate", "h100-8", "--python", answering(tmp_path, WORKING))
    assert found["driver"][0]["state"] == "ok"
    assert [found[f"gpu-{index}"][0]["state"] for index in range(8)] == ["ok"] * 8


@pytest.mark.real
def test_a_poor_terminal_is_a_limit_not_a_failure(tmp_path: Path) -> None:
    poor = {"TERM": "dumb", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    code, found = topsmon_doctor("--python", answering(tmp_path, WORKING), **poor)
    assert code == 1
    assert "TERM is dumb" in found["terminal"][0]["finding"]
    assert found["encoding"][0]["state"] == "warn"
    assert "UTF-8" in found["encoding"][0]["remedy"]


@pytest.mark.real
def test_the_recorder_gets_into_this_python() -> None:
    _, found = topsmon_doctor()
    assert found["recorder"][0]["state"] == "ok"
    assert found["run-folder"][0]["state"] == "ok"


def test_a_python_without_torch_measures_nothing(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\nexit 0\n")
    bare.chmod(0o755)
    (result,) = measuring.torch(patient(python=str(bare)))
    assert result.state == "warn"
    assert "pip install torch" in result.remedy


GPU = events.Device(**STAMP, device="GPU-1", kind="gpu", index=0, name="NVIDIA A10")


@pytest.mark.parametrize(
    ("answer", "code", "state", "words"),
    [
        ('{"version":"2.13.0","python":"3.11.7","cuda":"13.0","devices":1}', 0, "ok", "CUDA 13.0"),
        (
            '{"version":"2.13.0+cpu","python":"3.11.7","cuda":null,"devices":0}',
            0,
            "warn",
            "none of",
        ),
        ('{"version":"2.1.2","python":"3.9.1","cuda":"12.1","devices":1}', 0, "warn", "older"),
        (
            '{"version":"2.13.0","python":"3.11.7","cuda":"13.0","trouble":"no kernel image"}',
            0,
            "fail",
            "no kernel image",
        ),
        ("libcudnn.so.9: not found", 1, "fail", "cannot be imported"),
    ],
)
def test_torch_is_judged_by_what_it_says(
    tmp_path: Path, answer: str, code: int, state: str, words: str
) -> None:
    path = answering(tmp_path, f"echo '{answer}'", code)
    (result,) = measuring.torch(patient(GPU, python=path))
    assert (result.state, words in result.finding) == (state, True), result.finding


def test_gpus_on_the_bus_without_nodes_in_a_container(tmp_path: Path) -> None:
    card = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    card.mkdir(parents=True)
    (card / "vendor").write_text("0x10de\n")
    (card / "class").write_text("0x030200\n")
    (tmp_path / "dev").mkdir()
    (result,) = doctor.driver.device_nodes(patient(host(container=True), root=tmp_path))
    assert result.state == "fail"
    assert "--gpus all" in result.remedy
    (result,) = doctor.driver.device_nodes(patient(host(), root=tmp_path))
    assert "modprobe nvidia" in result.remedy


def test_no_gpu_on_the_bus_is_no_fault(tmp_path: Path) -> None:
    (result,) = doctor.driver.device_nodes(patient(host(container=True), root=tmp_path))
    assert result.state == "n/a"


@pytest.mark.parametrize(
    ("text", "quota"), [("150000 100000\n", 1.5), ("max 100000\n", None), ("", None)]
)
def test_the_cpu_quota_is_read_from_the_cgroup(
    tmp_path: Path, text: str, quota: float | None
) -> None:
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text(text)
    assert machine.cpu_quota(tmp_path) == quota


def test_the_older_cgroup_has_two_files(tmp_path: Path) -> None:
    folder = tmp_path / "sys/fs/cgroup/cpu"
    folder.mkdir(parents=True)
    (folder / "cpu.cfs_quota_us").write_text("200000\n")
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    assert machine.cpu_quota(tmp_path) == 2.0


def test_hidden_processes_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mounts").write_text("proc /proc proc rw,nosuid,hidepid=2 0 0\n")
    (result,) = machine.processes(patient(host(), GPU, root=tmp_path))
    assert result.state == "warn"
    assert "hidepid=2" in result.finding


def test_a_check_that_breaks_does_not_end_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_patient: Patient) -> list[Result]:
        raise RuntimeError("boom")

    monkeypatch.setattr(doctor, "CHECKS", (broken, machine.cpu_clock))
    results = list(doctor.examine(patient()))
    assert [result.state for result in results] == ["fail", "ok"]
    assert "boom" in results[0].finding


def test_the_worst_counts_and_absence_does_not() -> None:
    def result(state: model.Outcome) -> Result:
        return Result(id="a", state=state, finding="")

    assert model.worst([]) == "ok"
    assert model.worst([result("n/a"), result("n/a")]) == "ok"
    assert model.worst([result("n/a"), result("warn"), result("ok")]) == "warn"
    assert model.worst([result("fail"), result("warn")]) == "fail"


def unpacked(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        return {
            member.name.rpartition("/")[2]: archive.extractfile(member).read().decode()
            for member in archive
        }


COLLECTED = (
    host(),
    events.Device(
        **STAMP,
        device="GPU-12345678-aaaa-bbbb-cccc-123456789abc",
        kind="gpu",
        index=0,
        name="NVIDIA A10",
        pci_bus_id="00000000:65:00.0",
    ),
    events.Processes(
        **STAMP,
        device="GPU-12345678-aaaa-bbbb-cccc-123456789abc",
        entries=(
            events.ProcessEntry(
                pid=7, name="python", user="marie", command="/home/marie/bin/python t.py --key=hush"
            ),
        ),
    ),
    events.Problem(**STAMP, subject="x", code="y", message="10.1.2.3 aa:bb:cc:dd:ee:ff 580.95.05"),
)
SECRETS = ("box17", "marie", "hush", "12345678-aaaa", "65:00.0", "10.1.2.3", "aa:bb:cc")


def test_a_bundle_names_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "box17")
    path = tmp_path / "b.tar.gz"
    results = [Result(id="a", state="ok", finding="/home/marie/x on box17, driver 580.95.05")]
    bundle.write(path, results, COLLECTED, {"HOME": "/home/marie", "TERM": "x", "TOKEN": "hush"})
    assert path.stat().st_mode & 0o777 == 0o600
    documents = unpacked(path)
    everything = "\n".join(documents.values())
    assert not [secret for secret in SECRETS if secret in everything]
    assert "580.95.05" in documents["doctor.json"]
    assert "580.95.05" in documents["events.jsonl"]
    assert json.loads(documents["environment.json"]) == {"TERM": "x"}


def test_a_bundle_can_be_followed_though_it_is_redacted(tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    bundle.write(path, [], COLLECTED, {})
    decoder = events.LineDecoder()
    lines = unpacked(path)["events.jsonl"].encode().splitlines()
    read = [decoder.decode(line) for line in lines]
    assert (decoder.malformed, len(read)) == (0, 4)
    assert read[1].device == read[2].device
    assert read[1].device.startswith("GPU-")


def test_identifiers_stay_if_asked(tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    bundle.write(path, [], COLLECTED, {}, identifiers=True)
    assert "box17" in unpacked(path)["events.jsonl"]


def bundled(*words: str) -> tuple[int, str]:
    outcome = CliRunner().invoke(root, ["doctor", "--bundle", *words], obj=())
    return outcome.exit_code, outcome.output


def test_a_bundle_is_not_written_over_another_file(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("precious")
    (tmp_path / "link").symlink_to(path)
    code, said = bundled(str(path))
    assert (code, "exists; name another file, or use --force" in said) == (2, True)
    code, said = bundled(str(tmp_path / "link"), "--force")
    assert (code, "no regular file" in said) == (2, True)
    code, said = bundled(str(tmp_path / "no" / "b.tgz"))
    assert (code, "no folder" in said) == (2, True)
    code, said = bundled(str(path), "--force")
    assert (code, "is no bundle of topsmon doctor" in said) == (2, True)
    assert path.read_text() == "precious"
    old = tmp_path / "b.tgz"
    bundle.write(old, [], COLLECTED, {})
    bundle.write(old, [], COLLECTED, {"TERM": "new"}, force=True)
    assert "new" in unpacked(old)["environment.json"]
    assert sorted(one.name for one in tmp_path.glob(".*")) == []


def test_a_stalled_gpu_is_not_read_and_persistence_is_no_remedy() -> None:
    state = State()
    told = (
        events.Host(
            **STAMP,
            hostname="box17",
            system="Linux",
            driver_version="580.95.05",
            cuda_version="13.0",
        ),
        events.Device(**STAMP, device="GPU-0", kind="gpu", index=0, name="NVIDIA H100"),
        events.DeviceStatus(**STAMP, device="GPU-0", condition="stalled", since=1.0),
    )
    for event in told:
        state.apply(event, 1.0)
    (found,) = driver.driver(Patient(state=state, read_seconds=2.01))
    assert found.state == "warn"
    assert found.finding == "driver 580.95.05, CUDA 13.0; not everything was read"
    assert not found.remedy
