"""Input shapes as the user types them: 1x3x224x224, 8x128:int64, input_ids=1x128:int64."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import UsageError

DTYPES = (
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "complex64",
    "complex128",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
)
ALIASES = {
    "fp64": "float64",
    "double": "float64",
    "fp32": "float32",
    "float": "float32",
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "long": "int64",
    "int": "int32",
}
MAX_ELEMENTS = 1 << 48
EXAMPLE = "write sizes with x between them, then the type if it is not float32: 8x128:int64"


@dataclass(frozen=True)
class Input:
    """One argument of `forward`: by position, or by keyword where it has a `name`.

    `dtype` None was not given.
    """

    shape: tuple[int, ...]
    dtype: str | None = None
    name: str | None = None


def parse_dtype(text: str) -> str:
    """Return torch's name of a data type."""
    name = ALIASES.get(text.lower(), text.lower())
    if name not in DTYPES:
        raise UsageError(f"{text!r} is no data type; known are {', '.join(DTYPES)}")
    return name


def parse_input(text: str) -> Input:
    """Parse [NAME=]SIZExSIZE...[:DTYPE]; raise UsageError naming the input."""
    name, equals, rest = text.strip().rpartition("=")
    if equals and not name.isidentifier():
        raise UsageError(f"--input {text}: {name!r} is no argument name")
    sizes, colon, dtype = rest.partition(":")
    shape = []
    for part in re.split(r"[xX\u00d7,]", sizes):
        if not re.fullmatch(r"[0-9]{1,18}", part.strip()):
            raise UsageError(f"--input {text}: {part!r} is no size; {EXAMPLE}")
        if int(part) == 0:
            raise UsageError(f"--input {text}: a size of 0 leaves nothing to count")
        shape.append(int(part))
    elements = 1
    for size in shape:
        elements *= size
    if elements > MAX_ELEMENTS:
        raise UsageError(f"--input {text}: {elements} elements are more than any tensor has")
    if colon and not dtype:
        raise UsageError(f"--input {text}: the type after the colon is missing; {EXAMPLE}")
    try:
        return Input(tuple(shape), parse_dtype(dtype) if colon else None, name or None)
    except UsageError as error:
        raise UsageError(f"--input {text}: {error}") from None
