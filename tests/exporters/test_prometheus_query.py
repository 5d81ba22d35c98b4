"""Instant queries against servers of every kind: right ones, slow ones, huge ones, no ones."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from pathlib import Path

import pytest
from fake_prometheus import Asked, answering, vector
from hypothesis import given
from hypothesis import strategies as st

from topsmon.exporters import query
from topsmon.exporters.query import QueryError, Server


@pytest.fixture(autouse=True)
def nobody_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def test_a_vector_is_read_without_what_is_no_number() -> None:
    seen: list[Asked] = []

    def how(asked: Asked) -> None:
        seen.append(asked)
        asked.answer(vector(({"gpu": "0"}, 0.5), ({"gpu": "1"}, "NaN"), ({"gpu": "2"}, "+Inf")))

    with answering(how) as place:
        answer = Server(f"http://{place}/prefix/").instant("up + 1")
    assert [(one.labels, one.value, one.time) for one in answer.samples] == [
        ({"gpu": "0"}, 0.5, 1700000000.5)
    ]
    assert (seen[0].path, seen[0].query) == ("/prefix/api/v1/query", "up + 1")
    assert "Authorization" not in seen[0].headers


def test_warnings_are_passed_on_and_made_plain() -> None:
    with answering(lambda asked: asked.answer(vector(warnings=["partial\x1b[2J"]))) as place:
        assert Server(f"http://{place}").instant("up").warnings == (
            "partial\N{REPLACEMENT CHARACTER}[2J",
        )


def of(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_the_password_of_the_url_is_sent_and_never_said() -> None:
    seen: list[Asked] = []

    def how(asked: Asked) -> None:
        seen.append(asked)
        asked.answer(b"", 503)

    with answering(how) as place:
        server = Server(f"http://ada:s%3Acret@{place}")
        with pytest.raises(QueryError) as caught:
            server.instant("up")
    assert seen[0].headers["Authorization"] == of("ada", "s:cret")
    assert "cret" not in str(caught.value) + server.url


def test_the_password_of_netrc_is_for_the_host_it_names(tmp_path: Path) -> None:
    seen: list[Asked] = []

    def how(asked: Asked) -> None:
        seen.append(asked)
        asked.answer(vector())

    netrc = tmp_path / "netrc"
    with answering(how) as place:
        netrc.write_text("machine 127.0.0.1 login ada password x\n")
        Server(f"http://{place}").instant("up")
        netrc.write_text("machine other login ada password x\ndefault login any password y\n")
        Server(f"http://{place}").instant("up")
    assert [asked.headers.get("Authorization") for asked in seen] == [of("ada", "x"), None]


def test_a_netrc_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text("neither machine nor default\n")
    with pytest.raises(QueryError, match="netrc cannot be read"):
        Server("http://127.0.0.1:9")


def test_a_redirect_is_followed_without_the_password() -> None:
    seen: list[Asked] = []

    def target(asked: Asked) -> None:
        seen.append(asked)
        asked.answer(vector(({}, 1)))

    with answering(target) as there:

        def how(asked: Asked) -> None:
            seen.append(asked)
            asked.answer(b"", 302, Location=f"http://{there}/api/v1/query?query=up")

        with answering(how) as place:
            assert len(Server(f"http://ada:x@{place}").instant("up").samples) == 1
    assert [asked.headers.get("Authorization") for asked in seen] == [of("ada", "x"), None]


def test_a_redirect_on_the_same_server_keeps_the_password() -> None:
    def how(asked: Asked) -> None:
        if asked.path.startswith("/new"):
            known = asked.headers.get("Authorization") == of("ada", "x")
            asked.answer(vector(({}, int(known))))
        else:
            asked.answer(b"", 307, Location="/new/api/v1/query?query=up")

    with answering(how) as place:
        assert Server(f"http://ada:x@{place}").instant("up").samples[0].value == 1


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://host/x", "gopher://x"])
def test_a_redirect_elsewhere_is_not_followed(location: str) -> None:
    with (
        answering(lambda asked: asked.answer(b"", 302, Location=location)) as place,
        pytest.raises(QueryError),
    ):
        Server(f"http://{place}").instant("up")


def test_redirects_in_a_circle_end() -> None:
    count = []

    def how(asked: Asked) -> None:
        count.append(1)
        asked.answer(b"", 302, Location=f"/{len(count)}")

    with answering(how) as place, pytest.raises(QueryError):
        Server(f"http://{place}").instant("up")
    assert len(count) <= 10


def test_tls_is_verified_and_a_ca_can_be_named(tls: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls / "server.pem", tls / "server.key")

    def wrap(socket: object) -> object:
        return context.wrap_socket(socket, server_side=True)  # type: ignore[arg-type]

    with answering(lambda asked: asked.answer(vector(({}, 1))), wrap) as place:
        with pytest.raises(QueryError, match="certificate is not trusted"):
            Server(f"https://{place}").instant("up")
        trusting = Server(f"https://{place}", ca=tls / "ca.pem")
        assert len(trusting.instant("up").samples) == 1


def test_https_is_not_left_for_http(tls: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls / "server.pem", tls / "server.key")

    def wrap(socket: object) -> object:
        return context.wrap_socket(socket, server_side=True)  # type: ignore[arg-type]

    with answering(lambda asked: asked.answer(vector(({}, 1)))) as plain:
        location = f"http://{plain}/"
        with (
            answering(lambda asked: asked.answer(b"", 302, Location=location), wrap) as place,
            pytest.raises(QueryError, match="not followed"),
        ):
            Server(f"https://{place}", ca=tls / "ca.pem").instant("up")


def test_a_ca_file_that_is_none(tls: Path) -> None:
    with pytest.raises(QueryError, match="--ca"):
        Server("https://127.0.0.1", ca=tls / "server.key")
    with pytest.raises(QueryError, match="No such file"):
        Server("https://127.0.0.1", ca=tls / "nowhere.pem")


def test_a_server_that_does_not_answer() -> None:
    go_on = threading.Event()

    def how(asked: Asked) -> None:
        go_on.wait(60)

    with answering(how) as place:
        with pytest.raises(QueryError, match="no answer in time"):
            Server(f"http://{place}", timeout=0.2).instant("up")
        go_on.set()


def test_an_answer_that_trickles_is_given_up() -> None:
    stop = threading.Event()

    def how(asked: Asked) -> None:
        file = asked.begin()
        while not stop.wait(0.02):
            file.write(b" ")

    with answering(how) as place:
        for timeout in (0.3, 3.0, 20.0):  # the answer has begun by then
            with pytest.raises(QueryError) as given_up:
                Server(f"http://{place}", timeout=timeout).instant("up")
            if "no whole answer" in str(given_up.value):
                break
        stop.set()
    assert "no whole answer within" in str(given_up.value)


def test_an_answer_without_end_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "MOST_BYTES", 1 << 16)
    with (
        answering(lambda asked: asked.answer(b" " * (1 << 18))) as place,
        pytest.raises(QueryError, match=r"over .* choose less"),
    ):
        Server(f"http://{place}").instant("up")


def error(kind: str, text: str) -> bytes:
    return json.dumps({"status": "error", "errorType": kind, "error": text}).encode()


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (400, error("bad_data", "parse error\x1b[1m at char 3"), "bad_data: parse error"),
        (422, error("execution", "too many samples"), "execution: too many samples"),
        (503, error("timeout", "query timed out"), "timeout: query timed out"),
        (200, error("timeout", "query timed out"), "timeout: query timed out"),
        (401, b"", "needs a name and a password"),
        (403, b"", "does not allow"),
        (404, b"<html>", "answers 404"),
        (200, b"<html>", "does not answer like a Prometheus server"),
        (200, b"\xff\xfe", "does not answer like a Prometheus server"),
        (200, b'{"status": "success"}', "success"),
        (200, b'{"status":"success","data":{"resultType":"scalar","result":[1,"2"]}}', "a scalar"),
        (200, b'{"status":"success","data":{"resultType":"vector","result":7}}', "cannot be read"),
    ],
)
def test_errors_are_said_in_words(status: int, body: bytes, words: str) -> None:
    with (
        answering(lambda asked: asked.answer(body, status)) as place,
        pytest.raises(QueryError) as caught,
    ):
        Server(f"http://{place}").instant("up")
    assert words in str(caught.value)
    assert str(caught.value).isprintable()


def test_nobody_listens() -> None:
    with answering(lambda asked: None) as place:
        pass
    with pytest.raises(QueryError, match="refused"):
        Server(f"http://{place}").instant("up")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host:9090",
        "file:///etc/passwd",
        "ftp://host",
        "http://",
        "http://h:x",
        "http://h/?a=b",
        "http://h/#x",
        "http://h h",
        "http://[::1",
        "http://h/a b",
        "http://ä",
    ],
)
def test_what_is_no_url_of_a_server(url: str) -> None:
    with pytest.raises(QueryError):
        Server(url)


@given(st.text(max_size=60))
def test_any_url_is_one_or_refused_in_words(url: str) -> None:
    try:
        server = Server(url)
    except QueryError:
        return
    assert server.url.startswith(("http://", "https://"))


@given(st.binary(max_size=200))
def test_any_body_is_a_vector_or_refused_in_words(body: bytes) -> None:
    try:
        answer = query._read_answer(body, "http://x")
    except QueryError:
        return
    assert all(one.value == one.value for one in answer.samples)
