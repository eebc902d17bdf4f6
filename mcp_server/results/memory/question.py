"""Reads a question about former runs: ``best reward in this project``, ``lr > 1e-3 failed:oom_gpu since:7d``. Pure.

A question is a number of parts that must all hold: conditions on settings, metrics and facts, states, causes, times, a
project, and words. Whatever is no other part is a word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal, cast, get_args

from mcp_server.errors import BadArgument
from mcp_server.record.events import LiveState
from mcp_server.record.state import EndedState
from mcp_server.text.durations import find_duration
from mcp_server.text.rows import read_blocks

Sign = Literal["=", "!=", ">", ">=", "<", "<="]

STATES = (*get_args(LiveState), *get_args(EndedState))
GROUPS = ("live", "ended")
FIELDS = ("owner", "tag", "host", "name", "sweep", "command", "commit", "why", "verdict", "note", "cwd", "backend")
_SILENT_BLOCK, _STATE_BLOCK, *_SIGN_BLOCKS = map(dict, read_blocks("results/memory/question"))
_SILENT = frozenset(_SILENT_BLOCK["word"].split())
_STATE_WORDS = dict(pair.split("=") for pair in _STATE_BLOCK["state"].split())
_SIGNS: Mapping[str, Sign] = {
    words: cast("Sign", block["sign"]) for block in _SIGN_BLOCKS for words in block["said"].split(", ")
}
_NUMBER = r"[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?%?"
_NAME = r"[-$]{0,2}[A-Za-z_][\w./@%-]*"
_VALUE = r"\"[^\"]*\"|'[^']*'|[^\s,;]+"
_SPOKEN = "|".join(word for word in _SIGNS if word[0].isalpha())
_BETWEEN = re.compile(
    rf"(?P<name>{_NAME})\s+(?:between|from)\s+(?P<low>{_NUMBER})\s+(?:and|to)\s+(?P<high>{_NUMBER})", re.IGNORECASE
)
_COMPARED = re.compile(
    rf"(?P<name>\"[^\"]+\"|{_NAME})\s*(?P<sign>[<>!=]=|[≥≤≠<>=])\s*(?P<value>{_VALUE})"
    rf"|(?P<spoken_name>{_NAME})\s+(?:is\s+)?(?P<spoken>{_SPOKEN})\s+(?P<spoken_value>{_NUMBER})(?![\w.])",
    re.IGNORECASE,
)
_KEYED = re.compile(
    rf"(?<![\w/])(?P<key>[a-z_]+):(?P<value>{_VALUE})|\b(?P<when>since|after|before|until)\s+(?P<date>\d[\w:-]*)"
)
_RANKED = re.compile(
    r"\b(?P<most>best|highest|largest|lowest|smallest|least|worst)\b"
    r"(?:\s*:\s*|\s+(?:ever\s+)?(?:(?:runs?|settings?|results?|ones?|cells?|trainings?)\b\s*)?(?:ever\s+)?"
    r"(?:(?:by|in terms of|on|for|at)\b\s*)?)"
    rf"(?P<tag>(?:(?:best|last|mean10%):)?{_NAME})?",
    re.IGNORECASE,
)
_GOALS: Mapping[str, Literal["max", "min"] | None] = {
    "best": None,
    "highest": "max",
    "largest": "max",
    "lowest": "min",
    "smallest": "min",
    "least": "min",
}
_AGO = re.compile(
    r"\b(?:in|within|since|over|during)?\s*(?:the\s+)?(?:last|past)\s+(?P<span>(?:\d+(?:\.\d+)?|an?|two|three|few)?\s*(?:minute|hour|day|week|month)s?)\b",
    re.IGNORECASE,
)
_DAY = re.compile(r"\b(?P<day>last night|tonight|today|yesterday|this morning|this week|last week)\b", re.IGNORECASE)
_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})(?:[T ](\d{2}):(\d{2})(?::\d{2})?)?Z?")
_HERE = re.compile(
    r"\b(?:(?:in|of|from|for)\s+)?(?:this|the current|my|our)\s+(?:project|repo(?:sitory)?|directory)\b", re.IGNORECASE
)
_WORD = re.compile(r"\"[^\"]+\"|'[^']+'|[^\s,;?!()]+")
_NIGHT_BEGINS, _NIGHT_ENDS, _MORNING = 18, 10, 5  # hours of this machine's clock


@dataclass(frozen=True)
class Bound:
    """A setting, metric or fact beside a value: ``lr > 0.001``. ``value`` is text; compared as a number if both are."""

    name: str
    sign: Sign
    value: str

    @property
    def text(self) -> str:
        """The condition as an answer quotes it."""
        return f"{self.name}{self.sign}{self.value}" if len(self.sign) == 1 else f"{self.name} {self.sign} {self.value}"


@dataclass(frozen=True)
class Question:
    """A question in parts, all of which must hold. Times are POSIX seconds of the launch.

    ``ranked``: the metric by which the hits stand, empty for the one that most of them have; None: newest first.
    """

    comparisons: tuple[Bound, ...] = ()
    states: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    fields: tuple[tuple[str, str], ...] = ()
    project: str | None = None
    since_s: float | None = None
    until_s: float | None = None
    ranked: str | None = None
    goal: Literal["max", "min"] | None = None
    words: tuple[str, ...] = ()

    def list_wider(self) -> dict[str, Question]:
        """Return the question without each of its parts, by that part."""
        wider = {}
        for one in self.comparisons:
            wider[one.text] = replace(self, comparisons=tuple(each for each in self.comparisons if each != one))
        for key, value in self.fields:
            others = tuple(each for each in self.fields if each != (key, value))
            wider[f"{key}:{value}"] = replace(self, fields=others)
        for word in self.words:
            wider[word] = replace(self, words=tuple(each for each in self.words if each != word))
        if self.states or self.causes:
            wider[" ".join((*self.states, *self.causes))] = replace(self, states=(), causes=())
        if self.project is not None:
            wider[f"project:{self.project}"] = replace(self, project=None)
        if self.since_s is not None or self.until_s is not None:
            wider["a time"] = replace(self, since_s=None, until_s=None)
        return wider

    def of_owner(self, owner: str) -> Question:
        """Return the question about the runs of one owner alone."""
        return replace(self, fields=(*self.fields, ("owner", owner)))


@dataclass
class _Reader:
    text: str
    now: datetime
    kinds: frozenset[str]
    question: dict[str, object] = field(default_factory=dict)

    def take(self, pattern: re.Pattern[str], read: Callable[[re.Match[str]], bool]) -> None:
        """Take each match that ``read`` understands out of the text."""
        position = 0
        while (found := pattern.search(self.text, position)) is not None:
            if read(found):
                self.text = f"{self.text[: found.start()]} {self.text[found.end() :]}"
                position = found.start()
            else:
                position = max(found.end(), found.start() + 1)

    def add(self, name: str, value: object) -> bool:
        former = self.question.setdefault(name, ())
        self.question[name] = (*former, value)  # type: ignore[misc]
        return True

    def put(self, **values: object) -> bool:
        self.question |= values
        return True

    def keyed(self, found: re.Match[str]) -> bool:
        key, value = (found["key"] or found["when"]).lower(), _unquote(found["value"] or found["date"])
        if key in ("failed", "cause", "kind", "failure"):
            return self.add("causes", value) and (key != "failed" or self.add("states", "failed"))
        if key == "state":
            return self.state(value) or self._refuse(f"{value!r} is no state; states are {', '.join(STATES + GROUPS)}.")
        if key == "project":
            return self.put(project=value)
        if key in ("since", "after"):
            return self.put(since_s=self._read_time(value))
        if key in ("until", "before"):
            return self.put(until_s=self._read_time(value))
        return key in FIELDS and self.add("fields", (key, value))

    def compared(self, found: re.Match[str]) -> bool:
        name = found["name"] or found["spoken_name"]
        sign = _SIGNS[(found["sign"] or found["spoken"]).lower()]
        value = _unquote(found["value"] or found["spoken_value"])
        if name.lower() in FIELDS and sign == "=":
            return self.add("fields", (name.lower(), value))
        if name.lower() in ("since", "before", "until", "project", "state", "cause", "kind"):
            return self.keyed(_KEYED.fullmatch(f"{name.lower()}:{found['value']}") or found)
        return name.lower() not in _SILENT and self.add("comparisons", Bound(_unquote(name), sign, value))

    def between(self, found: re.Match[str]) -> bool:
        self.add("comparisons", Bound(found["name"], ">=", found["low"]))
        return self.add("comparisons", Bound(found["name"], "<=", found["high"]))

    def ranked(self, found: re.Match[str]) -> bool:
        word, tag = found["most"].lower(), found["tag"] or ""
        if word not in _GOALS or "ranked" in self.question:
            return False
        if tag.lower() in _SILENT or self.state(tag):
            tag = ""
        return self.put(ranked=tag, goal=_GOALS[word])

    def ago(self, found: re.Match[str]) -> bool:
        span = re.sub(r"(?i)^(?:few|)\s*(?=[a-z])", "", found["span"])
        span = (
            span
            if re.match(r"\d|an?\b|two|three", span, re.IGNORECASE)
            else f"{3 if 'few' in found['span'] else 1} {span}"
        )
        days = re.fullmatch(r"(?i)(\S+)\s*months?", span)
        seconds = 30 * 86_400.0 * (find_duration(f"{days[1]} days") or 86_400) / 86_400 if days else find_duration(span)
        return seconds is not None and self.put(since_s=self.now.timestamp() - seconds)

    def day(self, found: re.Match[str]) -> bool:
        midnight = self.now.replace(hour=0, minute=0, second=0, microsecond=0)
        word = found["day"].lower()
        if word == "last night":
            begin = midnight - timedelta(hours=24 - _NIGHT_BEGINS)
            return self.put(since_s=begin.timestamp(), until_s=(midnight + timedelta(hours=_NIGHT_ENDS)).timestamp())
        if word == "yesterday":
            return self.put(since_s=(midnight - timedelta(days=1)).timestamp(), until_s=midnight.timestamp())
        monday = midnight - timedelta(days=midnight.weekday())
        if word == "last week":
            return self.put(since_s=(monday - timedelta(days=7)).timestamp(), until_s=monday.timestamp())
        hours = {"tonight": _NIGHT_BEGINS, "this morning": _MORNING}.get(word, 0)
        return self.put(since_s=(monday if word == "this week" else midnight + timedelta(hours=hours)).timestamp())

    def state(self, word: str) -> bool:
        state = _STATE_WORDS.get(word.lower(), word.lower())
        return state in (*STATES, *GROUPS) and self.add("states", state)

    def words(self) -> tuple[str, ...]:
        kept = []
        for found in _WORD.finditer(self.text):
            word = _unquote(found[0]).strip(".:")
            if word == found[0].strip(".:") and word.lower() in self.kinds:
                self.add("causes", word.lower())
            elif word != found[0].strip(".:") or not (word.lower() in _SILENT or self.state(word)):
                kept += [word] if any(map(str.isalnum, word)) else []
        return tuple(kept)

    def _read_time(self, text: str) -> float:
        if found := _DATE.fullmatch(text):
            year, month, day, hour, minute = (int(each or 0) for each in found.groups())
            try:
                return self.now.replace(year=year, month=month, day=day, hour=hour, minute=minute, second=0).timestamp()
            except ValueError as error:
                self._refuse(f"{text!r}: {error}.")
        if _DAY.fullmatch(text.replace("-", " ").replace("_", " ")):
            asked = _Reader(text.replace("-", " ").replace("_", " "), self.now, self.kinds)
            asked.take(_DAY, asked.day)
            return float(str(asked.question["since_s"]))
        if (seconds := find_duration(text)) is not None and seconds >= 0:
            return self.now.timestamp() - seconds
        self._refuse(f"{text!r} is no time; times are 7d, 12h, 2026-11-20, yesterday.")
        return 0.0

    def _refuse(self, why: str) -> bool:
        raise BadArgument("query", why)


def read_question(text: str, now: datetime, kinds: frozenset[str]) -> Question:
    """Return the question in ``text``. ``now``: with its time zone. ``kinds``: of failures.

    Raises:
        BadArgument: a part names a state or time that does not exist.
    """
    reader = _Reader(re.sub(r"\s+", " ", text).strip(), now, kinds)
    for pattern, read in (
        (_HERE, lambda _: reader.put(project=".")),
        (_BETWEEN, reader.between),
        (_COMPARED, reader.compared),
        (_KEYED, reader.keyed),
        (_AGO, reader.ago),
        (_DAY, reader.day),
        (_RANKED, reader.ranked),
    ):
        reader.take(pattern, read)
    reader.put(words=reader.words())
    return Question(**reader.question)  # type: ignore[arg-type]


def _unquote(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text
