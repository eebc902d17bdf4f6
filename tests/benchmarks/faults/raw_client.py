"""A client over stdio that outlives the death of its server: bare JSON-RPC, calls from any number of threads."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

_ANSWER_S = 90.0  # on a busy machine a launch waits up to 60 s for its supervisor, and says so then
_INITIALIZE = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "campaign", "version": "1"}}


class ServerGone(Exception):
    """The server died before it answered."""


class Refused(Exception):
    """The tool answered with an error, whose text this is."""


class RawClient:
    """One server process and its client.

    Raises:
        ServerGone: it died before it was ready.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path) -> None:
        with log.open("a") as stderr:
            self.process = subprocess.Popen(
                argv, env=env, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr
            )
        assert self.process.stdin is not None
        self._input = self.process.stdin
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._open: dict[int, Future[Any]] = {}
        self._gone = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self._request("initialize", _INITIALIZE, _ANSWER_S)
            self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The server's process."""
        return self.process.pid

    def call(self, tool: str, *, answer_s: float = _ANSWER_S, **arguments: Any) -> dict[str, Any]:
        """Return the structured answer of a tool.

        Raises:
            ServerGone: it died, or did not answer in time.
            Refused: it answered with an error.
        """
        result = self._request("tools/call", {"name": tool, "arguments": arguments}, answer_s)
        if result.get("isError"):
            raise Refused("\n".join(str(part.get("text", "")) for part in result.get("content", [])))
        return dict(result.get("structuredContent") or {})

    def drop(self, tool: str, **arguments: Any) -> None:
        """Send a call whose answer nobody waits for."""
        number = next(self._numbers)
        params = {"name": tool, "arguments": arguments}
        self._send({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})

    def close(self) -> None:
        """End the server, however it is."""
        with contextlib.suppress(OSError):
            self._input.close()
        with contextlib.suppress(OSError):
            self.process.kill()
        self.process.wait()
        self._reader.join()

    def _request(self, method: str, params: Mapping[str, Any], answer_s: float) -> dict[str, Any]:
        number, answer = next(self._numbers), Future[Any]()
        with self._lock:
            if self._gone:
                raise ServerGone(method)
            self._open[number] = answer
        self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        try:
            message = answer.result(answer_s)
        except TimeoutError as error:
            raise ServerGone(f"{method}: no answer in {answer_s:g} s") from error
        finally:
            self._open.pop(number, None)
        if "error" in message:
            raise Refused(json.dumps(message["error"]))
        return dict(message["result"])

    def _send(self, message: Mapping[str, Any]) -> None:
        data = json.dumps(message).encode() + b"\n"
        try:
            with self._lock:
                self._input.write(data)
                self._input.flush()
        except (OSError, ValueError) as error:
            raise ServerGone("its input is closed") from error

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                with contextlib.suppress(ValueError):
                    message = json.loads(line)
                    answer = self._open.get(message.get("id"))
                    if answer is not None and ("result" in message or "error" in message):
                        answer.set_result(message)
        with self._lock:
            self._gone = True
            waiting = list(self._open.values())
        for answer in waiting:
            with contextlib.suppress(Exception):  # answered just now
                answer.set_exception(ServerGone("it has ended"))
