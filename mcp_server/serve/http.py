"""The MCP server over HTTP: its addresses, its limits and its stop."""

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import re
import shlex
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import h11
import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from uvicorn.protocols.http.h11_impl import H11Protocol

from mcp_server import __version__
from mcp_server.errors import RunwardError, StateUnusable
from mcp_server.page.routes import Page
from mcp_server.serve.app import build
from mcp_server.serve.connections import (
    ACCEPTED_AT_ONCE,
    ConnectionLimits,
    Connections,
    Listener,
    raise_descriptor_limit,
)
from mcp_server.serve.gateway import IDLE_SESSION_S, LARGEST_BODY, LARGEST_HEAD, MOST_SESSIONS, PATH, RequestGateway
from mcp_server.serve.log_output import LoopErrors, configure_logging
from mcp_server.store.page_servers import announce
from mcp_server.store.state_home import StateHome
from mcp_server.store.tokens import Tokens, token_name
from mcp_server.system.files import write_atomic
from mcp_server.system.ports import HIGHEST_PORT
from mcp_server.tools.support.context import ServerContext

# A connection that sends no complete request head within this time is closed, and one without a token that is idle.
_HEAD_S = 10.0
_MORE_SESSIONS = 100  # which are being opened or ended, beside those that the gateway counts
_STOP_S = 2.7
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_HOST_IS_ADDRESS = re.compile(r"[0-9.]+|.*:.*")
_END_OF_HEAD = re.compile(rb"(?<=\r\n)\r\n")
_LENGTH = re.compile(rb"^content-length[ \t]*:", re.IGNORECASE | re.MULTILINE)
# Bare line feeds, folded lines, bare carriage returns, and lengths that are no number.
_AMBIGUOUS = re.compile(
    rb"(?<!\r)\n|\n[ \t]|\r(?!\n|\Z)|\ncontent-length[ \t]*:(?![ \t]*[0-9]*[ \t]*(\r|\Z))", re.IGNORECASE
)
_LOCAL = ("localhost", "127.0.0.1", "[::1]")


class _Connection(H11Protocol):
    """A connection that must send its request head within 10 s, and that the gateway can ask for its token."""

    registry: Connections
    _deadline: Any = None

    def __init__(self, config: Any, server_state: Any, app_state: dict[str, Any], _loop: Any = None) -> None:
        super().__init__(config, server_state, {**app_state, "connection": self}, _loop)

    @property
    def peer(self) -> str:
        return self.client[0] if self.client else ""

    @property
    def is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def abort(self) -> None:
        self.transport.abort()

    @property
    def is_gone(self) -> bool:
        """Whether the client has gone before its answer was complete."""
        return self.cycle is not None and self.cycle.disconnected

    def prove(self, holder: str | None) -> bool:
        """Note the holder of the token that a request has shown and return whether there is room for the connection."""
        return self.registry.prove(self, holder)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.registry.add(self)
        self._deadline = self.loop.call_later(_HEAD_S, self.transport.close)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._deadline.cancel()
            self.registry.touch(self)
        elif (before is None or before.response_complete) and self._deadline.cancelled():
            self._deadline = self.loop.call_later(_HEAD_S, self.transport.close)

    def handle_events(self) -> None:
        """Refuse a head that a proxy in front may read otherwise: h11 mends such lines, and their request with them."""
        if self.conn.their_state is h11.IDLE:
            head = _END_OF_HEAD.split(self.conn.trailing_data[0], 1)[0]
            if _AMBIGUOUS.search(head) or len(_LENGTH.findall(head)) > 1:
                self.send_400_response("Ambiguous request head.")
                return
        super().handle_events()

    def send_400_response(self, msg: str) -> None:
        """End a connection whose request breaks the protocol, without the gateway's answer to what it was before."""
        with contextlib.suppress(h11.LocalProtocolError):  # an answer has begun already
            super().send_400_response(msg)
        self.transport.close()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.is_idle and not self.transport.is_closing() and not self.registry.is_proven(self):
            self._deadline.cancel()
            self._deadline = self.loop.call_later(_HEAD_S, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        self.registry.discard(self)
        super().connection_lost(exc)
        self.app_state = {}


class _Server(uvicorn.Server):
    """A uvicorn server that a signal stops with exit status 0, within 3 s whatever hangs; all else is status 1."""

    gateway: RequestGateway

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        with asyncio.Runner() as runner:
            runner.get_loop().set_exception_handler(LoopErrors())
            try:
                runner.run(self.serve(sockets))
            except BaseException:
                self._report(traceback.format_exc())
            if not self.should_exit:
                self._report("runward: the server stopped without a signal. Its runs go on.\n")
                os._exit(1)  # tasks and threads of the broken loop could hold an orderly exit up for ever

    def _report(self, text: str) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on SIGINT and SIGTERM without raising the signal again afterwards."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.handle_exit)
        yield

    def handle_exit(self, sig: int, frame: Any) -> None:  # noqa: ARG002 - the signature that uvicorn calls
        """Begin the stop. A hanging worker thread cannot delay it past its limit."""
        signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
        signal.setitimer(signal.ITIMER_REAL, _STOP_S)
        self.should_exit = self.gateway.stopping = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in self.servers:
            listener.close()
        # The SDK logs a warning for every wait that ends here.
        logging.getLogger("mcp").setLevel(logging.ERROR)
        await self.gateway.close()
        await super().shutdown(sockets)


def make_application(
    environ: Mapping[str, str], names: Iterable[str], *, is_page_alone: bool = False
) -> RequestGateway:
    """Return the ASGI application for the state directory that ``environ`` names, with the host names ``names``.

    ``is_page_alone``: without /mcp, and nobody sees the page's data without a session.
    """
    context = ServerContext.of(environ)
    tokens, hosts = Tokens(context.home), frozenset(name.lower() for name in (*_LOCAL, *names))
    page = Page(context, tokens, is_closed=is_page_alone)
    if is_page_alone:
        return RequestGateway(None, tokens, hosts, lambda: 0, page)
    inner = build(environ, context).streamable_http_app(
        streamable_http_path=PATH,
        max_request_body_size=LARGEST_BODY,
        max_sessions=MOST_SESSIONS + _MORE_SESSIONS,
        session_idle_timeout=IDLE_SESSION_S,
        # The gateway has checked Host and Origin.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    return RequestGateway(inner, tokens, hosts, lambda: len(context.open_waits), page)


def serve_http(address: str, *, is_open: bool = False) -> None:
    """Serve over streamable HTTP at ``http://HOST:PORT/mcp`` until SIGINT or SIGTERM.

    Without any token, one is made for this user, in a file and on the terminal; ``is_open`` serves without, on loopback
    alone. RunwardError: the address cannot be used, or other machines could reach it and there are no tokens.
    """
    host, port = _parse(address)
    addresses = _resolve(host, port)
    configure_logging()
    gateway = make_application(os.environ, _host_names(host, os.environ))
    tokens, owner = gateway.tokens, StateHome.of(os.environ).owner(os.environ)
    if not all(ipaddress.ip_address(at[0].partition("%")[0]).is_loopback for _, at in addresses) and not tokens.names:
        raise RunwardError(
            f"{host} can be reached by other machines, and every caller could start any command.",
            "Nothing is served.",
            "Give every agent a token first: runward token add NAME. Or use 127.0.0.1.",
        )
    if is_open and tokens.required:
        raise RunwardError(
            f"--open: {tokens.file} exists, so every request needs a token.",
            "Nothing is served.",
            "Leave --open out; runward token ls lists the names.",
        )
    _run_server(gateway, addresses, address, lambda: _describe_start(address, tokens, owner, is_open=is_open))


def serve_page(port: int, describe: Callable[[str], str]) -> None:
    """Serve the page alone on loopback until SIGINT or SIGTERM; ``describe`` gets its address, for the terminal.

    RunwardError: the port cannot be used.
    """
    configure_logging()
    address = f"127.0.0.1:{port}"
    gateway = make_application(os.environ, _host_names("localhost", os.environ), is_page_alone=True)
    _run_server(gateway, _resolve("127.0.0.1", port), address, lambda: describe(address))


def _run_server(
    gateway: RequestGateway,
    addresses: list[tuple[socket.AddressFamily, Any]],
    address: str,
    describe: Callable[[], str],
) -> None:
    connections = Connections(ConnectionLimits.within(raise_descriptor_limit()))
    sockets = _listen(addresses, address, connections)

    class Connection(_Connection):
        registry = connections

    config = uvicorn.Config(
        gateway,
        http=Connection,
        ws="none",
        lifespan="on",
        loop="asyncio",
        access_log=False,
        log_config=None,
        log_level=logging.ERROR,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=LARGEST_HEAD,
        backlog=ACCEPTED_AT_ONCE,
        # Longer than clients keep an idle connection, so that none is closed just as a client uses it again.
        timeout_keep_alive=75,
        timeout_graceful_shutdown=1,
    )
    server = _Server(config)
    server.gateway = gateway
    print(describe(), file=sys.stderr, flush=True)
    with announce(gateway.page.server.home, address):
        server.run(sockets=sockets)
    signal.setitimer(signal.ITIMER_REAL, 0)


def _describe_start(address: str, tokens: Tokens, owner: str, *, is_open: bool) -> str:
    """Return what the operator reads at the start; make a token where none exists and none is declined."""
    url = f"http://{address}{PATH}"
    access = "no tokens: open to all users of this machine" if is_open else f"tokens: {len(tokens.names) or 1}"
    lines = [f"runward {__version__} at {url} ({access})"]
    if not is_open and not tokens.names:
        name = token_name(owner)
        file, token = _make_first_token(tokens, name)
        lines += [
            f"A token for {name} is in {file} (mode 0600). Remove that file once it is used.",
            # What a service writes is in its journal, which others may read, for years.
            *([f"  {token}"] if sys.stderr.isatty() else []),
            f"  export RUNWARD_TOKEN=$(cat {shlex.quote(str(file))})",
            f'  claude mcp add --transport http runward {url} --header "Authorization: Bearer $RUNWARD_TOKEN"',
            "More agents: runward token add NAME. Lost: runward token rm NAME, then add it. Without tokens: --open.",
        ]
    return "\n".join(lines)


def _make_first_token(tokens: Tokens, name: str) -> tuple[Path, str]:
    """Return the file that has the new token ``name``, for its owner alone, and the token. StateUnusable: none."""
    token, file = tokens.add(name), tokens.file.with_name(f"token-{name}")
    try:
        write_atomic(file, f"{token}\n".encode())
    except OSError as error:
        tokens.remove(name)
        raise StateUnusable(file, str(error.strerror)) from error
    return file, token


def _parse(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not port.isascii() or not port.isdigit() or not 0 < int(port) <= HIGHEST_PORT or (":" in host and bare == host):
        remedy = "Use HOST:PORT, e.g. 127.0.0.1:8765 or [::1]:8765."
        raise RunwardError(f"Not an address: {address!r}.", "Nothing is served.", remedy)
    return bare or "127.0.0.1", int(port)


def _resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, Any]]:
    try:
        records = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise RunwardError(f"Not an address of this machine: {host!r} ({error}).", "Nothing is served.") from error
    return list(dict.fromkeys((family, at) for family, _, _, _, at in records))


def _listen(
    addresses: list[tuple[socket.AddressFamily, Any]], address: str, connections: Connections
) -> list[socket.socket]:
    """Listen at every address that this machine has: containers often name ::1 without it. RunwardError: none."""
    listeners: list[socket.socket] = []
    for family, at in addresses:
        try:
            listeners.append(_listener(family, at, connections))
        except OSError as error:
            if error.errno in _NOT_HERE and (listeners or at != addresses[-1][1]):
                continue
            for listener in listeners:
                listener.close()
            cause = f"Cannot listen at {address}: {error.strerror}."
            raise RunwardError(cause, "Nothing is served.", "Use another port.") from error
    return listeners


def _listener(family: socket.AddressFamily, at: Any, connections: Connections) -> socket.socket:
    # Named as TCP: asyncio disables Nagle's delay only then, and an answer in two writes took 40 ms longer.
    listener = Listener(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.connections = connections
    try:
        # Closing connections of a former server do not hold the port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(at)
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener


def _host_names(host: str, environ: Mapping[str, str]) -> list[str]:
    configured = ServerContext.of(environ).home.read_config().http_hosts
    own = [] if _HOST_IS_ADDRESS.fullmatch(host) else [host]  # the gateway accepts the address of arrival itself
    return [*own, socket.gethostname(), *configured]
