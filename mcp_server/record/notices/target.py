"""Where notices go: a web address or a command, and the events that it is for."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import urlsplit

SERVICES = ("ntfy", "slack", "feishu", "json")
DEFAULT_EVENTS = ("ended", "stalled", "first_step_timeout", "gpu_deviation", "judging_lost")
END_STATES = ("finished", "failed", "killed", "timed_out", "lost")
EVENTS = (
    *("started", "first_step", "first_step_timeout", "stalled", "resumed", "error_seen", "gpu_deviation"),
    *("judging_lost", "retrying", "ended", *END_STATES),
)
"""What a target may name: kinds of events, `ended` for every end, or the states of the ends it wants."""
DEFAULT_PER_HOUR = 30
_HOSTS = (("ntfy", "ntfy"), ("slack.com", "slack"), ("feishu", "feishu"), ("larksuite", "feishu"))


@dataclass(frozen=True)
class Target:
    """One receiver of notices. Either ``url`` or ``command`` is not empty. Holds secrets: never written to a file."""

    name: str
    url: str = field(default="", repr=False)
    service: str = "json"
    command: tuple[str, ...] = ()
    token: str = field(default="", repr=False)  # sent as a bearer token
    sign_secret: str = field(default="", repr=False)  # Feishu signs with it
    events: tuple[str, ...] = DEFAULT_EVENTS
    max_per_hour: int = DEFAULT_PER_HOUR

    def accepts(self, kind: str, state: str) -> bool:
        """Return whether an event of this kind, an end with this state, goes to this target."""
        return kind in self.events or (
            kind in ("ended", "refused") and ("ended" in self.events or state in self.events)
        )

    @property
    def secrets(self) -> list[str]:
        """The values that no message about a delivery may show."""
        return [value for value in (self.url, self.token, self.sign_secret) if value]

    def facts(self) -> dict[str, Any]:
        """Return all fields, for the handover in memory."""
        return asdict(self)


def guess_service(url: str) -> str:
    """Return the service that an address belongs to by its host name. `json` for every other host."""
    host = (urlsplit(url).hostname or "").lower()
    return next((service for part, service in _HOSTS if part in host), "json")


def name_target(url: str, command: Sequence[str]) -> str:
    """Return a name without secrets: the host of the address, or the program of the command."""
    return (urlsplit(url).hostname or "webhook") if url else command[0].rpartition("/")[2]


def split_command(command: str | Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command. A shell runs one that is written as a line.

    Raises:
        ValueError: it has no words, or a quote without its end.
    """
    if not isinstance(command, str):
        words = tuple(command)
    else:
        shlex.split(command)
        words = ("/bin/sh", "-c", command) if command.strip() else ()
    if not words or not words[0]:
        raise ValueError("the command is empty")
    return words
