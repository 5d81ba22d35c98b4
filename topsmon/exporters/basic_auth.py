"""HTTP basic authentication (RFC 7617) with one user, whose name and password are in a file."""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import stat
from pathlib import Path

MOST_BYTES = 4096


def read_credentials(path: Path) -> bytes:
    """Return "user:password" of a file that holds this one line.

    ValueError, in words: others may read it, or it holds something else. OSError as usual.
    """
    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISREG(mode) and mode & (stat.S_IROTH | stat.S_IWOTH):
            raise ValueError(f"{path} can be read by every user: chmod 600 {path}")
        line = file.read(MOST_BYTES + 1).rstrip(b"\r\n")
    user, colon, password = line.partition(b":")
    if len(line) > MOST_BYTES or b"\n" in line or not (user and colon and password):
        raise ValueError(f"{path} must hold one line: USER:PASSWORD")
    return line


def is_allowed(header: str | None, credentials: bytes) -> bool:
    """True when an Authorization header holds the credentials. Takes the same time for all."""
    scheme, _, encoded = (header or "").partition(" ")
    if scheme.lower() != "basic":
        return False
    try:
        given = base64.b64decode(encoded.strip(), validate=True)
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(given, credentials)
