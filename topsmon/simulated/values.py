"""Values of a scenario: numbers that may differ per device and change with scenario time.

A value is a number, `{"each": [first, step]}` (first + step * device index), or an object with one
of the generators below, whose arguments are such numbers in turn:

- `{"wave": [mean, amplitude, period_seconds]}` with an optional phase of 0..1,
- `{"noise": [mean, spread]}`: uniform in mean +- spread, a new value every 0.5 s, fixed seed,
- `{"ramp": [start_value, end_value, start_seconds, end_seconds]}`, constant outside,
- `{"count": [start_value, per_second]}` with an optional time at which it starts to grow,
- `{"steps": [[0, value], [seconds, value], ...]}`: the value of the latest time that has passed,
- `{"sum": [value, ...]}`,
- `{"wrap": [value, modulus]}`: a counter that starts again at 0 when it reaches the modulus.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import Any, TypeAlias

Spec: TypeAlias = Any
"""A value as JSON holds it: anything until `compile_value` has checked it."""

MAX_TOKENS = 48
"""Tokens of one expression that the driver library reads."""
MAX_DEPTH = 8


class SimulationError(Exception):
    """A scenario that cannot be used, or a driver library that cannot be built: one line."""


def compile_value(spec: object, index: int, where: str) -> tuple[str, ...]:
    """Return `spec` for the device `index` as tokens of the table's postfix language.

    `where` names the value in errors and seeds its noise.
    """
    tokens = tuple(_tokens(spec, index, where, MAX_DEPTH))
    if len(tokens) > MAX_TOKENS:
        raise SimulationError(
            f"{where}: {len(tokens)} terms are too many; use {MAX_TOKENS} at most"
        )
    return tokens


def _tokens(spec: object, index: int, where: str, depth: int) -> list[str]:
    if depth == 0:
        raise SimulationError(f"{where}: nested more than {MAX_DEPTH} deep; flatten it")
    if not isinstance(spec, dict) or "each" in spec:
        return [_text(constant(spec, index, where))]
    if len(spec) != 1:
        raise SimulationError(
            f"{where}: an object holds exactly one of {_names()}; this one has {len(spec)} keys"
        )
    name, arguments = next(iter(spec.items()))
    if name not in _GENERATORS and name not in _NESTED:
        raise SimulationError(f"{where}: unknown generator {name!r}; use one of {_names()}")
    if not isinstance(arguments, list) or not arguments:
        raise SimulationError(f"{where}: {name} needs a list of arguments")
    if name in _NESTED:
        return _NESTED[name](arguments, index, where, depth)
    numbers = [constant(argument, index, where) for argument in arguments]
    return _GENERATORS[name](numbers, where)


def _sum(terms: list[object], index: int, where: str, depth: int) -> list[str]:
    tokens: list[str] = []
    for position, term in enumerate(terms):
        tokens += _tokens(term, index, f"{where}.{position}", depth - 1)
        tokens += ["add"] if position else []
    return tokens


def _steps(steps: list[object], index: int, where: str, depth: int) -> list[str]:
    tokens: list[str] = []
    last = -math.inf
    for position, step in enumerate(steps):
        if not isinstance(step, list) or len(step) != 2:
            raise SimulationError(f"{where}: each step is [seconds, value], not {step!r}")
        start = constant(step[0], index, where)
        if start <= last or (position == 0 and start != 0):
            raise SimulationError(f"{where}: steps start at 0 s and their times must rise")
        last = start
        tokens += _tokens(step[1], index, f"{where}.{position}", depth - 1)
        tokens += [_text(start), "step"] if position else []
    return tokens


def _wrap(arguments: list[object], index: int, where: str, depth: int) -> list[str]:
    if len(arguments) != 2:
        raise SimulationError(f"{where}: wrap takes [value, modulus]")
    modulus = constant(arguments[1], index, where)
    if modulus <= 0:
        raise SimulationError(f"{where}: the modulus of wrap must be above 0")
    return [*_tokens(arguments[0], index, where, depth - 1), _text(modulus), "wrap"]


def _wave(numbers: list[float], where: str) -> list[str]:
    _count_arguments("wave", numbers, (3, 4), where)
    if numbers[2] <= 0:
        raise SimulationError(f"{where}: the period of a wave must be above 0 s")
    phase = numbers[3] if len(numbers) == 4 else 0.0
    return [*map(_text, (*numbers[:3], phase)), "wave"]


def _noise(numbers: list[float], where: str) -> list[str]:
    _count_arguments("noise", numbers, (2,), where)
    return [*map(_text, (*numbers, float(zlib.crc32(where.encode())))), "noise"]


def _ramp(numbers: list[float], where: str) -> list[str]:
    _count_arguments("ramp", numbers, (4,), where)
    if numbers[3] <= numbers[2]:
        raise SimulationError(f"{where}: a ramp must end after its start")
    return [*map(_text, numbers), "ramp"]


def _count(numbers: list[float], where: str) -> list[str]:
    _count_arguments("count", numbers, (2, 3), where)
    start = numbers[2] if len(numbers) == 3 else 0.0
    return [*map(_text, (*numbers[:2], start)), "count"]


_GENERATORS: dict[str, Callable[[list[float], str], list[str]]] = {
    "wave": _wave,
    "noise": _noise,
    "ramp": _ramp,
    "count": _count,
}

_NESTED: dict[str, Callable[[list[object], int, str, int], list[str]]] = {
    "steps": _steps,
    "sum": _sum,
    "wrap": _wrap,
}


def _names() -> str:
    return ", ".join(("each", *_GENERATORS, *_NESTED))


def _count_arguments(name: str, numbers: list[float], allowed: tuple[int, ...], where: str) -> None:
    if len(numbers) not in allowed:
        wanted = " or ".join(map(str, allowed))
        raise SimulationError(f"{where}: {name} takes {wanted} arguments, not {len(numbers)}")


def constant(spec: object, index: int, where: str) -> float:
    """Return a number that does not change with time, for the device `index`."""
    if isinstance(spec, dict) and set(spec) == {"each"}:
        pair = spec["each"]
        if not isinstance(pair, list) or len(pair) != 2:
            raise SimulationError(f"{where}: each takes [first, step]")
        return constant(pair[0], index, where) + constant(pair[1], index, where) * index
    if isinstance(spec, bool) or not isinstance(spec, (int, float)):
        raise SimulationError(f"{where}: expected a number or one of {_names()}, not {spec!r}")
    try:
        value = float(spec)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise SimulationError(f"{where}: {spec} is not a finite number")
    return value


def _text(value: float) -> str:
    return repr(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
