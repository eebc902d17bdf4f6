"""What is waited for, and what the caller had seen when the wait began: a value that a file can keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from pydantic import TypeAdapter

from mcp_server.record.sweeps.sweep_state import Watched
from mcp_server.runs.wait.cursors import Cursor, MetricPosition
from mcp_server.runs.wait.selection import Selection
from mcp_server.runs.wait.waiting import CheckCondition, Until, WaitOutcome, find_reason, make_outcome
from mcp_server.scalars.condition import Condition, parse_condition
from mcp_server.store.run_store import RunStore

_PLAIN: tuple[Until, ...] = tuple(word for word in get_args(Until) if word != "condition")


@dataclass(frozen=True)
class WaitSpec:
    """A wait for runs. ``until``: a word or a condition, as asked. ``timeout_s`` None: until there is news.

    ``positions``: how far a condition was checked. ``selection``: which runs may join. ``since``: the cursor as a word.
    """

    run_ids: tuple[str, ...]
    cursors: Mapping[str, Cursor]
    until: str = "event"
    timeout_s: float | None = None
    positions: Mapping[str, MetricPosition] = field(default_factory=dict)
    selection: Selection | None = None
    since: str | None = None

    @property
    def gives_cursor(self) -> bool:
        """Whether its answer has a cursor: for one run the caller needs none."""
        return self.since is not None or self.selection is not None or len(self.run_ids) > 1

    def observe(self, store: RunStore) -> tuple[Watched, ...]:
        """Return its runs as they are now, with those that joined. RunNotFound, RunUnreadable: one is missing."""
        if self.selection is None:
            return store.observe_all(self.run_ids)
        return self.selection.observe(store, self.cursors)

    @property
    def mode(self) -> Until:
        """Which news ends it. See :func:`mcp_server.runs.wait.waiting.decide`."""
        return next((word for word in _PLAIN if word == self.until), "condition")

    @property
    def condition(self) -> Condition | None:
        """The condition on a metric, if there is one. BadArgument: ``until`` is neither a word nor a condition."""
        return parse_condition(self.until) if self.mode == "condition" else None

    def to_facts(self) -> dict[str, Any]:
        """Return it as JSON."""
        return to_json(self)

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> WaitSpec:
        """Return the wait of :meth:`to_facts`. ValueError: these are not its facts."""
        spec = TypeAdapter(cls).validate_python(facts)
        if not spec.run_ids or spec.cursors.keys() != set(spec.run_ids):
            raise ValueError("runs without a cursor")
        return spec


def to_json(value: object) -> dict[str, Any]:
    """Return a dataclass as JSON; ``TypeAdapter(…).validate_python`` reads it."""
    facts: dict[str, Any] = TypeAdapter(type(value)).dump_python(value, mode="json")
    return facts


async def look_once(
    runs: Sequence[Watched], spec: WaitSpec, *, waited_s: float, check_condition: CheckCondition | None = None
) -> WaitOutcome | None:
    """Return how a wait ended that has lasted ``waited_s``, or None while it goes on."""
    reason, met = await find_reason(runs, spec.cursors, spec.mode, check_condition)
    if reason is None and (spec.timeout_s is None or waited_s < spec.timeout_s):
        return None
    return make_outcome(reason, runs, spec.cursors, waited_s, met, until=spec.mode, scheduled=False)
