"""Numbers as people read them, and text from outside that can do no harm."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topsmon import units


@pytest.mark.parametrize(
    ("value", "text"),
    [(989.4, "989"), (35.56, "35.6"), (2.5, "2.50"), (0.0123, "0.0123"), (1979, "1979"), (0, "0")],
)
def test_significant_digits(value: float, text: str) -> None:
    assert units.significant(value) == text


@pytest.mark.parametrize(
    ("rate", "precision", "text"),
    [
        (989.4e12, "bf16", "989 TFLOPS"),
        (624e12, "int8", "624 TOPS"),
        (29.5e9, "int8", "29.5 GOPS"),
        (89.3e9, "fp32", "89.3 GFLOPS"),
        (None, "fp32", "N/A"),
    ],
)
def test_integer_rates_are_tops_and_floating_point_rates_tflops(
    rate: float | None, precision: str, text: str
) -> None:
    assert units.rate(rate, precision) == text


def test_ratios_are_never_clamped() -> None:
    assert units.percent(1.067) == "106.7%"
    assert units.percent(None) == "N/A"
    assert units.percent(0.0) == "0.0%"


def test_memory_of_a_16_gib_card() -> None:
    # 17,179,869,184 B = 16.000 GiB = 17.18 GB; 14,360 MiB are 87.6 % of it.
    assert units.gibibytes(17_179_869_184, 3) == "16.000"
    assert units.binary_bytes(17_179_869_184) == "16.0 GiB"
    assert units.bandwidth(17_179_869_184) == "17.2 GB/s"
    assert units.percent(15_057_551_360 / 17_179_869_184) == "87.6%"
    assert units.binary_bytes(25_769_803_776) == "24.0 GiB"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.44, "0.4 s"),
        (12.3, "12 s"),
        (75, "1 min"),
        (7300, "2 h"),
        (200_000, "2 d"),
        (None, "N/A"),
    ],
)
def test_ages(seconds: float | None, text: str) -> None:
    assert units.duration(seconds) == text


def test_escape_sequences_and_line_ends_become_visible_signs() -> None:
    evil = "evil\x1b[2J\x1b]0;x\x07\nline2\r\t\x9b31m"
    shown = units.plain(evil)
    assert not any(unicodedata.category(char) in {"Cc", "Cf", "Cs"} for char in shown)
    assert shown.startswith("evil\N{REPLACEMENT CHARACTER}[2J")
    assert len(shown) == len(evil)


def test_right_to_left_overrides_are_taken_out() -> None:
    assert "\u202e" not in units.plain("a\u202eb")


def test_markup_is_left_as_text() -> None:
    text = "python train.py [/home/u] [bold]x"
    assert units.plain(text) == text


@given(st.text())
def test_plain_text_is_one_printable_encodable_line(text: str) -> None:
    shown = units.plain(text)
    shown.encode("utf-8")
    assert len(shown.splitlines()) <= 1
    assert units.plain(shown) == shown


@given(st.floats(min_value=1e-3, max_value=1e6))
def test_three_digits_are_kept(value: float) -> None:
    assert float(units.significant(value)) == pytest.approx(value, rel=6e-3)


def test_every_precision_has_a_ceiling_key_with_a_label() -> None:
    for precision in units.PRECISIONS.values():
        assert precision.ceilings
        for key in precision.ceilings:
            assert units.RATE_LABELS[key][1] == precision.unit


@pytest.mark.parametrize(
    ("command", "limit", "words"),
    [
        (
            "/root/.pyenv/versions/3.11.7/bin/python3 train.py --epochs 3",
            40,
            "python3 train.py --epochs 3",
        ),
        (
            "python3 /home/ada/projects/vision/train.py --epochs 3",
            40,
            "python3 train.py --epochs 3",
        ),
        ("python3 /data/train.py", 40, "python3 /data/train.py"),
        ("python3 train.py --learning-rate 0.001 --epochs 3", 32, "python3 train.py ..."),
        ("/usr/bin/" + "x" * 50, 32, "x" * 32),
        ("nginx: worker process", 40, "nginx: worker process"),
        ("ray::train/step", 40, "ray::train/step"),
        ("./a.out", 40, "a.out"),
        ("/", 40, "/"),
        ("", 40, ""),
        (
            "python3 -c import\x1b[2Jos\nprint(1)",
            60,
            "python3 -c import\N{REPLACEMENT CHARACTER}[2Jos print(1)",
        ),
    ],
)
def test_a_command_is_known_by_its_program_and_arguments(
    command: str, limit: int, words: str
) -> None:
    assert units.command_words(command, limit) == words


@given(st.text(max_size=300), st.integers(min_value=8, max_value=80))
def test_a_command_fits_and_is_safe(command: str, limit: int) -> None:
    words = units.command_words(command, limit)
    assert len(words) <= limit
    assert words == units.plain(words)
