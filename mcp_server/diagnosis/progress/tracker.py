"""How far training is, read from what it prints. Pure: a state machine over lines; times are arguments.

A first step means that the optimiser has stepped. An evaluation before training, the bar of a download or of a
tokeniser, settings or source code that are printed are none. What tells a step best is in charge of ``step``: a
framework's own line, then a bar of training, then a loop that somebody wrote.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mcp_server.diagnosis.progress.custom_loops import NO_DIGITS, Home, announces_other_work
from mcp_server.diagnosis.progress.frameworks import SHAPES, TABLES, Rank, Shape, may_tell
from mcp_server.diagnosis.progress.named_values import COUNTS, HEADLINES, Figure, figures, whole
from mcp_server.diagnosis.progress.progress_bars import Bar, Kind, bar
from mcp_server.diagnosis.progress.step_counters import Counter, Speed, Told, count, seconds

_HEADLINES_KEPT = 4
_COUNTERS_KEPT = 64
_TEMPLATES_KEPT, _LONGEST_TEMPLATE = 512, 512
# Moves of other counters, none of the one in charge, until they count as signs of life; until an equal, a worse one
# takes over. A step told by two lines, flushed after an error, is no sign of life.
_ALIVE, _SUCCEEDS, _REPLACES = 3, 20, 2_000


class Reading(NamedTuple):
    """What one line told: steps so far as the framework counts, and its numbers by name as printed, in lower case.

    ``step`` is None where the line is not the one that counts best. Numbers of held-out data have names that say so.
    ``skipped``: steps so far that changed nothing, in the unit of ``step``.
    """

    step: int | None
    metrics: Mapping[str, float]
    line: str
    skipped: int | None = None


class Progress:
    """Reads lines in their order; ``step`` never goes back within one way of counting.

    ``first_step_pattern``: a regular expression that alone decides which line is the first step; its first group,
    where that is a number, is the step. ``advances`` counts how often training was seen to go on.
    """

    def __init__(self, first_step_pattern: str | None = None) -> None:
        self.step: int | None = None
        self.total_steps: int | None = None
        self.first_step_seen = False
        self.first_step_line = ""
        self.advances = 0
        self.metrics: dict[str, float] = {}
        self._users = re.compile(first_step_pattern) if first_step_pattern else None
        self._counters: dict[str, Counter] = {}
        self._counter: Counter | None = None  # the one in charge
        self._strays = 0
        self._lent_total: int | None = None
        self._skipped = 0
        self._speed = Speed()
        self._home = Home()
        self._likely: Shape | None = None
        self._bar_is_likely = False
        self._table: Shape | None = None
        self._shapeless: set[str] = set()  # lines without their digits
        self._outer: Bar | None = None
        self._young: tuple[Bar, str] | None = None
        self._untold: dict[str, bool] = {}
        self._before: deque[str] = deque(maxlen=2)

    @property
    def step_s(self) -> float | None:
        """Seconds per step: observed, or as the framework prints it where all lines came at one time."""
        return self._speed.step_s

    @property
    def eta_s(self) -> float | None:
        """Seconds that are left, at the present pace."""
        if (step_s := self.step_s) is None or self.step is None or self.total_steps is None:
            return None
        return max(0, self.total_steps - self.step) * step_s

    def feed(self, lines: Iterable[str], at_s: float = 0.0) -> list[Reading]:
        """Read ``lines`` (see lines.split), which came at ``at_s``, monotonic seconds; return what they tell."""
        readings = []
        for line in lines:
            if self._users is not None and (match := self._users.search(line)):
                readings.append(self._user(match, line, at_s))
                continue
            may = may_tell(line) or self._table is not None
            if may and (reading := self._read(line, at_s)) is not None:
                readings.append(reading)
                continue
            self._before.append(line)
        return readings

    def _read(self, line: str, at_s: float) -> Reading | None:
        """First reader that knows the line wins; the one that knew the last line is asked first."""
        if (reading := self._as_before(line, at_s)) is not None:
            return reading
        template = line.translate(NO_DIGITS)
        if template not in self._shapeless:
            for shape in SHAPES:
                if shape.needle in line and (match := shape.pattern.search(line)):
                    return self._shaped(shape, match, line, at_s)
            if (drawn := bar(line)) is not None:
                return self._barred(drawn, line, at_s)
            self._table = next((shape for header, shape in TABLES if header.search(line)), self._table)
            if len(self._shapeless) >= _TEMPLATES_KEPT:
                self._shapeless.clear()
            if len(template) <= _LONGEST_TEMPLATE:
                self._shapeless.add(template)
        told, found = self._home.read(line, template, self._before[-1] if self._before else "")
        return self._tell(told, found, line, at_s) if told is not None or found else None

    def _as_before(self, line: str, at_s: float) -> Reading | None:
        """Take ``line`` for what the last one was, None where it is something else."""
        likely, table = self._likely, self._table
        if likely is not None and likely.needle in line and (match := likely.pattern.search(line)):
            return self._shaped(likely, match, line, at_s)
        reading = None
        if self._bar_is_likely and (drawn := bar(line)) is not None:
            reading = self._barred(drawn, line, at_s)
        if reading is None and table is not None and (match := table.pattern.search(line)):
            reading = self._shaped(table, match, line, at_s)
        return reading

    def _user(self, match: re.Match[str], line: str, at_s: float) -> Reading:
        text = (match[1] or "").replace(",", "") if match.re.groups else ""
        self._see(line)
        told = Told(Rank.LOSS, "user", mark=self.advances + 1)
        if text.isdecimal():
            told = Told(Rank.USER, "user", whole(text))
        return self._tell(told, figures(line), line, at_s)

    def _shaped(self, shape: Shape, match: re.Match[str], line: str, at_s: float) -> Reading | None:
        if shape.rank is Rank.NONE and any("rror" in before for before in self._before):
            return None  # a script says so whatever happened
        found = figures(line)
        told = self._told(shape, match.groupdict())
        if told is not None:
            self._likely, self._bar_is_likely = shape, False
            if told.step is None and told.n is None and told.epoch is None:
                mark = next((value for name, value, _ in found if name.text == "epoch"), None)
                told = told._replace(rank=Rank.EPOCH, mark=mark)
        return self._tell(told, found, line, at_s)

    def _told(self, shape: Shape, groups: dict[str, str | None]) -> Told | None:
        """Return what the groups of a shape say, None for a place before the first step."""
        told = {name: count(text) for name, text in groups.items() if text and name not in {"s", "ms", "rate"}}
        numbers = {name: value for name, value in told.items() if value is not None}
        if not shape.zero and numbers.get("n", numbers.get("step")) == 0:
            return None
        epoch, epochs = numbers.get("epoch"), numbers.get("epochs")
        if "last" in numbers:
            epochs = numbers["last"] + 1 if numbers["last"] > 0 else None
        if epoch is None and "per" in numbers and self._home.epoch is not None:
            epoch, epochs = self._home.epoch
        skipped = numbers.get("skipped")
        if skipped is not None:
            self._skipped = skipped = skipped + self._skipped if shape.adds else skipped
        return Told(
            shape.rank,
            shape.name,
            numbers.get("step"),
            numbers.get("total"),
            epoch,
            epochs,
            numbers.get("n"),
            numbers.get("per"),
            shape.base,
            skipped=skipped,
            step_s=seconds(groups),
        )

    def _barred(self, drawn: Bar, line: str, at_s: float) -> Reading | None:
        title, is_untold = drawn.title, drawn.kind is Kind.UNTOLD
        key = f"bar {title.key} {drawn.total}" if is_untold else f"bar {title.key}"
        self._likely, self._bar_is_likely = None, True
        if drawn.kind is Kind.OTHER or (is_untold and not self._is_training(drawn, key)):
            return None
        if is_untold and drawn.n and drawn.is_young and not self.first_step_seen:
            self._young = drawn, line  # lists are walked within a second; training takes its time
            return None
        outer = self._outer
        if drawn.n == 0:
            if outer is None or outer.n > 0 or (drawn.total or 0) > (outer.total or 0):
                self._outer = drawn
            return None
        if outer is not None and outer.total == drawn.total and outer.title.key == title.key:
            self._outer = drawn
        rank = Rank.UNTOLD if is_untold else Rank.BAR
        told = Told(rank, key, None, None, title.epoch, title.epochs, drawn.n, drawn.total, step_s=drawn.step_s)
        found = figures(drawn.rest) if drawn.rest else []
        if (glued := line.rfind("]{")) >= 0:  # HF Trainer prints its numbers behind the bar that it has just drawn
            found = found + figures(line[glued + 1 :])
        return self._tell(told, figures(title.text) + found if title.shows_loss else found, line, at_s)

    def _is_training(self, drawn: Bar, key: str) -> bool:
        """Whether a bar that does not say what it shows is one of training.

        What stood before it decides, once. One with a title is none, unless training goes on already.
        """
        if key not in self._untold:
            if len(self._untold) >= _COUNTERS_KEPT:
                self._untold = {}
            is_announced = any(announces_other_work(line) for line in self._before if "100%" not in line)
            self._untold[key] = not is_announced and (not drawn.title.key or self.first_step_seen)
        elif self.first_step_seen and self._counter is None and not drawn.title.key:
            self._untold[key] = True  # training goes on, and nothing else counts its steps
        outer = self._outer
        if outer is None or outer.total == drawn.total or outer.total is None or drawn.total is None:
            return self._untold[key]
        # Inside a bar of training that is not full, a shorter one is an evaluation.
        return self._untold[key] and (drawn.total > outer.total or outer.n >= outer.total)

    def _tell(self, told: Told | None, found: list[Figure], line: str, at_s: float) -> Reading:
        """Move what ``told`` moves, keep the headlines, and say what the line told."""
        metrics = {}
        for name, value, _ in found:
            if not name.bits & COUNTS:
                metrics[name.text] = value
                # HF closes with means over the whole run: better than nothing.
                if name.headline and not ("train_runtime" in line and name.headline in self.metrics):
                    self._keep(name.headline, value)
        if told is None:
            return Reading(None, metrics, line)
        if self._users is None:
            self._see(line)
        if self._young is not None:  # what is told now shows what that bar was
            young, self._young = self._young, None
            self._barred(*young, at_s)
        if not told.counts:
            return Reading(None, metrics, line)
        counter = self._move(told, at_s)
        step = counter.step if counter is self._counter or told.skipped is not None else None
        return Reading(step, metrics, line, told.skipped)

    def _move(self, told: Told, at_s: float) -> Counter:
        counter = self._counters.get(told.key)
        if counter is None:
            if len(self._counters) >= _COUNTERS_KEPT:
                self._counters.clear()
            counter = self._counters[told.key] = Counter(told.rank)
        grew = counter.move(told)
        if counter is not self._counter and not self._takes_charge(counter, grew=grew):
            self.advances += grew and self._strays >= _ALIVE
            return counter
        self._strays = 0
        self.advances += grew
        if counter.step is not None:
            self.step = counter.step
            self.total_steps = counter.total if counter.total is not None else self._lent_total
            if grew:
                self._speed.note(at_s, counter.step)
        if told.step_s is not None:
            self._speed.printed_s = told.step_s
        return counter

    def _takes_charge(self, counter: Counter, *, grew: bool) -> bool:
        """Whether ``counter`` moves ``step`` from now on: the best so far does, until it is silent for long."""
        charged = self._counter
        if charged is not None:
            self._lend(counter, charged)
            if counter.rank <= charged.rank:
                self._strays += grew
                # A shorter bar that says nothing, after the one of training, is an evaluation more often than not.
                is_equal = counter.rank == charged.rank and not (
                    counter.rank is Rank.UNTOLD and (counter.total or 0) < (charged.total or 0)
                )
                if self._strays < (_SUCCEEDS if is_equal else _REPLACES):
                    return False
        self._counter = counter
        self._speed = Speed()
        return True

    def _lend(self, one: Counter, other: Counter) -> None:
        """Keep the total of a training bar that stands where a better counter is: verl tells its total nowhere else."""
        worse, better = (one, other) if one.rank < other.rank else (other, one)
        if worse.rank < Rank.BAR or worse.total is None or worse.step is None or better.step is None:
            return
        if abs(worse.step - better.step) <= 1 and worse.total >= better.step:
            self._lent_total = worse.total
            self.total_steps = self.total_steps or worse.total

    def _keep(self, headline: str, value: float) -> None:
        self.metrics[headline] = value
        if len(self.metrics) > _HEADLINES_KEPT:
            kept = [name for name in HEADLINES if name in self.metrics][:_HEADLINES_KEPT]
            self.metrics = {name: self.metrics[name] for name in kept}

    def _see(self, line: str) -> None:
        if not self.first_step_seen:
            self.first_step_seen, self.first_step_line = True, line
