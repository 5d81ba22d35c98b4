"""The rules of what bounds a kernel: the right claim, and no claim where an input is missing."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topsmon.diagnosis.verdict import PIPES, Activity, Reach, all_of, any_of, judge

QUIET = Activity(
    throttled=0.0,
    engine=0.99,
    sm=0.97,
    dram=0.1,
    tensor=0.05,
    fp32=0.1,
    fp64=0.0,
    fp16=0.0,
    integer=0.1,
)
"""A kernel that occupies the SMs and uses nothing of them."""
FIELDS = [field.name for field in dataclasses.fields(Activity)]
ratios = st.floats(0.0, 1.1)
activities = st.builds(Activity, **dict.fromkeys(FIELDS, ratios))
partial = st.builds(Activity, **dict.fromkeys(FIELDS, st.none() | ratios))
reaches = st.builds(Reach, **dict.fromkeys(("dram", "tensor", "pipe"), st.floats(0.5, 1.0)))


def but(**changes: float | None) -> Activity:
    return dataclasses.replace(QUIET, **changes)


@pytest.mark.parametrize(
    ("activity", "kind"),
    [
        (but(engine=0.0, sm=0.0, dram=0.0), "idle"),
        (but(throttled=0.3, tensor=0.9), "throttled"),
        (but(engine=0.4, sm=0.35, tensor=0.3), "stalled"),
        (but(dram=0.92), "memory"),
        (but(tensor=0.9), "tensor"),
        (but(fp32=0.9), "fp32"),
        (but(fp64=0.9), "fp64"),
        (but(fp16=0.9), "fp16"),
        (but(integer=0.9), "integer"),
        (QUIET, "latency"),
        (but(sm=0.12, engine=0.96), "latency"),  # few SMs have work
        (but(tensor=0.4, dram=0.4), "mixed"),
        (but(tensor=0.91, dram=0.62), "tensor"),  # both high: the busier one bounds
        (but(tensor=0.5, dram=0.7), "memory"),
        (but(throttled=0.09, tensor=0.9), "tensor"),  # less than a tenth of the time
        (but(engine=0.71), "latency"),
        (but(engine=0.96, sm=0.01, dram=0.0), "latency"),  # one block of one kernel: not idle
    ],
)
def test_the_right_claim(activity: Activity, kind: str) -> None:
    assert judge(activity).kind == kind


@pytest.mark.parametrize(
    ("activity", "kind"),
    [
        # Only SM activity is known: a peer reads the others as 0 and says "latency".
        (Activity(sm=0.9), "cannot tell"),
        (Activity(sm=0.9, throttled=0.0, engine=0.95), "cannot tell"),
        # Few SMs, but the memory is saturated: a peer says "launch- or input-bound".
        (but(sm=0.45, dram=0.90), "memory"),
        # Tensor Cores above one half beside saturated memory: a peer says "compute-bound", its
        # good verdict.
        (but(tensor=0.60, dram=0.95), "memory"),
        # Nothing is known at all.
        (Activity(), "cannot tell"),
        # Half of the Tensor Cores' peak is compute-bound for a peer on any board; where the best
        # product reaches nine tenths it is not.
        (but(tensor=0.55), "tensor"),
    ],
)
def test_faults_of_a_peer(activity: Activity, kind: str) -> None:
    assert judge(activity).kind == kind


def test_the_limits_follow_what_was_measured_here() -> None:
    fast = Reach(dram=0.92, tensor=0.9, pipe=0.9)
    assert judge(but(tensor=0.55), fast).kind == "mixed"
    assert judge(but(tensor=0.64), fast).kind == "tensor"  # from 0.7 x 0.9 on
    assert judge(but(dram=0.65), fast).kind == "mixed"
    assert judge(but(dram=0.70), fast).kind == "memory"  # from 0.75 x 0.92 on


@pytest.mark.parametrize(
    ("activity", "missing"),
    [
        (but(throttled=None, tensor=0.9), ("throttled",)),
        (but(dram=None, tensor=0.9), ("dram",)),
        (but(tensor=None), ("tensor",)),
        (but(fp64=None), ("fp64",)),
        (but(engine=None, sm=None, dram=0.02), ("engine", "sm")),
    ],
)
def test_what_is_missing_is_named(activity: Activity, missing: tuple[str, ...]) -> None:
    assert judge(activity) == ("cannot tell", missing)


@pytest.mark.parametrize(
    ("activity", "kind"),
    [
        (but(dram=0.95, tensor=None), "memory"),  # at its reach, whatever the Tensor Cores do
        (but(tensor=0.9, fp64=None, fp16=None), "tensor"),
        (but(fp32=0.9, fp64=None, integer=None), "fp32"),
        (but(sm=None, tensor=0.9), "tensor"),  # it is not idle
        (but(throttled=0.5, dram=None, tensor=None), "throttled"),
    ],
)
def test_what_cannot_matter_may_be_missing(activity: Activity, kind: str) -> None:
    assert judge(activity).kind == kind


@given(activities, st.sets(st.sampled_from(FIELDS)), reaches)
def test_a_missing_input_never_makes_another_claim(
    activity: Activity, lost: set[str], reach: Reach
) -> None:
    whole = judge(activity, reach).kind
    blind = judge(dataclasses.replace(activity, **dict.fromkeys(lost)), reach).kind
    assert blind in {whole, "cannot tell"}


@given(activities, reaches)
def test_with_everything_known_there_is_a_verdict(activity: Activity, reach: Reach) -> None:
    assert judge(activity, reach).kind != "cannot tell"


@given(partial, reaches)
def test_cannot_tell_names_what_is_missing_and_only_that(activity: Activity, reach: Reach) -> None:
    verdict = judge(activity, reach)
    assert bool(verdict.missing) == (verdict.kind == "cannot tell")
    assert all(getattr(activity, name) is None for name in verdict.missing)


RISING = {"throttled": "throttled", "memory": "dram", "tensor": "tensor", "fp32": "fp32"}
FALLING = {"stalled": "engine", "idle": "engine"}


@given(activities, ratios, reaches)
def test_more_of_what_bounds_does_not_end_the_claim(
    activity: Activity, other: float, reach: Reach
) -> None:
    kind = judge(activity, reach).kind
    if kind in RISING:
        name = RISING[kind]
        more = max(getattr(activity, name), other)
        assert judge(dataclasses.replace(activity, **{name: more}), reach).kind == kind
    if kind in FALLING:
        less = min(activity.engine or 0.0, other)
        assert judge(dataclasses.replace(activity, engine=less), reach).kind in {kind, "idle"}


@given(activities, st.sampled_from(("dram", "tensor", *PIPES)), st.floats(0.0, 1.0))
def test_less_of_a_unit_never_makes_it_the_bound(
    activity: Activity, name: str, share: float
) -> None:
    kind = {"dram": "memory"}.get(name, name)
    less = dataclasses.replace(activity, **{name: getattr(activity, name) * share})
    if judge(less).kind == kind:
        before = judge(activity).kind
        # It was the bound before as well, or a rule above it hid it then.
        assert before in {kind, "idle", "throttled", "stalled", "memory", "tensor", *PIPES}


def test_not_known_is_neither_true_nor_false() -> None:
    assert all_of(True, None) is None
    assert all_of(False, None) is False
    assert any_of(True, None) is True
    assert any_of(False, None) is None
