"""A model that follows a script, behind the Messages API on loopback: what a client asks it, and what it answers."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Block = Mapping[str, Any]
_USAGE = {"input_tokens": 10, "output_tokens": 5, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}


def say(text: str) -> Block:
    return {"type": "text", "text": text}


def use(tool: str, **arguments: Any) -> Block:
    return {"type": "tool_use", "id": f"toolu_{time.time_ns()}", "name": tool, "input": arguments}


@dataclass(frozen=True)
class Conversation:
    """What a client sends with one request for an answer."""

    at_s: float
    tools: Sequence[str]
    blocks: Sequence[Block]

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Conversation:
        contents = [message["content"] for message in body["messages"]]
        blocks = [block for each in contents for block in ([say(each)] if isinstance(each, str) else each)]
        return cls(time.time(), [str(tool.get("name")) for tool in body.get("tools") or ()], blocks)

    @property
    def text(self) -> str:
        return json.dumps(self.blocks)

    @property
    def uses(self) -> list[str]:
        """The tools that were called so far."""
        return [str(block["name"]) for block in self.blocks if block.get("type") == "tool_use"]

    @property
    def results(self) -> list[str]:
        return [json.dumps(block) for block in self.blocks if block.get("type") == "tool_result"]


@dataclass
class ScriptedModel:
    """Answers every conversation with what ``script`` returns for it; keeps those that have tools."""

    script: Callable[[Conversation], Block]
    conversations: list[Conversation] = field(default_factory=list)

    def answer(self, body: Mapping[str, Any]) -> Block:
        conversation = Conversation.of(body)
        if not conversation.tools:  # a title, a summary
            return say("A title")
        self.conversations.append(conversation)
        return self.script(conversation)

    @contextlib.contextmanager
    def serve(self) -> Iterator[str]:
        """Serve until the block ends; yield the address."""
        model = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - of the base class
                """Write nothing."""

            def do_GET(self) -> None:
                self._send(b"{}")

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
                if "count_tokens" in self.path or "/messages" not in self.path:
                    self._send(b'{"input_tokens": 10}')
                elif body.get("stream"):
                    self._send(_stream(model.answer(body), str(body.get("model"))), "text/event-stream")
                else:
                    self._send(json.dumps(_message(model.answer(body), str(body.get("model")))).encode())

            def _send(self, data: bytes, kind: str = "application/json") -> None:
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


def _message(block: Block | None, model: str) -> dict[str, Any]:
    stop = None if block is None else "tool_use" if block["type"] == "tool_use" else "end_turn"
    facts = {"id": f"msg_{time.time_ns()}", "type": "message", "role": "assistant", "model": model, "usage": _USAGE}
    return {**facts, "content": [] if block is None else [block], "stop_reason": stop, "stop_sequence": None}


def _stream(block: Block, model: str) -> bytes:
    """Return the events of one answer with one block."""
    if block["type"] == "text":
        empty: Block = say("")
        delta = {"type": "text_delta", "text": block["text"]}
    else:
        empty = {**block, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
    end = {"stop_reason": _message(block, model)["stop_reason"], "stop_sequence": None}
    events: list[tuple[str, dict[str, Any]]] = [
        ("message_start", {"message": _message(None, model)}),
        ("content_block_start", {"index": 0, "content_block": empty}),
        ("content_block_delta", {"index": 0, "delta": delta}),
        ("content_block_stop", {"index": 0}),
        ("message_delta", {"delta": end, "usage": {"output_tokens": 5}}),
        ("message_stop", {}),
    ]
    return "".join(f"event: {kind}\ndata: {json.dumps({'type': kind, **facts})}\n\n" for kind, facts in events).encode()
