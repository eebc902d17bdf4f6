"""Which runs a call is about: ids, names, ``tag:NAME``, ``live``. A tag and ``live`` also mean runs that come later.

``live`` means what lives, and what its caller saw alive last: an end between two calls is not lost. With a cursor it
also means the runs that began and ended since.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from mcp_server.errors import BadArgument, RunNotFound
from mcp_server.record.sweeps.sweep_state import Watched
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
