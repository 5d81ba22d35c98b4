"""Which parts of a process's environment must not be shown."""

from __future__ import annotations

import re

MASK = "********"

_NAMES = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|COOKIE|SESSION", re.IGNORECASE)
_PREFIXES = re.compile(
    r"\b(?:sk-|pk-|rk-|gh[opsur]_|github_pat_|glpat-|hf_|xox[a-z]-|AKIA|ASIA|AIza|eyJ|npm_|pypi-"
    r"|dckr_pat_|nvapi-|wandb_)[\w.~+/=-]{8,}"
)
"""Beginnings that services give their tokens, so that they are found where they leak."""
_IN_ADDRESS = re.compile(r"(://[^/\s:@]*:)[^/\s@]+(?=@)")
"""The password in scheme://user:password@host."""
_BEARER = re.compile(r"\b(Bearer|Basic)\s+\S+", re.IGNORECASE)
_PIECE = re.compile(r"[A-Za-z0-9]{16,}")


def masked(name: str, value: str) -> str:
    """Return the value of an environment variable with everything that looks secret masked."""
    if not value:
        return value
    if _NAMES.search(name) or "-----BEGIN" in value:
        return MASK
    value = _IN_ADDRESS.sub(rf"\1{MASK}", value)
    value = _BEARER.sub(rf"\1 {MASK}", value)
    value = _PREFIXES.sub(MASK, value)
    if value.startswith(("/", "./", "../", "~")):
        return value  # the folders of package managers have hashes for names
    return _PIECE.sub(lambda found: MASK if _is_random(found[0]) else found[0], value)


def _is_random(piece: str) -> bool:
    """Letters and digits mixed, as no word and no number has them."""
    digits = sum(sign.isdigit() for sign in piece)
    return digits >= 2 and len(piece) - digits >= 2
