"""What is remembered of each run, in tables of the index of runs: made from the records, and made again at any time.

The runs that have ended are in the index's file, those that may change in tables of this process alone, which are
written anew for each question. Figures of metrics are read when they are first asked for, and kept.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, ClassVar, Literal, NamedTuple

from mcp_server.results.memory.conditions import Bound, Question
from mcp_server.results.memory.question import GROUPS
from mcp_server.results.memory.vocabulary import Names, list_meant
from mcp_server.store.run_index import RunIndex, sqlite_text

Schema = Literal["main", "temp"]
SCHEMAS: tuple[Schema, ...] = ("main", "temp")
_RUNS: Mapping[Schema, str] = {
    "main": "(SELECT * FROM main.final WHERE run_id NOT IN (SELECT run_id FROM hidden))",
    "temp": "own",
}
# Most settings are those of many runs. ``terms`` holds each once, ``has`` which runs have it, by the ids of their rows.
_TABLES = """
CREATE TABLE IF NOT EXISTS $memory (id INTEGER PRIMARY KEY, run_id TEXT UNIQUE, terms, facts);
CREATE TABLE IF NOT EXISTS $terms (term INTEGER PRIMARY KEY, short, value COLLATE NOCASE, name, number);
CREATE INDEX IF NOT EXISTS $terms_by_name ON terms (short, value);
CREATE TABLE IF NOT EXISTS $has (term INTEGER, id INTEGER, PRIMARY KEY (term, id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS $names (sort, name, PRIMARY KEY (sort, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS $figures (metric, id, facts, PRIMARY KEY (metric, id)) WITHOUT ROWID;
CREATE VIRTUAL TABLE IF NOT EXISTS $texts USING fts5(body)
"""
_DROP = (
    "DELETE FROM $has WHERE id = ? AND term IN (SELECT value FROM json_each(?))",
    *("DELETE FROM $figures WHERE id = ?", "DELETE FROM $texts WHERE rowid = ?", "DELETE FROM $memory WHERE id = ?"),
)
_UNKNOWN = "FROM $runs r LEFT JOIN $memory m USING (id) WHERE m.id IS NULL AND NOT r.is_cut_off"
_SELECT = "SELECT r.run_id, r.id, r.state, r.created_at, r.sweep"
_FROM = "FROM $runs r CROSS JOIN $memory m USING (id) WHERE NOT r.is_cut_off"
_HAVE = "FROM $terms CROSS JOIN $has USING (term) WHERE {}"
_INSIDE = f"r.id IN (SELECT id {_HAVE})"
_INSIDE_TEXTS = "r.id IN (SELECT rowid FROM $texts WHERE {})"
_IS_ON = "coalesce(number, 1) != 0 AND value COLLATE NOCASE NOT IN ('false', 'no', 'none', 'null', 'off', 'disabled')"
_NAMED = re.compile(r":(\w+)\b")
_TABLE = re.compile(r"\$(memory|terms(?:_by_name)?|has|figures|names|texts)\b")
_DOUBLED = re.compile(r"([bdgkmnprtv])\1$")  # before an ending: ``overfitting``
_INFLECTED = re.compile(r"([A-Za-z]{5,}?)(?:ations?|ings?|ments?|ed|es)")
_MOST_VALUE = 300  # characters of a setting
_EQUAL_FIELDS = frozenset({"same", "alike", "owner", "tag", "host", "verdict", "backend"})
_GROUP_OF = {"live": "'queued', 'starting', 'running', 'stalled', 'retrying'"}


@dataclass(frozen=True)
class Remembered:
    """One run as it is searched. ``facts`` are shown. ``settings`` by name; those of runward begin with a colon."""

    run_id: str
    settings: Sequence[tuple[str, str]]
    text: str
    facts: Mapping[str, Any]


class Hit(NamedTuple):
    """A run that a question found. ``schema`` and ``number`` name its rows."""

    run_id: str
    schema: Schema
    number: int
    state: str
    created_at: str
    sweep: str
    noted: str | None = None  # ``facts`` as they are kept, which ``add_facts`` reads

    @property
    def facts(self) -> dict[str, Any]:
        """What is told of it: see ``Remembered``."""
        assert self.noted is not None  # noqa: S101 - nobody has read them
        return dict(json.loads(self.noted))


@lru_cache(10_000)
def normal_name(name: str) -> str:
    """Return a setting's name without its signs: ``--num-envs`` and ``num_envs`` are one."""
    return name.lstrip("-+").replace("-", "_").lower()


@lru_cache(10_000)
def short_name(name: str) -> str:
    """Return the last part of a normal name: ``lr`` of ``config:optimizer.lr``."""
    return re.split(r"[./:]", name)[-1] or name


@lru_cache(10_000)
def read_number(text: str) -> float | None:
    """Return the number that a whole text is, None for another text or one that is not finite."""
    try:
        number = float(text.replace("_", "").removesuffix("%"))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


class Memory:
    """The tables in one index. Not for two threads at once: use it inside of ``RunStore.ask``."""

    _of: ClassVar[weakref.WeakKeyDictionary[RunIndex, Memory]] = weakref.WeakKeyDictionary()

    @classmethod
    def of(cls, index: RunIndex) -> Memory:
        """Return the tables of an index, which are made once."""
        if (memory := cls._of.get(index)) is None:
            memory = cls._of[index] = cls(index)
        return memory

    def __init__(self, index: RunIndex) -> None:
        self._index = weakref.proxy(index)
        self._whole: tuple[int, int] | None = None  # how the file was written when the tables had all ended runs
        for schema in SCHEMAS:
            for statement in _TABLES.split(";\n"):
                self._run(schema, statement)

    def _run(self, schema: Schema, statement: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[Any]:
        """Run a statement whose names with a $ are the tables of one schema."""
        return list(self._index.execute(_name_tables(schema, statement), values))

    def _run_each(self, schema: Schema, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        self._index.execute_each(_name_tables(schema, statement), rows)

    def list_unknown(self) -> list[str]:
        """Return the ended runs that are not in the tables, the newest first."""
        written = self._index.read_version(), self._index.writes
        if written == self._whole:  # to compare ten thousand rows takes 15 ms
            return []
        unknown = self._run("main", f"SELECT r.run_id {_UNKNOWN} ORDER BY r.created_at DESC")
        self._whole = None if unknown else written
        return [run_id for (run_id,) in unknown]

    def list_live(self) -> list[str]:
        """Return the runs that may change."""
        return [run_id for (run_id,) in self._run("temp", "SELECT run_id FROM $runs WHERE NOT is_cut_off")]

    def put(self, schema: Schema, runs: Sequence[Remembered]) -> None:
        """Write what is remembered of ``runs``, in place of what was; in one transaction."""
        with self._transaction(schema):
            self.add(schema, runs)

    @contextlib.contextmanager
    def _transaction(self, schema: Schema) -> Iterator[None]:
        self._run(schema, "BEGIN" if schema == "temp" else "BEGIN IMMEDIATE")
        try:
            yield
            self._run(schema, "COMMIT")
        except BaseException:
            self._run(schema, "ROLLBACK")
            raise

    @property
    def noted_bytes(self) -> int:
        """How much of the list of noted runs the file has seen."""
        return int(self._index.execute("PRAGMA main.user_version")[0][0])

    def forget(self, run_ids: Sequence[str], noted_bytes: int) -> None:
        """Forget ended runs, which have other notes since: the list of noted runs has this size."""
        with self._transaction("main"):
            self._drop("main", run_ids)
            self._index.execute(f"PRAGMA main.user_version = {noted_bytes:d}")

    def put_live(self, runs: Sequence[Remembered]) -> None:
        """Remember the runs that may change as they are now, and no others."""
        with self._transaction("temp"):
            for table in ("$memory", "$terms", "$has", "$texts"):
                self._run("temp", f"DELETE FROM {table}")  # noqa: S608 - the tables are ours
            self.add("temp", runs)

    def _drop(self, schema: Schema, run_ids: Sequence[str]) -> None:
        if schema == "main":
            self._whole = None
        of_runs = "SELECT id, terms FROM $memory WHERE run_id IN (SELECT value FROM json_each(?))"
        for number, terms in self._run(schema, of_runs, (json.dumps(run_ids),)):
            for statement in _DROP:
                self._run(schema, statement, (number, terms)[: statement.count("?")])

    def add(self, schema: Schema, runs: Sequence[Remembered]) -> None:
        """Do the same as ``put`` in the transaction that was begun. Runs without a row are left out."""
        self._drop(schema, [one.run_id for one in runs])
        chosen = "SELECT run_id, id FROM $runs r WHERE run_id IN (SELECT value FROM json_each(?))"
        ids = dict(self._run(schema, chosen, (json.dumps([one.run_id for one in runs]),)))
        numbered = [(ids[one.run_id], one) for one in runs if one.run_id in ids]
        settings = {(name, value): None for _, one in numbered for name, value in one.settings}
        terms = dict(zip(settings, self._number_terms(schema, list(settings)), strict=True))
        memory, has = [], []
        for number, one in numbered:
            own = [terms[each] for each in one.settings]
            memory.append((number, one.run_id, json.dumps(own), json.dumps(one.facts)))
            has += [(term, number) for term in own]
        self._run_each(schema, "INSERT INTO $memory VALUES (?, ?, ?, ?)", memory)
        self._run_each(schema, "INSERT OR IGNORE INTO $has VALUES (?, ?)", has)
        names = {("metric", tag) for _, one in numbered for tag in one.facts.get("metrics", ())}
        self._run_each(schema, "INSERT OR IGNORE INTO $names VALUES (?, ?)", names)
        texts = [(number, sqlite_text(one.text)) for number, one in numbered]
        self._run_each(schema, "INSERT INTO $texts (rowid, body) VALUES (?, ?)", texts)

    def _number_terms(self, schema: Schema, settings: Sequence[tuple[str, str]]) -> list[int]:
        """Return the numbers of settings, each by name and value; new ones are written."""
        rows: dict[tuple[str, str], tuple[Any, ...]] = {}
        numbers, names = [], set()
        last = self._run(schema, "SELECT coalesce(max(term), 0) FROM $terms")[0][0]
        known = "SELECT term FROM $terms WHERE short = ? AND value = ? AND value = ? COLLATE BINARY AND name = ?"
        for each, value in settings:
            name, text = normal_name(each), sqlite_text(value[:_MOST_VALUE])
            short = short_name(name)
            if (name, text) in rows or not (found := self._run(schema, known, (short, text, text, name))):
                new = last + len(rows) + 1, short, text, name, read_number(text)
                found = [rows.setdefault((name, text), new)]
                names |= {
                    ("setting", short),
                    *([("value", text.lower())] if text.isalnum() and not text.isdigit() else ()),
                }
            numbers.append(found[0][0])
        self._run_each(schema, "INSERT INTO $terms VALUES (?, ?, ?, ?, ?)", rows.values())
        self._run_each(schema, "INSERT OR IGNORE INTO $names VALUES (?, ?)", names)
        return numbers

    def read_names(self) -> Names:
        """Return the names of all settings and metrics, and the words that are values, also of runs that are gone."""
        rows = [row for schema in SCHEMAS for row in self._run(schema, "SELECT sort, name FROM $names")]
        return Names(
            *(list(dict.fromkeys(n for sort, n in rows if sort == one)) for one in ("setting", "metric", "value"))
        )

    def select(self, question: Question) -> list[Hit]:
        """Return the runs for which all parts of a question hold but its metrics, the newest first; without facts."""
        hits = []
        select, values = self._write_select(question)
        for schema in SCHEMAS:
            rows = self._run(schema, f"{_SELECT} {select} ORDER BY r.created_at DESC, r.run_id", values)
            hits += [Hit(run_id, schema, *facts) for run_id, *facts in rows]
        return sorted(hits, key=lambda hit: hit.created_at, reverse=True)

    def count(self, question: Question) -> int:
        """Return how many runs ``select`` returns."""
        select, values = self._write_select(question)
        return sum(self._run(schema, f"SELECT count(*) {select}", values)[0][0] for schema in SCHEMAS)

    def _write_select(self, question: Question) -> tuple[str, dict[str, Any]]:
        conditions = _Conditions(question, self.read_names())
        select = " AND ".join([_FROM, *conditions.parts])
        if question.since_s is not None:  # few are as new
            select = select.replace("r.id IN", "+r.id IN")
        return select, conditions.values

    def add_facts(self, hits: Sequence[Hit]) -> list[Hit]:
        """Return these runs with what is told of them, without those that are forgotten."""
        known: dict[tuple[str, int], str] = {}
        for schema in SCHEMAS:
            ids = json.dumps([hit.number for hit in hits if hit.schema == schema])
            rows = self._run(
                schema, "SELECT id, facts FROM $memory WHERE id IN (SELECT value FROM json_each(?))", (ids,)
            )
            known |= {(schema, number): facts for number, facts in rows}
        found = [(hit, known.get((hit.schema, hit.number))) for hit in hits]
        return [hit._replace(noted=facts) for hit, facts in found if facts is not None]

    def read(self, hit: Hit) -> tuple[dict[str, str], str]:
        """Return the settings of a hit by their normal names, and its text."""
        text = self._run(hit.schema, "SELECT body FROM $texts WHERE rowid = ?", (hit.number,))
        own = "SELECT j.value FROM $memory m, json_each(m.terms) j WHERE m.id = ?"
        settings = self._run(hit.schema, f"SELECT name, value FROM $terms WHERE term IN ({own})", (hit.number,))  # noqa: S608
        return dict(settings), str(text[0][0]) if text else ""

    def read_numbers(self, name: str, hits: Sequence[Hit]) -> dict[str, float]:
        """Return the number of a setting of these runs, by id."""
        condition, values = _name_condition(name, self.read_names())
        found: dict[str, float] = {}
        for schema in SCHEMAS:
            ids = {hit.number: hit.run_id for hit in hits if hit.schema == schema}
            rows = self._run(schema, f"SELECT id, number {_HAVE.format(condition)}", values)
            found |= {ids[number]: value for number, value in rows if number in ids and value is not None}
        return found

    def read_figures(self, metric: str, hits: Sequence[Hit]) -> dict[str, dict[str, Any]]:
        """Return what is known of a metric of these runs, by id."""
        ids = {hit.number: hit.run_id for hit in hits if hit.schema == "main"}
        rows = self._run("main", "SELECT id, facts FROM $figures WHERE metric = ?", (metric,))
        return {ids[number]: json.loads(facts) for number, facts in rows if number in ids}

    def put_figures(self, metric: str, figures: Iterable[tuple[Hit, Mapping[str, Any]]]) -> None:
        """Keep a metric of runs that have ended."""
        for hit, facts in figures:
            if hit.schema == "main":
                statement = "REPLACE INTO $figures SELECT ?, id, ? FROM $memory WHERE id = ? AND run_id = ?"
                self._run("main", statement, (metric, json.dumps(facts), hit.number, hit.run_id))


def _name_tables(schema: Schema, statement: str) -> str:
    return _TABLE.sub(rf"{schema}.\g<1>", statement.replace("$runs", _RUNS[schema]))


def _name_condition(name: str, names: Names) -> tuple[str, dict[str, Any]]:
    normal = normal_name(name)
    if (short := short_name(normal)) == normal:
        meant = {f"short{number}": one for number, one in enumerate(list_meant(name, names.settings) or [short])}
        return f"short IN ({', '.join(f':{each}' for each in meant)})", meant
    exact = "name IN (:name, :own) OR name LIKE :end OR name LIKE '%:' || :name"
    return f"short = :short AND ({exact})", {"short": short, "name": normal, "end": f"%.{normal}", "own": f":{normal}"}


class _Conditions:
    """A question as conditions of a SELECT, ``parts``, and the ``values`` that these name."""

    def __init__(self, question: Question, names: Names) -> None:
        self.parts: list[str] = []
        self.values: dict[str, Any] = {}
        for each in question.comparisons:
            self._hold_comparison(each, names)
        for fields, no in ((question.fields, ""), (question.not_fields, "NOT ")):
            for key, value in fields:
                condition = f"short = :key AND name = ':' || :key AND {_match_field(key)}"
                self._hold(no + _INSIDE.format(condition), key=key, value=value)
        self._hold_any("short = 'cause' AND name = ':cause' AND ({})", "value LIKE {} || '%'", question.causes)
        if question.states:
            self._hold(f"({' OR '.join(map(_state_condition, question.states))})")
        if question.since_s is not None:
            self._hold("r.created_at >= :since", since=_write_time(question.since_s))
        if question.until_s is not None:
            self._hold("r.created_at < :until", until=_write_time(question.until_s))
        if question.project is not None:
            inside = "instr(value || '/', :path || '/') = 1"
            if not question.project.startswith("/"):
                inside = "instr(lower(value) || '/', '/' || lower(:path) || '/')"
            self._hold(_INSIDE.format(f"short = 'cwd' AND {inside}"), path=question.project.rstrip("/"))
        for state in question.not_states:
            self._hold(f"NOT ({_state_condition(state)})")
        self._hold_words(question, names)

    def _hold_words(self, question: Question, names: Names) -> None:
        values = frozenset(names.values)
        for word in question.words:
            settings = [] if "|" in word else list_meant(word, names.settings)
            inside = _INSIDE.format(f"short IN ({', '.join(f':short{at}' for at in range(len(settings)))})")
            given = {f"short{at}": name for at, name in enumerate(settings)}
            if settings and not word.isalnum():  # ``kl_coef`` is no word of a sentence
                self._hold(inside, **given)
            else:
                frame = f"({_INSIDE_TEXTS} OR {inside})" if settings else _INSIDE_TEXTS
                self._hold_word(word, values, frame, **given)
        for word in question.unlike:
            self._hold_word(word, {word.lower()}, f"NOT {_INSIDE_TEXTS}")

    def _hold_comparison(self, each: Bound, names: Names) -> None:
        name, given = _name_condition(each.name, names)
        if each.sign == "is":
            self._hold(f"{'NOT ' * (each.value == 'off')}{_INSIDE.format(f'({name}) AND {_IS_ON}')}", **given)
        else:
            self._hold(_INSIDE.format(f"({name}) AND {_compare(each)}"), **given, **_values_of(each))

    def _hold(self, part: str, **given: Any) -> None:
        """Add a condition whose values get names that no other condition has."""
        names = {name: f"v{len(self.values) + number}" for number, name in enumerate(given)}
        self.values |= {names[name]: value for name, value in given.items()}
        self.parts.append(_NAMED.sub(lambda found: f":{names.get(found[1], found[1])}", part))

    def _hold_any(self, frame: str, one: str, values: Sequence[str]) -> None:
        if values:
            given = {f"one{number}": value for number, value in enumerate(values)}
            condition = " OR ".join(one.format(f":{name}") for name in given)
            self._hold(_INSIDE.format(frame.format(condition)), **given)

    def _hold_word(self, word: str, values: Collection[str], frame: str, **other: str) -> None:
        """Add that one of the words between bars stands in the text: whole where it is a value, else as a beginning."""
        each = [(one, "") if one.lower() in values else (stem(one), "*") for one in word.split("|")]
        search = " OR ".join('"{}"{}'.format(text.replace('"', " ").strip(), end) for text, end in each)
        same = "" if "|" in word or word.isalnum() else " AND body LIKE '%' || :like || '%'"  # with its signs
        self._hold(frame.format(f"texts MATCH :word{same}"), word=search, like=word, **other)


def _write_time(posix_s: float) -> str:
    """Return a time as records have it, without fractions of a second."""
    return datetime.fromtimestamp(posix_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def stem(word: str) -> str:
    """Return what the words that are meant begin with: ``explor`` of exploration and exploring, a plural's singular."""
    word = word.replace('"', " ").strip()
    if found := _INFLECTED.fullmatch(word):
        return _DOUBLED.sub(r"\1", found[1])
    return word[:-1] if len(word) > 4 and word.endswith("s") and not word.endswith("ss") else word  # noqa: PLR2004


def _state_condition(state: str) -> str:
    if state in GROUPS:
        return f"r.state {'IN' if state == 'live' else 'NOT IN'} ({_GROUP_OF['live']})"
    return f"+r.state = '{state}'" + (" OR (r.sweep != '' AND r.stopped_by = 'policy')" if state == "failed" else "")


def _match_field(key: str) -> str:
    if key in _EQUAL_FIELDS:
        return "value = :value COLLATE NOCASE"
    if key == "commit":
        return "value LIKE :value || '%'"
    return "(value GLOB :value OR value LIKE '%' || :value || '%')"


def _compare(each: Bound) -> str:
    """Return a condition on the number or text of a setting; several values between ``or`` are as good."""
    parts = [
        f"value = :value{at} COLLATE NOCASE OR value LIKE '%/' || :value{at}"
        if isinstance(value, str)
        else f"number {each.sign.replace('!=', '=')} :value{at}"
        for at, value in enumerate(_values_of(each).values())
    ]
    return f"{'NOT ' * (each.sign == '!=')}({' OR '.join(parts)})"


def _values_of(each: Bound) -> dict[str, str | float]:
    values = (
        re.split(r"\s+(?:or|and|vs\.?|versus|against)\s+", each.value) if each.sign in ("=", "!=") else [each.value]
    )
    listed = [number for value in values for number in re.split(r"\s*,\s*", value)]
    values = listed if all(read_number(value) is not None for value in listed) else values
    read = [value if (number := read_number(value)) is None else number for value in values]
    return {f"value{at}": one for at, one in enumerate(read)}
