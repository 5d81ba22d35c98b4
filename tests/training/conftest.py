"""What the tests of the recorder share."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def nothing_compiled_before() -> None:
    """The recorder keeps off where code was compiled: another test of this process may have."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is not None and utils.counters:
        sys.modules["torch._dynamo"].reset()
        utils.counters.clear()
