"""What is waited for, and what the caller had seen when the wait began: a value that a file can keep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from mcp_server.record.state import Run
from mcp_server.runs.cursors import Cursor
from mcp_server.runs.selection import Selection
from mcp_server.runs.wait import CheckCondition, Until, WaitOutcome, find_reason, make_outcome
from mcp_server.scalars.condition import Condition, parse_condition
from mcp_server.store.run_store import RunStore

if TYPE_CHECKING:
    from mcp_server.runs.metric_wait import MetricPosition, MetricWait

_PLAIN: tuple[Until, ...] = tuple(word for word in get_args(Until) if word != "condition")


@dataclass(frozen=True)
class WaitSpec:
    """A wait for runs. ``until`` is a word or a condition as it was asked. ``timeout_s`` None: until there is news.

    ``positions``: how far a condition had been checked, by run id. ``selection``: which runs may join, None for none.
    ``since``: the caller's cursor as a word.
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

    def observe(self, store: RunStore) -> tuple[Run, ...]:
        """Return its runs as they are now, with those that have joined.

        Raises:
            RunNotFound: a run is gone.
            RunUnreadable: the state of a run is unknown now.
        """
        if self.selection is None:
            return store.observe_all(self.run_ids)
        return self.selection.observe(store, self.cursors)

    @property
    def mode(self) -> Until:
        """Which news ends it. See :func:`mcp_server.runs.wait.decide`."""
        return next((word for word in _PLAIN if word == self.until), "condition")

    @property
    def condition(self) -> Condition | None:
        """The condition on a metric, if there is one.

        Raises:
            BadArgument: ``until`` is neither a word nor a condition.
        """
        return parse_condition(self.until) if self.mode == "condition" else None

    def after(self, metric: MetricWait | None) -> WaitSpec:
        """Return this wait with its condition checked as far as ``metric`` has checked it."""
        return self if metric is None else replace(self, positions=metric.positions)

    def to_facts(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "run_ids": list(self.run_ids),
            "until": self.until,
            "timeout_s": self.timeout_s,
            "cursors": cursors_to_facts(self.cursors),
            "positions": positions_to_facts(self.positions),
            "selection": None if self.selection is None else self.selection.to_facts(),
            "since": self.since,
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> WaitSpec:
        """Return the wait of :meth:`to_facts`.

        Raises:
            ValueError: these are not the facts of a wait.
        """
        try:
            run_ids, timeout_s = tuple(map(str, facts["run_ids"])), facts["timeout_s"]
            cursors = cursors_from_facts(facts["cursors"])
            if not run_ids or cursors.keys() != set(run_ids):
                raise ValueError("runs without a cursor")
            return cls(
                run_ids=run_ids,
                until=str(facts["until"]),
                timeout_s=None if timeout_s is None else float(timeout_s),
                cursors=cursors,
                positions=positions_from_facts(facts["positions"]),
                selection=Selection.from_facts(facts["selection"]) if facts.get("selection") else None,
                since=facts.get("since"),
            )
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"not a wait: {error!r}") from error


async def look_once(
    runs: Sequence[Run], spec: WaitSpec, *, waited_s: float, check_condition: CheckCondition | None = None
) -> WaitOutcome | None:
    """Return the outcome of a wait for ``runs`` that has lasted ``waited_s``, or None while it goes on.

    Without a timeout no heartbeat ends it.
    """
    reason, met = await find_reason(runs, spec.cursors, spec.mode, check_condition)
    if reason is None and (spec.timeout_s is None or waited_s < spec.timeout_s):
        return None
    return make_outcome(reason, runs, spec.cursors, waited_s, met, until=spec.mode, scheduled=False)


def cursors_to_facts(cursors: Mapping[str, Cursor]) -> dict[str, Any]:
    """Return cursors, by run id, as JSON."""
    return {run_id: asdict(cursor) for run_id, cursor in cursors.items()}


def cursors_from_facts(facts: Mapping[str, Any]) -> dict[str, Cursor]:
    """Return the cursors of :func:`cursors_to_facts`. Raises what a wrong type raises."""
    return {
        run_id: Cursor(int(c["seq"]), str(c["state"]), int(c["heartbeats"]), int(c["repeated"]))
        for run_id, c in facts.items()
    }


def positions_to_facts(positions: Mapping[str, MetricPosition]) -> dict[str, Any]:
    """Return positions, by run id, as JSON."""
    return {run_id: _position_to_facts(position) for run_id, position in positions.items()}


def positions_from_facts(facts: Mapping[str, Any]) -> dict[str, MetricPosition]:
    """Return the positions of :func:`positions_to_facts`. Raises what a wrong type raises."""
    return {run_id: _position_from_facts(each) for run_id, each in facts.items()}


def _position_to_facts(position: MetricPosition) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "tag": position.tag,
        "checked": position.checked,
        "restarts": [int(step) for step in position.restarts],
        "late": int(position.late),
        "wall": position.wall if math.isfinite(position.wall) else None,
    }
    if position.source is not None:
        location, name = position.source
        path = location if isinstance(location, Path) else location.path
        source = {"tag": name, "path": str(path)}
        if not isinstance(location, Path):
            source |= {"name": location.name} | ({"kind": location.kind} if hasattr(location, "kind") else {})
        facts["source"] = source
    return facts


def _position_from_facts(facts: Mapping[str, Any]) -> MetricPosition:
    from mcp_server.runs.metric_wait import MetricPosition  # noqa: PLC0415 - with the readers of scalars, 20 ms

    position = MetricPosition(
        tag=facts["tag"],
        checked=int(facts["checked"]),
        restarts=tuple(map(int, facts["restarts"])),
        late=int(facts["late"]),
        wall=-math.inf if facts["wall"] is None else float(facts["wall"]),
    )
    if (source := facts.get("source")) is None:
        return position
    from mcp_server.scalars.formats.detect import ScalarSource  # noqa: PLC0415 - numpy starts slowly
    from mcp_server.scalars.locate import EventFiles  # noqa: PLC0415 - numpy starts slowly

    path = Path(source["path"])
    if "kind" in source:
        return replace(position, source=(ScalarSource(source["kind"], path, source["name"]), source["tag"]))
    location = EventFiles(path, {}, source["name"]) if "name" in source else path  # names do not count
    return replace(position, source=(location, source["tag"]))
