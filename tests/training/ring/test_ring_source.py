"""The source of events, the clean-up of old rings, and `topsmon runs`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from ring_runs import new_run, values, write_steps

from topsmon import events
from topsmon.cli.root import root
from topsmon.cli.runs import HEADS
from topsmon.devices import poller
from topsmon.run_state import RunState
from topsmon.training import discovery, places
from topsmon.training.life import Here
from topsmon.training.recorder import layout
from topsmon.training.recorder.ring import RingWriter
from topsmon.training.source import RECENT_RUNS, TrainingRuns

DAY = 86400.0


def ended_run(ago: float, *, started: float | None = None, **identity: Any) -> RingWriter:
    """A run of a process that does not live any more; its last step was `ago` seconds ago."""
    began = time.time() - ago - 10 if started is None else started
    writer = new_run(process_started=1, started=began, **identity)
    record = values(1, loss=1.0)
    record[1] = time.time() - ago
    writer.write(record)
    writer.close()
    os.utime(writer.path, (time.time() - ago, time.time() - ago))
    return writer


def poll(source: TrainingRuns) -> list[events.AnyEvent]:
    source._next_scan = 0.0
    return source.poll()


def kinds(found: list[events.AnyEvent]) -> list[str]:
    return [type(event).__name__ for event in found]


def test_each_thing_is_told_once_and_only_what_changed(rings: Path) -> None:
    writer = new_run(model="Net")
    write_steps(writer, 1, 300, loss=1.0, step_seconds=0.1)
    source = TrainingRuns("host")
    assert kinds(source.poll()) == ["Run", "RunHistory", "RunSample", "RunStatus"]
    assert source.poll() == []
    writer.event("skip", 300)
    writer.event("back-off", 300, values={"scale": 32768.0})
    assert kinds(source.poll()) == ["RunEvent", "RunEvent"]
    writer.write(values(301, loss=2.0, step_seconds=0.1))
    history, sample = source.poll()
    assert isinstance(history, events.RunHistory)
    assert [bucket.first_step for bucket in history.buckets] == [301]
    assert isinstance(sample, events.RunSample)
    assert (sample.step, sample.loss, sample.totals.steps) == (301, 2.0, 301)
    writer.identify(parameters=5)
    (run,) = source.poll()
    assert isinstance(run, events.Run)
    assert (run.parameters, run.model, run.local) == (5, "Net", True)
    assert run.source == f"host/{Path(writer.path).stem}"
    writer.write(values(301, loss=3.0, step_seconds=0.1))
    assert kinds(source.poll()) == ["RunHistory", "RunSample"]


def test_events_folded_give_what_a_late_source_gives(rings: Path) -> None:
    writer = new_run()
    early = TrainingRuns("host")
    state: dict[str, RunState] = {}

    def fold(found: list[events.AnyEvent]) -> None:
        for event in found:
            if isinstance(event, events.Run):
                state[event.run] = RunState(event)
            else:
                state[event.run].apply(event, 0.0)  # type: ignore[union-attr,arg-type]

    fold(poll(early))
    for step in range(1, 1500):
        writer.write(values(step, loss=1.0 / step, skipped=step // 9))
        if step % 100 == 0:
            writer.event("skip", step)
            fold(poll(early))
    fold(poll(early))
    (followed,) = state.values()
    state = {}
    fold(TrainingRuns("host").poll())
    (late,) = state.values()
    assert followed.stride == late.stride == 8
    assert list(followed.buckets.values()) == list(late.buckets.values())
    assert sum(bucket.steps for bucket in late.buckets.values()) == 1499
    assert [event.number for event in followed.happened] == list(range(1, 15))
    assert [event.number for event in late.happened] == list(range(1, 15))
    assert followed.sample is not None
    assert late.sample is not None
    assert followed.sample.totals == late.sample.totals
    assert followed.sample.window == late.sample.window


def test_runs_that_begin_and_end_while_we_look(rings: Path) -> None:
    source = TrainingRuns("host")
    assert source.poll() == []
    first = new_run(rank=0)
    second = new_run(rank=1)
    write_steps(first, 1, 3)
    write_steps(second, 1, 3)
    runs = [event for event in poll(source) if isinstance(event, events.Run)]
    assert {run.rank for run in runs} == {0, 1}
    first.event("end", 3, "exit code 0", values={"exit_code": 0.0})
    told, status = source.poll()
    assert isinstance(told, events.RunEvent)
    assert isinstance(status, events.RunStatus)
    assert (status.condition, status.exit_code) == ("finished", 0)
    # Only the file's name is gone: the run goes on, and what it writes can still be read.
    Path(second.path).unlink()
    assert poll(source) == []
    write_steps(second, 4, 4)
    assert kinds(poll(source)) == ["RunHistory", "RunSample"]


def test_a_ring_that_breaks_while_it_is_watched_is_told_of_and_let_go(rings: Path) -> None:
    writer = new_run()
    source = TrainingRuns("host")
    source.poll()
    os.truncate(writer.path, 100)
    (lost,) = source.poll()
    assert isinstance(lost, events.RunStatus)
    assert "cut off" in lost.detail
    assert poll(source) == []


def test_foreign_files_are_passed_over(rings: Path) -> None:
    new_run()
    (rings / "notes.txt").write_text("mine")
    (rings / "foreign.ring").write_bytes(b"not a ring")
    (rings / "folder.ring").mkdir()
    (rings / "link.ring").symlink_to("/etc/passwd")
    source = TrainingRuns("host")
    assert kinds(source.poll()) == ["Run", "RunStatus"]
    for _ in range(10):
        assert poll(source) == []


def test_a_folder_that_is_not_trusted_is_a_problem_until_it_is_mended(rings: Path) -> None:
    new_run()
    rings.chmod(0o755)
    source = TrainingRuns("host")
    (problem,) = source.poll()
    assert isinstance(problem, events.Problem)
    assert "chmod 700" in problem.message
    assert poll(source) == []
    rings.chmod(0o700)
    found = poll(source)
    assert sorted(kinds(found)) == ["Problem", "Run", "RunStatus"]
    assert [event.code for event in found if isinstance(event, events.Problem)] == [None]


def test_runs_that_ended_long_ago_or_too_many_are_not_shown(rings: Path) -> None:
    for hours in range(RECENT_RUNS + 5):
        ended_run(60.0 * hours, rank=hours)
    ended_run(2 * DAY, rank=99)
    live = new_run(started=time.time() - 3 * DAY, rank=100)
    found = [event.rank for event in TrainingRuns("host").poll() if isinstance(event, events.Run)]
    assert set(found) == {*range(RECENT_RUNS), 100}
    everything = TrainingRuns("host", everything=True).poll()
    assert sum(isinstance(event, events.Run) for event in everything) == RECENT_RUNS + 7
    live.close()


def test_the_command_lists_all_that_ended_within_a_day_and_counts_the_others(rings: Path) -> None:
    for minutes in range(RECENT_RUNS + 8):
        ended_run(60.0 * minutes)
    for hours in (25, 30, 47):
        ended_run(3600.0 * hours)
    heading, *lines, last = runs().output.splitlines()
    assert heading.startswith("STATE")
    assert len(lines) == RECENT_RUNS + 8
    assert last == "and 3 runs that ended more than a day ago: topsmon runs --all"
    document = json.loads(runs("--json").output)
    assert (len(document["runs"]), document["older_runs"]) == (RECENT_RUNS + 8, 3)
    assert len(runs("--all").output.splitlines()) == 1 + RECENT_RUNS + 11


def test_the_files_of_runs_that_ended_a_while_ago_do_not_stay_open(rings: Path) -> None:
    for rank in range(5):
        ended_run(300.0, rank=rank)
    before = len(list(Path("/proc/self/fd").iterdir()))
    source = TrainingRuns("host")
    assert sum(isinstance(event, events.Run) for event in source.poll()) == 5
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert poll(source) == []


def test_a_simulated_machine_shows_runs_only_of_a_folder_that_was_named(
    rings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_run()
    simulated = {"TOPSMON_SIMULATED": "rtx4090"}
    assert TrainingRuns("host", simulated).poll() == []
    named = TrainingRuns("host", {**simulated, "TOPSMON_DIR": str(rings)})
    assert kinds(named.poll()) == ["Run", "RunStatus"]


def test_what_reads_runs_is_imported_once_there_is_a_folder_of_them(rings: Path) -> None:
    code = (
        "import sys; from topsmon.training.following import Following; follow = Following('h');"
        "first = follow.poll(), 'topsmon.training.reader' in sys.modules;"
        "import ring_runs; ring_runs.new_run();"
        "print(first, [type(event).__name__ for event in follow.poll()])"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "([], False) ['Run', 'RunStatus']"


def test_a_snapshot_of_the_machine_holds_its_runs(rings: Path) -> None:
    writer = new_run()
    write_steps(writer, 1, 5, loss=0.25)
    found = poller.snapshot(2.0, ("cpu",))
    (sample,) = [event for event in found if isinstance(event, events.RunSample)]
    assert (sample.step, sample.loss) == (5, 0.25)
    order = kinds(found)
    assert order.index("Run") < order.index("RunSample")


# Clean-up -----------------------------------------------------------------------------------------


def clean(**options: Any) -> set[str]:
    removed = discovery.clean(discovery.places(), Here.read(), **options)
    return {path.name for path in removed}


def test_only_ended_runs_of_more_than_a_week_ago_are_removed(rings: Path) -> None:
    old = ended_run(8 * DAY)
    young = ended_run(6 * DAY)
    live = new_run(started=time.time() - 30 * DAY)
    os.utime(live.path, (0, 0))
    foreign = rings / "20200101T000000-1-0.ring"
    foreign.write_bytes(bytes(layout.FILE_BYTES))
    os.utime(foreign, (0, 0))
    assert clean() == {Path(old.path).name}
    assert {path.name for path in rings.iterdir()} == {
        Path(young.path).name,
        Path(live.path).name,
        foreign.name,
    }


def test_the_oldest_of_too_many_ended_runs_are_removed(
    rings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "KEEP_ENDED", 3)
    monkeypatch.setattr(discovery, "KEEP_LEAST", 3)
    writers = [ended_run(100.0 * n) for n in range(5)]
    live = new_run(started=time.time() - 30 * DAY)
    assert clean() == {Path(writer.path).name for writer in writers[3:]}
    assert Path(live.path).exists()


def test_profiles_go_with_the_ring_of_their_run(rings: Path) -> None:
    old, young = ended_run(8 * DAY), ended_run(DAY)
    for writer in (old, young):
        for suffix in (".step12.trace.json.gz", ".step12.operators.json", ".step12.mine"):
            Path(writer.path).with_suffix(suffix).write_bytes(b"")
    assert clean() == {Path(old.path).name}
    kept = {path.name for path in rings.iterdir()}
    assert {name for name in kept if name.startswith(Path(old.path).stem)} == {
        f"{Path(old.path).stem}.step12.mine"
    }
    assert len(kept) == 1 + 4


def test_what_cannot_be_seen_from_here_is_removed_by_age_alone(rings: Path) -> None:
    young = ended_run(DAY, pid_namespace="pid:[0]")
    old = ended_run(9 * DAY, pid_namespace="pid:[0]")
    assert clean(everything=True) == {Path(old.path).name}
    assert Path(young.path).exists()


def test_other_users_folders_are_never_cleaned(rings: Path) -> None:
    old = ended_run(8 * DAY)
    place = discovery.Place(str(rings), os.geteuid(), own=False)
    assert discovery.clean([place], Here.read(), everything=True) == []
    assert Path(old.path).exists()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root")
def test_root_sees_other_users_folders_if_each_belongs_to_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed(path: str) -> list[str]:
        return {"/tmp": ["topsmon-1234", "topsmon-x", "other"], "/run/user": ["0", "77"]}.get(
            path, []
        )

    monkeypatch.setattr(places, "_listed", listed)
    others = [place for place in places.places({}) if not place.own]
    assert [(place.path, place.owner) for place in others] == [
        ("/tmp/topsmon-1234", 1234),
        ("/run/user/77/topsmon", 77),
    ]


# topsmon runs -------------------------------------------------------------------------------------


def runs(*arguments: str) -> Result:
    return CliRunner().invoke(root, ["runs", *arguments], catch_exceptions=False)


def test_without_runs_the_command_says_how_to_start_one(rings: Path) -> None:
    result = runs()
    assert (result.exit_code, "topsmon run --" in result.output) == (0, True)


def test_one_line_a_run(rings: Path) -> None:
    writer = new_run(rank=1, world_size=4, command="/usr/bin/python train.py --lr 1", pid=4242)
    writer.identify(pid=os.getpid())
    write_steps(writer, 1, 12, loss=0.123456, scale=65536.0, step_seconds=0.25)
    died = ended_run(30.0, command="python bad.py\x1b[2J", rank=0)
    again = RingWriter.reopen(died.path)
    again.event("exception", 1, "CUDA out of memory", ["OutOfMemoryError"])
    again.close()
    result = runs()
    assert result.exit_code == 0
    head, *lines = result.output.splitlines()
    assert head.split() == [word for title in HEADS for word in title.split()]
    (live,) = [line for line in lines if line.startswith("running")]
    for part in (str(os.getpid()), "1/4", "12", "250 ms", "0.1235", "65536", "python train.py"):
        assert part in live
    (failed,) = [line for line in lines if line.startswith("failed")]
    assert "OutOfMemoryError: CUDA" in failed
    assert "\x1b" not in result.output


def test_json_holds_identity_sample_status_and_events(rings: Path) -> None:
    writer = new_run(model="Net")
    write_steps(writer, 1, 2, loss=1.5)
    writer.event("skip", 2)
    (run,) = json.loads(runs("--json").output)["runs"]
    assert run["identity"]["model"] == "Net"
    assert run["sample"]["step"] == 2
    assert run["status"]["condition"] == "running"
    assert [event["kind"] for event in run["events"]] == ["skip"]


def test_old_runs_are_listed_and_cleaned_when_that_is_asked(rings: Path) -> None:
    ended_run(3 * DAY)
    live = new_run()
    assert len(runs().output.splitlines()) == 3
    assert len(runs("--all").output.splitlines()) == 3
    assert "removed the records of 1 ended run\n" in runs("--clean", "--all").output
    assert [str(path) for path in rings.iterdir()] == [live.path]


def test_a_refused_folder_is_said_and_no_success(rings: Path) -> None:
    new_run()
    rings.chmod(0o777)
    result = runs()
    assert result.exit_code == 3
    assert "chmod 700" in result.output
