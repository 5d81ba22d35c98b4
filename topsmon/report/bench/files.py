"""A benchmark as a file: what `--json` prints and `--against` reads."""

from __future__ import annotations

from pathlib import Path

import msgspec

from topsmon.report.bench.model import SCHEMA_VERSION, BenchDocument
from topsmon.units import plain

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[BenchDocument] = msgspec.json.Decoder(BenchDocument)


def to_json(document: BenchDocument) -> bytes:
    """Return the document as indented JSON with a final newline."""
    return msgspec.json.format(_encoder.encode(document), indent=1) + b"\n"


def load(path: Path) -> BenchDocument:
    """Read a saved benchmark; fields of newer versions are passed over.

    ValueError, one line: the file cannot be read, is no benchmark, or of a newer format.
    """
    name = plain(str(path), 200)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {name}: {error.strerror or error}") from None
    try:
        document = _decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(
            f"{name} is no result of topsmon bench --json: {plain(str(error), 200)}"
        ) from None
    if document.schema_version > SCHEMA_VERSION:
        raise ValueError(
            f"{name} is from topsmon {plain(document.topsmon_version, 20)}, whose format "
            f"{document.schema_version} is newer than the {SCHEMA_VERSION} that this one reads"
        )
    return document
