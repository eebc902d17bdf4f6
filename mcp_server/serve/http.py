"""The server over HTTP: where it listens, for whom, and a stop that waits for nobody."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from uvicorn.protocols.http.h11_impl import H11Protocol

from mcp_server import __version__
from mcp_server.errors import RunwardError
from mcp_server.serve.app import build
from mcp_server.serve.gateway import LARGEST_BODY, LARGEST_HEAD, PATH, Door
from mcp_server.store.tokens import Tokens
from mcp_server.tools.context import ServerContext

# Whoever does not say in this time what it wants holds a connection for nothing.
_HEAD_S = 10.0
# Each agent has two or three; a process may hold 1,024 files.
_MOST_CONNECTIONS = 800
_MOST_SESSIONS = 1000
_STOP_S = 2.7
_HIGHEST_PORT = 65535
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_HOST_IS_ADDRESS = re.compile(r"[0-9.]+|.*:.*")
_LOCAL = ("localhost", "127.0.0.1", "[::1]")


class _Connection(H11Protocol):
    """A connection that must have said what it wants within 10 s; uvicorn alone would wait for ever."""

    _late: Any = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._late = self.loop.call_later(_HEAD_S, self.transport.close)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._late.cancel()
        elif (before is None or before.response_complete) and self._late.cancelled():
            self._late = self.loop.call_later(_HEAD_S, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._late.cancel()
        super().connection_lost(exc)


class _Server(uvicorn.Server):
    """uvicorn that is told to stop by a signal, exits with 0, and is gone in 3 s whatever hangs."""

    door: Door

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on SIGINT and SIGTERM, without sending the signal again to oneself afterwards."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.handle_exit)
        yield

    def handle_exit(self, sig: int, frame: Any) -> None:  # noqa: ARG002 - as uvicorn calls it
        """Note that it is time to stop; a worker thread that hangs cannot hold that up."""
        signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
        signal.setitimer(signal.ITIMER_REAL, _STOP_S)
        self.should_exit = self.door.stopping = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, let go of what is open, and wait for the rest."""
        for listener in self.servers:
            listener.close()
        # The SDK warns of every wait whose client is let go of here.
        logging.getLogger("mcp").setLevel(logging.ERROR)
        await self.door.close()
        await super().shutdown(sockets)


def application(environ: Mapping[str, str], names: Iterable[str]) -> Door:
    """Return the ASGI application for the state directory that ``environ`` names, called by ``names`` or an address."""
    box = ServerContext.of(environ)
    inner = build(environ, box).streamable_http_app(
        streamable_http_path=PATH,
        max_request_body_size=LARGEST_BODY,
        max_sessions=_MOST_SESSIONS,
        # The door has looked at Host and Origin.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    return Door(inner, Tokens(box.home), frozenset(name.lower() for name in (*_LOCAL, *names)), lambda: box.waits)


def serve_http(address: str) -> None:
    """Serve over streamable HTTP at ``http://HOST:PORT/mcp`` until SIGINT or SIGTERM.

    Raises:
        RunwardError: the address cannot be listened on, or others could reach it and there are no tokens.
        TokensUnusable: the file of tokens is open to others.
    """
    host, port = _parsed(address)
    addresses = _resolved(host, port)
    door = application(os.environ, _names(host, os.environ))
    if not all(_is_loopback(at) for _, at in addresses) and not door.tokens.names:
        raise RunwardError(
            f"{host} can be reached by others, who could start anything. Nothing is served. Give every agent a "
            "token first: runward token add NAME. Or use 127.0.0.1."
        )
    told = f"tokens: {len(door.tokens.names)}" if door.tokens.required else "no tokens: open to all on this machine"
    sockets = _listeners(addresses, address)
    config = uvicorn.Config(
        door,
        http=_Connection,
        ws="none",
        lifespan="on",
        loop="asyncio",
        access_log=False,
        log_level=logging.ERROR,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=LARGEST_HEAD,
        limit_concurrency=_MOST_CONNECTIONS,
        # Longer than clients keep a connection, so that none is closed just as it is used again.
        timeout_keep_alive=75,
        timeout_graceful_shutdown=1,
    )
    server = _Server(config)
    server.door = door
    print(f"runward {__version__} at http://{address}{PATH} ({told})", file=sys.stderr, flush=True)
    server.run(sockets=sockets)
    signal.setitimer(signal.ITIMER_REAL, 0)


def _is_loopback(at: Any) -> bool:
    return ipaddress.ip_address(at[0].partition("%")[0]).is_loopback


def _parsed(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not port.isascii() or not port.isdigit() or not 0 < int(port) <= _HIGHEST_PORT or (":" in host and bare == host):
        raise RunwardError(
            f"Not an address: {address!r}. Nothing is served. Use HOST:PORT, e.g. 127.0.0.1:8765 or [::1]:8765."
        )
    return bare or "127.0.0.1", int(port)


def _resolved(host: str, port: int) -> list[tuple[socket.AddressFamily, Any]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise RunwardError(f"Not an address of this machine: {host!r} ({error}). Nothing is served.") from error
    return list(dict.fromkeys((family, at) for family, _, _, _, at in found))


def _listeners(addresses: list[tuple[socket.AddressFamily, Any]], address: str) -> list[socket.socket]:
    """Listen at all addresses of a name that this machine has: containers often know localhost's second by name only.

    Raises:
        RunwardError: one is in use, or it has none of them.
    """
    found: list[socket.socket] = []
    for family, at in addresses:
        try:
            found.append(_listener(family, at))
        except OSError as error:
            if error.errno in _NOT_HERE and (found or at != addresses[-1][1]):
                continue
            for listener in found:
                listener.close()
            raise RunwardError(
                f"Cannot listen at {address}: {error.strerror}. Nothing is served. Use another port."
            ) from error
    return found


def _listener(family: socket.AddressFamily, at: Any) -> socket.socket:
    # Named as TCP, since asyncio turns Nagle's delay off only then: an answer in two writes took 40 ms longer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # What is left of the last server's connections does not hold the port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(at)
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener


def _names(host: str, environ: Mapping[str, str]) -> list[str]:
    """Return the names by which this server may be called beside its addresses."""
    configured = ServerContext.of(environ).home.config().http_hosts
    named = [] if _HOST_IS_ADDRESS.fullmatch(host) else [host]  # of addresses only the one that a request came in by
    return [*named, socket.gethostname(), *configured]
