"""Detects numerical divergence of a training run from the metrics it prints or writes into files. Pure.

A false alarm may stop a healthy run, so every rule needs more than the longest disturbance known of healthy runs. Fewer
lines suffice as the end of a log than while the run goes on.

- A NaN or infinite loss, line after line; a finite value of any name of the total ends the streak. A component proves
  nothing while the total, or another component, is finite. CTC losses are infinite for a while, bars show NaN until
  gradients have been accumulated, and reinforcement learning averages over nothing until learning starts.
- A NaN gradient norm while the loss is 0 or NaN (HF Trainer reports NaN losses as 0), or does not fall. Alone it proves
  nothing: mixed precision skips steps, and some trainers never compute a norm.
- All optimizer steps skipped, and an exploding loss: see loss_trends.py.
- Where nothing is named a loss, two measures of any name, finite from their start, that are NaN from one line on.

A NaN held-out loss or reward proves nothing by itself: no episode has ended yet, or the data are at fault. Where it
lasts it is a ``doubt``; both together are proof. A run is stopped only ``is_certain``: by two independent signs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple

from mcp_server.diagnosis.live.loss_trends import Grade, LossHistory, RuleResult, Sign, SkippedSteps
from mcp_server.diagnosis.progress.named_values import measures_loss
from mcp_server.diagnosis.progress.step_counters import median
from mcp_server.diagnosis.progress.tracker import MetricLine
from mcp_server.text.regex import compile_lazily
from mcp_server.text.rows import read_words

_MAX_NAMES, _MAX_FILES = 256, 32
_RECOVERED_AFTER = 5  # healthy lines
_MAX_RANKS = 32  # lines with the same step that may come from as many ranks
_BAR = compile_lazily(r"%\||it/s|s/it|\u2501")
_TOTAL = "loss"  # the streak of all names of the total loss
_TOTAL_COUNTS = 50  # lines for which a finite total speaks for its components
_LONG = 20  # readings without a finite value, which are a second sign
_SIGNS_NEEDED, _MOST_SENTENCES = 2, 3
_STEADY = 3  # finite values before any NaN: of each line, not of an evaluation now and then
_FEWEST_MEASURES = 2
_DOUBTS = "doubts"  # the rule that repeats what others found


class _StreakLimits(NamedTuple):
    """Consecutive bad lines that prove divergence: at the end of a log, and while the run goes on."""

    at_end: int
    live: int


_NAN = _StreakLimits(3, 5)
_NEVER_FINITE = _StreakLimits(2, 5)
_INFINITE = _StreakLimits(3, 10)
_IN_BAR = _StreakLimits(5, 25)
_NEVER_FINITE_IN_BAR = _StreakLimits(5, 200)
_RL_NEVER_FINITE = _StreakLimits(20, 100)
_DEAD_GRADIENT = _StreakLimits(3, 5)
_GRADIENT_ALONE = _StreakLimits(20, 40)
_DOUBTED = _StreakLimits(5, 20)
_ZERO_LOSS = _StreakLimits(5, 5)  # with a NaN loss on held-out data

_FALLS = 0.98  # a loss that still trains falls below this share of its start
_ENDS = 5  # lines at either end, whose medians are compared


class _Role(IntEnum):
    """The quantity of a metric. An IntEnum, used as an index: every metric of every line is looked up."""

    TOTAL_LOSS = 0
    LOSS_COMPONENT = 1
    GRADIENT = 2
    HELD_OUT = 3  # a loss on held-out data
    REWARD = 4
    RL = 5  # occurs in reinforcement learning only, as the length of an episode
    NONE = 6


_WORDS = {sort: frozenset(words) for sort, words in read_words("diagnosis/live/words").items()}
_SPLIT = compile_lazily(r"[^a-z0-9]+")


def _role_of(name: str) -> _Role:
    words = [word for word in _SPLIT.split(name.lower().replace("\u635f\u5931", " loss ")) if word]
    kinds = frozenset(words)
    if measures_loss(name) or any(word.endswith(("loss", "losses")) for word in words):
        if kinds & _WORDS["setting"]:
            return _Role.NONE
        if kinds & _WORDS["held_out"]:
            return _Role.HELD_OUT
        return _Role.TOTAL_LOSS if kinds <= _WORDS["total"] else _Role.LOSS_COMPONENT
    if any(word.startswith(("grad", "gnorm")) for word in words):
        return _Role.GRADIENT if words == ["grad"] or any("norm" in word for word in words) else _Role.NONE
    if kinds & _WORDS["reward"] and not kinds & _WORDS["setting"]:
        return _Role.REWARD
    return _Role.RL if kinds & _WORDS["episode"] else _Role.NONE


@dataclass
class _Streak:
    ever_good: bool = False
    has_nan: bool = False
    since: int | None = None
    first_line: str = ""
    losses: list[float] = field(default_factory=list)
    _steps: int = 0
    _repeats: int = 0
    _last: tuple[int | None, str] | None = None

    @property
    def count(self) -> int:
        """Number of bad steps. Several ranks may print a line of one step: 32 such lines count as one."""
        return max(self._steps, self._repeats // _MAX_RANKS)

    def add_line(self, metric_line: MetricLine) -> None:
        if self._last is None:
            self.since, self.first_line = metric_line.step, metric_line.line
        step, line = self._last or (None, "")
        if metric_line.step is None or metric_line.step != step:
            self._steps += 1
        elif metric_line.line != line:
            self._repeats += 1
        self._last = (metric_line.step, metric_line.line)

    def describe(self, what: str, meanwhile: str = "") -> str:
        return f"{what} in {self.count} readings in a row{meanwhile}{_since(self.since)}."

    def judge(self, rule: str, grade: Grade, text: str, sign: Sign) -> RuleResult:
        signs = {sign} | ({Sign.LONG} if self.count >= _LONG else set())
        return RuleResult(rule, grade, text, self.since, frozenset(signs), self.first_line)

    def grade(self, limits: _StreakLimits) -> Grade | None:
        if self.count >= limits.live:
            return Grade.PROVEN
        return Grade.END_OF_LOG if self.count >= limits.at_end else None


class Doubt(NamedTuple):
    """A metric that is NaN, line after line. ``text``: one sentence, once it has been so for long, else empty."""

    name: str
    since: int | None
    text: str
    line: str
    first_line: str


@dataclass
class CommonFacts:
    """The sources of one training share these facts. ``finite_totals``: the newest total loss of each is finite."""

    is_rl: bool = False
    finite_totals: dict[object, bool] = field(default_factory=dict)


class DivergenceDetector:
    """Reads the metric lines of one source. ``line`` and ``text`` are None while the metrics are healthy.

    ``line``: the newest line that would prove divergence if the log ended there. ``text``: one sentence, set once
    divergence is proven whatever follows. ``since_step``: its first step. ``recovered``: the metrics are healthy again.
    ``doubts``: by rule, what has been NaN for long and proves nothing by itself.
    """

    def __init__(self, training: CommonFacts | None = None) -> None:
        self.line: str | None = None
        self.text: str | None = None
        self.summary = ""  # what ``line`` shows, in one sentence
        self.first_line = ""  # the first of the bad lines, where it is known
        self.since_step: int | None = None
        self.recovered = False
        self.doubts: dict[str, Doubt] = {}
        self._rule = ""
        self._good_lines = 0
        self._roles: dict[str, _Role] = {}
        self._streaks: dict[str, _Streak] = {}
        self._signs: dict[str, tuple[frozenset[Sign], str]] = {}  # by rule, with its sentence
        self._last_loss: float | None = None  # the total; where none is printed, a component, finite if any is
        self._has_total = False
        self._lines_since_finite = _TOTAL_COUNTS
        self._finite_components: dict[str, bool] = {}
        self._finite_measures: dict[str, float] = {}  # of other names: how many finite values before any NaN
        self._training = training or CommonFacts()
        self._round = 1
        self._skips = SkippedSteps()
        self._history = LossHistory()

    @property
    def signs(self) -> frozenset[Sign]:
        """The independent signs of divergence that hold now."""
        return frozenset().union(*(signs for signs, _ in self._signs.values()))

    @property
    def proof(self) -> str:
        """The rules that hold now, a sentence each, three at most."""
        texts = [text for rule, (_, text) in self._signs.items() if rule != _DOUBTS]
        return " ".join(texts[:_MOST_SENTENCES])

    @property
    def is_proven(self) -> bool:
        """Whether divergence is proven, and the metrics have not recovered since."""
        return self.text is not None and not self.recovered

    @property
    def is_certain(self) -> bool:
        """Whether divergence is proven by two independent signs, which is enough to stop a run."""
        return self.is_proven and len(self.signs) >= _SIGNS_NEEDED

    def _begin_round(self, number: int) -> None:
        """Forget the losses of the round before: another training begins, with losses of its own."""
        self._round = number
        self._streaks.clear()
        self._finite_components.clear()
        self._finite_measures.clear()
        self.doubts.clear()
        self._last_loss, self._lines_since_finite = None, _TOTAL_COUNTS
        self._skips, self._history = SkippedSteps(), LossHistory()

    def read_metrics(self, metric_line: MetricLine) -> None:
        """Apply all rules to the metrics of one line."""
        if metric_line.round != self._round:
            self._begin_round(metric_line.round)
        if not metric_line.metrics and metric_line.skipped is None:
            return
        results = list(self._apply_rules(metric_line))
        for result in results:
            if result.grade:
                self._signs[result.rule] = result.signs, result.text
            else:
                self._signs.pop(result.rule, None)
        worst = max(results, key=lambda result: result.grade, default=None)
        if worst is not None and worst.grade:
            self._note_suspicion(worst, metric_line.line)
        elif any(result.rule == self._rule for result in results):
            self._note_good_line()

    def _note_suspicion(self, result: RuleResult, line: str) -> None:
        if self.text is not None and result.grade < Grade.PROVEN:
            return
        self.line, self.since_step, self._rule, self._good_lines = line, result.since, result.rule, 0
        self.summary, self.first_line = result.text, result.first_line
        if result.grade is Grade.PROVEN:
            self.text, self.recovered = result.text, False

    def _note_good_line(self) -> None:
        if self.text is None:
            self.line, self.since_step, self._rule, self.summary = None, None, "", ""
            return
        self._good_lines += 1
        self.recovered = self._good_lines >= _RECOVERED_AFTER

    def _apply_rules(self, metric_line: MetricLine) -> Iterator[RuleResult]:
        values_by_role: list[dict[str, float]] = [{} for _ in _Role]
        for name, value in metric_line.metrics.items():
            values_by_role[self._role(name)][name] = value
        self._training.is_rl |= bool(values_by_role[_Role.RL] or values_by_role[_Role.REWARD])
        totals, components = values_by_role[_Role.TOTAL_LOSS], values_by_role[_Role.LOSS_COMPONENT]
        finite = [value for value in totals.values() if math.isfinite(value)]
        self._has_total = self._has_total or bool(totals)
        if losses := totals if self._has_total else components:
            self._last_loss = next(filter(math.isfinite, losses.values()), next(iter(losses.values())))
        self._lines_since_finite = 0 if finite else self._lines_since_finite + 1
        if totals:
            self._training.finite_totals[self] = bool(finite)
            name, value = next(iter(totals.items()))
            yield from self._check_finite(_TOTAL, name, finite[0] if finite else value, metric_line)
        if components:
            yield from self._check_components(components, metric_line)
        yield from self._check_measures(values_by_role[_Role.NONE], metric_line)
        held_out = values_by_role[_Role.HELD_OUT]
        for sign, values in ((Sign.HELD_OUT, held_out), (Sign.REWARD, values_by_role[_Role.REWARD])):
            if values:
                yield from self._check_doubt(sign, values, metric_line)
        if gradients := values_by_role[_Role.GRADIENT]:
            yield from self._check_gradient(list(gradients.values()), metric_line)
        if totals or held_out:
            yield from self._check_zero_loss(bool(totals), list(held_out.values()), metric_line)
        yield from self._skips.check(metric_line)
        if finite and not self._training.is_rl:
            yield from self._history.check(finite[0], metric_line.step)

    def _check_doubt(self, sign: Sign, values: Mapping[str, float], metric_line: MetricLine) -> Iterator[RuleResult]:
        """Note held-out losses or rewards that are NaN: a second sign, a doubt where it lasts, together a proof."""
        rule = sign.name
        is_bad = all(map(math.isnan, values.values()))
        streak = self._update_streak(rule, is_bad=is_bad, metric_line=metric_line)
        name = next(iter(values))
        text = streak.describe(f"{name} has been nan")
        if is_bad:
            self._signs[rule] = frozenset({sign}), text
        else:
            self._signs.pop(rule, None)
        limits = _DOUBTED if streak.ever_good else _RL_NEVER_FINITE
        if is_bad and (grade := streak.grade(limits)):
            proven = text if grade is Grade.PROVEN else ""
            self.doubts[rule] = Doubt(name, streak.since, proven, metric_line.line, streak.first_line)
        else:
            self.doubts.pop(rule, None)
        lasting = [doubt for doubt in self.doubts.values() if doubt.text]
        if len(lasting) >= _SIGNS_NEEDED:
            text = " ".join(doubt.text for doubt in lasting)
            signs = frozenset({Sign.HELD_OUT, Sign.REWARD})
            yield RuleResult(_DOUBTS, Grade.PROVEN, text, lasting[0].since, signs, lasting[0].first_line)
        elif not is_bad:
            yield RuleResult(_DOUBTS, Grade.GOOD)

    def _role(self, name: str) -> _Role:
        if (role := self._roles.get(name)) is None:
            if len(self._roles) >= _MAX_NAMES:
                return _Role.NONE
            role = self._roles[name] = _role_of(name)
        return role

    def _update_streak(self, rule: str, *, is_bad: bool, metric_line: MetricLine) -> _Streak:
        streak = self._streaks.get(rule)
        if streak is None or not is_bad:
            streak = self._streaks[rule] = _Streak(ever_good=not is_bad)
        if is_bad:
            streak.add_line(metric_line)
        return streak

    def _check_components(self, components: Mapping[str, float], metric_line: MetricLine) -> Iterator[RuleResult]:
        """Judge the components of the loss, as long as neither the total nor one of them has a finite value."""
        for name, value in components.items():
            self._finite_components[name.rpartition("/")[2]] = math.isfinite(value)
        elsewhere = (is_finite for of, is_finite in self._training.finite_totals.items() if of is not self)
        is_total_finite = self._lines_since_finite < _TOTAL_COUNTS or any(elsewhere)
        is_any_finite = any(self._finite_components.values())
        for name, value in components.items():
            rule = name.rpartition("/")[2]
            if math.isfinite(value) or not (is_total_finite or is_any_finite):
                yield from self._check_finite(rule, name, value, metric_line)
            else:
                self._streaks.pop(rule, None)
                yield RuleResult(rule, Grade.GOOD)

    def _check_finite(self, rule: str, name: str, value: float, metric_line: MetricLine) -> Iterator[RuleResult]:
        streak = self._update_streak(rule, is_bad=not math.isfinite(value), metric_line=metric_line)
        if math.isfinite(value):
            yield RuleResult(rule, Grade.GOOD)
            return
        streak.has_nan = streak.has_nan or math.isnan(value)
        if grade := streak.grade(self._limits_for(streak, metric_line.line)):
            yield streak.judge(rule, grade, streak.describe(f"{name} has been {value}"), Sign.LOSS)

    def _check_measures(self, values: Mapping[str, float], metric_line: MetricLine) -> Iterator[RuleResult]:
        """Judge measures of names that say nothing, while no loss is known, nor any reward."""
        if not values:
            return
        finite, bad = self._finite_measures, list[str]()
        for name, value in values.items():
            before = finite.get(name, 0)
            if name not in finite and len(finite) >= _MAX_NAMES:
                continue
            if not math.isnan(value):
                finite[name] = before + 1
            elif before >= _STEADY:
                bad.append(name)
            else:
                finite[name] = -math.inf  # of an evaluation now and then
        is_known = self._training.is_rl or self._training.finite_totals or self._finite_components
        is_bad = len(bad) >= _FEWEST_MEASURES and not is_known
        streak = self._update_streak("measures", is_bad=is_bad, metric_line=metric_line)
        if not is_bad:
            yield RuleResult("measures", Grade.GOOD)
        elif grade := streak.grade(_NAN):
            text = streak.describe(f"{', '.join(bad[:_MOST_SENTENCES])} have been nan")
            yield streak.judge("measures", grade, text, Sign.LOSS)

    def _limits_for(self, streak: _Streak, line: str) -> _StreakLimits:
        if self._training.is_rl and not streak.ever_good:
            return _RL_NEVER_FINITE
        if _BAR.search(line) and "{" not in line:
            return _IN_BAR if streak.ever_good else _NEVER_FINITE_IN_BAR
        if not streak.has_nan:
            return _INFINITE
        return _NAN if streak.ever_good else _NEVER_FINITE

    def _check_gradient(self, norms: list[float], metric_line: MetricLine) -> Iterator[RuleResult]:
        is_bad = not math.isfinite(norms[0])
        streak = self._update_streak("gradient", is_bad=is_bad, metric_line=metric_line)
        is_loss_alive = self._last_loss is None or (math.isfinite(self._last_loss) and self._last_loss != 0)
        dead = self._update_streak("dead gradient", is_bad=is_bad and not is_loss_alive, metric_line=metric_line)
        if not is_bad:
            yield RuleResult("gradient", Grade.GOOD)
            return
        if is_loss_alive and self._last_loss is not None:
            streak.losses = [*streak.losses[:_ENDS], *streak.losses[_ENDS:][-_ENDS + 1 :], self._last_loss]
        if is_loss_alive and (self._training.is_rl or _falls(streak.losses)):
            return
        if grade := streak.grade(_GRADIENT_ALONE) if is_loss_alive else dead.grade(_DEAD_GRADIENT):
            of_loss = "the loss does not fall" if is_loss_alive else f"the loss is {self._last_loss:g}"
            counted = streak if is_loss_alive else replace(dead, since=streak.since)
            text = counted.describe(f"The gradient norm has been {norms[0]}", f" while {of_loss}")
            signs = frozenset({Sign.GRADIENT, Sign.NO_FALL if is_loss_alive else Sign.LOSS})
            yield RuleResult("gradient", grade, text, streak.since, signs, streak.first_line)

    def _check_zero_loss(self, has_loss: bool, held_out: list[float], metric_line: MetricLine) -> Iterator[RuleResult]:
        if has_loss:
            streak = self._update_streak("zero", is_bad=self._last_loss == 0, metric_line=metric_line)
            if self._last_loss != 0:
                yield RuleResult("zero", Grade.GOOD)
        elif held_out and not self._training.is_rl and all(math.isnan(value) for value in held_out):
            streak = self._streaks.get("zero", _Streak())
            if grade := streak.grade(_ZERO_LOSS):
                text = f"The loss is 0 and NaN on held-out data{_since(streak.since)}."
                signs = frozenset({Sign.LOSS, Sign.HELD_OUT})
                yield RuleResult("zero", grade, text, streak.since, signs, streak.first_line)


class DivergenceJudge:
    """Judges a training by all its sources: its output, and each file of its rows. A file's rules are the output's.

    A program that logs twice does so at the same steps, now in one source, now in the other: each has its own streaks.
    """

    def __init__(self) -> None:
        self._training = CommonFacts()
        self._output = DivergenceDetector(self._training)
        self._files: dict[str, DivergenceDetector] = {}

    @property
    def worst(self) -> DivergenceDetector:
        """The source that proves most, the output before others."""

        def rank(one: DivergenceDetector) -> tuple[bool, bool, bool]:
            return one.is_certain, one.is_proven, one.line is not None and not one.recovered

        return max((self._output, *self._files.values()), key=rank)

    @property
    def doubts(self) -> Mapping[str, Doubt]:
        """The doubts of all sources, by rule."""
        files = {rule: doubt for one in self._files.values() for rule, doubt in one.doubts.items()}
        return {**files, **self._output.doubts}

    def read_output(self, metric_line: MetricLine) -> None:
        """Apply all rules to the metrics of a line of output."""
        self._output.read_metrics(metric_line)

    def read_file(self, path: str, metric_line: MetricLine) -> None:
        """Apply all rules to the metrics of a row. MLflow's files hold a metric each: those of a run are one source."""
        source = path.partition("/metrics/")[0]
        if (one := self._files.get(source)) is None:
            if len(self._files) >= _MAX_FILES:
                return
            one = self._files[source] = DivergenceDetector(self._training)
        one.read_metrics(metric_line)

    def forget_files(self) -> None:
        """Another training has begun, in files of its own."""
        self._files.clear()
        self._training.finite_totals.clear()


def _falls(losses: list[float]) -> bool:
    """Whether the last losses are below the first ones. True for too few losses."""
    return len(losses) < 2 * _ENDS or median(losses[-_ENDS:]) < _FALLS * median(losses[:_ENDS])


def _since(step: int | None) -> str:
    return "" if step is None else f", since step {step}"
