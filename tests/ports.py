"""Ports for servers that a test starts."""

from __future__ import annotations

import contextlib
import random
import socket

BELOW_EPHEMERAL = range(20_000, 32_000)
"""The kernel hands out none of these (Linux: from 32768 on), to no other test either."""


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on, and that nobody is given by chance."""
    for port in random.SystemRandom().sample(BELOW_EPHEMERAL, 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no free port")
