"""A web service on loopback that keeps what it is sent, and answers as a test says."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Receiver:
    """``answers``: the statuses of the next answers, then 200. ``body``: of every answer."""

    url: str = ""
    answers: list[int] = field(default_factory=list)
    body: bytes = b"{}"
    posts: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)

    @property
    def bodies(self) -> list[Any]:
        return [body for _, _, body in self.posts]


@contextlib.contextmanager
def receive() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            receiver.posts.append((self.path, dict(self.headers), body))
            status = receiver.answers.pop(0) if receiver.answers else 200
            self.send_response(status)
            self.send_header("Location", f"{receiver.url}/elsewhere")
            self.send_header("Content-Length", str(len(receiver.body)))
            self.end_headers()
            self.wfile.write(receiver.body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
