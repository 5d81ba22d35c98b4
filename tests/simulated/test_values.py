"""Values of scenarios: the language, and the driver's reading of it against closed forms."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topsmon.simulated.values import MAX_TOKENS, SimulationError, compile_value

OPERANDS = {"wave": 4, "noise": 3, "ramp": 4, "count": 3, "step": 3, "add": 2, "wrap": 2}


def depth_after(tokens: tuple[str, ...]) -> int:
    """Values on the stack at the end; fails where an operator finds too few."""
    depth = 0
    for token in tokens:
        if token in OPERANDS:
            assert depth >= OPERANDS[token]
            depth -= OPERANDS[token]
        else:
            assert math.isfinite(float(token))
        depth += 1
    return depth


VALUES: list[tuple[str, Any, dict[float, float]]] = [
    ("constant", 412.5, {0: 412.5, 1e6: 412.5}),
    ("each", {"each": [100, 7]}, {0: 107}),
    ("wave", {"wave": [300, 40, 8]}, {0: 300, 2: 340, 4: 300, 6: 260, 10: 340, 3: 328.2842712}),
    ("wave with phase", {"wave": [300, 40, 8, 0.25]}, {0: 340, 2: 300, 4: 260}),
    ("ramp", {"ramp": [20, 80, 5, 15]}, {0: 20, 5: 20, 7.5: 35, 10: 50, 15: 80, 99: 80}),
    ("falling ramp", {"ramp": [80, 20, 0, 4]}, {0: 80, 1: 65, 3: 35, 4: 20}),
    ("count", {"count": [1000, 250]}, {0: 1000, 2: 1500, 100: 26000}),
    ("late count", {"count": [1000, 250, 6]}, {0: 1000, 6: 1000, 8: 1500}),
    ("steps", {"steps": [[0, 10], [3, 20], [5, 15]]}, {0: 10, 2.9: 10, 3: 20, 4.9: 20, 5: 15}),
    ("nested", {"steps": [[0, 21], [6, {"ramp": [100, 200, 6, 8]}]]}, {5: 21, 7: 150, 9: 200}),
    ("wrap", {"wrap": [{"count": [90, 30]}, 100]}, {0: 90, 1: 20, 3: 80, 4: 10}),
    ("sum", {"sum": [{"count": [10, 1]}, {"count": [0, 5, 4]}, 2]}, {0: 12, 4: 16, 6: 28}),
]


@pytest.mark.parametrize(("spec", "expected"), [v[1:] for v in VALUES], ids=[v[0] for v in VALUES])
def test_driver_gives_the_value_at_a_time(simulate, spec, expected) -> None:
    device = {"power_watts": spec}
    simulation = simulate({**SCENARIO, "count": 2, "device": device})
    readings = simulation.result(
        "n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(1); r = []\n"
        f"import pathlib; clock = pathlib.Path({str(simulation.folder / 'clock')!r})\n"
        f"for t in {list(expected)!r}:\n"
        "    clock.write_text(str(t)); r.append(n.nvmlDeviceGetPowerUsage(h))"
    )
    assert readings == [round(watts * 1000) for watts in expected.values()]


SCENARIO = {"title": "t", "description": "d", "expected": "ok"}


def test_noise_stays_in_its_bounds_changes_and_repeats(simulate) -> None:
    simulation = simulate(
        {
            **SCENARIO,
            "count": 2,
            "device": {
                "power_watts": {"noise": [300, 20]},
                "power_instant_watts": {"noise": [300, 20]},
            },
        }
    )
    code = (
        "n.nvmlInit(); r = []\n"
        "import pathlib\n"
        f"clock = pathlib.Path({str(simulation.folder / 'clock')!r})\n"
        "for i in range(2):\n"
        "    h = n.nvmlDeviceGetHandleByIndex(i)\n"
        "    for t in range(60):\n"
        "        clock.write_text(str(t / 2)); r.append(n.nvmlDeviceGetPowerUsage(h))"
    )
    first = simulation.result(code)
    assert all(280_000 <= value <= 320_000 for value in first)
    for half in (first[:60], first[60:]):
        assert len(set(half)) > 55
        assert max(half) - min(half) > 20_000
        assert 290_000 < sum(half) / 60 < 310_000
    assert first[:60] != first[60:]
    assert simulation.result(code) == first


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("700", "expected a number"),
        (True, "expected a number"),
        (None, "expected a number"),
        (math.nan, "not a finite number"),
        (10**400, "not a finite number"),
        ({}, "exactly one of"),
        ({"wave": [1, 2, 3], "sum": [1]}, "exactly one of"),
        ({"sine": [1, 2, 3]}, "unknown generator 'sine'"),
        ({"wave": 3}, "needs a list"),
        ({"wave": [1, 2]}, "takes 3 or 4 arguments, not 2"),
        ({"wave": [1, 2, 0]}, "period"),
        ({"noise": [1]}, "takes 2 arguments"),
        ({"ramp": [1, 2, 5, 5]}, "end after its start"),
        ({"count": [1]}, "takes 2 or 3"),
        ({"steps": [[1, 5]]}, "start at 0 s"),
        ({"steps": [[0, 5], [3, 6], [3, 7]]}, "must rise"),
        ({"steps": [[0]]}, "each step is"),
        ({"steps": []}, "needs a list"),
        ({"wrap": [1]}, "wrap takes [value, modulus]"),
        ({"wrap": [1, 0]}, "modulus of wrap must be above 0"),
        ({"each": [1]}, "each takes"),
        ({"sum": [1] * 40}, "too many"),
    ],
)
def test_error_names_the_field_and_the_fault(spec: object, words: str) -> None:
    with pytest.raises(SimulationError) as caught:
        compile_value(spec, 0, "devices.0.power_watts")
    assert words in str(caught.value)
    assert str(caught.value).startswith("devices.0.power_watts")
    assert "\n" not in str(caught.value)


def test_deep_nesting_is_an_error_and_no_recursion() -> None:
    spec: object = 1
    for _ in range(2000):
        spec = {"sum": [spec]}
    with pytest.raises(SimulationError, match="deep"):
        compile_value(spec, 0, "x")


numbers = st.integers(-(10**6), 10**6) | st.floats(-1e9, 1e9, allow_nan=False)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["each", "wave", "noise", "ramp", "count", "steps", "sum", "wrap", "x"]
            ),
            inner,
            max_size=2,
        )
    ),
    max_leaves=12,
)
leaf = numbers | st.fixed_dictionaries({"each": st.tuples(numbers, numbers).map(list)})
value = st.recursive(
    leaf
    | st.fixed_dictionaries({"wave": st.tuples(leaf, leaf, st.integers(1, 99)).map(list)})
    | st.fixed_dictionaries({"noise": st.tuples(leaf, leaf).map(list)})
    | st.fixed_dictionaries({"count": st.tuples(leaf, leaf).map(list)}),
    lambda inner: st.fixed_dictionaries({"sum": st.lists(inner, min_size=1, max_size=3)}),
    max_leaves=6,
)


def compiled(spec: object) -> tuple[tuple[str, ...], str]:
    """The tokens, or the words in which they are refused."""
    try:
        return compile_value(spec, 3, "f"), ""
    except SimulationError as error:
        return ("0",), str(error)


@given(anything)
def test_anything_is_compiled_or_refused_in_one_line(spec: object) -> None:
    tokens, refusal = compiled(spec)
    assert depth_after(tokens) == 1
    assert "\n" not in refusal


@given(value)
@settings(max_examples=60)
def test_what_is_written_rightly_is_one_value(spec: object) -> None:
    tokens, refusal = compiled(spec)
    assert depth_after(tokens) == 1
    assert len(tokens) <= MAX_TOKENS
    assert refusal == "" or "too many" in refusal
