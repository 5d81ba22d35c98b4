"""Numbers that users give for a step: what cannot be is refused in one line, the rest is taken."""

from __future__ import annotations

import math

import pytest
import torch
from click.testing import CliRunner

from topsmon.ceilings.database import boards
from topsmon.cli.root import root
from topsmon.training.recorder import given, install
from topsmon.training.recorder.counting import StepCounter

USELESS = [1e30, 0, -1.0, math.nan, math.inf, -math.inf, "64", "many", [1.0]]


@pytest.mark.parametrize("value", USELESS, ids=str)
def test_watch_refuses_impossible_flops_in_one_line(written, value):
    with pytest.raises(ValueError, match="flops_per_step is ") as caught:
        install.watch(flops_per_step=value)
    assert "\n" not in str(caught.value)
    assert written.recorder.identity == {}


def test_the_line_says_what_is_possible():
    with pytest.raises(ValueError, match=r"is 1e\+30; at most 1e\+22 is possible; give that of"):
        install.watch(flops_per_step=1e30)
    with pytest.raises(ValueError, match="is 'many'; give a positive number or leave it out"):
        install.watch(flops_per_step="many")
    with pytest.raises(ValueError, match="samples_per_step is 1e"):
        install.watch(samples_per_step=1e16)


@pytest.mark.parametrize("value", [5, torch.tensor(5.0), torch.tensor(5)], ids=["int", "f", "i"])
def test_a_scalar_of_any_kind_is_a_number(written, net, value):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    install.watch(model, optimizer, flops_per_step=value)
    model(torch.ones(2, 16)).mean().backward()
    optimizer.step()
    assert written.reader.identity().run.flops_per_step == 5.0


def test_no_board_reaches_the_bound_in_a_day():
    teraflops = max(rate for board in boards().values() for rate in board.published.values())
    assert teraflops * 1e12 * 86400 < given.FLOPS_MOST


@pytest.mark.parametrize("text", ["1e30", "0", "-1", "nan", "inf", "many"])
def test_the_command_refuses_them_in_one_line(text):
    result = CliRunner().invoke(root, ["run", "--flops", text, "--", "true"])
    assert result.exit_code == 2
    assert "--flops" in result.output
    assert StepCounter(text).given is None


def test_the_bounds_themselves_are_possible():
    for value in (given.FLOPS_LEAST, given.FLOPS_MOST):
        assert given.number(given.FLOPS, value) == value
        assert StepCounter(repr(value)).given == value
