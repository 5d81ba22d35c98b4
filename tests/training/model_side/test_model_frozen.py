"""Frozen parameters by hand count: a trained head, adapters, and what is not surely on the way."""

from __future__ import annotations

from torch import nn

from topsmon.training.recorder import facts

WIDTH, LAYERS = 4, 3
ONE_LAYER = 2 * WIDTH * WIDTH


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)


class Layer(nn.Module):
    def __init__(self, attentions: int = 1) -> None:
        super().__init__()
        self.attentions = nn.Sequential(*(SelfAttention() for _ in range(attentions)))
        self.out = nn.Linear(WIDTH, WIDTH)


class Gpt(nn.Module):
    def __init__(self, attentions: int = 1) -> None:
        super().__init__()
        self.tokens = nn.Embedding(10, WIDTH)
        self.layers = nn.ModuleList(Layer(attentions) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, 10, bias=False)


def counts(model: nn.Module) -> tuple[object, object]:
    told = facts.describe(model)
    return told["frozen_parameters"], told["frozen_flowing"]


def adapted(attentions: int = 1) -> Gpt:
    model = Gpt(attentions).requires_grad_(False)
    for layer in model.layers:
        layer.lora_a = nn.Linear(WIDTH, 1, bias=False)
    return model


def test_where_all_train_nothing_is_frozen() -> None:
    assert counts(Gpt()) == (0, 0)


def test_a_frozen_backbone_under_a_trained_head() -> None:
    model = Gpt().requires_grad_(False)
    model.head.requires_grad_(True)
    assert counts(model) == (LAYERS * ONE_LAYER, 0)
    model.half()
    assert facts.describe(model)["frozen_types"] == {"float16": LAYERS * ONE_LAYER}


def test_gradients_flow_through_the_layers_after_the_first_adapter() -> None:
    assert counts(adapted()) == (LAYERS * ONE_LAYER + 40, (LAYERS - 1) * ONE_LAYER)


def test_beside_a_second_attention_it_is_not_certain() -> None:
    assert counts(adapted(2)) == (LAYERS * (ONE_LAYER + WIDTH * WIDTH) + 40, 0)


def test_what_a_trained_copy_replaces_is_not_passed() -> None:
    model = adapted()
    model.head.original_module = nn.Linear(WIDTH, 10).requires_grad_(False)
    assert counts(model)[0] == LAYERS * ONE_LAYER + 40


def test_a_tied_table_is_a_matrix() -> None:
    model = Gpt().requires_grad_(False)
    model.head.weight = model.tokens.weight
    model.layers[0].out.bias.requires_grad_(True)
    assert counts(model) == (LAYERS * ONE_LAYER + 40, (LAYERS - 1) * ONE_LAYER)
