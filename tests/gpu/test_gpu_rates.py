"""Every precision on a real GPU: right results, plausible rates, the precision that was asked for.

Skipped without one. `run_checks.py` beside this file does the same at length and keeps the figures.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

from run_checks import ceilings_of, gpu_uuid, measure  # noqa: E402 - beside this file

from topsmon.probes.bursts import Bench  # noqa: E402
from topsmon.probes.devices import open_device  # noqa: E402
from topsmon.probes.verdict import products_of  # noqa: E402
from topsmon.units import PRECISIONS  # noqa: E402


@pytest.fixture(scope="module")
def bench():
    return Bench(open_device(gpu_uuid()))


@pytest.mark.parametrize("key", PRECISIONS)
def test_results_are_right_and_rates_plausible(bench, key):
    found = measure(bench, key, ceilings_of(bench.device))
    if "unsupported" in found:
        pytest.skip(found["unsupported"])
    assert found["complaints"] == []
    assert found["best"]["calls"] >= 3


@pytest.mark.parametrize(("key", "products"), [("fp32", "ieee"), ("tf32", "tf32")])
def test_fp32_and_tf32_are_two_things(bench, key, products):
    if key == "tf32" and bench.device.facts.capability < (8, 0):
        pytest.skip("no TF32 on this GPU")
    assert products_of(bench.burst(key, 0)["relative_error"]) == products


def test_clock_power_and_reasons_are_read_in_the_burst(bench):
    fields = bench.burst("fp32", 0)
    assert 100 < fields["held_clock_mhz"] < 4000
    assert fields["clock_event_mask"] is not None
    assert not fields["clock_event_mask"] & 0x1  # GPU idle: not while it works


def test_memory_is_given_back(bench):
    bench.burst("fp32", 0)
    assert torch.cuda.memory_reserved() < 256 * 2**20
