"""The pages of recipes: every topsmon command line in them is one that topsmon takes."""

import re
import shlex

import click
import pytest

from topsmon import recipes
from topsmon.cli.root import COMMANDS, root

_CALL = re.compile(r"(?:^|[\s/\"(])topsmon\s+((?:[a-z]+\b)[^\n#>|)]*)")


def command_lines() -> list[tuple[str, list[str]]]:
    found = []
    for name in recipes.titles():
        blocks = re.findall(r"```\w*\n(.*?)```", recipes.page(name), re.DOTALL)
        for block in blocks:
            text = block.replace("\\\n", " ")
            listed = re.findall(r"command: \[(.*?)\]", text, re.DOTALL)
            lines = [re.sub(r'[",\s]+', " ", one).strip() for one in listed]
            plain = re.sub(r"command: \[.*?\]", "", text, flags=re.DOTALL)
            lines += [f"topsmon {call}" for call in _CALL.findall(plain)]
            for line in lines:
                words = shlex.split(line.split("||")[0].split("&&")[0])[1:]
                if words and words[0] in COMMANDS:
                    found.append((name, words))
    return found


def test_there_are_command_lines_in_every_page() -> None:
    assert {name for name, _ in command_lines()} == set(recipes.titles())


@pytest.mark.parametrize(
    ("name", "words"), command_lines(), ids=lambda value: " ".join(value)[:60] if value else ""
)
def test_a_command_line_is_one_that_topsmon_takes(name: str, words: list[str]) -> None:
    context = click.Context(root)
    command = root.get_command(context, words[0])
    assert command is not None, name
    command.make_context(words[0], words[1:], parent=context, resilient_parsing=False)
