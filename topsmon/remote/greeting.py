"""The first line of a stream: found behind a login's banners, and its version understood."""

from __future__ import annotations

import msgspec

from topsmon import __version__, events
from topsmon.units import plain


class Greeting(msgspec.Struct, frozen=True):
    """What every version of the hello line says, whatever else it may."""

    type: str
    schema: int
    version: str = "?"


_decoder = msgspec.json.Decoder(Greeting)


def greeting(line: bytes) -> Greeting | None:
    """Return the hello of a line, None where it is something else: a banner, a warning."""
    stripped = line.strip()
    if not stripped.startswith(b"{"):
        return None
    try:
        found = _decoder.decode(stripped)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if found.type == "hello" else None


def refusal(host: str, hello: Greeting) -> str | None:
    """Why the stream of this version cannot be read, None where it can.

    Within a schema older and newer versions understand each other: fields and events only come in
    addition.
    """
    if hello.schema == events.SCHEMA_VERSION:
        return None
    there, here = plain(hello.version, 40), __version__
    older = f"on {host}" if hello.schema < events.SCHEMA_VERSION else "here"
    return (
        f"topsmon {there} there speaks schema {hello.schema}, topsmon {here} here speaks schema "
        f"{events.SCHEMA_VERSION}: update topsmon {older}"
    )
