"""Reads the rates that evaluations print in their lines: ``Success: 12/20``, LIBERO's, ``exact_match 0.44``. Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from mcp_server.diagnosis.progress.named_values import QUALITY, classify_name
from mcp_server.results.evaluations.evaluation_text import Percent, Row, find_step, parse_rate
from mcp_server.text.rows import read_patterns

_RX = read_patterns("results/patterns", "success_lines")
_WORDS = ("ucces", "UCCES", "pisodes", "PISODES")
_METRIC = "success_rate"
_LONGEST_LINE = 1_000
_LINES_AFTER = 3  # in which the count of episodes may follow a rate
_ROUNDING = 0.006
_NO_SUBJECTS = frozenset(
    """info warning warn debug error log root main result results summary overall total final average mean eval
    evaluation validation val test score scores metric metrics output rank worker download upload""".split()  # noqa: SIM905
)


@dataclass
class PrintedRates:
    """Reads the lines of a program that only evaluates, and keeps each rate and score that it prints once.

    Values that differ under one name are those of parts, or of a beginning: none of them is that of all.
    """

    _found: dict[str, set[tuple[float, int | None]]] = field(default_factory=dict)

    def read(self, line: str) -> None:
        """Read a line. One that tells of an episode, or of another share out of all, has no rate of all."""
        if len(line) > _LONGEST_LINE or _RX.part.search(line):
            return
        is_part = _RX.share_of_whole.search(_RX.date.sub("", line)) is not None
        for match in _RX.pair.finditer(line):
            value, name = float(match["value"].rstrip("% ")), _RX.around.sub("", match["name"])
            is_rate = value <= (100 if match["percent"] else 1) and _RX.rate_name.fullmatch(name)
            own = _RX.own_share.match(line, match.end())
            if (
                not (is_rate or _is_score(name))
                or _RX.setting.search(name)
                or (is_part and not (own and _is_share(value, int(own[1]), int(own[2]))))
            ):
                continue
            count = _RX.count.search(line)
            episodes = int((count[1] or count[2]).replace(",", "")) if count else int(own[2]) if own else None
            rate = Percent(value) if match["percent"] else value
            self._found.setdefault(_spell(match["name"]), set()).add((rate, episodes))

    def as_rows(self) -> list[Row]:
        """Return the rates as rows, those of one number of episodes together."""
        rows: dict[int | None, dict[str, float | int]] = {}
        for name, values in self._found.items():
            if len(values) == 1:
                ((value, episodes),) = values
                rows.setdefault(episodes, {"n_episodes": episodes} if episodes else {})[name] = value
        return list(rows.values())


def _is_score(name: str) -> bool:
    known = classify_name(name)
    return known is not None and bool(known.bits & QUALITY)


def _is_share(value: float, some: int, whole: int) -> bool:
    """Return whether a number is this share of a whole, as a fraction or in per cent."""
    return whole > 0 and min(abs(value - some / whole), abs(value / 100 - some / whole)) <= _ROUNDING


@dataclass(frozen=True)
class SuccessRate:
    """One printed rate, with the step in its line. ``at``: that of the training. ``running``: others are to follow.

    ``subject``: the task or benchmark that the line names.
    """

    value: float
    episodes: int | None = None
    step: int | None = None
    at: int | None = None
    running: bool = False
    subject: str = ""

    def as_row(self) -> Row:
        """Return it as the row of an evaluation."""
        step = {} if self.step is None else {"step": self.step}
        episodes = {} if self.episodes is None else {"n_episodes": self.episodes}
        subject = {"benchmark": self.subject} if self.subject else {}
        return {**step, **subject, _METRIC: self.value, **episodes}


@dataclass
class SuccessLines:
    """Reads one line after the other, and keeps of each evaluation its last rate: those before were of its beginning.

    A rate counts with its number of episodes, or where its words say that it is of all; a plain ``success: 0.5`` may
    be a metric of the training.
    """

    rates: list[SuccessRate] = field(default_factory=list)
    _episodes: int | None = None
    _successes: int | None = None
    _lines_since: int = _LINES_AFTER

    def read(self, line: str, at: int | None = None) -> None:
        """Read a line, printed when the training was at step ``at``."""
        self._lines_since += 1
        if len(line) > _LONGEST_LINE or not any(word in line for word in _WORDS):
            return
        if match := _RX.episodes.search(line):
            self._episodes = int(match[1])
            self._complete()
        elif match := _RX.successes.search(line):
            self._successes = int(match[1])
        elif match := _RX.rate.search(line):
            self._add(match, line, at)

    def _add(self, match: re.Match[str], line: str, at: int | None) -> None:
        value = parse_rate(match["value"])
        if value is None or not 0 <= (value / 100 if isinstance(value, Percent) else value) <= 1:
            return
        episodes = getattr(value, "whole", None) or self._counted(value)
        is_running = match["running"] is not None
        is_whole = bool(match["whole"] and (match["rate"] or isinstance(value, Percent)))
        subject = "" if match["whole"] or is_running else _find_subject(line[: match.start("named")])
        if episodes is None and not (is_running or is_whole or (subject and isinstance(value, Percent))):
            return
        rate = SuccessRate(value, episodes, find_step(line[: match.start()]), at, is_running, subject)
        if self.rates and _goes_on(self.rates[-1], rate):
            self.rates.pop()
        self.rates.append(rate)
        self._lines_since = 0
        if not is_running:
            self._episodes = self._successes = None

    def _complete(self) -> None:
        """Give the rate just above the number of episodes that follows it."""
        if self.rates and self._lines_since <= _LINES_AFTER and self.rates[-1].episodes is None:
            last = self.rates[-1]
            self.rates[-1] = replace(last, episodes=self._counted(last.value))

    def _counted(self, value: float) -> int | None:
        """Return the number of episodes that was printed, where the value is a share of it."""
        if not self._episodes:
            return None
        share = value / 100 if isinstance(value, Percent) else value
        successes = round(share * self._episodes) if self._successes is None else self._successes
        return self._episodes if abs(successes / self._episodes - share) <= _ROUNDING else None


def read_success_rates(lines: Iterable[str]) -> list[Row]:
    """Return the rates that the lines of a file state, as rows."""
    reader = SuccessLines()
    for line in lines:
        reader.read(line)
    return [rate.as_row() for rate in reader.rates]


def _spell(name: str) -> str:
    """Return the name of a metric: of words `detection_rate`, of `Average success` that of all such sentences."""
    words = _RX.around.sub("", name) if " " in name else name
    plain = words.replace(" ", "_").lower() if " " in name or name.istitle() else name
    return _METRIC if plain.lower() == "success" else plain


def _find_subject(before: str) -> str:
    """Return the task or benchmark that stands alone before a rate; a step, or a word of a logger, is none."""
    found = _RX.subject.fullmatch(before)
    name = (found["name"] or found["word"]) if found else ""
    return "" if name.lower() in _NO_SUBJECTS or find_step(before) is not None else name


def _goes_on(former: SuccessRate, rate: SuccessRate) -> bool:
    """Return whether ``rate`` is of the same episodes as ``former`` and of more, or says the same again."""
    if (former.step, former.at, former.subject) != (rate.step, rate.at, rate.subject):
        return False
    if former.episodes is None or rate.episodes is None:
        return former.running
    more = rate.episodes - former.episodes
    gained = _share(rate) * rate.episodes - _share(former) * former.episodes
    if not more:
        return former.running or abs(gained) <= _ROUNDING * rate.episodes
    return more > 0 and 0 <= round(gained) <= more


def _share(rate: SuccessRate) -> float:
    return rate.value / 100 if isinstance(rate.value, Percent) else rate.value
