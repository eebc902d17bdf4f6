"""A model that follows a script, behind the Messages API on loopback: what a client asks it, and what it answers."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.clients import loopback

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

    def serve(self) -> contextlib.AbstractContextManager[str]:
        """Serve until the block ends; yields the address."""
        return loopback.serve_posts(self._answer_post, to_get=b"{}")

    def _answer_post(self, path: str, body: dict[str, Any]) -> tuple[bytes, str]:
        if "count_tokens" in path or "/messages" not in path:
            return b'{"input_tokens": 10}', loopback.JSON
        if body.get("stream"):
            return _stream(self.answer(body), str(body.get("model"))), loopback.EVENTS
        return json.dumps(_message(self.answer(body), str(body.get("model")))).encode(), loopback.JSON


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
