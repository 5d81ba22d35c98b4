"""Convolutions: published and hand counts, and a brute-force count of multiply-adds."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from flops_models import counts, products, resnet50
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


def test_resnet50_is_twice_the_published_multiply_adds() -> None:
    total = counts(resnet50, "1x3x224x224")["total"]
    assert total["forward"]["flops"] == 8_178_368_512
    assert total["forward"]["macs"] == 4_089_184_256
    assert total["parameters"] == 25_557_032


def test_training_resnet50_leaves_out_the_input_gradient_of_the_stem() -> None:
    stem = 2 * 64 * 112 * 112 * 3 * 7 * 7
    forward, both = products(resnet50, "1x3x224x224")
    assert both == 3 * forward - stem
    assert products(resnet50, "1x3x224x224", input_grad=True) == (forward, 3 * forward)


def test_batch_size_scales_resnet50_and_train_mode_changes_no_product() -> None:
    assert products(resnet50, "4x3x224x224", training=True)[0] == 4 * 8_178_368_512


@pytest.mark.parametrize(
    ("layer", "shape", "forward", "both"),
    [
        (
            lambda: nn.Conv2d(64, 128, 3, 2, 2, dilation=2, groups=4, bias=False),
            "8x64x56x56",
            231_211_008,
            693_633_024,
        ),
        (
            lambda: nn.ConvTranspose2d(128, 64, 4, 2, 1, bias=False),
            "2x128x28x28",
            411_041_792,
            1_233_125_376,
        ),
        (
            lambda: nn.ConvTranspose2d(128, 64, 4, 2, 1, groups=8, bias=False),
            "2x128x28x28",
            51_380_224,
            154_140_672,
        ),
        # Depthwise: one 3x3 filter a channel.
        (
            lambda: nn.Conv2d(32, 32, 3, padding=1, groups=32, bias=False),
            "1x32x10x10",
            2 * 32 * 100 * 9,
            3 * 2 * 32 * 100 * 9,
        ),
        (lambda: nn.Conv1d(4, 6, 5, bias=False), "2x4x20", 2 * 2 * 6 * 16 * 4 * 5, None),
        (lambda: nn.Conv3d(2, 3, 2, bias=False), "1x2x4x4x4", 2 * 3 * 27 * 2 * 8, None),
        # torch takes a complex convolution apart into three real ones.
        (
            lambda: nn.Conv2d(2, 3, 3, bias=False, dtype=torch.complex64),
            "1x2x5x5:complex64",
            3 * 2 * 3 * 9 * 2 * 9,
            None,
        ),
    ],
)
def test_hand_counts(layer: Any, shape: str, forward: int, both: int | None) -> None:
    assert products(layer, shape, input_grad=True) == (forward, both or 3 * forward)


def test_the_articles_convolution_is_two_flops_a_multiply_add_and_its_bias_apart() -> None:
    total = counts(lambda: nn.Conv2d(64, 128, 3, padding=1), "32x64x224x224")["total"]["forward"]
    outputs = 32 * 128 * 224 * 224
    assert total["macs"] == outputs * 64 * 9 == 118_380_036_096
    assert total["flops"] == 236_760_072_192
    assert total["other_flops"] == outputs


def test_bytes_are_image_weight_bias_and_result() -> None:
    total = counts(lambda: nn.Conv2d(2, 3, 3), "1x2x6x6")["total"]["forward"]
    assert total["bytes"] == 4 * (2 * 36 + 3 * 2 * 9 + 3 + 3 * 16)
    assert total["float_elements"] * 4 == total["bytes"]
    assert total["other_bytes"] == 0


def test_a_frozen_layer_costs_its_input_gradient_only() -> None:
    def frozen() -> nn.Module:
        return nn.Sequential(nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 1).requires_grad_(False))

    each = 2 * 2 * 2 * 16
    assert products(frozen, "1x2x4x4") == (2 * each, 4 * each)


def test_torchs_counter_agrees_where_it_is_right() -> None:
    layer, image = nn.Conv2d(3, 8, 3, 2, 1), torch.randn(2, 3, 9, 9, requires_grad=True)
    with FlopCounterMode(display=False) as theirs:
        layer(image).sum().backward()
    assert products(lambda: layer, "2x3x9x9", input_grad=True)[1] == theirs.get_total_flops()


sizes = st.integers(1, 5)


@st.composite
def geometries(draw: Any) -> dict[str, Any]:
    """Convolutions of one or two dimensions on tiny images."""
    rank = draw(st.integers(1, 2))
    groups = draw(st.integers(1, 3))
    kernel = draw(st.tuples(*[st.integers(1, 3)] * rank))
    dilation = draw(st.tuples(*[st.integers(1, 2)] * rank))
    padding = draw(st.tuples(*[st.integers(0, 2)] * rank))
    need = [
        max((size - 1) * step + 1 - 2 * pad, 1)
        for size, step, pad in zip(kernel, dilation, padding, strict=True)
    ]
    return {
        "batch": draw(st.integers(1, 2)),
        "groups": groups,
        "in": groups * draw(st.integers(1, 2)),
        "out": groups * draw(st.integers(1, 2)),
        "kernel": kernel,
        "dilation": dilation,
        "padding": padding,
        "stride": draw(st.tuples(*[st.integers(1, 3)] * rank)),
        "image": tuple(size + draw(st.integers(0, 4)) for size in need),
    }


def brute_force(case: dict[str, Any]) -> int:
    """Step every window over the padded image and count its multiply-adds one by one."""
    starts = []
    for axis, size in enumerate(case["image"]):
        last_tap = (case["kernel"][axis] - 1) * case["dilation"][axis]
        padded = size + 2 * case["padding"][axis]
        starts.append(
            [at for at in range(0, padded, case["stride"][axis]) if at + last_tap < padded]
        )
    count = 0
    taps = list(product(*(range(size) for size in case["kernel"])))
    for _image in range(case["batch"]):
        for _window in product(*starts):
            for channel in range(case["out"]):
                group = channel // (case["out"] // case["groups"])
                for source in range(case["in"]):
                    if source // (case["in"] // case["groups"]) == group:
                        count += len(taps)
    return count


@settings(max_examples=40, deadline=None)
@given(geometries())
def test_convolution_equals_a_brute_force_count(case: dict[str, Any]) -> None:
    kind = nn.Conv1d if len(case["kernel"]) == 1 else nn.Conv2d
    shape = "x".join(map(str, (case["batch"], case["in"], *case["image"])))
    forward, both = products(
        lambda: kind(
            case["in"],
            case["out"],
            case["kernel"],
            case["stride"],
            case["padding"],
            case["dilation"],
            case["groups"],
        ),
        shape,
        input_grad=True,
    )
    macs = brute_force(case)
    assert (forward, both) == (2 * macs, 6 * macs)


@settings(max_examples=25, deadline=None)
@given(geometries())
def test_transposed_convolution_scatters_each_input_point(case: dict[str, Any]) -> None:
    macs = 0
    for _point in product(range(case["batch"]), *(range(size) for size in case["image"])):
        for source in range(case["in"]):
            group = source // (case["in"] // case["groups"])
            for channel in range(case["out"]):
                if channel // (case["out"] // case["groups"]) == group:
                    macs += len(list(product(*(range(size) for size in case["kernel"]))))
    kind = nn.ConvTranspose1d if len(case["kernel"]) == 1 else nn.ConvTranspose2d
    image = torch.zeros(case["batch"], case["in"], *case["image"], requires_grad=True)
    layer = kind(case["in"], case["out"], case["kernel"], case["stride"], 0, groups=case["groups"])
    assert products(lambda: (layer, image)) == (2 * macs, 6 * macs)
