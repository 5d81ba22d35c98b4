"""Where to listen: "ADDR:PORT", "PORT", "[::1]:PORT"."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

LOOPBACK = "127.0.0.1"
PORT = 18677
"""Outside the range 9100 to 9999, which other exporters have taken, and below the ports that Linux
gives to outgoing connections (32768 on)."""
_BRACKETS = re.compile(r"\[(?P<host>[^\]]*)\](?::(?P<port>.*))?")


class Address(NamedTuple):
    """A host name or address without brackets, and a port (0: any that is free)."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """True where only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


DEFAULT = Address(LOOPBACK, PORT)


def parse(text: str) -> Address:
    """Read an address. What is left out is the default's: "" and ":9000" are on loopback.

    ValueError says what is wrong.
    """
    bracketed = _BRACKETS.fullmatch(text)
    if bracketed is not None:
        host, port = bracketed["host"], bracketed["port"]
        if not _is_ip(host, 6):
            raise ValueError(f"{host!r} is no IPv6 address")
    elif text.isdecimal():
        host, port = "", text
    elif text.count(":") > 1:
        if not _is_ip(text, 6):
            raise ValueError(f"{text!r} is no ADDR:PORT; an IPv6 address goes in [brackets]")
        host, port = text, None
    else:
        host, _, port = text.partition(":")
    if host and not _is_ip(host) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*", host) is None:
        raise ValueError(f"{host!r} is no address")
    return Address(host or DEFAULT.host, DEFAULT.port if not port else _port(port))


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 5 or int(text) > 65535:
        raise ValueError(f"{text!r} is no port (0 to 65535)")
    return int(text)


def _is_ip(text: str, version: int | None = None) -> bool:
    try:
        return version in {None, ipaddress.ip_address(text).version}
    except ValueError:
        return False
