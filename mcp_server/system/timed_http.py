"""HTTP whose time limit is one of the whole answer, however slowly its bytes come. Follows no redirect."""

from __future__ import annotations

import http.client
import io
import socket
import time
import urllib.request
from typing import Any

_USUAL_S = 2.0  # of a socket without a limit of its own


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A server that sends its callers elsewhere is refused: a token would go along."""

    def redirect_request(self, *_: Any) -> None:
        """Follow nothing."""


class _TimedReader(io.RawIOBase):
    """Reads a socket up to a moment, however slowly bytes come: the limit of a socket is one of each of its reads."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._raw = sock, sock.makefile("rb", buffering=0)
        self.renew(sock.gettimeout() or _USUAL_S)

    def renew(self, seconds: float) -> None:
        """Read for so long from now on."""
        self._until_s = time.monotonic() + seconds

    def readable(self) -> bool:
        """Return that it is."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Read what is there, or wait for it."""
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._sock.settimeout(left_s)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        """Close what the socket has for this reader."""
        self._raw.close()
        super().close()


class TimedResponse(http.client.HTTPResponse):
    """An answer that comes whole within the time limit of its request, or not at all."""

    def __init__(self, sock: socket.socket, *args: Any, **more: Any) -> None:
        super().__init__(sock, *args, **more)
        self.reader = _TimedReader(sock)
        self.fp.close()
        self.fp = io.BufferedReader(self.reader)


class _Connection(http.client.HTTPConnection):
    response_class = TimedResponse


class _SecureConnection(http.client.HTTPSConnection):
    response_class = TimedResponse


class _Handler(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Connection, req)


class _SecureHandler(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_SecureConnection, req)


def build_timed_opener(*handlers: urllib.request.BaseHandler) -> urllib.request.OpenerDirector:
    """Return an opener whose ``timeout`` bounds the answer as a whole: head, body, and what comes before them."""
    return urllib.request.build_opener(*handlers, _Handler(), _SecureHandler(), _NoRedirects())
