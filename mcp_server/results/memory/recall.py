"""Whether what is about to be started was tried before: the same settings and code, or all but the seed."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

from mcp_server.errors import RunNotFound, RunUnreadable
from mcp_server.record.code.code_snapshot import read_code_snapshot
from mcp_server.record.code.drift import find_changed_code, list_changed_named
from mcp_server.record.script import command_text
from mcp_server.record.spec import RunSpec
from mcp_server.record.sweeps.sweep_ranking import is_seed
from mcp_server.results.memory.conditions import Question
from mcp_server.results.memory.index import Hit, Memory
from mcp_server.results.memory.remembered import list_beside, sign
from mcp_server.results.memory.searcher import Searcher
from mcp_server.scalars.run_scalars import Scalars
from mcp_server.store.run_store import RunStore
from mcp_server.system.git_state import GitState, read_git_state
from mcp_server.text.formatting import join_some

_READ_S = 0.2  # of a launch, for what the memory lacks
_UNKNOWN = "What was tried before could not be found out: {!r}."
_MOST_FILES, _MOST_COMPARED, _MOST_CELLS, _MOST_LOOKED_AT = 3, 20, 100, 3


def find_tried(spec: RunSpec, store: RunStore, scalars: Scalars, owner: str | None = None) -> list[str]:
    """Return what to know of former trainings with these settings, in one sentence or none. Reads files: use a thread.

    A run counts that made a step. ``spec``: of a launch, or of a run that has begun, which does not count itself.
    ``owner``: only runs of this one, whose token asks.
    """
    try:
        return _find_tried(spec, store, scalars, owner)
    except Exception as error:  # a launch never fails for a warning
        return [_UNKNOWN.format(error)]


def _find_tried(spec: RunSpec, store: RunStore, scalars: Scalars, owner: str | None) -> list[str]:
    same, alike = sign(command_text(spec), spec.cwd, spec.env)
    Searcher(store, scalars, spec.cwd, read_s=_READ_S).remember_all()
    hits = _select({"alike": alike, "host": spec.host, "owner": owner}, store)
    hits = {hit: own for hit, own in hits.items() if hit.run_id != spec.run_id}
    exact = [hit for hit, own in hits.items() if own.get(":same") == same]
    if not exact:
        return [f"Tried before: {_tell([*hits], _describe_near(next(iter(hits)), spec, store))}."] if hits else []
    read_git = cache(partial(read_git_state, environ=os.environ))
    changed = {hit: _find_changed(hit, store, read_git) for hit in exact}
    if unchanged := [hit for hit, files in changed.items() if files == []]:
        return [f"Tried before: {_tell(unchanged, 'ran exactly this')}."]
    files = next((files for files in changed.values() if files), None)
    how = f"with other code ({join_some(files, _MOST_FILES)} changed since)" if files else "with unknown code"
    return [f"Tried before: {_tell(exact, f'ran these settings {how}')}."]


def _describe_near(hit: Hit, spec: RunSpec, store: RunStore) -> str:
    former = store.observe(hit.run_id)
    names = list_beside((former.command, former.spec.env), (command_text(spec), spec.env))
    if all(map(is_seed, names)):
        return "ran this with another seed"
    return f"ran this with other {join_some(names, _MOST_FILES)}"


def find_tried_cells(
    launches: Mapping[str, tuple[str, str, Mapping[str, str]]],
    store: RunStore,
    scalars: Scalars,
    owner: str | None = None,
) -> list[str]:
    """Return which cells of a plan have run before, with the same code, in one sentence or none."""
    told = []
    try:
        Searcher(store, scalars, "", read_s=_READ_S).remember_all()
        read_git = cache(partial(read_git_state, environ=os.environ))
        for name, (command, cwd, env) in list(launches.items())[:_MOST_CELLS]:
            hits = _select({"same": sign(command, cwd, env)[0], "owner": owner}, store)
            looked_at = list(hits)[:_MOST_LOOKED_AT]
            unchanged = [hit for hit in looked_at if _find_changed(hit, store, read_git) == []]
            if unchanged:
                told.append(f"{name}: {_tell(unchanged, 'ran exactly this')}")
    except Exception as error:  # as above
        return [_UNKNOWN.format(error)]
    count = f"{len(told)} of {len(launches)} cells"
    return [f"Tried before, {count}: {join_some(told, _MOST_FILES)}."] if told else []


def _select(parts: Mapping[str, str | None], store: RunStore) -> dict[Hit, dict[str, str]]:
    """Return the runs with a signature that made a step, with their settings, the newest first."""
    asked = Question(fields=tuple((name, value) for name, value in parts.items() if value))
    hits = store.ask(lambda index: (memory := Memory.of(index)).add_facts(memory.select(asked)[:_MOST_COMPARED]))
    known = store.ask(lambda index: [Memory.of(index).read(hit)[0] for hit in hits])
    return {hit: own for hit, own in zip(hits, known, strict=True) if ":step" in own}


def _find_changed(hit: Hit, store: RunStore, read_git: Callable[[Path], GitState]) -> list[str] | None:
    """Return the commit and the files of a run's code that are others now, None where its code is not known."""
    try:
        run = store.observe(hit.run_id)
    except (RunNotFound, RunUnreadable):
        return None
    snapshot = read_code_snapshot(store.record_of(run), run.attempt)
    change = find_changed_code(snapshot, run.spec.cwd, read_git) if snapshot is not None else None
    if snapshot is None or change is None:
        return None
    commit, names = change
    return [*([commit] if commit else []), *names, *list_changed_named(snapshot, run.spec.cwd, names)]


def _tell(hits: Sequence[Hit], how: str) -> str:
    newest, facts = hits[0], hits[0].facts
    others = f" and {len(hits) - 1} more" if len(hits) > 1 else ""
    figure = f", {facts['figure']}" if facts.get("figure") else ""
    said = f"; {facts['note']}" if facts.get("note") else ""
    cause = f" {facts['cause']}" if facts.get("cause") else ""
    at = newest.created_at[:16].replace("T", " ")
    return f"{newest.run_id}{others} {how}, launched {at}Z: {newest.state}{cause}{figure}{said}"
