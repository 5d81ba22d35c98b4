"""The HTTP server that Prometheus scrapes: prometheus_client's own WSGI application behind a server
that bounds what a client can take, and with TLS and a password where they are asked for.

prometheus_client's `start_http_server` shakes hands in the thread that accepts, so that one silent
client would stop all scrapes, and knows no passwords.
"""

from __future__ import annotations

import socket
import socketserver
import ssl
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CONTENT_TYPE_LATEST, make_wsgi_app
from prometheus_client.registry import CollectorRegistry

from topsmon.exporters.address import Address
from topsmon.exporters.basic_auth import is_allowed

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

CLIENT_SECONDS = 10.0
"""A client that says nothing for so long is dropped."""
MOST_CLIENTS = 32
"""Connections at a time; what is above is closed at once."""
POLL_SECONDS = 0.1
"""How long `stop` may take."""
REALM = 'Basic realm="topsmon", charset="UTF-8"'
METRICS_TEXT = ("Content-Type", CONTENT_TYPE_LATEST)
TEXT = ("Content-Type", "text/plain; charset=utf-8")


@dataclass(frozen=True)
class Tls:
    """Certificate and key of the server; with `client_ca` only clients that it has signed."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def context(self) -> ssl.SSLContext:
        """Load the files. OSError and ssl.SSLError (an OSError too) as they come."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.certificate, self.key)
        if self.client_ca is not None:
            context.load_verify_locations(self.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def application(registry: CollectorRegistry, credentials: bytes | None = None) -> WSGIApplication:
    """The WSGI application: /metrics, with a password if there is one."""
    metrics = make_wsgi_app(registry)

    def answer(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if credentials is not None and not is_allowed(
            environ.get("HTTP_AUTHORIZATION"), credentials
        ):
            start("401 Unauthorized", [TEXT, ("WWW-Authenticate", REALM)])
            return [b"a name and a password are needed\n"]
        if environ.get("PATH_INFO") != "/metrics":
            start("404 Not Found", [TEXT])
            return [b"topsmon: the metrics are at /metrics\n"]
        if environ.get("REQUEST_METHOD") == "HEAD":
            start("200 OK", [METRICS_TEXT])
            return []
        environ["QUERY_STRING"] = ""  # name[]= would ask for a filter that there is none of
        try:
            found: Iterable[bytes] = metrics(environ, start)
        except Exception as error:  # noqa: BLE001  one bad scrape must not end the exporter
            start("503 Service Unavailable", [TEXT])
            return [f"topsmon: no metrics now: {type(error).__name__}\n".encode()]
        return found

    return answer


class MetricsServer:
    """Serves on its own threads from `start` to `stop`."""

    def __init__(self, address: Address, app: WSGIApplication, tls: ssl.SSLContext | None) -> None:
        """Take the port. OSError: it cannot be had."""
        self._server = _Server(address, tls)
        self._server.set_app(app)
        self.address = Address(address.host, self._server.server_address[1])
        self.url = f"{'http' if tls is None else 'https'}://{self.address}/metrics"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(POLL_SECONDS,), daemon=True
        )

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Give the port back; answers under way are not waited for."""
        self._server.shutdown()
        self._server.server_close()


class _Handler(WSGIRequestHandler):
    timeout = CLIENT_SECONDS

    def address_string(self) -> str:
        """The client's address as it is: no name is looked up."""
        return str(self.client_address[0])

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name is inherited
        """Scrapes are not logged."""


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: Address, tls: ssl.SSLContext | None) -> None:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        self.address_family, _, _, _, place = found[0]
        self._tls = tls
        self._places = threading.BoundedSemaphore(MOST_CLIENTS)
        super().__init__((str(place[0]), int(place[1])), _Handler)

    def server_bind(self) -> None:
        """Bind without asking a name server who we are, as the base class does."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept; the TLS handshake follows in the client's own thread, at its first byte."""
        client, address = super().get_request()
        if self._tls is not None:
            client = self._tls.wrap_socket(client, server_side=True, do_handshake_on_connect=False)
        return client, address

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own while there is a place."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one client."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away, or speaks no TLS, is none of our troubles."""
