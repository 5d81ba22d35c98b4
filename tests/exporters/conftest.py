"""Certificates of a CA of the tests' own, made anew for each session."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ca.pem, and a certificate and key of a server on loopback and of a client."""
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    for name, identities in (("server", ("localhost", "127.0.0.1")), ("client", ("scraper.test",))):
        issued = authority.issue_cert(*identities)
        issued.private_key_pem.write_to_path(folder / f"{name}.key")
        for pem in issued.cert_chain_pems:
            pem.write_to_path(folder / f"{name}.pem", append=True)
    return folder
