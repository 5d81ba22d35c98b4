"""Probers for the tests that need real ones."""

from __future__ import annotations

import os
import sys

import pytest
from probe_children import Child


@pytest.fixture
def start_child():
    """Start children that are gone when the test is."""
    children: list[Child] = []

    def start(*arguments: str, python: str = sys.executable, **options) -> Child:
        child = Child([python, *arguments], **options)
        children.append(child)
        return child

    yield start
    for child in children:
        child.close()


@pytest.fixture(scope="module")
def prober():
    """One CPU prober for a module: loading torch is the slow part."""
    child = Child(
        [sys.executable, "-m", "topsmon.probes", "--device", "cpu", "--duty", "1"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    yield child
    child.close()
