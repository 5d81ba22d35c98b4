"""The HTTP server: addresses, passwords, TLS, clients that do nothing."""

from __future__ import annotations

import base64
import contextlib
import http.client
import ipaddress
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from exported_machines import NOW, sample, state
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from topsmon.exporters import server
from topsmon.exporters.address import DEFAULT, Address, parse
from topsmon.exporters.basic_auth import is_allowed, read_credentials
from topsmon.exporters.prometheus import Exported, families, registry_of

LOOPBACK = Address("127.0.0.1", 0)


@contextlib.contextmanager
def serving(
    credentials: bytes | None = None, tls: ssl.SSLContext | None = None
) -> Iterator[server.MetricsServer]:
    exported = Exported(state(sample(power_watts=655.0)))
    registry = registry_of(lambda: families(exported, NOW))
    opened = server.MetricsServer(LOOPBACK, server.application(registry, credentials), tls)
    opened.start()
    try:
        yield opened
    finally:
        opened.stop()


def get(url: str, context: ssl.SSLContext | None = None, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(
        url, headers={k.replace("_", "-"): v for k, v in headers.items()}
    )
    try:
        with urllib.request.urlopen(request, timeout=60, context=context) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def trusting(tls: Path, *, client: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(tls / "ca.pem"))
    if client:
        context.load_cert_chain(tls / "client.pem", tls / "client.key")
    return context


def test_metrics_are_at_their_usual_path_and_nowhere_else() -> None:
    with serving() as opened:
        status, text = get(opened.url)
        assert status == 200
        assert "topsmon_gpu_power_watts{" in text
        assert get(opened.url.removesuffix("metrics"))[0] == 404
        assert get(f"{opened.url}?name[]=topsmon_build_info")[0] == 200


def test_head_is_answered_without_a_body() -> None:
    with serving() as opened:
        request = urllib.request.Request(opened.url, method="HEAD")
        with urllib.request.urlopen(request, timeout=60) as response:
            assert response.status == 200
            assert response.headers["Content-Type"].startswith("text/plain")
            assert response.read() == b""


def test_open_metrics_is_spoken_to_who_asks() -> None:
    with serving() as opened:
        _, text = get(opened.url, Accept="application/openmetrics-text; version=1.0.0")
    names = {family.name for family in text_string_to_metric_families(text)}
    assert {"topsmon_gpu", "topsmon_gpu_power_watts"} <= names
    assert text.endswith("# EOF\n")


def test_a_scrape_that_goes_wrong_ends_neither_server_nor_exporter() -> None:
    answers = iter([RuntimeError("secret of the machine"), []])

    def read() -> list[object]:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return list(answer)

    opened = server.MetricsServer(LOOPBACK, server.application(registry_of(read)), None)  # type: ignore[arg-type]
    opened.start()
    try:
        status, text = get(opened.url)
        assert (status, "secret" in text) == (503, False)
        assert get(opened.url)[0] == 200
    finally:
        opened.stop()


def basic(words: str) -> str:
    return "Basic " + base64.b64encode(words.encode()).decode()


def test_a_password_is_asked_for() -> None:
    with serving(b"prometheus:s3cret:more") as opened:
        assert get(opened.url)[0] == 401
        assert get(opened.url, Authorization=basic("prometheus:wrong"))[0] == 401
        assert get(opened.url, Authorization="Bearer s3cret")[0] == 401
        status, text = get(opened.url, Authorization=basic("prometheus:s3cret:more"))
        assert (status, "topsmon_gpu_power_watts" in text) == (200, True)


@given(st.text(max_size=40))
def test_no_other_header_opens(header: str) -> None:
    assert not is_allowed(header, b"user:password")
    assert not is_allowed(basic(header), b"user:password") or header == "user:password"


def test_a_password_file_holds_one_line_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "auth"
    path.write_text("user:pass word\n")
    path.chmod(0o600)
    assert read_credentials(path) == b"user:pass word"
    path.chmod(0o644)
    with pytest.raises(ValueError, match="chmod 600"):
        read_credentials(path)


@pytest.mark.parametrize("content", ["", "user", "user:", ":pass", "a:b\nc:d\n", "a:" + "b" * 5000])
def test_a_password_file_that_holds_something_else(tmp_path: Path, content: str) -> None:
    path = tmp_path / "auth"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(ValueError, match="USER:PASSWORD"):
        read_credentials(path)


def test_https_with_the_servers_certificate(tls: Path) -> None:
    with serving(tls=server.Tls(tls / "server.pem", tls / "server.key").context()) as opened:
        assert opened.url.startswith("https://")
        assert get(opened.url, trusting(tls))[0] == 200
        with pytest.raises(urllib.error.URLError, match="certificate verify failed"):
            get(opened.url)


def test_only_clients_of_the_ca_come_in(tls: Path) -> None:
    context = server.Tls(tls / "server.pem", tls / "server.key", tls / "ca.pem").context()
    with serving(tls=context) as opened:
        assert get(opened.url, trusting(tls, client=True))[0] == 200
        with pytest.raises((OSError, http.client.HTTPException)):
            get(opened.url, trusting(tls))


def test_a_client_that_never_shakes_hands_stops_nobody(tls: Path) -> None:
    context = server.Tls(tls / "server.pem", tls / "server.key").context()
    with serving(tls=context) as opened, socket.create_connection(opened.address):
        assert get(opened.url, trusting(tls))[0] == 200


def test_connections_beyond_the_limit_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_CLIENTS", 2)
    with serving() as opened, contextlib.ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection(opened.address)) for _ in range(3)]
        idle[2].settimeout(60)
        assert idle[2].recv(1) == b""
        idle[0].settimeout(0.05)
        with pytest.raises(TimeoutError):
            idle[0].recv(1)


def test_the_port_is_free_again_after_a_stop() -> None:
    with serving() as opened:
        place = opened.address
        with pytest.raises(OSError, match="in use"):
            server.MetricsServer(place, server.application(registry_of(list)), None)
    server.MetricsServer(place, server.application(registry_of(list)), None)._server.server_close()


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("", "127.0.0.1", DEFAULT.port),
        ("9000", "127.0.0.1", 9000),
        (":9000", "127.0.0.1", 9000),
        ("0.0.0.0", "0.0.0.0", DEFAULT.port),
        ("0.0.0.0:80", "0.0.0.0", 80),
        ("node7.lan:80", "node7.lan", 80),
        ("::1", "::1", DEFAULT.port),
        ("[::1]:80", "::1", 80),
        ("[::]", "::", DEFAULT.port),
    ],
)
def test_addresses(text: str, host: str, port: int) -> None:
    assert parse(text) == Address(host, port)


@pytest.mark.parametrize(
    "text", ["a b", "host:http", "host:70000", "1:2:3", "[node7]:80", "-x:1", "[::1]80", "http://x"]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        parse(text)


@given(st.ip_addresses(), st.integers(0, 65535))
def test_an_address_is_read_as_it_is_written(
    ip: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int
) -> None:
    address = Address(str(ip), port)
    assert parse(str(address)) == address
    assert address.loopback == ip.is_loopback


@given(st.text(max_size=30))
def test_any_text_is_an_address_or_refused_in_words(text: str) -> None:
    try:
        address = parse(text)
    except ValueError:
        return
    assert 0 <= address.port <= 65535
    assert address.host
