"""The need of a run for another: which run, and how one sees that it answers. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from mcp_server.command.shell import parse
from mcp_server.record.state import Run
from mcp_server.text.regex import compile_lazily

_NEED = compile_lazily(
    r"(?:(?P<host>\[[0-9A-Fa-f:.]+\]|[\w.-]+):|(?P<run>[^@\s:]+)@)(?P<port>\d{1,5})(?P<path>/[!-~]*)?|(?P<name>[^@\s:]+)"
)
_HIGHEST_PORT = 65535
_VARIABLE = compile_lazily(r"\$(?:\{(\w+)\}|(\w+))")
# Servers that open other ports long before the one that answers, and its number where the command names none.
_USUAL_PORTS = (
    (compile_lazily(r"\bvllm serve\b|\bvllm\.entrypoints\."), 8000),
    (compile_lazily(r"\bsglang\.launch_server\b"), 30000),
    (compile_lazily(r"\bray start\b.* --head\b"), 6379),
)
_RAY_WORKER = compile_lazily(r"\bray start\b(?!.* --head\b).* --address\b")
JOINED = b"Ray runtime started"  # what `ray start` prints then; a worker listens at ports of its own long before


@dataclass(frozen=True)
class Need:
    """A run that another needs, or an address, where its service is on another ``host``.

    ``port``: where it must listen; ``path``: what it must answer there by HTTP.
    """

    run: str  # an id, in a launch also a name; empty for an address
    port: int | None = None
    path: str = ""
    host: str = ""

    def __str__(self) -> str:
        """Return the text that is parsed to this need."""
        if self.host:
            return f"{self.host}:{self.port}{self.path}"
        return self.run if self.port is None else f"{self.run}@{self.port}{self.path}"

    @property
    def label(self) -> str:
        """Its name in texts."""
        return self.run or str(self)


def parse_need(text: str) -> Need:
    """Return the need in ``text``: ``RUN``, ``RUN@PORT`` or ``RUN@PORT/PATH``, or with ``HOST:`` for ``RUN@``.

    Raises:
        ValueError: it is none of these.
    """
    match = _NEED.fullmatch(text)
    port = int(match["port"]) if match is not None and match["port"] else None
    if match is None or port == 0 or (port or 0) > _HIGHEST_PORT:
        raise ValueError(f"{text[:80]!r} is not RUN, RUN@PORT or HOST:PORT, nor one of these with /PATH.")
    return Need(match["run"] or match["name"] or "", port, match["path"] or "", match["host"] or "")


def find_service_port(run: Run) -> int | None:
    """Return the port that a service's command, or its parameters, name. None where they name none for certain."""
    params = run.attempt_params.params
    words = [word for name in ("port", "--port") if name in params for word in ("--port", str(params[name]))]
    words += parse(run.spec.command).words
    for word, following in zip(words, [*words[1:], ""]):
        name, equals, value = word.partition("=")
        if name == "--port":
            return _read_port(value if equals else following, run)
    text = " ".join(words)
    return next((port for pattern, port in _USUAL_PORTS if pattern.search(text)), None)


def joins_a_ray(run: Run) -> bool:
    """Return whether a service is a worker of a Ray, which answers once it has joined."""
    return _RAY_WORKER.search(" ".join(parse(run.spec.command).words)) is not None


def _read_port(value: str, run: Run) -> int | None:
    text = _VARIABLE.sub(lambda match: run.spec.env.get(match[1] or match[2], ""), value)
    port = int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(_HIGHEST_PORT)) else 0
    return port if 0 < port <= _HIGHEST_PORT else None  # 0: any that is free
