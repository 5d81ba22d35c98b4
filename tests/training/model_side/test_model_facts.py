"""Parameters by hand count, embeddings, types, transformer, wrappers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from topsmon.training.recorder import facts


class Attentive(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x)


class CausalSelfAttention(nn.Module):
    pass


class Language(nn.Module):
    """10 tokens of 4 numbers, positions 6 x 4, a layer 4 x 4 + 4, a head of 10 x 4."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(10, 4)
        self.positions = nn.Embedding(6, 4)
        self.layer = nn.Linear(4, 4)
        self.head = nn.Linear(4, 10, bias=False)
        if tied:
            self.head.weight = self.tokens.weight


def test_parameters_by_hand() -> None:
    told = facts.describe(Language(tied=False))
    assert told["parameters"] == 40 + 24 + 20 + 40
    assert told["embedding_parameters"] == 40 + 24
    assert told["parameter_types"] == {"float32": 124}
    assert (told["model"], told["torch_device"], told["device_uuid"]) == ("Language", "cpu", None)
    assert (told["sharded"], told["compiled"], told["allow_tf32"]) == (False, False, None)
    assert told["limits"] == ()


def test_tied_weights_count_once_and_are_no_mere_lookup() -> None:
    told = facts.describe(Language(tied=True))
    assert (told["parameters"], told["embedding_parameters"]) == (40 + 24 + 20, 24)


def test_frozen_parameters_do_not_train() -> None:
    model = Language(tied=False)
    model.tokens.requires_grad_(False)
    model.half()
    told = facts.describe(model)
    assert (told["parameters"], told["embedding_parameters"]) == (84, 24)
    assert told["parameter_types"] == {"float16": 84}


def test_without_a_model_the_optimizers_tell_what_they_can() -> None:
    layer = nn.Linear(3, 2)
    optimizers = [torch.optim.SGD(layer.parameters(), 0.1), torch.optim.Adam(layer.parameters())]
    told = facts.describe(None, optimizers)
    assert told["parameters"] == 8
    assert told["optimizers"] == ("SGD", "Adam")
    assert told["embedding_parameters"] is told["transformer"] is told["model"] is None


def test_nothing_known_is_none() -> None:
    told = facts.describe(None)
    assert told["parameters"] is told["torch_device"] is None
    assert told["parameter_types"] == {}


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (nn.TransformerEncoderLayer(8, 2, 8), True),
        (nn.Sequential(Attentive()), True),
        (nn.Sequential(CausalSelfAttention()), True),
        (nn.Sequential(nn.Linear(2, 2), nn.Conv2d(1, 1, 1)), False),
    ],
)
def test_transformers_are_told_by_their_attention(model: nn.Module, expected: bool) -> None:
    assert facts.is_transformer(model) is expected


def test_a_compiled_model_says_so_and_keeps_its_name() -> None:
    told = facts.describe(torch.compile(Language(tied=False)))
    assert (told["compiled"], told["model"], told["parameters"]) == (True, "Language", 124)
    assert told["limits"] == (facts.COMPILED,)
    in_place = nn.Sequential(nn.Linear(1, 1))
    in_place[0].compile()
    assert facts.describe(in_place)["compiled"]


def test_layers_split_by_megatron_leave_the_size_unknown() -> None:
    model = nn.Linear(2, 2)
    model.weight.tensor_model_parallel = True  # type: ignore[attr-defined]
    told = facts.describe(model)
    assert told["parameters"] is None
    assert told["limits"] == (facts.SPLIT_BY_MEGATRON,)


def test_parameters_that_zero_keeps_elsewhere_have_their_whole_size() -> None:
    model = nn.Linear(2, 2)
    for parameter, elements in zip(model.parameters(), (1000, 10), strict=True):
        parameter.data = torch.empty(0)
        parameter.ds_numel = elements  # type: ignore[attr-defined]
    told = facts.describe(model)
    assert (told["parameters"], told["sharded"]) == (1010, True)


def test_lazy_parameters_do_not_break_it() -> None:
    assert facts.describe(nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 1)))["parameters"] == 4


@pytest.mark.parametrize(
    ("uuid", "expected"),
    [
        ("2f3a1c9e-0000-1111-2222-333344445555", "GPU-2f3a1c9e-0000-1111-2222-333344445555"),
        ("GPU-2f3a", "GPU-2f3a"),
        ("MIG-2f3a", "MIG-2f3a"),
        (None, None),
    ],
)
def test_the_uuid_is_formatted_as_nvml_does(
    uuid: str | None, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = SimpleNamespace(uuid=uuid) if uuid else SimpleNamespace()
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.version, "hip", None)
    assert facts.device_uuid(torch.device("cuda:1")) == expected


SHARDED = Path(__file__).with_name("sharded_run.py")
WAYS = ("fsdp", "fsdp-original-parameters", "fully_shard")


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, object]]]:
    """What two ranks of gloo tell of a model sharded in each way."""
    store = tmp_path_factory.mktemp("sharded") / "store"
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SHARDED), str(rank), str(store), *WAYS],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=120) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, (_, errors) in zip(ranks, outputs, strict=True):
        assert rank.returncode == 0, errors
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]


@pytest.mark.real
@pytest.mark.parametrize("way", WAYS)
def test_a_shard_is_not_counted_as_the_model(way: str, sharded) -> None:
    """A sharded module's own numel() would be about half."""
    for told in (rank[way] for rank in sharded):
        # Embedding 11 x 4, three layers of 4 x 4 + 4, a frozen one not counted.
        assert told["parameters"] == 44 + 3 * 20
        assert told["embedding_parameters"] == 44
        assert told["held"] < 44 + 3 * 20
        assert told["sharded"] is True
        assert told["model"] == "Net"
        assert told["limits"] == [facts.SHARDED_NORM]
