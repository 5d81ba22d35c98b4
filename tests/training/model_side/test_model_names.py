"""Qualified names, roots and the origin of a backward overflow."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from topsmon.training.recorder import names


@pytest.fixture(autouse=True)
def noted() -> Iterator[None]:
    names.forget_modules()
    names.note_modules()
    yield
    names.forget_modules()


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Linear(3, 3, bias=False)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()


def test_names_are_those_of_named_parameters_in_forward_order() -> None:
    model = mlp()
    shuffled = list(model.parameters())[::-1]
    found = names.names_of(shuffled)
    assert list(found.values()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert found == {id(item): name for name, item in model.named_parameters()}


def test_nested_models_are_named_from_their_root() -> None:
    outer = Outer()
    assert list(names.names_of(outer.parameters()).values())[-1] == "model.layers.2.mlp.weight"
    assert names.model_of(outer.parameters()) is outer


def test_a_bare_layer_is_a_root_of_its_own() -> None:
    layer = nn.Linear(2, 2)
    assert list(names.names_of(layer.parameters()).values()) == ["weight", "bias"]


def test_two_roots_are_told_apart_by_class() -> None:
    class Generator(nn.Sequential):
        pass

    class Critic(nn.Sequential):
        pass

    first, second = Generator(nn.Linear(1, 1, bias=False)), Critic(nn.Linear(1, 1, bias=False))
    found = names.names_of([*first.parameters(), *second.parameters()])
    assert set(found.values()) == {"Generator.0.weight", "Critic.0.weight"}


def test_two_roots_of_one_class_are_numbered() -> None:
    first, second = mlp(), mlp()
    found = names.names_of([first[0].bias, second[0].bias])
    assert set(found.values()) == {"Sequential#1.0.bias", "Sequential#2.0.bias"}


def test_without_a_model_the_place_in_the_groups_is_the_name() -> None:
    loose = [nn.Parameter(torch.zeros(2)) for _ in range(3)]
    optimizer = torch.optim.SGD([{"params": loose[:1]}, {"params": loose[1:]}], lr=0.1)
    found = names.names_of_groups([optimizer])
    assert [found[id(item)] for item in loose] == [
        "group 0, parameter 0",
        "group 1, parameter 0",
        "group 1, parameter 1",
    ]
    assert names.model_of(loose) is None


def test_a_late_attach_finds_the_root_in_one_pass() -> None:
    names.forget_modules()
    model = Outer()
    assert next(iter(names.names_of(model.parameters()).values())) == "model.layers.0.mlp.weight"


def test_copies_which_fire_no_registration_are_found() -> None:
    copied = copy.deepcopy(mlp())
    assert next(iter(names.names_of(copied.parameters()).values())) == "0.weight"
    assert names.model_of(copied.parameters()) is copied


def test_passes_over_all_objects_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    monkeypatch.setattr(names, "_find_modules", lambda: passes.append(1))
    loose = [nn.Parameter(torch.zeros(1))]
    for _ in range(10):
        names.names_of(loose)
    assert len(passes) == names.GC_PASSES


def test_a_model_known_at_construction_needs_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "_find_modules", lambda: pytest.fail("not needed"))
    model = Outer()
    assert len(names.names_of(model.parameters())) == 3


def test_models_are_not_kept_alive() -> None:
    model: Any = mlp()
    assert names.models() == [model]
    del model
    gc.collect()
    assert names.models() == []
    assert names._REGISTRY.seen == {}


def test_noting_twice_registers_once() -> None:
    from torch.nn.modules import module as torch_module

    before = len(torch_module._global_module_registration_hooks)
    names.note_modules()
    assert len(torch_module._global_module_registration_hooks) == before
    names.forget_modules()
    assert len(torch_module._global_module_registration_hooks) == before - 1


def test_tied_weights_have_the_first_name() -> None:
    model = nn.ModuleDict({"table": nn.Embedding(5, 4), "head": nn.Linear(4, 5, bias=False)})
    model["head"].weight = model["table"].weight  # type: ignore[union-attr]
    assert list(names.names_of(model.parameters()).values()) == ["table.weight"]


def test_wrappers_prefixes_are_stripped() -> None:
    class DistributedDataParallel(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    wrapped = DistributedDataParallel(mlp())
    assert next(iter(names.names_of(wrapped.parameters()).values())) == "0.weight"
    assert names.display("_fsdp_wrapped_module.layers.1._fsdp_wrapped_module._flat_param") == (
        "layers.1.(flat parameter)"
    )
    assert names.display("_orig_mod.a._checkpoint_wrapped_module.weight") == "a.weight"


def test_a_users_own_module_attribute_is_kept() -> None:
    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(1, 1, bias=False)

    mine = Mine()
    assert list(names.names_of(mine.parameters()).values()) == ["module.weight"]


@pytest.mark.parametrize(
    ("bad", "layer"),
    [
        (["0.weight", "0.bias", "2.weight", "2.bias"], "2"),
        (["model.layers.3.mlp.weight"], "model.layers.3.mlp"),
        (["weight"], "weight"),
        (["group 0, parameter 2"], "group 0, parameter 2"),
        ([], None),
    ],
)
def test_the_likely_origin_is_the_last_layer(bad: list[str], layer: str | None) -> None:
    assert names.likely_origin(bad) == layer
