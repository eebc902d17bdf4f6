"""Answers questions about former runs from the memory, and reads what it lacks."""

import contextlib
import math
import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, get_args

from mcp_server.diagnosis.failure.kinds import KINDS
from mcp_server.errors import NotOfSweeps, RunNotFound, RunUnreadable, SweepNotFound
from mcp_server.record.events import LiveState
from mcp_server.record.results.notes import NOTED
from mcp_server.record.state import Run
from mcp_server.results.figures import Figure, choose_goal, measure
from mcp_server.results.memory.conditions import Bound, Question
from mcp_server.results.memory.found_lines import KnownValue, describe_hit, find_differing
from mcp_server.results.memory.index import Hit, Memory, Remembered, normal_name, read_number, short_name
from mcp_server.results.memory.remembered import remember
from mcp_server.results.memory.vocabulary import Names
from mcp_server.scalars.curve_questions import parse_ranking
from mcp_server.scalars.reading_process import ReadingProcess
from mcp_server.scalars.run_scalars import Scalars
from mcp_server.scalars.series import ScalarsUnreadable
from mcp_server.scalars.tag_names import best_direction, match_tags
from mcp_server.store.catalogue import ManyUnread
from mcp_server.store.run_index import RunIndex
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.text.formatting import estimate_tokens, join_some
from mcp_server.text.near_names import find_near_names
from mcp_server.views.sweep_status import line_of_sweep

_AT_ONCE = 200  # runs are read between two looks at the index
_MOST_ALONE, _MOST_TOGETHER, _NICE = 3_000, 4, 10  # runs that one process reads; processes, which write one by one
_READ_S = 20.0  # at most, for what the memory lacks
_LAST_S = 4.0  # for last values of a metric: the supervisors noted them too
_MOST_SHOWN, _MOST_CELLS, _MOST_SWEEPS, _MOST_ASKED_SWEEPS = 3, 3, 1, 5
_NOT_WHOLE = frozenset({"failed", "killed", "lost", *get_args(LiveState)})
_NO_ROOM = "{} of {} have room here: a narrower question lists others."
_SIGNS: Mapping[str, Callable[[float, float], bool]] = {
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}


@dataclass(frozen=True)
class Found:
    """The runs that a question found, the best or newest first, each as a line. ``notes`` limit the answer."""

    lines: Sequence[str]
    total: int
    ranked: str
    notes: Sequence[str]


class _Unknown(Exception):
    """The question names a setting or metric that no run has."""


class Searcher:
    """Searches one state directory. Reads files: call it in a thread."""

    def __init__(self, store: RunStore, scalars: Scalars, project: str, *, read_s: float = _READ_S) -> None:
        self._store, self._scalars, self._project = store, scalars, project
        self._deadline_s = time.monotonic() + read_s
        self._notes: list[str] = []
        self._ranked_settings: set[str] = set()
        self._unread: set[str] = set()  # metrics whose values in some runs are not known yet

    def find(self, read: Callable[[Names], Question], most: int, most_tokens: float = math.inf) -> Found:
        """Return at most ``most`` runs for which all of a question holds; a name that no run has is noted.

        ``most_tokens`` limits all lines but the first.
        ``read`` returns the question by the names that runs have. BadArgument: it cannot be one.
        """
        self.remember_all()
        names = self._store.ask(lambda index: Memory.of(index).read_names())
        try:
            return self._find(read(names), names, most, most_tokens)
        except _Unknown as unknown:
            return Found((), 0, "", [*self._notes, str(unknown)])

    def _find(self, question: Question, names: Names, most: int, most_tokens: float) -> Found:
        if question.project is not None:
            question = replace(question, project=find_project(question.project, self._project))
        question, metrics = _split(question, names)
        question, hits = self._select_wider(question, metrics)
        values: dict[str, dict[str, KnownValue]] = {}
        if metrics or question.ranked is not None:
            hits = self._add_facts(hits)
        for each in metrics:
            values[each.name] = known = self._measure(each.name, hits, None)
            if hits and not any(one.value is not None for one in known.values()):
                self._refuse(f"No run that matches the rest has a setting or metric {each.name!r}", each.name, hits)
            hits = [hit for hit in hits if _holds(each, known.get(hit.run_id))]
        ranked, goal = question.ranked, ""
        if hits and ranked is not None:
            ranked = ranked or _choose_metric(hits)
            if names.is_setting(ranked) and not names.is_metric(ranked):
                self._ranked_settings.add(ranked)
            tag = parse_ranking(ranked)[0]
            goal = (question.goal if question.goal in ("max", "min") else None) or self._find_goal(tag, hits)
            goal = {"max": "min", "min": "max"}[goal] if question.goal == "worst" else goal
            hits, values[ranked] = self._rank(hits, ranked, goal, question)
        elif not hits:
            self._explain_nothing(question)
        self._notes += _describe_times(question)
        most = min(most, question.most or most)
        shown = (hits if ranked is not None or len(hits) <= most else _shorten_sweeps(self._join_trials(hits)))[:most]
        sweeps = self._tell_sweeps(hits) if ranked is None else []
        about = [*self._notes, *sweeps, *(_note_unlisted(hits, shown) if ranked is None else [_NO_ROOM])]
        lines = self._write_lines(shown, question, values, most_tokens - sum(map(estimate_tokens, about)))
        if ranked is None:
            self._notes += _note_unlisted(hits, shown[: len(lines)])
        elif len(lines) < len(shown):
            self._notes.append(_NO_ROOM.format(len(lines), len(hits)))
        lines += sweeps
        return Found(lines, len(hits), self._describe_order(ranked, goal) if ranked and goal else "", self._notes)

    def _describe_order(self, ranked: str, goal: str) -> str:
        tag, ranking = parse_ranking(ranked)
        return f"{tag if ranked in self._ranked_settings else f'{ranking} {tag}'}, {goal}imum first"

    def _select(self, question: Question) -> list[Hit]:
        return self._store.ask(lambda index: Memory.of(index).select(question))

    def _add_facts(self, hits: Sequence[Hit]) -> list[Hit]:
        return self._store.ask(lambda index: Memory.of(index).add_facts(hits))

    def _select_wider(self, question: Question, metrics: Sequence[Bound]) -> tuple[Question, list[Hit]]:
        """Return a question with its hits; one without any as a wider one of which that is noted."""
        hits = self._select(question)
        for widen in (self._leave_out_unsaid, self._take_either):
            if not hits and (rest := widen(question, metrics)) != question:
                question, hits = rest, self._select(rest)
        return question, hits

    def _leave_out_unsaid(self, question: Question, metrics: Sequence[Bound]) -> Question:
        """Return a question without words that no run says, which are noted, where it asks more than these.

        What is claimed of runs must hold: of ``with transformers`` nothing is left out.
        """
        ones = {word: Question(words=(word,)) for word in question.words if word not in question.claimed}
        counts = self._store.ask(lambda index: {word: Memory.of(index).count(one) for word, one in ones.items()})
        unsaid = [word for word, count in counts.items() if not count]
        rest = replace(question, words=tuple(word for word in question.words if word not in unsaid))
        fields = [key for key, _ in rest.fields if key != "owner"]
        if unsaid and (fields or metrics or rest.comparisons or rest.states or rest.causes or rest.not_states):
            self._notes.append(f"No run says {join_some([repr(word) for word in unsaid], _MOST_SHOWN)}: left out.")
            return rest
        return question

    def _take_either(self, question: Question, _: Sequence[Bound]) -> Question:
        """Return a question in which one of several words with ``and`` between them is enough, which is noted."""
        joined = [words for words in question.joined if set(words) <= set(question.words)]
        if not joined:
            return question
        left = [word for word in question.words if not any(word in words for words in joined)]
        self._notes.append(f"No run says {' and '.join(joined[0])}: runs that say one of them.")
        return replace(question, words=(*left, *("|".join(words) for words in joined)))

    def _write_lines(
        self, shown: Sequence[Hit], question: Question, values: Mapping[str, dict[str, KnownValue]], most_tokens: float
    ) -> list[str]:
        shown = self._add_facts(shown)
        read = self._store.ask(lambda index: [Memory.of(index).read(hit) for hit in shown])
        differing = find_differing([settings for settings, _ in read])
        lines: list[str] = []
        for hit, (settings, text) in zip(shown, read, strict=True):
            figures = {name: one[hit.run_id] for name, one in values.items() if hit.run_id in one}
            line = describe_hit(hit, settings, text, question, figures, differing) + self._tell_verdict(hit)
            most_tokens -= estimate_tokens(line)
            if most_tokens < 0 and lines:
                break
            lines.append(line)
        return lines

    def _join_trials(self, hits: Sequence[Hit]) -> list[Hit]:
        """Return the newest hit of each trial of an open sweep, and all others."""
        found: dict[tuple[str, str], Hit] = {}
        for hit in self._add_facts(hits):
            found.setdefault((hit.sweep, _name_trial(hit) or hit.run_id), hit)
        return [*found.values()]

    def _tell_verdict(self, hit: Hit) -> str:
        """Return what became of the trial that a hit is a run of, behind its line; nothing before it is judged."""
        if name := _name_trial(hit):
            with contextlib.suppress(SweepNotFound, RunUnreadable):
                events = self._store.sweeps.observe(hit.sweep).events
                told = [each["verdict"] for each in events if each["kind"] == "verdict" and each.get("trial") == name]
                return "".join(f"; {verdict}" for verdict in told[-1:])
        return ""

    # ---- what the memory lacks
    def remember_all(self, most_alone: float = _MOST_ALONE) -> None:
        """Put into the memory what came since, and the runs that may change as they are now.

        Where more than ``most_alone`` came, other processes read them.
        """
        try:
            self._remember_all(most_alone)
        except ManyUnread:
            read_together(str(self._store.home.path))
            self._remember_all(math.inf)

    def _remember_all(self, most: float) -> None:
        live = self._store.ask(self._list_live, self._remember, most)
        while unknown := self._store.ask(self._list_unknown):
            if len(unknown) > most:
                raise ManyUnread
            for start in range(0, len(unknown), _AT_ONCE):
                if start and time.monotonic() > self._deadline_s:
                    left = len(unknown) - start
                    self._notes.append(f"{left} older runs are not searched yet: the same call reads more.")
                    break
                part = unknown[start : start + _AT_ONCE]
                read = [self._read_ended(run_id) for run_id in part]
                self._store.ask(lambda index: Memory.of(index).put("main", read))  # noqa: B023 - called at once
            else:
                continue  # what came meanwhile, or was lost with the index's file
            break
        current = [one for run_id in live if (one := self._read(run_id)) is not None]
        self._store.ask(lambda index: Memory.of(index).put_live(current))

    def _list_unknown(self, index: RunIndex) -> list[str]:
        return list(filter(self._store.is_shared_out, Memory.of(index).list_unknown()))

    def _list_live(self, index: RunIndex) -> list[str]:
        self._forget_noted(Memory.of(index))
        return Memory.of(index).list_live()

    def _remember(self, index: RunIndex, runs: Sequence[Run]) -> Callable[[], None]:
        """Remember runs that were just read for the index, as long as there is time."""
        self._forget_noted(memory := Memory.of(index))
        is_late = time.monotonic() > self._deadline_s
        read = [] if is_late else [self._read_ended(run.run_id, run) for run in runs]
        return lambda: memory.add("main", read)

    def _forget_noted(self, memory: Memory) -> None:
        """Forget the runs of which something was noted since they were remembered."""
        path = self._store.home.path / NOTED
        with contextlib.suppress(OSError):
            size, known = path.stat().st_size, memory.noted_bytes
            if size != known:
                with path.open("rb") as file:
                    file.seek(known if known < size else 0)
                    ids = file.read().decode(errors="replace").split()
                memory.forget(ids, size)

    def _read_ended(self, run_id: str, run: Run | None = None) -> Remembered:
        return self._read(run_id, run) or Remembered(run_id, (), "", {})

    def _read(self, run_id: str, run: Run | None = None) -> Remembered | None:
        with contextlib.suppress(RunNotFound, RunUnreadable, NotOfSweeps, OSError):
            return remember(run or self._store.observe(run_id), self._store)
        return None

    def _measure(self, metric: str, hits: Sequence[Hit], goal: str | None) -> dict[str, KnownValue]:
        if metric in self._ranked_settings:
            numbers = self._store.ask(lambda index: Memory.of(index).read_numbers(metric, hits))
            return {run_id: KnownValue(value, None) for run_id, value in numbers.items()}
        tag, ranking = parse_ranking(metric)
        goal = goal or choose_goal(tag)
        key = f"{ranking}:{tag}:{goal if ranking == 'best' else ''}"
        kept = self._store.ask(lambda index: Memory.of(index).read_figures(key, hits))
        found = {run_id: KnownValue(facts["value"], facts["step"]) for run_id, facts in kept.items()}
        fresh: list[tuple[Hit, Mapping[str, Any]]] = []
        deadline_s = min(self._deadline_s, time.monotonic() + _LAST_S) if ranking == "last" else self._deadline_s
        for number, hit in enumerate(hits):
            if hit.run_id in found:
                continue
            if time.monotonic() > deadline_s:
                noted = self._find_noted(tag, hits[number:]) if ranking == "last" else {}
                found = noted | found
                if left := sum(one.run_id not in found for one in hits):
                    self._unread.add(metric)
                    self._notes.append(f"{metric} of {left} older runs is not read yet: the same call reads more.")
                if noted:
                    self._notes.append(f"{metric} of {len(noted)} older runs is as their supervisors noted it last.")
                break
            if (figure := self._read_figure(hit.run_id, tag, goal, ranking)) is not None:
                found[hit.run_id] = KnownValue(figure.value, figure.step)
                fresh.append((hit, {"value": figure.value, "step": figure.step}))
        if fresh:
            with contextlib.suppress(sqlite3.OperationalError):  # kept for the next question where it can be
                self._store.ask(lambda index: Memory.of(index).put_figures(key, fresh))
        return found

    @staticmethod
    def _find_noted(tag: str, hits: Sequence[Hit]) -> dict[str, KnownValue]:
        """Return the last values by which the supervisors of runs knew a metric."""
        found = {}
        for hit in hits:
            noted = hit.facts.get("metrics") or {}
            if names := match_tags(tag, noted):
                found[hit.run_id] = KnownValue(float(noted[names[0]]), None)
        return found

    def _rank(
        self, hits: Sequence[Hit], metric: str, goal: str, question: Question
    ) -> tuple[list[Hit], dict[str, KnownValue]]:
        """Return the hits with a value, the best first, and the values. What is not whole wins only if asked for."""
        is_asked = question.states or question.causes
        whole = [hit for hit in hits if is_asked or not (hit.state in _NOT_WHOLE or hit.facts["cause"] == "divergence")]
        if whole and len(whole) < len(hits):
            left = len(hits) - len(whole)
            self._notes.append(
                f"{left} that match are not ranked: failed, stopped, diverged or live. state:ended, state:live."
            )
        hits = whole or hits
        known = self._measure(metric, hits, goal)
        with_value = [hit for hit in hits if (one := known.get(hit.run_id)) and one.value is not None]
        if not with_value:
            self._refuse(f"None of the {len(hits)} runs that match has a metric {metric!r}", metric, hits)
        if without := len(known) - len(with_value):
            self._notes.append(f"{without} more match and have no value of {metric}.")
        return sorted(with_value, key=lambda hit: known[hit.run_id].value or 0.0, reverse=goal == "max"), known

    def _find_goal(self, tag: str, hits: Sequence[Hit]) -> str:
        """Return whether more or less of a metric is better: as a sweep of the hits says it, else by its name."""
        for sweep_id, _ in Counter(hit.sweep for hit in hits if hit.sweep).most_common(_MOST_ASKED_SWEEPS):
            with contextlib.suppress(SweepNotFound, RunUnreadable):
                spec = self._store.sweeps.observe(sweep_id).spec
                if spec.metric and match_tags(tag, [spec.metric]):
                    return spec.goal
        if best_direction(tag) is None:
            self._notes.append(f"Whether more {tag} is better is not known; lowest {tag} is the other order.")
        return choose_goal(tag)

    def _refuse(self, why: str, name: str, hits: Sequence[Hit]) -> NoReturn:
        if name in self._unread:
            raise _Unknown(f"{why}, as far as they are read.")
        tags = Counter(tag for hit in hits for tag in hit.facts.get("metrics", ()))
        for hit in hits[:_MOST_SHOWN]:  # what its supervisor did not note
            if (figure := self._read_figure(hit.run_id, parse_ranking(name)[0], "max", "last")) is not None:
                tags.update(figure.tags)
        names = self._store.ask(lambda index: Memory.of(index).read_names()).settings
        near = find_near_names(name, [*tags, *names]) or [tag for tag, _ in tags.most_common(_MOST_SHOWN)]
        raise _Unknown(f"{why}." + (f" Near: {', '.join(near)}." if near else ""))

    def _read_figure(self, run_id: str, tag: str, goal: str, ranking: str) -> Figure | None:
        """Return the value of a metric of a run, None where its record cannot be read."""
        with contextlib.suppress(RunNotFound, RunUnreadable, NotOfSweeps, OSError):
            return measure(self._store.observe(run_id), self._store, self._scalars, tag, goal, ranking)
        return None

    def _explain_nothing(self, question: Question) -> None:
        """Note how many runs there are without each part of a question that finds none."""
        wider = question.list_wider()
        counts = self._store.ask(lambda index: {part: Memory.of(index).count(one) for part, one in wider.items()})
        found = [f"{count} without {part}" for part, count in counts.items() if count]
        self._notes.append(f"No run matches all parts; there are {', '.join(found)}." if found else "No run matches.")

    def _tell_sweeps(self, hits: Sequence[Hit]) -> list[str]:
        """Return a line for the sweep with the most cells among hits of several, as a hit of its own."""
        cells: Counter[str] = Counter(hit.sweep for hit in hits)
        large = [one for one in cells.most_common() if one[0] and one[1] > _MOST_CELLS and len(cells) > 1]
        return [self._describe_sweep(*one) for one in large[:_MOST_SWEEPS]]

    def _describe_sweep(self, sweep_id: str, count: int) -> str:
        told = sweep_id
        with contextlib.suppress(SweepNotFound, RunUnreadable):
            told = line_of_sweep(self._store.sweeps.observe(sweep_id), self._store)
        return f"sweep {told} | {count} cells match"


def _note_unlisted(hits: Sequence[Hit], listed: Sequence[Hit]) -> list[str]:
    """Return how many cells of the listed sweeps match and are not listed, in one sentence or none."""
    left = Counter(hit.sweep for hit in hits)
    left.subtract(hit.sweep for hit in listed)
    more = [
        f"{left[sweep]} more {'cells' if left[sweep] > 1 else 'cell'} of {sweep}"
        for sweep in dict.fromkeys(hit.sweep for hit in hits)
        if sweep and left[sweep]
    ][:_MOST_SHOWN]
    return [f"Not listed: {', '.join(more)}; sweep:NAME lists them."] if more else []


def _name_trial(hit: Hit) -> str:
    """Return the trial of an open sweep that a hit is a run of, by its reason: ``t3: momentum .9``; else nothing."""
    name, _, text = str(hit.facts.get("why") or "").partition(": ")
    return name if hit.sweep and text and name[:1] == "t" and name[1:].isdecimal() else ""


def _shorten_sweeps(hits: Sequence[Hit]) -> Sequence[Hit]:
    """Return the hits with at most a few cells of one sweep; all of them where there is nothing else."""
    cells: Counter[str] = Counter()
    kept = []
    for hit in hits:
        cells[hit.sweep] += 1
        if not hit.sweep or cells[hit.sweep] <= _MOST_CELLS:
            kept.append(hit)
    return kept if len(cells) > 1 else hits


def _describe_times(question: Question) -> list[str]:
    """Return in one sentence which times a question means."""
    times = [("since", question.since_s), ("until", question.until_s)]
    told = [
        f"{word} {datetime.fromtimestamp(at_s).astimezone():%d %b %H:%M %Z}" for word, at_s in times if at_s is not None
    ]
    return [f"Started {' '.join(told)}."] if told else []


def find_project(asked: str, cwd: str) -> str:
    """Return the directory of a project: for ``.`` the repository of ``cwd``; a name stays a name."""
    if "/" not in asked and asked not in (".", "~"):
        return asked
    path = Path(os.path.abspath(os.path.join(cwd, Path(asked).expanduser())))  # noqa: PTH100, PTH118 - as text, links stay
    if asked != ".":
        return str(path)
    return str(next((one for one in (path, *path.parents) if (one / ".git").exists()), path))


def _split(question: Question, names: Names) -> tuple[Question, list[Bound]]:
    """Return the question with its conditions on settings, and those on metrics."""
    settings = [each for each in question.comparisons if names.is_setting(short_name(normal_name(each.name)))]
    metrics = [each for each in question.comparisons if each not in settings]
    for each in metrics:
        if read_number(each.value) is None:
            near = ", ".join(find_near_names(each.name, names.settings))
            raise _Unknown(f"No run has a setting {each.name!r}." + (f" Near: {near}." if near else ""))
    return replace(question, comparisons=tuple(settings)), metrics


def _holds(each: Bound, known: KnownValue | None) -> bool:
    number = read_number(each.value)
    return (
        known is not None and known.value is not None and number is not None and _SIGNS[each.sign](known.value, number)
    )


def _choose_metric(hits: Sequence[Hit]) -> str:
    """Return the metric that most runs have whose name says which way is better."""
    tags = Counter(tag for hit in hits for tag in hit.facts.get("metrics", ()) if best_direction(tag))
    if not tags:
        raise _Unknown("The query names no metric to rank by, such as best:Train/mean_reward.")
    return str(tags.most_common(1)[0][0])


def read_together(home: str) -> None:
    """Put very many runs into the memory by several processes at once, each a share of them. Waits for their ends.

    Any number may write, and what one that dies has left is read by who asks next. Their reading is nice.
    """
    count = min(os.cpu_count() or 1, _MOST_TOGETHER)
    shares = [(os.getpid(), home, number, count) for number in range(count if count > 1 else 0)]
    readers = [threading.Thread(target=_read_apart, args=share, daemon=True) for share in shares]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()


def _read_apart(*share: Any) -> None:
    process = ReadingProcess()
    with contextlib.suppress(ScalarsUnreadable):  # it died
        process.call(_read_share, *share)
    process.close()


def _read_share(server: int, home: str, number: int, count: int) -> None:
    if os.getpid() != server:
        os.nice(_NICE)
    store = RunStore(StateHome(Path(home)), (number, count))
    Searcher(store, Scalars(store.home, store), "", read_s=math.inf).remember_all(math.inf)


def list_kinds() -> frozenset[str]:
    """Return the kinds of failures that a question may name by their word alone."""
    return frozenset(KINDS) - {"killed", "other", "stall", "timeout"}
