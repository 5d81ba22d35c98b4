"""Convolution, attention, message passing: figures on a priced machine, and their own checks."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from lab2_boards import MIB, cpu, gpu  # noqa: E402
from lab_machine import Bench, nbytes, run  # noqa: E402

from topsmon.probes import caches  # noqa: E402
from topsmon.probes.errors import NoMemoryError  # noqa: E402
from topsmon.probes.lab import (  # noqa: E402
    attention,
    attention_decode,
    attention_prefill,
    convolution,
    message_passing,
)
from topsmon.probes.precisions import all_gemms  # noqa: E402

FP32 = all_gemms()["fp32"]
RATE, SPEED = 2e11, 4e10


def price(name, args):
    """200 GFLOPS and 40 GB/s, from the shapes that the calls really got."""
    if name == "conv2d":
        inputs, weight = args
        return 2 * inputs.shape[0] * inputs.shape[2] * inputs.shape[3] * weight.numel() / RATE
    if name == "scaled_dot_product_attention":
        query, key, value = args
        if query.shape[2] == 1:
            return (2 * nbytes(query) + nbytes(key) + nbytes(value)) / SPEED
        return 4 * math.prod(query.shape) * key.shape[2] / RATE
    if name == "index_select":
        return (args[2].numel() * (2 * 256 + 8)) / SPEED
    if name == "index_add_":
        return (args[2].numel() * (3 * 256 + 8)) / SPEED
    return 0.0


@pytest.fixture
def cache_of(monkeypatch):
    """Let the CPU's last cache have a size in MiB."""

    def give(mebibytes):
        monkeypatch.setattr(caches, "last_level_bytes", lambda found: mebibytes * MIB)

    return give


@pytest.fixture
def machine(cache_of):
    cache_of(2)
    return cpu(free=160 * MIB)


def test_the_rate_of_a_convolution(machine):
    fields, _ = run(convolution, machine, price)
    values = fields["values"]
    assert values["rate_ops_per_second"] == pytest.approx(RATE)
    assert values["flops"] / values["seconds"] == pytest.approx(RATE)
    # 1x64x56x56 by 128x64x3x3: 462 MFLOP in 2.3 ms; four times that is over the limit of 5 ms.
    assert fields["labels"] == {"precision": "fp32", "shape": "1x64x56x56 by 128x64x3x3"}
    assert values["flops"] == 2 * 56 * 56 * 128 * 64 * 9
    assert values["bytes"] == 4 * (64 * 56 * 56 + 128 * 64 * 9 + 128 * 56 * 56)
    assert values["intensity_flops_per_byte"] == values["flops"] / values["bytes"]
    assert fields["correct"] is True
    assert 0 < fields["relative_error"] < 1e-5


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_the_check_of_a_convolution_knows_right_from_wrong(groups, memory_format):
    shape = convolution.Shape(2, 8, 16, 6, 4.0, groups)
    one = convolution.Convolution(Bench(cpu()), FP32, shape, memory_format)
    one.run()
    assert one.error() < 1e-6
    one.result[:, 3] += 0.1
    assert one.error() > 1e-3


def test_a_convolution_without_its_padding_is_wrong():
    one = convolution.Convolution(
        Bench(cpu()), FP32, convolution.Shape(1, 4, 4, 5, 4.0), torch.contiguous_format
    )
    one.inputs = torch.roll(one.inputs, 1, dims=3)
    one.run()
    one.inputs = torch.roll(one.inputs, -1, dims=3)
    assert one.error() > 0.1


def test_prefill_on_a_priced_machine(machine):
    fields, _ = run(attention_prefill, machine, price)
    values = fields["values"]
    assert values["rate_ops_per_second"] == pytest.approx(RATE)
    assert values["bytes_per_second"] == pytest.approx(values["bytes"] / values["seconds"])
    # 4 * 8 * 512^2 * 64 = 537 MFLOP in 2.7 ms; 1024 would take 11 ms.
    assert fields["labels"]["shape"] == "batch 1, 8 heads of 64, 512 queries over 512 keys"
    assert values["intensity_flops_per_byte"] == 512 / 4
    # The made-up library saves nothing on the masked half.
    assert values["causal_speedup_ratio"] == pytest.approx(1.0)
    assert values["causal_rate_ops_per_second"] == pytest.approx(RATE * 513 / 1024)
    assert fields["correct"] is True


def test_decode_on_a_priced_machine(machine):
    fields, _ = run(attention_decode, machine, price)
    values = fields["values"]
    assert values["bytes_per_second"] == pytest.approx(SPEED)
    assert values["rate_ops_per_second"] == pytest.approx(
        SPEED * values["intensity_flops_per_byte"]
    )
    assert values["intensity_flops_per_byte"] < 0.5
    assert fields["labels"]["shape"] == "batch 1, 8 heads of 64, 1 query over 2048 keys"
    assert values["tokens_per_second"] == pytest.approx(1 / values["seconds"])
    assert fields["correct"] is True
    assert fields["valid"] is True


def test_a_gpu_attends_with_more_and_larger_heads():
    shapes = attention_prefill.shapes(2.0, gpu=True)
    assert (shapes[-1].heads, shapes[-1].head_size, shapes[-1].queries) == (32, 128, 8192)


@pytest.mark.parametrize(
    ("cache_mib", "budget_mib", "sets"), [(32, 1e4, 16), (0, 1e4, 1), (32, 64, 6), (32, 1, 1)]
)
def test_key_value_caches_are_four_times_the_device_s_own(cache_mib, budget_mib, sets):
    shape = attention.Shape(1, 8, 1, 2048, 64, 4.0)
    assert shape.cache_bytes == 8 * MIB
    assert attention_decode.count_sets(shape, cache_mib * MIB, budget_mib * MIB) == sets


def test_decode_from_the_cache_is_not_a_bandwidth_of_memory(cache_of):
    cache_of(32)
    fields, _ = run(attention_decode, cpu(free=40 * MIB), price)
    assert fields["valid"] is False
    assert "4 times the last-level cache" in fields["invalid_reason"]


@pytest.mark.parametrize("causal", [False, True])
def test_the_check_of_attention_knows_right_from_wrong(causal):
    one = attention.Attention(Bench(cpu()), FP32, attention.Shape(2, 2, 16, 16, 8, 4.0))
    one.run_causal() if causal else one.run()
    assert one.error(causal=causal) < 1e-6
    assert one.error(causal=not causal) > 1e-2
    one.result = one.result * 1.01
    assert one.error(causal=causal) > 5e-3


def test_attention_without_its_scaling_is_wrong(machine, monkeypatch):
    attend = torch.nn.functional.scaled_dot_product_attention

    def unscaled(query, key, value, *, is_causal):
        return attend(query, key, value, is_causal=is_causal, scale=1.0)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", unscaled)
    fields, _ = run(attention_prefill, machine, price)
    assert fields["correct"] is False


def test_message_passing_on_a_priced_machine(machine):
    fields, _ = run(message_passing, machine, price)
    values = fields["values"]
    assert values["bytes_per_second"] == pytest.approx(SPEED)
    assert values["rate_ops_per_second"] == pytest.approx(SPEED * 64 / 1296)
    assert values["edges_per_second"] == pytest.approx(SPEED / 1296)
    assert fields["labels"]["precision"] == "fp32"
    assert fields["correct"] is True
    # Half of a fifth of 160 MiB: 16 MiB, twice 256 bytes a node.
    assert fields["labels"]["shape"].startswith("32768 nodes of 64 features")
    assert fields["valid"] is True


@pytest.mark.parametrize(
    ("cache_mib", "budget_mib", "on_gpu", "nodes"),
    [
        (32, 4096, False, 128 * MIB // 512),
        (0, 4096, False, 64 * MIB // 512),
        (0, 4096, True, 256 * MIB // 512),
        (128, 4096, True, 512 * MIB // 512),
        (32, 64, False, 32 * MIB // 512),
    ],
)
def test_nodes_fill_four_times_the_cache(cache_mib, budget_mib, on_gpu, nodes):
    found = message_passing.count_nodes(cache_mib * MIB, budget_mib * MIB, gpu=on_gpu)
    assert found == nodes


def test_a_graph_that_the_cache_holds_is_not_trusted(cache_of):
    cache_of(8)
    fields, _ = run(message_passing, cpu(free=160 * MIB), price)
    assert fields["valid"] is False
    assert "16 MiB are under 4 times the last-level cache of 8 MiB" in fields["invalid_reason"]


def test_a_graph_needs_some_memory():
    with pytest.raises(NoMemoryError):
        run(message_passing, cpu(free=MIB), price)


def test_a_lost_edge_is_a_wrong_sum(machine, monkeypatch):
    real = torch.Tensor.index_add_

    def lossy(self, dim, index, source):
        return real(self, dim, index[::2], source[::2])

    monkeypatch.setattr(torch.Tensor, "index_add_", lossy)
    fields, _ = run(message_passing, machine, price, time_scale=0.1)
    assert fields["correct"] is False


@pytest.mark.parametrize(
    ("board", "key"), [(gpu(7, 5), "fp16"), (gpu(8, 0), "bf16"), (cpu(), "fp32")]
)
def test_each_device_computes_in_the_type_people_use_there(board, key):
    board.free = 40 * MIB
    for probe in (convolution, attention_prefill, attention_decode):
        fields, _ = run(probe, board, lambda name, args: 1.0)
        assert fields["labels"]["precision"] == key
        assert fields["correct"] is True
