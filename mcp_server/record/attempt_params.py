"""The parameters of a run's attempt, and how that came: the launch's values as retries changed them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp_server.record.events import Event
from mcp_server.record.script import AttemptInputs, name_attempt
from mcp_server.record.spec import RunSpec


@dataclass(frozen=True)
class AttemptParams:
    """Parameters and changed environment variables of the newest attempt that started.

    ``changed``: one phrase by name for each value that retries changed, such as
    ``num_envs 8192 → 4096 after attempt 1``.
    """

    params: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    changed: Mapping[str, str] = field(default_factory=dict)


def find_attempt_params(spec: RunSpec, events: Iterable[Event]) -> AttemptParams:
    """Return what the newest attempt in ``events`` runs with. A retry that did not start has changed nothing.

    ``{run_id}`` and ``{attempt}`` in a parameter are the run's own, as they were for its command.
    """
    attempt = 1
    params: dict[str, Any] = dict(spec.params)
    environment: dict[str, str] = {}
    histories: dict[str, str] = {}
    planned: Event | None = None
    for event in events:
        if event["kind"] == "retrying":
            planned = event
        if event["kind"] == "started":
            attempt = int(event.get("attempt") or attempt)
        if event["kind"] == "started" and planned is not None:
            after = f"after attempt {planned.get('attempt', 1)}"
            new_params = _mapping(planned.get("params")) or params
            new_environment = {name: str(value) for name, value in _mapping(planned.get("environment")).items()}
            _note(histories, params, new_params, after)
            _note(histories, {**spec.env, **environment}, {**spec.env, **new_environment}, after)
            params, environment, planned = new_params, new_environment, None
    inputs = AttemptInputs({}, placeholders=name_attempt(spec.run_id, attempt))
    filled = {name: inputs.fill(value) if isinstance(value, str) else value for name, value in params.items()}
    return AttemptParams(filled, environment, histories)


def _note(histories: dict[str, str], old: Mapping[str, Any], new: Mapping[str, Any], after: str) -> None:
    """Add to ``histories``, by name, each value that differs between ``old`` and ``new``."""
    for name in dict.fromkeys((*old, *new)):
        if name not in new:
            histories[name] = f"{histories.get(name, f'{name} {old[name]}')} → left out {after}"
        elif name not in old:
            histories[name] = (
                f"{histories[name]} → {new[name]} {after}" if name in histories else (f"{name} {new[name]} {after}")
            )
        elif old[name] != new[name]:
            histories[name] = f"{histories.get(name, f'{name} {old[name]}')} → {new[name]} {after}"


def _mapping(value: object) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {}
