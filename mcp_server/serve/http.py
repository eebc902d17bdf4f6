"""The MCP server over HTTP: its addresses, its limits and its stop."""

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
from mcp_server.serve.gateway import LARGEST_BODY, LARGEST_HEAD, PATH, RequestGateway
from mcp_server.store.tokens import Tokens
from mcp_server.system.ports import HIGHEST_PORT
from mcp_server.tools.context import ServerContext

# A connection that sends no complete request head within this time is closed.
_HEAD_S = 10.0
# An agent has two or three connections; a process may have 1,024 open files.
_MOST_CONNECTIONS = 800
_MOST_SESSIONS = 1000
_STOP_S = 2.7
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_HOST_IS_ADDRESS = re.compile(r"[0-9.]+|.*:.*")
_LOCAL = ("localhost", "127.0.0.1", "[::1]")


class _Connection(H11Protocol):
    """A connection that must send its request head within 10 s; uvicorn alone would wait for ever."""

    _deadline: Any = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._deadline = self.loop.call_later(_HEAD_S, self.transport.close)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._deadline.cancel()
        elif (before is None or before.response_complete) and self._deadline.cancelled():
            self._deadline = self.loop.call_later(_HEAD_S, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        super().connection_lost(exc)


class _Server(uvicorn.Server):
    """A uvicorn server that a signal stops with exit status 0, within 3 s whatever hangs."""

    gateway: RequestGateway

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on SIGINT and SIGTERM without raising the signal again afterwards."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.handle_exit)
        yield

    def handle_exit(self, sig: int, frame: Any) -> None:  # noqa: ARG002 - the signature that uvicorn calls
        """Begin the stop; a hanging worker thread cannot delay it past its limit."""
        signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
        signal.setitimer(signal.ITIMER_REAL, _STOP_S)
        self.should_exit = self.gateway.stopping = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, end open requests, and wait for the rest."""
        for listener in self.servers:
            listener.close()
        # The SDK logs a warning for every wait that ends here.
        logging.getLogger("mcp").setLevel(logging.ERROR)
        await self.gateway.close()
        await super().shutdown(sockets)


def make_application(environ: Mapping[str, str], names: Iterable[str]) -> RequestGateway:
    """Return the ASGI application for the state directory that ``environ`` names, with the host names ``names``."""
    context = ServerContext.of(environ)
    inner = build(environ, context).streamable_http_app(
        streamable_http_path=PATH,
        max_request_body_size=LARGEST_BODY,
        max_sessions=_MOST_SESSIONS,
        # The gateway has checked Host and Origin.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    hosts = frozenset(name.lower() for name in (*_LOCAL, *names))
    return RequestGateway(inner, Tokens(context.home), hosts, lambda: context.waits)


def serve_http(address: str) -> None:
    """Serve over streamable HTTP at ``http://HOST:PORT/mcp`` until SIGINT or SIGTERM.

    Raises:
        RunwardError: the address cannot be used, or other machines could reach it and there are no tokens.
        TokensUnusable: other users can read the token file.
    """
    host, port = _parse(address)
    addresses = _resolve(host, port)
    gateway = make_application(os.environ, _host_names(host, os.environ))
    tokens = gateway.tokens
    if not all(_is_loopback(address_) for _, address_ in addresses) and not tokens.names:
        raise RunwardError(
            f"{host} can be reached by other machines, and every caller could start any command.",
            "Nothing is served.",
            "Give every agent a token first: runward token add NAME. Or use 127.0.0.1.",
        )
    access = f"tokens: {len(tokens.names)}" if tokens.required else "no tokens: open to all users of this machine"
    sockets = _listen(addresses, address)
    config = uvicorn.Config(
        gateway,
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
        # Longer than clients keep an idle connection, so that none is closed just as a client uses it again.
        timeout_keep_alive=75,
        timeout_graceful_shutdown=1,
    )
    server = _Server(config)
    server.gateway = gateway
    print(f"runward {__version__} at http://{address}{PATH} ({access})", file=sys.stderr, flush=True)
    server.run(sockets=sockets)
    signal.setitimer(signal.ITIMER_REAL, 0)


def _is_loopback(at: Any) -> bool:
    return ipaddress.ip_address(at[0].partition("%")[0]).is_loopback


def _parse(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not port.isascii() or not port.isdigit() or not 0 < int(port) <= HIGHEST_PORT or (":" in host and bare == host):
        raise RunwardError(
            f"Not an address: {address!r}.", "Nothing is served.", "Use HOST:PORT, e.g. 127.0.0.1:8765 or [::1]:8765."
        )
    return bare or "127.0.0.1", int(port)


def _resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, Any]]:
    try:
        records = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise RunwardError(f"Not an address of this machine: {host!r} ({error}).", "Nothing is served.") from error
    return list(dict.fromkeys((family, at) for family, _, _, _, at in records))


def _listen(addresses: list[tuple[socket.AddressFamily, Any]], address: str) -> list[socket.socket]:
    """Listen at every address of a name that this machine has; containers often name ::1 without having it.

    Raises:
        RunwardError: an address is in use, or the machine has none of them.
    """
    listeners: list[socket.socket] = []
    for family, at in addresses:
        try:
            listeners.append(_listener(family, at))
        except OSError as error:
            if error.errno in _NOT_HERE and (listeners or at != addresses[-1][1]):
                continue
            for listener in listeners:
                listener.close()
            raise RunwardError(
                f"Cannot listen at {address}: {error.strerror}.", "Nothing is served.", "Use another port."
            ) from error
    return listeners


def _listener(family: socket.AddressFamily, at: Any) -> socket.socket:
    # Named as TCP: asyncio disables Nagle's delay only then, and an answer in two writes took 40 ms longer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # Closing connections of a former server do not hold the port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(at)
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener


def _host_names(host: str, environ: Mapping[str, str]) -> list[str]:
    """Return the host names that requests may use, besides this machine's addresses."""
    configured = ServerContext.of(environ).home.read_config().http_hosts
    own = [] if _HOST_IS_ADDRESS.fullmatch(host) else [host]  # the gateway accepts the address of arrival itself
    return [*own, socket.gethostname(), *configured]
