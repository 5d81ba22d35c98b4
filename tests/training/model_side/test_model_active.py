"""The N of 6 N D by hand: mixtures of experts and split layers under the names they really have."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.testing._internal.distributed.fake_pg import FakeStore

from topsmon.training.recorder import active, facts
from topsmon.training.recorder.counting import StepCounter

WIDTH, INNER, EXPERTS = 4, 6, 8
ONE_EXPERT = 3 * WIDTH * INNER
ATTENTION = 4 * WIDTH * WIDTH
TABLE = 10 * WIDTH
MIXTRAL = {"num_local_experts": EXPERTS, "num_experts_per_tok": 2, "top_k": 50}


class Mlp(nn.Module):
    """Gate, up and down, as Mixtral's w1, w3 and w2."""

    def __init__(self, inner: int = INNER) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(WIDTH, inner, bias=False)
        self.up_proj = nn.Linear(WIDTH, inner, bias=False)
        self.down_proj = nn.Linear(inner, WIDTH, bias=False)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(WIDTH, WIDTH, bias=False))


class MixtralSparseMoeBlock(nn.Module):
    """A list of experts, as in transformers 4."""

    def __init__(self, experts: nn.Module | None = None, **own: Any) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = experts or nn.ModuleList(Mlp() for _ in range(EXPERTS))
        self.__dict__.update(own)


class MixtralExperts(nn.Module):
    """Fused, as in transformers 5: a leading dimension of experts."""

    def __init__(self, rows: int = EXPERTS, *, bias: bool = False) -> None:
        super().__init__()
        self.num_experts = rows
        self.gate_up_proj = nn.Parameter(torch.zeros(rows, 2 * INNER, WIDTH))
        self.down_proj = nn.Parameter(torch.zeros(rows, WIDTH, INNER))
        if bias:
            self.down_proj_bias = nn.Parameter(torch.zeros(rows, WIDTH))


class DeepseekV3TopkRouter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(EXPERTS, WIDTH))


class DeepseekV3MoE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(Mlp() for _ in range(EXPERTS))
        self.gate = DeepseekV3TopkRouter()
        self.shared_experts = Mlp(2 * INNER)


class TokenChoiceTopKRouter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.num_experts, self.top_k = EXPERTS, 3


class MoE(nn.Module):
    """As torchtitan has it; there is no configuration."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = MixtralExperts()
        self.router = TokenChoiceTopKRouter()


class Model(nn.Module):
    """A table, attention, and two feed-forward layers."""

    def __init__(self, *layers: nn.Module, **config: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(10, WIDTH)
        self.attention = Attention()
        self.layers = nn.ModuleList(layers)
        if config:
            self.config = SimpleNamespace(**config)


ROUTER = WIDTH * EXPERTS
DEEPSEEK = {"n_routed_experts": EXPERTS, "num_experts_per_tok": 3, "n_shared_experts": 2}


@pytest.mark.parametrize(
    ("model", "expected", "note"),
    [
        (
            lambda: Model(MixtralSparseMoeBlock(), MixtralSparseMoeBlock(), **MIXTRAL),
            ATTENTION + 2 * (ROUTER + 2 * ONE_EXPERT),
            "2 of 8 experts",
        ),
        (
            lambda: Model(MixtralSparseMoeBlock(MixtralExperts(), top_k=2), Mlp(), **MIXTRAL),
            ATTENTION + ROUTER + 2 * ONE_EXPERT + ONE_EXPERT,
            "2 of 8 experts",
        ),
        (
            lambda: Model(MixtralSparseMoeBlock(MixtralExperts(bias=True)), **MIXTRAL),
            ATTENTION + ROUTER + 2 * (ONE_EXPERT + WIDTH),
            "2 of 8 experts",
        ),
        (
            lambda: Model(DeepseekV3MoE(), Mlp(), **DEEPSEEK),
            ATTENTION + ROUTER + 3 * ONE_EXPERT + 2 * ONE_EXPERT + ONE_EXPERT,
            "3 of 8 experts",
        ),
        (lambda: Model(MoE()), ATTENTION + ROUTER + 3 * ONE_EXPERT, "3 of 8 experts"),
        (
            lambda: Model(
                MixtralSparseMoeBlock(num_experts=8, top_k=1), MoE(), text_config=SimpleNamespace()
            ),
            ATTENTION + 2 * ROUTER + ONE_EXPERT + 3 * ONE_EXPERT,
            "1 of 8 and 3 of 8 experts",
        ),
    ],
    ids=["mixtral-4", "mixtral-5", "fused-with-bias", "deepseek", "torchtitan", "two-kinds"],
)
def test_a_token_passes_the_chosen_experts_alone(model: Any, expected: int, note: str) -> None:
    made = model()
    told = facts.describe(made)
    assert (told["active_parameters"], told["active_note"]) == (expected, note)
    assert told["active_absence"] == ""
    everything = sum(item.numel() for item in made.parameters())
    assert (told["parameters"], told["embedding_parameters"]) == (everything, TABLE)


def test_a_dense_model_has_no_other_count() -> None:
    told = facts.describe(Model(Mlp(), num_experts=None, num_experts_per_tok=0, top_k=50))
    assert (told["active_parameters"], told["active_note"]) == (None, "")
    assert told["active_absence"] == ""


class SwitchTransformersSparseMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleDict({f"expert_{index}": Mlp() for index in range(EXPERTS)})


class GroupedMLP(nn.Module):
    """Megatron's: the experts lie side by side in two matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.weight1 = nn.Parameter(torch.zeros(WIDTH, EXPERTS * INNER))
        self.weight2 = nn.Parameter(torch.zeros(EXPERTS * INNER, WIDTH))


class FusedMoE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w13_weight = nn.Parameter(torch.zeros(EXPERTS, 2 * INNER, WIDTH))


def without_some() -> nn.ModuleList:
    """Of expert parallelism in DeepSeek's own code: those of other ranks are None."""
    experts = nn.ModuleList(Mlp() for _ in range(EXPERTS))
    experts._modules["3"] = None
    return experts


@pytest.mark.parametrize(
    "model",
    [
        lambda: Model(MixtralSparseMoeBlock()),
        lambda: Model(MixtralSparseMoeBlock(), num_local_experts=EXPERTS),
        lambda: Model(MixtralSparseMoeBlock(), **{**MIXTRAL, "num_local_experts": 16}),
        lambda: Model(MixtralSparseMoeBlock(top_k=4), **MIXTRAL),
        lambda: Model(MixtralSparseMoeBlock(), **{**MIXTRAL, "num_experts_per_tok": 9}),
        lambda: Model(MixtralSparseMoeBlock(), **MIXTRAL, expert_capacity=64),
        lambda: Model(MixtralSparseMoeBlock(without_some()), **MIXTRAL),
        lambda: Model(MixtralSparseMoeBlock(MixtralExperts(4)), **MIXTRAL),
        lambda: Model(
            MixtralSparseMoeBlock(nn.ModuleList([Mlp(), *(Mlp(2) for _ in range(7))])), **MIXTRAL
        ),
        lambda: Model(MixtralSparseMoeBlock(), FusedMoE(), **MIXTRAL),
        lambda: Model(Mlp(), **MIXTRAL),
        lambda: Model(SwitchTransformersSparseMLP(), num_experts=EXPERTS),
        lambda: Model(
            MixtralSparseMoeBlock(GroupedMLP()), num_moe_experts=EXPERTS, moe_router_topk=2
        ),
    ],
    ids=[
        "nothing-told",
        "no-choice-told",
        "another-number",
        "two-choices-told",
        "more-than-all",
        "capacity",
        "others-elsewhere",
        "fewer-rows",
        "unequal",
        "one-not-found",
        "configured-only",
        "switch",
        "megatron",
    ],
)
def test_what_is_not_certain_is_refused(model: Any) -> None:
    told = facts.describe(model())
    assert (told["active_parameters"], told["active_absence"]) == (None, active.MIXTURE)


def test_megatron_layers_count_as_the_part_that_this_rank_has() -> None:
    class VocabParallelEmbedding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(5, WIDTH))

    model = Model(Mlp())
    model.table = VocabParallelEmbedding()  # type: ignore[assignment]
    model.layers[0].up_proj.weight.tensor_model_parallel = True
    told = facts.describe(model)
    assert told["parameters"] is None
    assert told["active_parameters"] == ATTENTION + ONE_EXPERT
    assert told["active_note"] == "this rank's part of split layers"
    mixture = Model(MixtralSparseMoeBlock(), **MIXTRAL)
    mixture.attention.q_proj.weight.tensor_model_parallel = True
    assert facts.describe(mixture)["active_absence"] == active.MIXTURE


@pytest.fixture(scope="module")
def eight_ranks() -> Iterator[None]:
    """A process group that only counts ranks: DTensors are made as in a real one."""
    distributed.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    yield
    distributed.destroy_process_group()


PLAN = {
    "up_proj": ColwiseParallel(),
    "gate_proj": ColwiseParallel(),
    "down_proj": RowwiseParallel(),
}


@pytest.mark.usefixtures("eight_ranks")
@pytest.mark.parametrize(
    ("mesh", "data", "tensor", "expected"),
    [
        ((8,), (0,), None, False),
        ((2, 4), (0, 1), None, False),
        ((8,), None, 0, True),
        ((2, 4), (0,), 1, True),
        ((8, 1), (0,), 1, False),
        ((2, 2, 2), (0, 1), 2, True),
    ],
    ids=[
        "fully-sharded",
        "hybrid",
        "tensor-parallel",
        "both",
        "tensor-of-one",
        "hybrid-and-tensor",
    ],
)
def test_shards_of_data_parallelism_are_told_from_split_layers(
    mesh: tuple[int, ...], data: tuple[int, ...] | None, tensor: int | None, expected: bool
) -> None:
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("an older torch")
    names = tuple("abc"[: len(mesh)])
    devices = init_device_mesh("cpu", mesh, mesh_dim_names=names)
    model = Model(Mlp(8))
    if tensor is not None:
        parallelize_module(model.layers[0], devices[names[tensor]], PLAN)
    if data is not None:
        fsdp.fully_shard(model, mesh=devices[tuple(names[one] for one in data)])
    assert active.splits(model) is expected
    told = facts.describe(model)
    assert told["active_absence"] == (active.SPLIT if expected else "")
    assert told["parameters"] == TABLE + ATTENTION + 3 * WIDTH * 8
    counter = StepCounter("sample")
    assert ("split" in counter.arm(model)) is expected
    counter.finish()


def test_transformers_tells_of_its_own_tensor_parallelism() -> None:
    model = Model(Mlp())
    for size, expected in ((None, False), (1, False), (2, True)):
        model.tp_size = size
        assert active.splits(model) is expected
