"""A web service on loopback that answers a byte at a time, right in the end."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from socketserver import StreamRequestHandler, ThreadingTCPServer

# What comes at once, and what comes slowly: within a body, a head, an error, and before an answer.
SLOW_ANSWERS: dict[str, tuple[str, Sequence[str]]] = {
    "body": ('HTTP/1.1 200 OK\r\n\r\n{"status": "RUNNING"}', " " * 100),
    "head": ("HTTP/1.1 200 OK\r\n", [*["X: 1\r\n"] * 90, '\r\n{"status": "RUNNING"}']),
    "error": ("HTTP/1.1 500 No\r\n\r\nbad", " " * 100),
    "continue": ("", [*["HTTP/1.1 100 Continue\r\n\r\n"] * 90, 'HTTP/1.1 200 OK\r\n\r\n{"status": "RUNNING"}']),
}


class _Handler(StreamRequestHandler):
    def handle(self) -> None:
        while self.rfile.readline().strip():
            pass
        beginning, slow = SLOW_ANSWERS[self.server.answer]  # type: ignore[attr-defined]
        with contextlib.suppress(OSError):
            for piece in (beginning, *slow):
                self.wfile.write(piece.encode())
                time.sleep(0.02)


@contextlib.contextmanager
def answer_slowly(answer: str) -> Iterator[str]:
    """Give the address of a service that answers with the slow answer of that name."""
    with ThreadingTCPServer(("127.0.0.1", 0), _Handler) as server:
        server.daemon_threads, server.answer = True, answer  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
