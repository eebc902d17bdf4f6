"""Which runs a call is about: ids, names, ``tag:NAME``, ``live`` (and those that come later); and a wait for them.

``live`` means what lives, and what its caller saw alive last: an end between two calls is not lost. With a cursor it
also means the runs that began and ended since.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from pydantic import TypeAdapter

from mcp_server.errors import BadArgument, RunNotFound
from mcp_server.record.sweeps.sweep_state import Watched
from mcp_server.runs.wait.cursors import Cursor, MetricPosition
from mcp_server.runs.wait.waiting import CheckCondition, Until, WaitOutcome, find_reason, make_outcome
from mcp_server.scalars.condition import Condition, parse_condition
from mcp_server.store.run_index import RunQuery
from mcp_server.store.run_store import RunStore

LIVE, TAG = "live", "tag:"


@dataclass(frozen=True)
class Selection:
    """Runs named one by one, and those that have a tag or live. ``left_out``: ended runs that ``live`` passes over."""

    run_ids: tuple[str, ...]
    tags: tuple[str, ...] = ()
    live: bool = False
    left_out: frozenset[str] = frozenset()

    @property
    def is_open(self) -> bool:
        """Whether further runs may join."""
        return bool(self.tags) or self.live

    def observe(self, store: RunStore, run_ids: Iterable[str] = ()) -> tuple[Watched, ...]:
        """Return these runs as they are now, with those that joined. RunNotFound: a run that was named is gone."""
        if not self.is_open:
            return store.observe_all(self.run_ids)
        ids = dict.fromkeys([*self.run_ids, *run_ids])
        if self.tags:
            ids |= dict.fromkeys(reversed(store.list_ids(RunQuery(any_tag=self.tags))))
        if self.live:
            ids |= dict.fromkeys(store.list_ids(RunQuery("live")))
            ids |= {run_id: None for run_id in store.list_ids(RunQuery("ended")) if run_id not in self.left_out}
        runs = []
        for run_id in ids:
            try:
                runs.append(store.observe_any(run_id))
            except RunNotFound:
                if run_id in self.run_ids:
                    raise
        return tuple(runs)


def select(
    store: RunStore,
    names: Iterable[str],
    *,
    left_out: frozenset[str] | None = None,
    was_alive: Callable[[str], bool] = lambda _: False,
) -> tuple[Selection, tuple[Watched, ...]]:
    """Return what ``names`` mean (ids, names, ``tag:NAME``, ``live``), and the runs as they are now, each once.

    ``left_out``: ended runs that ``live`` passes over by the caller's cursor. ``was_alive``: whether the caller last
    saw a run alive. RunNotFound, BadArgument: a name means no run, or several; names similar ones.
    """
    words = list(dict.fromkeys(names))
    tags = tuple(word.removeprefix(TAG) for word in words if word.startswith(TAG))
    for tag in tags:
        _check_tag(store, tag)
    named = [_find(store, word) for word in words if word != LIVE and not word.startswith(TAG)]
    selection = Selection(tuple(dict.fromkeys(run.run_id for run in named)), tags, LIVE in words)
    if selection.live:
        if left_out is None:
            left_out = frozenset(id_ for id_ in store.list_ids(RunQuery("ended")) if not was_alive(id_))
        selection = replace(selection, left_out=left_out)
    return selection, selection.observe(store)


def _find(store: RunStore, name: str) -> Watched:
    try:
        return store.find_any(name)
    except RunNotFound as error:
        if type(error) is not RunNotFound or error.near:
            raise
        others = [LIVE, *(f"{TAG}{tag}" for tag in store.list_tags()), *store.list_names()]
        raise RunNotFound(name, _similar(name, others)) from None


def _check_tag(store: RunStore, tag: str) -> None:
    if not store.list_ids(RunQuery(tags=[tag]), 1):
        near = [f"{TAG}{other}" for other in _similar(tag, store.list_tags())]
        remedy = f"Did you mean {' or '.join(near)}?" if near else "Call list_runs."
        raise BadArgument("run_ids", f"no run has the tag {tag[:80]!r}.", remedy)


def _similar(word: str, words: Sequence[str]) -> list[str]:
    return difflib.get_close_matches(word[:80], list(dict.fromkeys(words)), n=3, cutoff=0.6)


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
