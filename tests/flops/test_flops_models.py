"""Linear layers, attention, recurrent layers and whole models against closed forms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from flops_models import Block, Calls, Checkpointed, Gpt, counts, products, resnet50
from torch import nn
from torch.nn import functional

from topsmon.flops.counter import Counter

attend = functional.scaled_dot_product_attention


def test_linear_with_bias() -> None:
    total = counts(lambda: nn.Linear(512, 256), "8x512", input_grad=True)["total"]
    product = 2 * 8 * 512 * 256
    assert total["forward"]["flops"] == product
    assert total["forward"]["other_flops"] == 8 * 256
    assert total["backward"]["flops"] == 2 * product
    assert total["forward"]["bytes"] == 4 * (8 * 512 + 512 * 256 + 256 + 8 * 256)
    # dX: read dY and W, write dX. dW: read dY and X, write dW.
    weight_side = 4 * (8 * 256 + 8 * 512 + 512 * 256)
    assert total["backward"]["bytes"] == 2 * weight_side


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_checkpointing_does_not_raise_the_count(reentrant: bool | None) -> None:
    document = counts(lambda: Checkpointed(reentrant), "64x512", input_grad=True)
    assert document["total"]["forward"]["flops"] == 67_108_864
    assert document["total"]["backward"]["flops"] == 201_326_592 - 67_108_864
    assert document["uncounted"] == []


def test_transformer_block_equals_the_closed_form() -> None:
    batch, length, width = 2, 16, 64
    tokens = batch * length
    forward, both = products(lambda: Block(width, 4), f"{batch}x{length}x{width}", input_grad=True)
    assert forward == 24 * tokens * width**2 + 4 * tokens * length * width
    assert both == 3 * forward


def test_gpt_is_six_flops_a_parameter_and_token_and_twelve_for_attention() -> None:
    layers, width, length, words, batch = 4, 128, 64, 1000, 3
    document = counts(lambda: Gpt(layers, width, 4, words, length), f"{batch}x{length}:int64")
    total, tokens = document["total"], batch * length
    products_of_weights = layers * 12 * width**2 + words * width
    both = total["forward"]["flops"] + total["backward"]["flops"]
    assert both == 6 * products_of_weights * tokens + 12 * layers * width * length * tokens
    # Against the rule of thumb with all parameters (positions, norms and biases too).
    assert both / (6 * total["parameters"] * tokens) == pytest.approx(1, abs=0.15)


def test_tied_weights_are_parameters_once() -> None:
    document = counts(Gpt, "1x8:int64")
    head = next(layer for layer in document["layers"] if layer["path"] == "lm_head")
    assert document["total"]["parameters"] == sum(p.numel() for p in Gpt().parameters())
    assert document["total"]["parameters"] == sum(
        layer["parameters"] for layer in document["layers"]
    )
    assert head["parameters"] == 0


def test_causal_attention_counts_in_full_and_says_how_much_is_masked() -> None:
    heads, length, size = 4, 16, 16
    document = counts(lambda: Block(heads * size, heads), f"1x{length}x{heads * size}")
    above_diagonal = length * (length - 1) // 2
    assert document["causal_masked_flops"] == 4 * heads * size * above_diagonal


@pytest.mark.parametrize("mask", [False, True])
def test_attention_fused_and_by_parts_count_alike(mask: bool) -> None:
    def masked(q: Any, k: Any, v: Any) -> Any:
        # A mask that needs a gradient takes attention out of the fused kernel.
        return attend(q, k, v, torch.zeros(6, 10, requires_grad=True) if mask else None)

    shapes = ("2x4x6x8", "2x4x10x8", "2x4x10x12")
    scores = 2 * 4 * 6 * 10
    forward = 2 * scores * 8 + 2 * scores * 12
    assert products(lambda: Calls(masked), *shapes, input_grad=True) == (forward, 3 * forward)


def test_grouped_queries_count_by_query_heads() -> None:
    def grouped(q: Any, k: Any) -> Any:
        return attend(q, k, k, enable_gqa=True)

    assert products(lambda: Calls(grouped), "1x8x5x16", "1x2x5x16")[0] == 4 * 8 * 5 * 5 * 16


def test_attention_needs_only_the_gradients_asked_for() -> None:
    q, k, v = (torch.zeros(1, 2, 4, 8, requires_grad=name == "v") for name in "qkv")
    forward, both = products(lambda: (Calls(attend), (q, k, v)))
    assert both - forward == 2 * 2 * 4 * 4 * 8


def test_multihead_attention_in_eval_mode_is_not_zero() -> None:
    encoder = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    frozen = encoder.requires_grad_(False)
    tokens, width, inner = 2 * 5, 64, 128
    expected = 8 * tokens * width**2 + 4 * tokens * 5 * width + 4 * tokens * width * inner
    assert products(lambda: frozen, "2x5x64") == (expected, expected)


def test_lstm_equals_the_hand_count() -> None:
    steps, batch, features, hidden = 5, 3, 8, 16
    tokens = steps * batch
    layer0, layer1 = 2 * tokens * 4 * hidden * features, 2 * tokens * 4 * hidden * hidden
    recurrent = 2 * tokens * 4 * hidden * hidden
    forward, both = products(lambda: nn.LSTM(features, hidden, 2), "5x3x8")
    assert forward == layer0 + recurrent + layer1 + recurrent
    # Backward as much again for all weights and for all states, but not for the input.
    assert both - forward == 2 * forward - layer0


def test_bidirectional_lstm_is_twice_one_direction() -> None:
    one = products(lambda: nn.LSTM(8, 16), "5x3x8")
    assert products(lambda: nn.LSTM(8, 16, bidirectional=True), "5x3x8") == (2 * one[0], 2 * one[1])


def test_gru_and_plain_rnn_equal_the_hand_count() -> None:
    tokens = 5 * 3
    assert products(lambda: nn.GRU(8, 16), "5x3x8")[0] == 2 * tokens * 3 * 16 * (8 + 16)
    assert products(lambda: nn.RNN(8, 16), "5x3x8")[0] == 2 * tokens * 16 * (8 + 16)


def test_embedding_reads_its_rows_and_multiplies_nothing() -> None:
    total = counts(lambda: nn.Embedding(1000, 16), "2x3:int64")["total"]
    assert total["forward"]["flops"] == total["forward"]["other_flops"] == 0
    assert total["forward"]["bytes"] == 6 * 8 + 2 * 6 * 16 * 4
    assert total["forward"]["other_bytes"] == 6 * 8
    assert total["backward"]["flops"] == 0


def test_normalisations_and_activations_are_counted_apart() -> None:
    def other(layer: Any, shape: str, **options: Any) -> int:
        total = counts(lambda: layer, shape, **options)["total"]["forward"]
        assert total["flops"] == 0
        return int(total["other_flops"])

    assert other(nn.LayerNorm(16), "4x16") == 7 * 64
    assert other(nn.LayerNorm(16, elementwise_affine=False), "4x16") == 5 * 64
    assert other(nn.GroupNorm(2, 4), "1x4x8") == 7 * 32
    assert other(nn.BatchNorm1d(4), "8x4") == 4 * 32
    # In train mode the statistics are computed too, and the batches counted: 1.
    assert other(nn.BatchNorm1d(4), "8x4", training=True) == 7 * 32 + 1
    assert other(nn.ReLU(), "8x4") == 32
    assert other(nn.Softmax(-1), "8x4") == 5 * 32
    assert other(nn.MaxPool2d(2), "1x1x4x4") == 16
    assert other(nn.AvgPool2d(2), "1x1x4x4") == 16
    assert other(Calls(lambda x: x.transpose(0, 1).reshape(-1)), "8x4") == 0
    assert other(Calls(torch.fft.fft), "2x8:complex64") == 5 * 16 * 3
    assert other(Calls(torch.fft.rfft), "2x8") == 5 * 16 * 3 // 2


def test_views_move_nothing_and_in_place_operations_read_and_write() -> None:
    def moved(function: Any) -> int:
        return int(counts(lambda: Calls(function), "8x4")["total"]["forward"]["bytes"])

    assert moved(lambda x: x.transpose(0, 1)[1:, 2:].unsqueeze(0)) == 0
    assert moved(lambda x: x.clone()) == 2 * 128
    assert moved(lambda x: x.relu_()) == 2 * 128
    assert moved(lambda x: x.to(torch.float16)) == 128 + 64
    # A row that is expanded exists once.
    assert moved(lambda x: x + x[:1].expand(8, 4)) == 128 + 16 + 128


def test_integer_and_eight_bit_products() -> None:
    integers = counts(lambda: Calls(torch._int_mm), "32x16:int8", "16x8:int8")
    assert integers["total"]["forward"]["flops"] == 2 * 32 * 16 * 8
    assert integers["flops_by_dtype"] == {"int8": 2 * 32 * 16 * 8}

    def scaled(a: Any, b: Any) -> Any:
        one = torch.ones(())
        return torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16)

    shapes = ("32x16:float8_e4m3fn", "64x16:float8_e4m3fn")
    assert products(lambda: Calls(scaled), *shapes)[0] == 2 * 32 * 16 * 64


def test_products_of_every_rank() -> None:
    def forward(function: Any, *shapes: str) -> int:
        return products(lambda: Calls(function), *shapes)[0]

    assert forward(torch.dot, "7", "7") == 14
    assert forward(torch.mv, "3x7", "7") == 42
    assert forward(torch.bmm, "2x3x7", "2x7x5") == 2 * 2 * 3 * 7 * 5
    assert forward(torch.baddbmm, "2x3x5", "2x3x7", "2x7x5") == 2 * 2 * 3 * 7 * 5
    assert forward(torch.matmul, "2x3x7:complex64", "7x5:complex64") == 8 * 2 * 3 * 7 * 5
    assert forward(lambda x, y: torch.einsum("bik,jk->bij", x, y), "2x3x7", "5x7") == 420


def executed(module: Any, sample: torch.Tensor) -> int:
    """FLOPs of products that a real forward and backward pass carries out."""
    with Counter() as counter:
        result = module(sample)
        result = result[0] if isinstance(result, tuple) else result
        result.sum().backward()
    return counter.outside.forward.flops


@pytest.mark.parametrize(
    ("factory", "shape"),
    [
        (lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), (5, 8)),
        (lambda: nn.Sequential(nn.Conv2d(4, 8, 3, groups=2), nn.Conv2d(8, 4, 3)), (2, 4, 9, 9)),
        (lambda: nn.Sequential(nn.ConvTranspose2d(4, 6, 3, 2), nn.Conv2d(6, 2, 1)), (2, 4, 5, 5)),
        (lambda: Block(32, 2), (2, 8, 32)),
        (lambda: nn.GRU(8, 16), (5, 3, 8)),
        (lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), (2, 6, 32)),
    ],
)
@pytest.mark.parametrize("input_grad", [False, True])
def test_the_derived_backward_pass_is_the_executed_one(
    factory: Any, shape: tuple[int, ...], input_grad: bool
) -> None:
    text = "x".join(map(str, shape))
    derived = products(factory, text, input_grad=input_grad)[1]
    assert executed(factory().eval(), torch.randn(shape, requires_grad=input_grad)) == derived


def test_counting_leaves_torch_as_it_was() -> None:
    call = nn.Module.__call__
    base = torch.autograd.Function.__mro__[1]
    inherited = "apply" in vars(base)
    with pytest.raises(RuntimeError):
        products(lambda: nn.Linear(4, 4), "2x5")
    assert nn.Module.__call__ is call
    assert ("apply" in vars(base)) == inherited
    assert nn.Linear(4, 4)(torch.ones(2, 4)).shape == (2, 4)


def test_layers_are_named_counted_and_sum_up_to_the_total() -> None:
    document = counts(resnet50, "1x3x64x64")
    assert (
        sum(layer["forward"]["flops"] for layer in document["layers"])
        == (document["total"]["forward"]["flops"])
    )
    by_path = {layer["path"]: layer for layer in document["layers"]}
    assert by_path["4.conv2"]["class"] == "Conv2d"
    assert by_path["4.relu"]["calls"] == 3
    assert by_path["0"]["parameters"] == 64 * 3 * 49
