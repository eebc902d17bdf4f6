"""A TCP proxy on loopback that delays every byte: a line to a machine far away."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Iterator


@contextlib.contextmanager
def slow_line(port: int, one_way_s: float) -> Iterator[int]:
    """Give the port of a proxy to ``port`` of this machine, which delays both directions by ``one_way_s``."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, port, one_way_s), daemon=True).start()
        yield int(listener.getsockname()[1])
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, port: int, one_way_s: float) -> None:
    with contextlib.suppress(OSError):
        while True:
            near, _ = listener.accept()
            far = socket.create_connection(("127.0.0.1", port))
            for source, target in ((near, far), (far, near)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                parts: queue.Queue[tuple[float, bytes]] = queue.Queue()
                threading.Thread(target=_read, args=(source, parts, one_way_s), daemon=True).start()
                threading.Thread(target=_write, args=(target, parts), daemon=True).start()


def _read(source: socket.socket, parts: queue.Queue[tuple[float, bytes]], one_way_s: float) -> None:
    data = b"?"
    while data:
        try:
            data = source.recv(65536)
        except OSError:
            data = b""
        parts.put((time.monotonic() + one_way_s, data))


def _write(target: socket.socket, parts: queue.Queue[tuple[float, bytes]]) -> None:
    with contextlib.suppress(OSError):
        while True:
            due_s, data = parts.get()
            time.sleep(max(0.0, due_s - time.monotonic()))
            if not data:
                target.shutdown(socket.SHUT_WR)
                return
            target.sendall(data)
