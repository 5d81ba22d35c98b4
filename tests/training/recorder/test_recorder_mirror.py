"""The mirror's arithmetic against the real scaler, over thousands of steps."""

from __future__ import annotations

import math
import random
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from topsmon.training.recorder import mirror


def real_scaler(init_scale, growth, backoff, interval):
    scaler = torch.amp.GradScaler(
        "cpu",
        init_scale=init_scale,
        growth_factor=growth,
        backoff_factor=backoff,
        growth_interval=interval,
    )
    scaler.scale(torch.ones(()))
    return scaler


def compare(steps, init_scale, growth, backoff, interval):
    scaler = real_scaler(init_scale, growth, backoff, interval)
    scale, tracker = mirror.single(init_scale), 0
    for found_inf in steps:
        torch._amp_update_scale_(
            scaler._scale,
            scaler._growth_tracker,
            torch.full((), float(found_inf)),
            growth,
            backoff,
            interval,
        )
        if found_inf:
            scale, tracker = mirror.after_skip(scale, backoff)
        else:
            scale, tracker = mirror.after_step(scale, tracker, growth, interval)
        assert (scale, tracker) == (scaler._scale.item(), scaler._growth_tracker.item())


@given(
    steps=st.lists(st.booleans(), max_size=120),
    init_scale=st.floats(1e-3, 1e38),
    growth=st.floats(1.0009765625, 1e3),
    backoff=st.floats(1e-3, 0.99),
    interval=st.integers(1, 8),
)
@settings(max_examples=80, deadline=None)
def test_it_follows_the_real_scaler(steps, init_scale, growth, backoff, interval):
    compare(steps, init_scale, growth, backoff, interval)


@pytest.mark.parametrize(
    ("init_scale", "growth", "backoff", "interval", "skips"),
    [
        (65536.0, 2.0, 0.5, 2000, 0.01),
        (1.1, 1.7, 0.3, 3, 0.2),
        (2.0**126, 1.9, 0.9, 1, 0.1),
        (3.3e-40, 7.1, 0.123, 5, 0.5),
    ],
)
def test_it_follows_over_thousands_of_steps(init_scale, growth, backoff, interval, skips):
    dice = random.Random(1)
    compare([dice.random() < skips for _ in range(3000)], init_scale, growth, backoff, interval)


def test_from_65536_the_166th_skip_leaves_nothing():
    """Halving 2**16: 2**-149 is the smallest float32, so the scale is 0 at 16 + 149 + 1 skips."""
    scale, skips, below_one = 65536.0, 0, None
    while scale:
        scale, _ = mirror.after_skip(scale, 0.5)
        skips += 1
        if scale < 1 and below_one is None:
            below_one = skips
    assert (below_one, skips) == (17, 166)


def test_growth_stops_before_infinity():
    """2**16 doubles 111 times to 2**127, the highest power of two in float32."""
    scale, tracker = 65536.0, 0
    for _ in range(200):
        scale, tracker = mirror.after_step(scale, tracker, 2.0, 1)
    assert (scale, tracker) == (2.0**127, 0)


@given(st.floats(width=32))
def test_float32_values_stay(value):
    rounded = mirror.single(value)
    assert rounded == value or (math.isnan(rounded) and math.isnan(value))


@given(st.floats(-3e38, 3e38))
def test_rounding_is_that_of_float32(value):
    assert mirror.single(value) == struct.unpack("f", struct.pack("f", value))[0]
