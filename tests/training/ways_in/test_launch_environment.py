"""What `topsmon run` gives its command, and what it sees that keeps the recorder out."""

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topsmon.training.launch import BOOT, Options, environment, new_launch, python_flag, shut_out


def test_the_users_path_stays_behind_ours() -> None:
    inner = environment({"PYTHONPATH": "/a:/b"}, "x", Options())
    assert inner["PYTHONPATH"] == f"{BOOT}:/a:/b"


@pytest.mark.parametrize("outer", [{}, {"PYTHONPATH": ""}])
def test_no_path_of_the_users_adds_no_working_folder(outer: dict[str, str]) -> None:
    assert environment(outer, "x", Options())["PYTHONPATH"] == BOOT


def test_a_launch_inside_a_launch_is_in_the_path_once_and_has_its_own_name() -> None:
    inner = environment(environment({"PYTHONPATH": "/a"}, "x", Options()), "y", Options())
    assert inner["PYTHONPATH"] == f"{BOOT}:/a"
    assert inner["TOPSMON_LAUNCH"] == "y"


def test_the_rest_of_the_environment_is_untouched() -> None:
    outer = {"HOME": "/root", "TOPSMON_FLOPS": "7", "PYTHONSAFEPATH": "1"}
    inner = environment(outer, "x", Options())
    assert {name: inner[name] for name in outer} == outer
    assert set(inner) - set(outer) == {"PYTHONPATH", "TOPSMON_LAUNCH", "TOPSMON_ENTRY"}


def test_options_travel_by_name() -> None:
    options = Options("sample", 512.0, 8.0, 30, debug=True)
    inner = environment({}, "x", options)
    assert inner["TOPSMON_FLOPS"] == "sample"
    assert float(inner["TOPSMON_TOKENS_PER_STEP"]) == 512
    assert float(inner["TOPSMON_SAMPLES_PER_STEP"]) == 8
    assert inner["TOPSMON_PROFILE_STEP"] == "30"
    assert inner["TOPSMON_DEBUG"] == "1"


def test_a_relative_folder_is_the_same_one_from_everywhere() -> None:
    inner = environment({"TOPSMON_DIR": "here"}, "x", Options())
    assert inner["TOPSMON_DIR"] == str(Path.cwd() / "here")


def test_launches_have_different_names() -> None:
    assert len({new_launch() for _ in range(100)}) == 100


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        ("python -I train.py", "-I"),
        ("/opt/bin/python3.12 -uE train.py", "-E"),
        ("python3 -X dev -S train.py", "-S"),
        ("python -Wignore -I train.py", "-I"),
        ("python -W ignore -sS -m train", "-S"),
        ("nohup python -I train.py", "-I"),
        ("python --check-hash-based-pycs=never -I train.py", "-I"),
        ("python train.py -I", None),
        ("python -m train -I", None),
        ("python -um train -E", None),
        ("python -c 0 -S", None),
        ("python - -I", None),
        ("python -W -I train.py", None),  # -I is what -W takes
        ("python -WI train.py", None),
        ("python -XE train.py", None),
        ("python", None),
        ("torchrun -I train.py", None),
        ("my-python -I", None),
        ("python3-config -I", None),
    ],
)
def test_flags_that_keep_the_recorder_out(words: str, flag: str | None) -> None:
    assert python_flag(words.split()) == flag


@given(st.lists(st.text(max_size=8), max_size=6))
def test_any_words_can_be_looked_at(words: list[str]) -> None:
    assert python_flag(words) in {None, "-I", "-E", "-S"}


def test_a_scripts_first_line_is_looked_at_too(tmp_path: Path) -> None:
    script = tmp_path / "train"
    script.write_text("#!/usr/bin/env -S python3 -I\n")
    assert "-I" in (shut_out([str(script)], str(script), {}) or "")
    script.write_text("#!/usr/bin/python3\nprint('-I')\n")
    assert shut_out([str(script)], str(script), {}) is None
    script.chmod(stat.S_IXUSR)
    assert shut_out([str(script)], str(script) + ".gone", {}) is None


@pytest.mark.parametrize(
    ("words", "wiped"),
    [
        ("env -i python train.py", True),
        ("/usr/bin/env A=1 - python train.py", True),
        ("env -u PATH --ignore-environment python train.py", True),
        ("env -iv python train.py", True),
        ("nohup env -i python", True),
        ("env A=1 python train.py -i", False),
        ("env -u -i python", False),
        ("env", False),
        ("python -i train.py", False),
    ],
)
def test_an_environment_that_is_wiped(words: str, wiped: bool) -> None:
    assert ("env -i" in (shut_out(words.split(), "/x", {}) or "")) is wiped


def test_switched_off_by_the_environment() -> None:
    assert "TOPSMON_OFF" in (shut_out(["python"], "/x", {"TOPSMON_OFF": "1"}) or "")
    assert shut_out(["python"], "/x", {"TOPSMON_OFF": "0"}) is None


def test_the_boot_folder_holds_what_python_looks_for() -> None:
    names = {path.name for path in Path(BOOT).iterdir()}
    assert {"sitecustomize.py", "_topsmon_boot.py"} <= names
