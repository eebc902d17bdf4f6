"""A server of HTTP on loopback for scripted models: it answers every POST as a function of the JSON that it got."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

JSON, EVENTS = "application/json", "text/event-stream"


@contextlib.contextmanager
def serve_posts(answer: Callable[[str, dict[str, Any]], tuple[bytes, str]], to_get: bytes) -> Iterator[str]:
    """Serve until the block ends; yield the address.

    ``answer`` takes path and body of a POST and returns data and content type; ``to_get`` answers every GET.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - of the base class
            """Write nothing."""

        def do_GET(self) -> None:
            self._send(to_get, JSON)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
            self._send(*answer(self.path, body))

        def _send(self, data: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            with contextlib.suppress(OSError):  # a client that has gone
                self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
