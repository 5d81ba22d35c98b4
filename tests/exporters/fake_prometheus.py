"""An HTTP server that answers as a test says."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


class Asked:
    """One request: its path, its query, its headers; and how to answer it."""

    def __init__(self, handler: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(handler.path)
        self.path = parts.path
        self.query = parse_qs(parts.query).get("query", [""])[0]
        self.headers = dict(handler.headers)
        self._handler = handler

    def answer(self, body: bytes, status: int = 200, **headers: str) -> None:
        self._handler.send_response(status)
        for name, value in headers.items():
            self._handler.send_header(name, value)
        self._handler.send_header("Content-Length", str(len(body)))
        self._handler.end_headers()
        self._handler.wfile.write(body)

    def begin(self) -> Any:
        """Begin an answer without an end; returns where to write it."""
        self._handler.send_response(200)
        self._handler.end_headers()
        return self._handler.wfile


@contextlib.contextmanager
def answering(
    how: Callable[[Asked], None], wrap: Callable[[Any], Any] | None = None
) -> Iterator[str]:
    """Serve while the context lasts; gives the URL without a scheme's credentials."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                how(Asked(self))

        def log_message(self, *words: object) -> None:
            del words

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if wrap is not None:
        server.socket = wrap(server.socket)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def vector(*series: tuple[dict[str, str], object], **more: object) -> bytes:
    """A successful answer of an instant query."""
    result = [{"metric": labels, "value": [1700000000.5, str(value)]} for labels, value in series]
    data = {"resultType": "vector", "result": result}
    return json.dumps({"status": "success", "data": data, **more}).encode()
