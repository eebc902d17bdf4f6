"""A server over HTTP in a sandbox of its own, real clients of it, and bytes sent to it."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

from mcp_server.store.state_home import StateHome
from mcp_server.store.tokens import Tokens
from tests.support import hostile_requests, warm_start
from tests.support.ports import free_port
from tests.support.sandbox import COLD, Agent, Sandbox, until


@dataclass
class Service:
    """A server over HTTP in a sandbox of its own."""

    sandbox: Sandbox
    port: int
    process: subprocess.Popen[str]
    host: str = "127.0.0.1"

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/mcp"

    @property
    def log(self) -> Path:
        return self.sandbox.path / "server.log"

    @contextlib.asynccontextmanager
    async def agent(
        self, token: str | None = None, *, legacy: bool = False, elicit: Any = None, extensions: Any = None
    ) -> AsyncIterator[Agent]:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(headers=headers, timeout=90) as http:
            transport = streamable_http_client(self.url, http_client=http)
            mode = "legacy" if legacy else "auto"
            async with Client(transport, mode=mode, elicitation_callback=elicit, extensions=extensions) as client:
                yield Agent(client)

    def send(self, data: bytes, timeout_s: float = 10) -> tuple[int, bytes]:
        """Send bytes and return the status and all that came back; a connection that was cut says status 0."""
        told = b""
        with socket.create_connection((self.host.strip("[]"), self.port), timeout=timeout_s) as connection:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(data)
            with contextlib.suppress(ConnectionResetError):
                while not _whole(told) and (part := connection.recv(1 << 16)):
                    told += part
        return int(told.split(b" ", 2)[1]) if told.startswith(b"HTTP/1.1 ") else 0, told

    def open_session(self, token: str) -> str:
        """Open a session of the older protocol and return its id."""
        request = hostile_requests.request(hostile_requests.INITIALIZE, host="localhost")
        status, told = self.send(request.replace(b"{alice}", token.encode()))
        assert status == 200, told
        lines = (line.partition(b":") for line in told.split(b"\r\n"))
        return next(value.strip().decode() for name, _, value in lines if name.lower() == b"mcp-session-id")

    def health(self) -> dict[str, Any]:
        status, told = self.send(hostile_requests.request(line="GET /healthz HTTP/1.1", token=None, host="localhost"))
        assert status == 200, told
        health: dict[str, Any] = json.loads(told.partition(b"\r\n\r\n")[2])
        return health

    def stop(self, number: signal.Signals = signal.SIGTERM) -> float:
        """Return how long it took to stop."""
        begun_s = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(10)
        return time.monotonic() - begun_s


def _whole(told: bytes) -> bool:
    head, separator, body = told.partition(b"\r\n\r\n")
    head = head.lower()
    if b"transfer-encoding: chunked" in head:
        return body.endswith(b"0\r\n\r\n")
    lengths = [int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length:")]
    return bool(separator) and len(body) >= sum(lengths)


@contextlib.contextmanager
def serve(
    sandbox: Sandbox,
    host: str = "127.0.0.1",
    port: int | None = None,
    *,
    words: Sequence[str] | None = None,
    descriptors: int | None = None,
    cold: bool = False,
) -> Iterator[Service]:
    """Serve over HTTP until the block ends; without tokens, open to all unless ``words`` say otherwise.

    ``descriptors``: its limit of open files. ``cold``: in an interpreter of its own, which SIGKILL ends.
    """
    port = port or free_port()
    if words is None:
        words = () if tokens(sandbox).file.exists() else ("--open",)
    command = COLD if cold else warm_start.command()
    if descriptors is not None:
        command = ("sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh", *COLD)
    with (sandbox.path / "server.log").open("a") as log:
        process = subprocess.Popen(
            [*command, "serve", "--http", f"{host}:{port}", *words],
            env=sandbox.environ,
            cwd=sandbox.path,
            stdin=subprocess.DEVNULL,
            stderr=log,
            text=True,
        )
    service = Service(sandbox, port, process, host)
    try:
        until(lambda: process.poll() is not None or _answers(service), "an answer")
        assert process.poll() is None, service.log.read_text()
        yield service
    finally:
        process.kill()
        process.wait()


def _answers(service: Service) -> bool:
    with contextlib.suppress(OSError):
        return bool(service.health()["status"] == "ok")
    return False


def tokens(sandbox: Sandbox) -> Tokens:
    return Tokens(StateHome(sandbox.path / "state"))
