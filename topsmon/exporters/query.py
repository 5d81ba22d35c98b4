"""Instant queries to a Prometheus server (or Thanos, Mimir, VictoriaMetrics): its HTTP API v1.

Standard library only. Certificates are verified. A server may be slow, huge, redirecting or no
Prometheus at all: each of these is one `QueryError` in words.
"""

from __future__ import annotations

import base64
import math
import netrc
import os
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec

from topsmon import __version__
from topsmon.units import binary_bytes, plain

TIMEOUT_SECONDS = 10.0
MOST_BYTES = 64 << 20
"""About 300,000 series: more than one view can use."""
MOST_REDIRECTS = 5
CHUNK_BYTES = 1 << 18
ERROR_BYTES = 1 << 16


class QueryError(Exception):
    """The server did not answer a query; the message says why and what to do."""


class AddressError(QueryError):
    """What the user gave names no server, or no certificates."""


class Sample(NamedTuple):
    """One series of an instant vector: labels, value, when it was sampled (s since the epoch)."""

    labels: Mapping[str, str]
    value: float
    time: float


class Answer(NamedTuple):
    """The samples that are numbers, and the warnings of the server."""

    samples: tuple[Sample, ...]
    warnings: tuple[str, ...] = ()


class _Series(msgspec.Struct):
    value: tuple[float, str]
    metric: dict[str, str] = {}


class _Data(msgspec.Struct, rename="camel"):
    result_type: str
    result: msgspec.Raw


class _Document(msgspec.Struct, rename="camel"):
    status: str
    data: _Data | None = None
    error: str = ""
    error_type: str = ""
    warnings: tuple[str, ...] = ()


_documents = msgspec.json.Decoder(_Document)
_series = msgspec.json.Decoder(tuple[_Series, ...])


class Server:
    """A Prometheus server by its URL; a path before /api is kept.

    Name and password come from the URL, else from ~/.netrc (or $NETRC); they are sent to this
    server alone. `ca` names a file of certificates to trust instead of the system's.
    """

    def __init__(self, url: str, *, ca: Path | None = None, timeout: float = TIMEOUT_SECONDS):
        """Read the URL. AddressError: it is none, or the certificates cannot be read."""
        base, credentials = _split(url)
        self.url = base
        self.timeout = timeout
        self._headers = {"Accept": "application/json", "User-Agent": f"topsmon/{__version__}"}
        if credentials is not None:
            self._headers["Authorization"] = f"Basic {base64.b64encode(credentials).decode()}"
        try:
            context = ssl.create_default_context(cafile=None if ca is None else str(ca))
        except OSError as error:
            raise AddressError(f"--ca {ca}: {error.strerror or error}") from None
        self._opener = _opener(context)

    def instant(self, query: str) -> Answer:
        """Evaluate a query now. QueryError says why it could not be."""
        parameters = urllib.parse.urlencode({"query": query, "timeout": f"{self.timeout:g}s"})
        request = urllib.request.Request(  # noqa: S310  the scheme was checked: http or https
            f"{self.url}/api/v1/query?{parameters}", headers=self._headers
        )
        return _read_answer(self._fetch(request), self.url)

    def _fetch(self, request: urllib.request.Request) -> bytes:
        deadline = time.monotonic() + self.timeout
        try:
            with self._opener.open(request, timeout=self.timeout) as response:
                return self._body(response, deadline)
        except urllib.error.HTTPError as error:
            with error:
                raise QueryError(f"{self.url}: {_refusal(error)}") from None
        except urllib.error.URLError as error:
            raise QueryError(f"{self.url}: {_reason(error.reason)}") from None
        except (OSError, HTTPException) as error:
            raise QueryError(f"{self.url}: {_reason(error)}") from None

    def _body(self, response: Any, deadline: float) -> bytes:
        """Read an answer that may neither last longer than asked nor grow without end."""
        found = bytearray()
        while part := response.read1(CHUNK_BYTES):
            found += part
            if len(found) > MOST_BYTES:
                size = binary_bytes(MOST_BYTES)
                raise QueryError(f"{self.url}: the answer is over {size}; choose less: --match")
            if time.monotonic() > deadline:
                raise QueryError(f"{self.url}: no whole answer within {self.timeout:g} s")
        return bytes(found)


def _split(url: str) -> tuple[str, bytes | None]:
    """The URL without a password, and "user:password" of it or of ~/.netrc."""
    try:
        parts = urllib.parse.urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise AddressError(f"the URL cannot be read: {error}") from None
    if parts.scheme not in {"http", "https"} or not host:
        raise AddressError("give it as http://HOST:PORT or https://HOST:PORT")
    if parts.query or parts.fragment:
        raise AddressError("the URL of the server has no ?query and no #fragment")
    shown = f"[{host}]" if ":" in host else host
    place = shown if port is None else f"{shown}:{port}"
    if not place.isascii() or any(char.isspace() for char in place + parts.path):
        raise AddressError("the URL of the server holds characters that no URL may")
    base = f"{parts.scheme}://{place}{parts.path.rstrip('/')}"
    if parts.username:
        user, password = (
            urllib.parse.unquote(part or "") for part in (parts.username, parts.password)
        )
        return base, f"{user}:{password}".encode()
    return base, _from_netrc(host)


def _from_netrc(host: str) -> bytes | None:
    """Name and password of a host that ~/.netrc names; its "default" is not for any server."""
    named = os.environ.get("NETRC")
    try:
        found = netrc.netrc(named or None)
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        return None
    except (netrc.NetrcParseError, UnicodeDecodeError) as error:
        raise QueryError(f"{named or '~/.netrc'} cannot be read: {error}") from None
    if host not in found.hosts:
        return None
    user, _, password = found.hosts[host]
    return f"{user}:{password}".encode()


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a few redirects; the password stays with the server it was given for."""

    max_redirections = MOST_REDIRECTS

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """Make the next request."""
        before, after = (urllib.parse.urlsplit(url) for url in (req.full_url, newurl))
        if after.scheme not in {"http", "https"} or (before.scheme, after.scheme) == (
            "https",
            "http",
        ):
            raise QueryError(
                f"{before.scheme}://{before.netloc} redirects to {plain(after.scheme, 20)}://"
                f"{plain(after.netloc, 80)}, which is not followed"
            )
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None and (before.scheme, before.netloc) != (after.scheme, after.netloc):
            request.remove_header("Authorization")
        return request


def _opener(context: ssl.SSLContext) -> urllib.request.OpenerDirector:
    """HTTP, HTTPS and proxies of the environment: no file:, no ftp:."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(context=context),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
        _Redirects(),
    ):
        opener.add_handler(handler)
    return opener


def _read_answer(content: bytes, url: str) -> Answer:
    try:
        document = _documents.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise QueryError(f"{url} does not answer like a Prometheus server (/api/v1)") from None
    if document.status != "success" or document.data is None:
        raise QueryError(f"{url}: {_words(document)}")
    if document.data.result_type != "vector":
        raise QueryError(f"{url}: a {plain(document.data.result_type, 20)}, not a vector")
    try:
        series = _series.decode(document.data.result)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise QueryError(f"{url}: the vector cannot be read") from None
    samples = (Sample(one.metric, _number(one.value[1]), one.value[0]) for one in series)
    return Answer(
        tuple(sample for sample in samples if math.isfinite(sample.value)),
        tuple(plain(warning, 200) for warning in document.warnings),
    )


def _number(text: str) -> float:
    """A sample's value; what is no number is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _words(document: _Document) -> str:
    reason = plain(document.error or document.status, 200)
    return f"{plain(document.error_type, 40)}: {reason}" if document.error_type else reason


def _refusal(error: urllib.error.HTTPError) -> str:
    """What an HTTP error means."""
    if error.code == 401:
        return "needs a name and a password: in the URL or in ~/.netrc"
    if error.code == 403:
        return "does not allow this (403)"
    try:
        document = _documents.decode(error.read(ERROR_BYTES))
    except (msgspec.DecodeError, UnicodeDecodeError, OSError, HTTPException):
        return f"answers {error.code} {plain(error.reason or '', 80)}; is this its root URL?"
    return _words(document)


def _reason(error: object) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        why = plain(error.verify_message, 100)
        return f"its certificate is not trusted ({why}); --ca FILE names whom to trust"
    if isinstance(error, TimeoutError):
        return "no answer in time; --timeout gives it longer"
    if isinstance(error, OSError):
        return plain(error.strerror or str(error), 200)
    return plain(str(error), 200)
