"""A run's attempts: how those before ended, and the parameters of the newest as retries changed them. Pure."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp_server.record.events import RecordEvent
from mcp_server.record.script import AttemptInputs, name_attempt
from mcp_server.record.spec import RunSpec
from mcp_server.text.formatting import join_ranges

_MOST_ENDS = 5  # told one by one


@dataclass(frozen=True)
class AttemptParams:
    """Parameters and changed environment variables of the newest attempt that started.

    ``filled``: those that were filled into the command and the rest of the launch, which no retry changes.
    ``changed``: one phrase by name for each value that retries changed, such as
    ``num_envs 8192 → 4096 after attempt 1``.
    """

    params: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    changed: Mapping[str, str] = field(default_factory=dict)
    filled: Mapping[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> Mapping[str, Any]:
        """All parameters that the attempt ran with, wherever they stood."""
        return {**self.filled, **self.params}


def find_attempt_params(spec: RunSpec, events: Iterable[RecordEvent], unfilled: int = 0) -> AttemptParams:
    """Return what the newest attempt in ``events`` runs with. A retry that did not start has changed nothing.

    ``{run_id}`` and ``{attempt}`` in a parameter are the run's own, as they were for its command; with the number
    of an attempt, ``unfilled``, they are as written, and all is as that attempt had it.
    """
    attempt = 1
    params: dict[str, Any] = dict(spec.params)
    environment: dict[str, str] = {}
    histories: dict[str, str] = {}
    planned: RecordEvent | None = None
    for event in events:
        if event["kind"] == "retrying":
            planned = event
        if event["kind"] == "started":
            attempt = int(event.get("attempt") or attempt)
        if unfilled and attempt > unfilled:
            break
        if event["kind"] == "started" and planned is not None:
            after = f"after attempt {planned.get('attempt', 1)}"
            new_params = _mapping(planned.get("params")) or params
            new_environment = {name: str(value) for name, value in _mapping(planned.get("environment")).items()}
            _note(histories, params, new_params, after)
            _note(histories, {**spec.env, **environment}, {**spec.env, **new_environment}, after)
            params, environment, planned = new_params, new_environment, None
    inputs = AttemptInputs({}, placeholders={} if unfilled else name_attempt(spec.run_id, attempt))
    filled = {name: inputs.fill(value) if isinstance(value, str) else value for name, value in params.items()}
    return AttemptParams(filled, environment, histories, spec.filled)


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


def list_earlier_ends(events: Iterable[RecordEvent]) -> list[tuple[int, str]]:
    """Return the attempts after which the recovery policy tried again, and how each ended: ``(1, "oom_gpu")``."""
    return [(int(event.get("attempt") or 1), _name_end(event)) for event in events if event["kind"] == "retrying"]


def describe_earlier_ends(events: Iterable[RecordEvent]) -> str | None:
    """Return how they ended, of many how often in which way: ``attempt 1 oom_gpu, 2-3 stall``. None without any."""
    ends = list_earlier_ends(events)
    groups = [(why, [number for number, _ in same]) for why, same in itertools.groupby(ends, lambda end: end[1])]
    if len(groups) > _MOST_ENDS:
        return f"{len(ends)} attempts: {count_ends(why for _, why in ends)}"
    texts = [f"{join_ranges(numbers)} {why}" for why, numbers in groups]
    return f"attempt {', '.join(texts)}" if texts else None


def count_ends(ends: Iterable[str]) -> str:
    """Return how often attempts ended in which way, the commonest first: ``2 oom_gpu, 1 stall``."""
    return ", ".join(f"{count} {why}" for why, count in Counter(ends).most_common())


def _name_end(event: RecordEvent) -> str:
    kind, signal, code = (event.get("failure") or {}).get("kind"), event.get("signal"), event.get("exit_code")
    if kind == "killed" and signal:
        return f"killed by {signal}"
    how = signal or ("" if code is None else f"exit code {code}")
    return str((how if kind == "other" else kind) or how or kind or "unknown")
