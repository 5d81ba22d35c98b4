"""The first module with a non-finite output is named, and nothing is left behind."""

from __future__ import annotations

import copy
import io
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from topsmon.training.recorder import autopsy, calls
from topsmon.training.recorder.autopsy import Autopsy, Result
from topsmon.training.recorder.slots import Slots

PLAIN_CALL = nn.Module.__call__


class Gate(nn.Module):
    """Passes its input on, or makes of it what a test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.spoil: Callable[[torch.Tensor], torch.Tensor] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.spoil is None else self.spoil(x)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(width, 2, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.gate = Gate()
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.GELU())
        self.own_code: Callable[[torch.Tensor], torch.Tensor] | None = None

    def forward(self, x: torch.Tensor, *, mask: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(x, x, x, attn_mask=mask, need_weights=False)[0]
        x = self.gate(self.norm(x))
        if self.own_code is not None:
            x = self.own_code(x)
        return x + self.mlp(x)


class Transformer(nn.Module):
    def __init__(self, layers: int = 3, width: int = 8) -> None:
        super().__init__()
        self.table = nn.Embedding(12, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, 12)

    def forward(self, input_ids: torch.Tensor) -> dict[str, Any]:
        length = input_ids.shape[1]
        # A mask of minus infinities is healthy.
        mask = torch.full((length, length), -math.inf).triu(1)
        x = self.table(input_ids)
        for layer in self.layers:
            x = layer(x, mask=mask)
        return {"logits": self.head(x), "hidden": [x]}


def examine(model: nn.Module, *args: Any, **kwargs: Any) -> Result:
    got: list[Result] = []
    one = Autopsy(Slots())
    assert one.arm(model, got.append) == ""
    model(*args, **kwargs)
    one.finish()
    assert nn.Module.__call__ is PLAIN_CALL
    assert not one.armed
    return got[0]


def spoil_with(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def spoil(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x.view(-1)[0] = value
        return x

    return spoil


IDS = torch.tensor([[1, 2, 3]])


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2), st.sampled_from([math.nan, math.inf, -math.inf]), st.booleans())
def test_a_layer_that_makes_a_bad_value_is_named(layer: int, value: float, by_name: bool) -> None:
    model = Transformer()
    model.layers[layer].gate.spoil = spoil_with(value)  # type: ignore[assignment, union-attr]
    result = examine(model, input_ids=IDS) if by_name else examine(model, IDS)
    assert (result.where, result.names) == ("module", (f"layers.{layer}.gate",))
    assert result.message == "Gate"


def test_the_code_between_two_modules_is_told_apart() -> None:
    model = Transformer()
    model.layers[1].own_code = spoil_with(math.nan)  # type: ignore[assignment]
    result = examine(model, IDS)
    assert (result.where, result.names) == ("own-code", ("layers.1", "layers.1.mlp"))
    assert result.message == "Block, in its own code before layers.1.mlp"


def test_the_users_own_code_in_the_root_has_its_class_as_name() -> None:
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(torch.log(-x.abs()))

    result = examine(Root(), torch.ones(1, 2))
    assert (result.where, result.names) == ("own-code", ("Root", "head"))


def test_a_bad_input_batch_is_told_first_of_all() -> None:
    """As with a NaN in the data: every module's output is bad and none of them is to blame."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    batch = torch.randn(8, 16)
    batch[0, 0] = math.nan
    result = examine(model, batch)
    assert (result.where, result.names, result.message) == ("input", (), autopsy.INPUT_BAD)
    assert result.values["input_finite"] == 0


def test_a_bad_batch_by_name_is_seen_too() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def forward(self, *, batch: dict[str, Any]) -> torch.Tensor:
            return self.layer(batch["x"][0])

    assert examine(Named(), batch={"x": [torch.tensor([[math.inf, 1.0]])]}).where == "input"


def test_a_healthy_pass_points_at_the_loss() -> None:
    result = examine(Transformer(), IDS)
    assert (result.where, result.names, result.message) == ("loss", (), autopsy.LOSS_BAD)


def test_ruined_weights_are_named_by_their_module() -> None:
    model = Transformer()
    with torch.no_grad():
        model.head.weight[0, 0] = math.nan
    result = examine(model, IDS)
    assert (result.where, result.names) == ("module", ("head",))
    assert result.message == "Linear, whose own weights are not finite"
    assert result.values["weights_finite"] == 0


def test_an_overflow_of_fp16_is_named() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    with torch.no_grad():
        model[0].weight.fill_(100.0)
        model[1].weight.fill_(1000.0)
    with torch.autocast("cpu", torch.float16):
        result = examine(model, torch.ones(1, 4))
    assert result.names == ("1",)


def test_a_mask_handed_through_is_no_fault() -> None:
    class Through(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x, mask

    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.through = Through()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x, _ = self.through(x, torch.tensor([-math.inf, 0.0]))
            return x

    assert examine(Root(), torch.ones(2)).where == "loss"


def test_a_pass_under_checkpointing_is_examined_once() -> None:
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = Gate()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.gate, x, use_reentrant=True)

    model = Root()
    model.gate.spoil = spoil_with(math.nan)
    result = examine(model, torch.ones(2, requires_grad=True))
    assert (result.names, result.values["modules"]) == (("gate",), 2)


def test_a_validation_pass_is_let_go_by() -> None:
    model = nn.Sequential(nn.Linear(1, 1))
    one = Autopsy(Slots())
    got: list[Result] = []
    one.arm(model, got.append)
    with torch.no_grad():
        model(torch.tensor([[math.nan]]))
    one.finish()
    assert one.armed
    model(torch.tensor([[1.0]]))
    one.finish()
    assert got[0].where == "loss"


def test_a_pass_that_raises_leaves_nothing_behind() -> None:
    def fail(x: torch.Tensor) -> torch.Tensor:
        raise KeyboardInterrupt

    model = nn.Sequential(nn.Linear(1, 1), Gate())
    model[1].spoil = fail  # type: ignore[assignment]
    one = Autopsy(Slots())
    got: list[Result] = []
    one.arm(model, got.append)
    with pytest.raises(KeyboardInterrupt):
        model(torch.tensor([[1.0]]))
    one.finish()
    assert nn.Module.__call__ is PLAIN_CALL
    assert not one.armed
    assert got[0].where == "loss"


def test_a_root_that_is_never_called_is_finished_from_outside() -> None:
    """As where a trainer calls `training_step` of the root."""
    root = nn.ModuleDict({"net": Gate()})
    root["net"].spoil = spoil_with(math.nan)  # type: ignore[assignment]
    one = Autopsy(Slots())
    got: list[Result] = []
    one.arm(root, got.append)
    root["net"](torch.ones(2))
    assert nn.Module.__call__ is not PLAIN_CALL
    one.finish()
    assert nn.Module.__call__ is PLAIN_CALL
    assert got[0].names == ("net",)


def test_a_model_without_floating_point_is_unseen() -> None:
    assert examine(nn.Sequential(Gate()), torch.tensor([1])).where == "unseen"


def test_an_empty_output_and_other_kinds_of_tensors_are_passed_over() -> None:
    assert examine(nn.Sequential(Gate()), torch.empty(0)).where == "unseen"
    sparse = torch.eye(2).to_sparse()
    assert examine(nn.Sequential(Gate()), sparse).where == "unseen"
    complex_nan = torch.tensor([complex(1, math.nan)])
    assert examine(nn.Sequential(Gate()), complex_nan).where == "input"


def test_compiled_modules_are_refused() -> None:
    model = nn.Sequential(nn.Linear(1, 1))
    model[0].compile()
    assert "compile" in Autopsy(Slots()).arm(model, lambda result: None)
    assert nn.Module.__call__ is PLAIN_CALL


def test_a_streak_gets_few_autopsies() -> None:
    model = nn.Sequential(nn.Linear(1, 1))
    one = Autopsy(Slots())
    for _ in range(autopsy.PER_STREAK):
        assert one.arm(model, lambda result: None) == ""
        model(torch.ones(1, 1))
        one.finish()
    assert one.arm(model, lambda result: None) != ""
    one.streak_over()
    assert one.arm(model, lambda result: None) == ""
    model(torch.ones(1, 1))
    one.finish()


def test_an_armed_model_can_be_copied_pickled_and_saved() -> None:
    model = nn.Sequential(nn.Linear(2, 1))
    one = Autopsy(Slots())
    one.arm(model, lambda result: None)
    saved = io.BytesIO()
    torch.save(model, saved)
    assert b"topsmon" not in saved.getvalue()
    assert b"topsmon" not in pickle.dumps(model)
    copied = copy.deepcopy(model)
    for one_of_them in (model, copied):
        assert not one_of_them._forward_hooks
        assert not one_of_them._forward_pre_hooks
        assert set(one_of_them.__dict__) == set(nn.Sequential().__dict__)
    model(torch.ones(1, 2))
    one.finish()
    assert nn.Module.__call__ is PLAIN_CALL


def test_results_random_numbers_and_gradients_are_the_same_bits() -> None:
    def run(*, watched: bool) -> list[torch.Tensor]:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
        one = Autopsy(Slots())
        if watched:
            one.arm(model, lambda result: None)
        model(torch.randn(5, 4)).sum().backward()
        one.finish()
        return [torch.rand(3), *(item.grad for item in model.parameters())]

    for plain, watched in zip(run(watched=False), run(watched=True), strict=True):
        assert torch.equal(plain, watched)


def test_the_model_is_not_kept_alive() -> None:
    import gc
    import weakref

    model: Any = nn.Sequential(nn.Linear(1, 1))
    alive = weakref.ref(model)
    one = Autopsy(Slots())
    one.arm(model, lambda result: None)
    del model
    gc.collect()
    assert alive() is None
    one.finish()
    assert not one.armed
    assert nn.Module.__call__ is PLAIN_CALL


def test_no_module_call_is_seen_when_nothing_is_armed() -> None:
    one = Autopsy(Slots())
    model = nn.Sequential(nn.Linear(1, 1))
    for _ in range(5):
        model(torch.ones(1, 1))
        one.finish()
    assert nn.Module.__call__ is PLAIN_CALL
    assert calls._NOW.observers == ()


def test_who_wrapped_module_calls_after_us_keeps_working() -> None:
    seen: list[str] = []
    one = Autopsy(Slots())
    model = nn.Sequential(nn.Linear(1, 1))
    got: list[Result] = []
    one.arm(model, got.append)
    ours = nn.Module.__call__

    def theirs(module: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(type(module).__name__)
        return ours(module, *args, **kwargs)

    nn.Module.__call__ = theirs  # type: ignore[method-assign]
    try:
        for _ in range(2):
            model(torch.ones(1, 1))
            one.finish()
            one.arm(model, got.append)
        assert seen == ["Sequential", "Linear"] * 2
        assert [result.values["modules"] for result in got] == [2, 2]
    finally:
        one.finish()
        calls._NOW.__init__()  # type: ignore[misc]
        nn.Module.__call__ = PLAIN_CALL  # type: ignore[method-assign]


@pytest.mark.parametrize("passes", [2, 4])
def test_a_later_pass_of_the_step_is_watched_too(passes: int) -> None:
    """As with accumulation, or net(a) and net(b) before one backward pass."""
    model = nn.Sequential(nn.Linear(1, 1), Gate())
    one = Autopsy(Slots())
    got: list[Result] = []
    one.arm(model, got.append, others=True)
    for number in range(1, passes + 1):
        bad = number == min(passes, 3)
        model[1].spoil = spoil_with(math.nan) if bad else None  # type: ignore[assignment]
        model(torch.ones(1, 1))
    one.finish()
    assert (got[0].where, got[0].names) == ("module", ("1",))


def test_the_words_say_what_was_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autopsy, "CALLS_EACH", 5)
    model = nn.Sequential(nn.Linear(1, 1))
    one = Autopsy(Slots())
    got: list[Result] = []
    one.arm(model, got.append, others=True)
    for _ in range(4):
        model(torch.ones(1, 1))
    one.finish()
    assert got[0].values["modules"] == 5
    assert got[0].message == (
        "no output of Sequential's modules was bad in the 3 forward passes watched; "
        f"what else is trained was not watched; {autopsy.CUT}"
    )
