"""What the user types: input shapes and MODULE:FACTORY."""

from __future__ import annotations

import string
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from topsmon.flops.errors import UsageError
from topsmon.flops.model import find_factory, parse_target
from topsmon.flops.shapes import ALIASES, DTYPES, Input, parse_input


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("1x3x224x224", Input((1, 3, 224, 224))),
        ("8", Input((8,))),
        (" 8X128 ", Input((8, 128))),
        ("8,128", Input((8, 128))),
        ("8\u00d7128:int64", Input((8, 128), "int64")),
        ("1x2:half", Input((1, 2), "float16")),
        ("ids=1x2:long", Input((1, 2), "int64", "ids")),
    ],
)
def test_inputs(text: str, parsed: Input) -> None:
    assert parse_input(text) == parsed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no size"),
        ("1x", "is no size"),
        ("x1", "is no size"),
        ("1y2", "is no size"),
        ("-1x2", "is no size"),
        ("1.5", "is no size"),
        ("\u0663", "is no size"),
        ("0x3", "size of 0"),
        ("1x2:", "type after the colon"),
        ("1x2:float33", "no data type"),
        ("a b=1", "no argument name"),
        ("=1", "no argument name"),
        ("99999999x99999999", "more than any tensor"),
        ("9" * 19, "is no size"),
    ],
)
def test_wrong_inputs_are_named(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse_input(text)
    assert f"--input {text}" in str(caught.value)
    assert "\n" not in str(caught.value)


@given(
    st.lists(st.integers(1, 999), min_size=1, max_size=4),
    st.none() | st.sampled_from([*DTYPES, *ALIASES]),
    st.none() | st.text(string.ascii_letters + "_", min_size=1),
)
def test_what_is_written_is_read(sizes: list[int], dtype: str | None, name: str | None) -> None:
    text = "x".join(map(str, sizes))
    text = text if dtype is None else f"{text}:{dtype}"
    parsed = parse_input(text if name is None else f"{name}={text}")
    assert parsed == Input(tuple(sizes), ALIASES.get(dtype or "", dtype), name)


@given(st.text(max_size=30))
def test_any_text_is_parsed_or_refused_in_one_way(text: str) -> None:
    try:
        parsed = parse_input(text)
    except UsageError:
        return
    assert all(size > 0 for size in parsed.shape)


def test_every_type_is_torchs() -> None:
    assert all(isinstance(getattr(torch, name), torch.dtype) for name in DTYPES)


def made(text: str) -> Any:
    return find_factory(parse_target(text))()


def test_a_module_by_name_with_plain_arguments(tmp_path: Path) -> None:
    layer = made("torch.nn:Conv2d(4, 8, kernel_size=(3, 5), bias=False)")
    assert (layer.in_channels, layer.kernel_size, layer.bias) == (4, (3, 5), None)


def test_a_file_a_dotted_name_and_a_ready_module(tmp_path: Path) -> None:
    file = tmp_path / "some model.py"
    file.write_text(
        "import sibling_of_the_model\nfrom torch import nn\n"
        "class Zoo:\n    @staticmethod\n    def make(n=2):\n        return nn.Linear(n, 1)\n"
        "ready = nn.Linear(7, 1)\n"
    )
    (tmp_path / "sibling_of_the_model.py").write_text("")
    before = list(sys.path)
    try:
        assert made(f"{file}:Zoo.make").in_features == 2
        assert made(f"{file}:Zoo.make(5)").in_features == 5
        assert made(f"{file}:ready").in_features == 7
    finally:
        sys.path[:] = before
        sys.modules.pop("some model", None)
        sys.modules.pop("sibling_of_the_model", None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("torch.nn", "write MODULE:FACTORY"),
        (":Linear", "write MODULE:FACTORY"),
        ("torch.nn:", "write MODULE:FACTORY"),
        ("torch.nn:Linear(", "no name after the colon"),
        ("torch.nn:Linear(open('x'))", "plain values"),
        ("torch.nn:Linear()()", "after the colon"),
        ("torch.nn:3", "after the colon"),
        ("torch.nn:Linearr", "torch.nn has no 'Linearr'"),
        ("torch.nn:__name__", "neither a function nor a module"),
        ("no_such_module_at_all:x", "no module named 'no_such_module_at_all'"),
        ("torch.no_such_part:x", "no module named 'torch.no_such_part'"),
        ("no/such/file.py:x", "no such file"),
    ],
)
def test_wrong_targets_say_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("(", r"\(")):
        made(text)


def test_a_module_that_itself_lacks_a_module_is_not_taken_for_missing(tmp_path: Path) -> None:
    file = tmp_path / "wants_more.py"
    file.write_text("import not_installed_here\n")
    with pytest.raises(ModuleNotFoundError, match="not_installed_here"):
        made(f"{file}:x")
    sys.path.remove(str(tmp_path))
    sys.modules.pop("wants_more", None)
