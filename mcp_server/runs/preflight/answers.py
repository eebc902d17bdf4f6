"""Result models of preflight, importable without its checks."""

from __future__ import annotations

from mcp_server.answer import Answer


class Problem(Answer):
    """One thing that is wrong, and what to do about it."""

    what: str
    text: str
    remedy: str


class Preflight(Answer):
    """The verdict, what is wrong, what is here (free space, sizes, GPUs, Ray), and who trains here already."""

    ok: bool
    problems: list[Problem]
    found: list[str] | None = None
    running: list[str] | None = None
