"""Reads a question about former runs: ``best reward in this project``, ``lr > 1e-3 failed:oom_gpu since:7d``. Pure.

A question is a number of parts that must all hold: conditions on settings, metrics and facts, states, causes, times, a
project, and words. Whatever is no other part is a word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import get_args

from mcp_server.diagnosis.failure.kinds import KINDS
from mcp_server.errors import BadArgument
from mcp_server.record.events import LiveState
from mcp_server.record.state import EndedState
from mcp_server.results.memory.conditions import Bound, Question, join_values
from mcp_server.results.memory.named_days import DATE, DAY, find_day
from mcp_server.results.memory.vocabulary import (
    BEFORE_NAME,
    CLAIMS,
    COUNTS,
    LINKS,
    OR_MORE,
    PHRASES,
    RANKS,
    SIGNS,
    SILENT,
    STATE_WORDS,
    TIME_RANKS,
    Names,
    Sign,
    find_metric,
)
from mcp_server.scalars.tag_names import best_direction
from mcp_server.text.durations import find_duration
from mcp_server.text.rows import read_patterns

STATES = (*get_args(LiveState), *get_args(EndedState))
GROUPS = ("live", "ended")
FIELDS = ("owner", "tag", "host", "name", "sweep", "command", "commit", "why", "verdict", "note", "cwd", "backend")
_SPOKEN = "|".join(sorted((word for word in SIGNS if word[0].isalpha()), key=len, reverse=True))
_LINKING = "|".join(LINKS)
_RANK_WORDS = {**RANKS, **TIME_RANKS}
_RX = read_patterns(
    "results/patterns",
    "question",
    spoken=_SPOKEN,
    links=rf"(?:(?:{_LINKING})\s+)*",
    or_more="|".join(OR_MORE),
    counts="|".join(COUNTS),
    phrases="|".join(sorted(PHRASES, key=len, reverse=True)).replace(" ", r"[\s-]+"),
    ranking="|".join(_RANK_WORDS),
    days=DAY,
)
_ONE_WAY = frozenset(word for word, goal in RANKS.items() if goal in ("max", "min"))
_WORD = re.compile(r"\"[^\"]+\"|'[^']+'|[^\s,;?!()]+")
_ARTICLES = frozenset({"a", "an", "any", "the"})


@dataclass
class _Reader:
    text: str
    now: datetime
    kinds: frozenset[str]
    names: Names
    question: dict[str, object] = field(default_factory=dict)

    def take(self, pattern: re.Pattern[str], read: Callable[[re.Match[str]], bool | str]) -> None:
        """Take each match that ``read`` understands out of the text; what it returns stays in its place."""
        position = 0
        while (found := pattern.search(self.text, position)) is not None:
            taken = read(found)
            if taken is False:
                word = re.compile(r"\s+|$").search(self.text, found.start() + 1)
                position = max(word.end() if word else found.end(), found.start() + 1)
                continue
            left = taken if isinstance(taken, str) else ""
            self.text = f"{self.text[: found.start()]} {left} {self.text[found.end() :]}"
            position = found.start() + len(left) + 1

    def add(self, name: str, value: object) -> bool:
        former = self.question.setdefault(name, ())
        self.question[name] = (*former, value)  # type: ignore[misc]
        return True

    def put(self, **values: object) -> bool:
        self.question |= values
        return True

    def quoted(self, found: re.Match[str]) -> bool:
        before = self.text[: found.start()].lower()
        if re.search(rf"\b(?:by|{'|'.join(_RANK_WORDS)})\s*:?\s*$", before):
            return self.put(ranked=found["text"][1:-1])  # ``best:"top-1 accuracy"``
        if before.endswith(":"):
            return False
        return self.add("words", found["text"][1:-1]) and self.add("claimed", found["text"][1:-1])

    def keyed(self, found: re.Match[str]) -> bool:
        key, value = (found["key"] or found["when"]).lower(), _unquote(found["value"] or found["date"])
        if found["not"]:
            if key == "state" and (state := self._find_state(value)):
                return self.add("not_states", state)
            return self.add("not_fields", (key, value)) if key in FIELDS else self._refuse(f"{key}: cannot be negated.")
        if key in ("failed", "cause", "kind", "failure"):
            kind, _, means = PHRASES.get(value.lower(), f"cause:{value.lower()}").partition(":")
            causes = means.split() if kind == "cause" else [value]
            if not any(name.startswith(each) for each in causes for name in KINDS):
                self._refuse(f"{value!r} is no cause; causes are {', '.join(KINDS)}.")
            # A finished run may have diverged.
            return all(self.add("causes", each) for each in causes) and (key != "failed" or self.add("states", "ended"))
        if key == "state":
            return self.state(value) or self._refuse(f"{value!r} is no state; states are {', '.join(STATES + GROUPS)}.")
        if key == "project":
            return self.put(project=value)
        if key in ("since", "after"):
            return self.put(since_s=self._read_time(value))
        if key in ("until", "before"):
            return self.put(until_s=self._read_time(value))
        if key in FIELDS:
            return self.add("fields", (key, value))
        return self.names.is_setting(key) and self.add("comparisons", Bound(key, "=", value))

    def switched(self, found: re.Match[str]) -> bool | str:
        """Read ``dropout off``, ``without dropout``, ``amp enabled``: the sign says how a setting is switched."""
        words = _strip_silent((found["name"] or found["after"]).split())
        known = self.names.find(words, last=bool(found["name"]), only="setting")
        if known is None:
            return False
        value = "on" if (found["state"] or "").lower() in ("on", "enabled") else "off"
        left = words[: -known[0]] if found["name"] else words[known[0] :]
        return self.add("comparisons", Bound(known[1], "is", value)) and " ".join(left)

    def compared(self, found: re.Match[str]) -> bool | str:
        name = found["name"] or found["spoken_name"] or found["at_least_name"]
        sign = OR_MORE[found["or_more"].lower()] if found["or_more"] else self._sign(found["sign"] or found["spoken"])
        value = _unquote(found["value"] or found["spoken_value"] or found["at_least"])
        *before, last = [_unquote(name)] if name[0] in "\"'" else name.split()
        if last.lower() in FIELDS and sign == "=":
            return self.add("fields", (last.lower(), value)) and " ".join(before)
        if last.lower() in ("since", "before", "until", "project", "state", "cause", "kind"):
            return self.keyed(_RX.keyed.fullmatch(f"{last.lower()}:{found['value']}") or found) and " ".join(before)
        names = self.names
        if found["spoken_name"] and not names.find([*before, last]):
            follows = self.text[found.end() :].split()[:3]
            if follows and names.find(follows, last=False, only="setting"):
                return False  # the name stands behind: ``ppo fewer than 2000 envs``
        return self._bound([*before, last], sign, value)

    def _sign(self, text: str) -> Sign:
        return SIGNS[" ".join(text.lower().split())]

    def _bound(self, words: Sequence[str], sign: Sign, value: str) -> bool | str:
        """Add a condition on the name in which words end, and return the others."""
        if sign in ("better", "worse"):
            sign = ">" if (best_direction(" ".join(words[-1:])) != "min") == (sign == "better") else "<"
        kept = _strip_silent(words)
        count, name = self.names.find(kept) or (1, kept[-1] if kept else "")
        if not name or (not self.names.settings and kept != list(words)):
            return False
        self.add("comparisons", Bound(name, sign, value))
        return " ".join(kept[:-count])

    def between(self, found: re.Match[str]) -> bool | str:
        if found["name"]:
            left = self._bound(found["name"].split(), ">=", found["low"])
            return left if left is False else self._bound(found["name"].split(), "<=", found["high"])
        words = found["counted"].split()
        if (known := self.names.find(words, last=False, only="setting")) is None:
            return False
        self.add("comparisons", Bound(known[1], ">=", found["least"]))
        return self.add("comparisons", Bound(known[1], "<=", found["most"])) and " ".join(words[known[0] :])

    def turned(self, found: re.Match[str]) -> bool | str:
        """Read ``above a reward of 250``."""
        return self._bound(found["name"].split(), self._sign(found["sign"]), found["value"])

    def twice(self, found: re.Match[str]) -> bool | str:
        """Write ``lr >= 1 and <= 2`` as two conditions."""
        name = (self.names.find(found["name"].split()) or (1, found["name"].split()[-1]))[1]
        return f"{found['name']} {found['first']} {name} {found['second']}"

    def asked(self, found: re.Match[str]) -> bool:
        """Read ``which lr is best``: the setting is told of each."""
        known = self.names.find(found["name"].split(), only="setting")
        is_whole = known is not None and known[0] == len(found["name"].split())
        return known is not None and is_whole and self.add("shown", known[1]) and self.add("words", known[1])

    def both(self, found: re.Match[str]) -> str:
        words = found["words"].split()[::2]
        if not any(word.lower() in SILENT or self._find_state(word) or word.lower() in self.kinds for word in words):
            self.add("joined", tuple(words))
        return found["words"]

    def old(self, found: re.Match[str]) -> bool:
        if not (found["old"] or found["older"] or found["newer"]):
            return False
        if (seconds := _find_span(found["span"])) is None:
            return False
        then = self.now.timestamp() - seconds
        return self.put(until_s=then) if found["older"] or found["more"] else self.put(since_s=then)

    def either(self, found: re.Match[str]) -> bool:
        words = re.split(r"(?i)\s+or\s+", found["words"])
        if any(word.lower() in SILENT or self._find_state(word) or word.lower() in self.kinds for word in words):
            return False
        return self.add("words", "|".join(words))

    def took(self, found: re.Match[str]) -> bool:
        seconds = find_duration(re.sub(r"(?i)^half\s+an?", "0.5", found["span"]))
        sign = self._sign(found["sign"])
        return seconds is not None and self.add("comparisons", Bound("elapsed_s", sign, f"{seconds:g}"))

    def took_between(self, found: re.Match[str]) -> bool:
        """Read ``between 1 and 2 hours``."""
        low = find_duration(f"{found['low']} {found['unit'] or found['last']}")
        high = find_duration(f"{found['high']} {found['last']}")
        return self.add("comparisons", Bound("elapsed_s", ">=", f"{low}")) and self.add(
            "comparisons", Bound("elapsed_s", "<=", f"{high}")
        )

    def counted(self, found: re.Match[str]) -> bool | str:
        """Read ``4096 envs``, ``at least 4 gpus``, ``512 parallel environments``."""
        words = found["name"].split()
        sign = self._sign(found["sign"]) if found["sign"] else "="
        for skipped in range(1 + (len(words) > 1 and words[0].lower() not in SILENT)):
            if (known := self.names.find(words[skipped:], last=False, only="setting")) is not None:
                own = [word for word in words[:skipped] if word.lower() in self.names.values]
                left = own + words[skipped + known[0] :]
                return self.add("comparisons", Bound(known[1], sign, found["value"])) and " ".join(left)
        return False

    def paired(self, found: re.Match[str]) -> bool | str:
        """Read ``seed 3``, ``batch size of 64``, ``reached step 5000``."""
        words = _strip_silent(found["name"].split())
        if (known := self.names.find(words, only="setting")) is None:
            return False
        left = words[: -known[0]]
        sign = BEFORE_NAME.get(left[-1].lower() if left else "", "=")
        left = left[:-1] if sign != "=" else left
        return self.add("comparisons", Bound(known[1], sign, found["value"])) and " ".join(left)

    def tagged(self, found: re.Match[str]) -> bool:
        return found["tag"].lower() not in SILENT and self.add("fields", ("tag", found["tag"]))

    def phrased(self, found: re.Match[str]) -> bool:
        means = PHRASES[" ".join(re.split(r"[\s-]+", found[0].lower()))]
        key, _, values = means.partition(":")
        if not values:
            name, sign, value = re.split(r"([<>=]+)", means)
            return self.add("comparisons", Bound(name, SIGNS[sign], value))
        if key == "not":
            return self.add("not_states", values)
        if key == "cause":
            return all(self.add("causes", value) for value in values.split())
        return self.add("states", values) if key == "state" else self.add("fields", (key, values))

    def negated(self, found: re.Match[str]) -> bool:
        word = found["word"] or found["minus"]
        if state := self._find_state(word):
            return self.add("not_states", state)
        return word.lower() not in SILENT and self.add("unlike", word)

    def sorted_by(self, found: re.Match[str]) -> bool | str:
        words, is_order = found["tag"].split(), _RX.ordered.search(self.text) or "goal" in self.question
        known = self.names.find(words, last=False, only="metric") or (find_metric(words) if is_order else None)
        if known is None:
            return False
        rest = (words[known[0] :] or [""])[0].lower()
        if rest and rest not in SILENT and not is_order:
            return False  # ``motivated by reward hacking``
        return self.put(ranked=known[1]) and " ".join(words[known[0] :])

    def ranked(self, found: re.Match[str]) -> bool | str:
        """Read ``best reward``, ``the 3 lowest val/loss``."""
        if found["before"] and not self._counts_hits(found):
            return False  # the number is another part's; the same words without it are met next
        word, tag, rest = found["most"].lower(), found["tag"] or "", found["rest"].split()
        words = [tag, *rest] if tag else []
        if "goal" in self.question or (word == "most" and not self.names.is_metric(tag)):
            return False
        count = found["count"] or found["before"]
        self.put(goal=_RANK_WORDS[word] or None, most=int(count) if count else None)
        if "ranked" in self.question:
            return " ".join(words)
        if word in TIME_RANKS:
            return self.put(ranked="elapsed_s") and " ".join(words)
        if ":" in found[0]:
            count, name = self.names.find(words, last=False, only="metric") or (1, tag)
            return self.put(ranked=name if count > 1 else tag) and " ".join(words[count:])
        if not (self.names.metrics or self.names.settings):
            is_word = tag.lower() in SILENT or bool(self._find_state(tag))
            return self.put(ranked="" if is_word else tag) and " ".join(words if is_word else rest)
        known = self.names.find(words, last=False) or find_metric(words)
        is_subject = re.search(r"\b(?:on|for)\s+$", found[0][: found.start("tag") - found.start()], re.IGNORECASE)
        if (
            known is None and _RX.separated.search(tag) and not is_subject
        ):  # a metric that no supervisor has noted: curves may have it
            return self.put(ranked=tag) and " ".join(rest)
        is_value = known is not None and (
            word in _ONE_WAY or not self.names.is_setting(known[1]) or self.names.is_metric(known[1])
        )
        self.put(ranked=known[1] if known and is_value else "")
        if known and not is_value:
            self.add("shown", known[1])
        return " ".join(words[known[0] :] if known else words)

    def _counts_hits(self, found: re.Match[str]) -> bool:
        """Return whether the number before ``best`` is no value: ``the 3 best``, not ``lr over 3, best:loss``."""
        before = self.text[: found.start()].rstrip()
        last = before.split()[-1].lower() if before else ","
        is_value = re.search(rf"\b(?:{_LINKING}|{_SPOKEN})$", before, re.IGNORECASE)
        return last[-1] in ",;(" or (last in SILENT and not is_value)

    def ago(self, found: re.Match[str]) -> bool:
        span = re.sub(r"(?i)^(?:few|)\s*(?=[a-z])", "", found["span"])
        span = span if re.match(r"\d|an?\b", span, re.IGNORECASE) else f"{3 if 'few' in found['span'] else 1} {span}"
        return (seconds := _find_span(span)) is not None and self.put(since_s=self.now.timestamp() - seconds)

    def day(self, found: re.Match[str]) -> bool:
        begin, end = find_day(found["day"], self.now)
        when = (found["when"] or "").lower()
        if last := found["last"]:
            if last[0].isdigit() and "-" not in last and " " not in last:  # ``November 12 and 13``
                last = re.sub(r"\d+(?:st|nd|rd|th)?", last, found["day"], count=1)
            return self.put(since_s=begin.timestamp(), until_s=find_day(last, self.now)[1].timestamp())
        if when in ("before", "until", "by"):
            return self.put(until_s=(begin if when == "before" else end).timestamp())
        if when in ("since", "after") or end >= self.now:
            return self.put(since_s=begin.timestamp())
        return self.put(since_s=begin.timestamp(), until_s=end.timestamp())

    def _find_state(self, word: str) -> str:
        state = STATE_WORDS.get(word.lower(), word.lower())
        return state if state in (*STATES, *GROUPS) else ""

    def state(self, word: str) -> bool:
        return bool(state := self._find_state(word)) and self.add("states", state)

    def words(self) -> tuple[str, ...]:
        kept, before = [], ""
        for found in _WORD.finditer(self.text):
            word = found[0].strip(".:'\"").removesuffix("'s")
            if word.lower() in self.kinds:
                self.add("causes", word.lower())
            elif not (
                word.lower() in SILENT
                or self.state(word)
                or ("causes" in self.question and _RX.trouble.fullmatch(word))
            ):
                kept += [word] if any(map(str.isalnum, word)) else []
                if before in CLAIMS:
                    self.add("claimed", word)
            before = before if word.lower() in _ARTICLES else word.lower()
        return tuple(kept)

    def _read_time(self, text: str) -> float:
        if found := DATE.fullmatch(text):
            year, month, day, hour, minute = (int(each or 0) for each in found.groups())
            try:
                return self.now.replace(year=year, month=month, day=day, hour=hour, minute=minute, second=0).timestamp()
            except ValueError as error:
                self._refuse(f"{text!r}: {error}.")
        if found := _RX.day.fullmatch(text.replace("-", " ").replace("_", " ")):
            return find_day(found["day"], self.now)[0].timestamp()
        if (seconds := _find_span(text)) is not None and seconds >= 0:
            return self.now.timestamp() - seconds
        self._refuse(f"{text!r} is no time; times are 7d, 12h, 2026-11-20, yesterday.")
        return 0.0

    def _refuse(self, why: str) -> bool:
        raise BadArgument("query", why)


def read_question(text: str, now: datetime, kinds: frozenset[str], names: Names) -> Question:
    """Return the question in ``text``. ``now``: with its time zone. ``kinds``: of failures. ``names``: that runs have.

    Raises:
        BadArgument: a part names a state or time that does not exist.
    """
    reader = _Reader(re.sub(r"\s+", " ", text).strip(), now, kinds, names)
    for pattern, read in (
        (_RX.quoted, reader.quoted),
        (_RX.spelled, lambda found: COUNTS[found[0].lower()]),
        (_RX.here, lambda _: reader.put(project=".")),
        (_RX.keyed, lambda found: found["key"] not in _RANK_WORDS and reader.keyed(found)),
        (_RX.ago, reader.ago),
        (_RX.old, reader.old),
        (_RX.took_between, reader.took_between),
        (_RX.took, reader.took),
        (_RX.day, reader.day),
        (_RX.between, reader.between),
        (_RX.by, reader.sorted_by),
        (_RX.asked, reader.asked),
        (_RX.ranked, reader.ranked),
        (_RX.turned, reader.turned),
        (_RX.twice, reader.twice),
        (_RX.switched, reader.switched),
        (_RX.compared, reader.compared),
        (_RX.counted, reader.counted),
        (_RX.paired, reader.paired),
        (_RX.tagged, reader.tagged),
        (_RX.phrased, reader.phrased),
        (_RX.negated, reader.negated),
        (_RX.either, reader.either),
        (_RX.both, reader.both),
    ):
        reader.take(pattern, read)
    for word in reader.words():
        reader.add("words", word)
    question = Question(**reader.question)  # type: ignore[arg-type]
    return replace(question, comparisons=join_values(question.comparisons, names))


def _find_span(text: str) -> float | None:
    """Return the seconds of a duration; a month has 30 days."""
    seconds = find_duration(re.sub(r"(?i)month", "day", text))
    return seconds * 30 if seconds and "month" in text.lower() else seconds


def _strip_silent(words: Sequence[str]) -> list[str]:
    """Return words without those at their end that say nothing."""
    kept = list(words)
    while kept and kept[-1].lower() in SILENT:
        kept.pop()
    return kept


def _unquote(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text
