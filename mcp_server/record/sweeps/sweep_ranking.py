"""Ranks the cells of a sweep. Those that differ in seeds alone are one group, with its mean and deviation. Pure."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

from mcp_server.record.sweeps.sweep_state import CUT_SHORT, LIVE, WAITING, CellState, Sweep
from mcp_server.text.equal_settings import Place, find_equal_forms
from mcp_server.text.formatting import duration, plain_value, significant
from mcp_server.text.regex import compile_lazily

_SAME_LENGTH = 0.9  # of the longer training: an early end by a step or two is none
# As options, keys of Hydra and variables spell it: NumPy and JAX say rng, scikit-learn random_state.
_SEED = compile_lazily(r"(?:^|[$._-])(?:(?:random[_-]?|rng[_-]?)?seed|random[_-]state|rng|prng)$", re.IGNORECASE)

Form = Optional[str]  # of a value; None: the cell does not set it


@dataclass(frozen=True)
class Group:
    """The cells of one setting as it ran, in the order of the plan. ``results``: whole trainings, the best first.

    A training that was stopped, or that ended in NaN, is no result: its value stands beside the mean, never in it.
    Where every cell of a phase ended at its time limit, that is the length of a training. ``deviation`` is that of a
    sample; a single value has none.
    """

    settings: Mapping[str, Any]
    cells: tuple[CellState, ...]
    results: tuple[CellState, ...]
    mean: float | None = None
    deviation: float | None = None
    forms: tuple[Form, ...] = ()  # of the settings: those of a promotion are equal

    @property
    def partial(self) -> tuple[CellState, ...]:
        """The cells whose training was cut short, or ended in NaN."""
        whole = {cell.cell.name for cell in self.results}
        return tuple(
            cell
            for cell in self.cells
            if cell.cell.name not in whole and (cell.bad_end or (cell.state in CUT_SHORT and cell.runs))
        )

    @property
    def values(self) -> Sequence[float]:
        """The values of its results."""
        return [cell.value for cell in self.results if cell.value is not None]

    @property
    def codes(self) -> frozenset[int]:
        """The numbers of the codes that its results ran, as far as they are known."""
        return frozenset(code for cell in self.results if isinstance(code := cell.end.get("code"), int))

    @property
    def label(self) -> str:
        """The name of its first cell, with the settings that a retry changed, as they ran."""
        cell = self.first
        ran = [f"{name} {cell.setting(name)}" for name in find_changed(cell)]
        return f"{cell.cell.name} (ran {', '.join(ran)})" if ran else cell.cell.name

    def show(self, name: str) -> str:
        """Return the value of a setting, behind the planned one where a retry changed it: ``256→128``."""
        value = plain_value(self.settings.get(name))
        return f"{plain_value(self.first.planned(name))}→{value}" if name in find_changed(self.first) else value

    @property
    def first(self) -> CellState:
        """The best cell. Without any result the first of the plan."""
        return (self.results or self.cells)[0]

    @property
    def text(self) -> str:
        """The value by which it is ranked: ``25``, or with several results ``24.5±0.71 (n 2)``. Empty without any."""
        if self.mean is None:
            return ""
        if len(self.results) == 1:
            return f"{significant(self.mean):g}"
        spread = "" if self.deviation is None else f"±{significant(self.deviation, 2):g}"
        return f"{significant(self.mean):g}{spread} (n {len(self.results)})"


@dataclass(frozen=True)
class Best:
    """The setting with the best mean. ``other``: the next one with other settings, ``count``: how many have a value.

    ``equals``: how many other settings have its mean: it is the best by its place in the plan alone.
    ``behind``: the best setting that has a better mean, and ranks behind for its fewer seeds alone.
    """

    group: Group
    other: Group | None = None
    count: int = 1
    equals: int = 0
    behind: Group | None = None

    @property
    def cell(self) -> CellState:
        """Its best cell."""
        return self.group.first

    @property
    def runner_up(self) -> Group | None:
        """The next setting, if it is equal or the difference is inside the deviation."""
        return self.other if self.other is not None and _is_close(self.group, self.other) else None

    @property
    def test(self) -> Welch | None:
        """Whether it differs from the next setting by more than chance; None where either has no deviation."""
        return None if self.other is None else compare_means(self.group.values, self.other.values)

    @property
    def doubt(self) -> str:
        """That the cells which it compares did not all run the same code; empty where that is not known."""
        compared = [group for group in (self.group, self.other, self.behind) if group is not None]
        return "not all of the same code" if len(frozenset().union(*(group.codes for group in compared))) > 1 else ""

    @property
    def text(self) -> str:
        """The best value, whose it is, and how it compares with the next."""
        return f"{self.group.text} by {self.group.label}{self._against}"

    @property
    def text_with_run(self) -> str:
        """The same, with the run of the best cell."""
        return f"{self.group.text} by {self.group.label} ({self.cell.run_id}){self._against}"

    @property
    def _against(self) -> str:
        if self.behind is not None:
            text = f"; {self.behind_text}"
        elif self.runner_up is not None:
            text = f"; {'equal' if self.equals else 'within the deviation'}: {self.runner_up_text}"
        else:
            text = "" if self.test is None else f"; against {self.other_text}"
        return f"{text}; {self.doubt}" if self.doubt else text

    @property
    def runner_up_text(self) -> str:
        """The runner-up with its value, and the test. Empty where the difference is beyond the deviation."""
        more = f" and {self.equals - 1} more" if self.equals > 1 else ""
        return "" if self.runner_up is None else f"{self.other_text}{more}"

    @property
    def behind_text(self) -> str:
        """The better setting that ranks behind. Empty without one."""
        return "" if self.behind is None else describe_behind(self.behind, self.group)

    @property
    def other_text(self) -> str:
        """The next setting with its value, and the test. Empty where there is none."""
        if self.other is None:
            return ""
        tested = "" if self.test is None else f", {self.test.text}"
        return f"{self.other.label} {self.other.text}{tested}{compare_lengths(self.other, self.group)}"


def find_best(sweep: Sweep, *, by_mean_alone: bool = False) -> Best | None:
    """Return the best setting of a sweep, as rank_groups ranks. None without a metric, or before any result.

    None also of an open sweep: values rank no trials there, verdicts do.
    """
    is_ranked = sweep.spec.metric is not None and sweep.spec.open is None
    if not is_ranked or all(cell.value is None for cell in sweep.cells):
        return None
    ranked = rank_groups(sweep.cells, sweep.spec.goal, by_mean_alone=by_mean_alone)
    best = choose_best(ranked)
    return None if best is None else replace(best, behind=find_better_with_fewer(ranked, sweep.spec.goal))


def find_better_with_fewer(groups: Sequence[Group], goal: str) -> Group | None:
    """Return the best setting that ranks behind the first one for its fewer seeds alone."""
    sign = 1 if goal == "max" else -1
    first = sign * (groups[0].mean or 0.0) if groups and groups[0].mean is not None else math.inf
    others = [group for group in groups[1:] if group.forms != groups[0].forms]  # else it is promoted from there
    better = [group for group in others if group.mean is not None and sign * group.mean > first]
    return max(better, key=lambda group: sign * (group.mean or 0.0), default=None)


def describe_behind(group: Group, first: Group) -> str:
    """Return the sentence about a setting with a better value that ranks behind the ``first``."""
    return f"{group.label} {group.text} is better, with fewer seeds{compare_lengths(group, first)}"


def compare_lengths(group: Group, best: Group) -> str:
    """Return that trainings of other lengths are compared: ``, trained to step 500, the best to 150``. Else empty.

    Where no step is known, the time limits say so.
    """
    for unit, lengths in (("step ", _list_lengths(group, "step")), ("", _list_lengths(group, "limit"))):
        others = _list_lengths(best, "step" if unit else "limit")
        if lengths and others:
            one, other = max(lengths), max(others)
            if min(one, other) >= _SAME_LENGTH * max(one, other):
                return ""
            named = [f"{each:g}" if unit else duration(each) for each in (one, other)]
            return f", trained to {unit}{named[0]}, the best to {named[1]}"
    return ""


def _list_lengths(group: Group, by: str) -> list[float]:
    """Return the last steps of its results, or their time limits where they ended there."""
    if by == "step":
        found = [cell.end.get("step") for cell in group.results]
    else:
        found = [cell.cell.launch.get("time_limit_s") for cell in group.results if cell.state == "timed_out"]
    return [float(each) for each in found if isinstance(each, (int, float)) and not isinstance(each, bool)]


def choose_best(ranked: Sequence[Group]) -> Best | None:
    """Return the best of groups in their order; None before any result."""
    groups = [group for group in ranked if group.mean is not None]
    if not groups:
        return None
    # A promotion has the settings of the group that it comes from.
    others = [group for group in groups[1:] if group.forms != groups[0].forms]
    equals = {group.forms for group in others if group.mean == groups[0].mean}
    return Best(groups[0], others[0] if others else None, len({group.forms for group in groups}), len(equals))


def describe_test(ranked: Sequence[Group]) -> str:
    """Return whether the best two settings differ by more than chance, as one sentence; empty where none has seeds."""
    best = choose_best(ranked)
    if best is None or best.other is None:
        return ""
    lengths = compare_lengths(best.other, best.group)
    if best.test is None:
        is_alone = len(best.group.results) == 1 and (lengths or len(best.other.results) > 1)
        told = f"Best, of one result, against {best.other.label} {best.other.text}{lengths}: chance is not excluded."
        return told if is_alone else ""
    chosen = ""
    if best.count > 2:  # noqa: PLR2004 - two make no choice
        chosen = f"; chosen among {best.count} settings with a value, for which p is not corrected"
    return f"Best against {best.other.label}{lengths}: {best.test.text} (two-sided{chosen})."


def is_seed(name: str) -> bool:
    """Return whether a parameter is a random seed: cells that differ in nothing else repeat one experiment."""
    return _SEED.search(name) is not None


def name_setting(cell: CellState) -> str:
    """Return what cells that differ in their seed alone have in common: phase, launch and settings as they ran."""
    names = sorted(name for name in cell.settings if not is_seed(name))
    return _name_key(cell, [forms[0] for forms in _find_forms([cell], names)])


def _is_close(one: Group, other: Group) -> bool:
    """Return whether the means differ by no more than the larger deviation, or where none is known not at all."""
    deviations = [group.deviation for group in (one, other) if group.deviation is not None]
    return abs((one.mean or 0.0) - (other.mean or 0.0)) <= max(deviations, default=0.0)


def find_changed(cell: CellState) -> dict[str, Any]:
    """Return the settings of a cell that a retry changed, as they were planned.

    Such a training is none of the setting that it ran with last: it may have begun with the planned one, and where
    that setting is a cell too, each seed would count twice.
    """
    planned = {name: cell.planned(name) for name in cell.settings}
    return {name: value for name, value in planned.items() if value is not None and value != cell.setting(name)}


def rank_groups(cells: Sequence[CellState], goal: str, *, by_mean_alone: bool = False) -> list[Group]:
    """Return the groups, the best mean first, behind them those with at most half as many results as another has.

    A seed that was killed turns no comparison, and a single lucky one wins none; ``by_mean_alone`` ranks that all the
    same. Last are groups without a result: those that run, those that wait, others, and those that ended in NaN. Equal
    ones keep the order of the plan.
    """
    grouped: dict[str, list[CellState]] = {}
    names = list(dict.fromkeys(name for cell in cells for name in cell.settings if not is_seed(name)))
    forms = _find_forms(cells, names)
    for number, cell in enumerate(cells):
        grouped.setdefault(_name_key(cell, [one[number] for one in forms]), []).append(cell)
    finished = {cell.cell.phase for cell in cells if cell.state == "finished"}
    forms_of = {cell.cell.name: tuple(one[number] for one in forms) for number, cell in enumerate(cells)}
    groups = [
        replace(_make_group(names, members, goal, finished), forms=forms_of[members[0].cell.name])
        for members in grouped.values()
    ]
    most = 0 if by_mean_alone else max((len(group.results) for group in groups), default=0)
    return sorted(groups, key=lambda group: _rank(group, goal, most))


def find_whole(cells: Sequence[CellState]) -> set[str]:
    """Return the names of the cells that trained to their end with a number: those that count in a mean."""
    finished = {cell.cell.phase for cell in cells if cell.state == "finished"}
    return {cell.cell.name for cell in cells if _is_whole(cell, finished) and _value(cell) is not None}


def find_differing(groups: Sequence[Group]) -> list[str]:
    """Return the settings whose values are not the same in all groups."""
    names = dict.fromkeys(name for group in groups for name in group.settings)
    places = [_place(group.first) for group in groups]
    changed = [find_changed(group.first) for group in groups]
    return [
        name
        for name in names
        if len(set(find_forms(name, [group.settings.get(name) for group in groups], places))) > 1
        or len({_text(planned.get(name)) for planned in changed}) > 1
    ]


def average(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the mean, and the deviation of the sample, of the finite ones of ``values``, or None where unknown."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None, None
    return statistics.fmean(finite), statistics.stdev(finite) if len(finite) > 1 else None


def _make_group(names: Sequence[str], members: Sequence[CellState], goal: str, finished: Collection[str]) -> Group:
    sign = -1 if goal == "max" else 1
    results = [cell for cell in members if _is_whole(cell, finished) and _value(cell) is not None]
    results.sort(key=lambda cell: sign * (cell.value or 0.0))
    mean, deviation = average([cell.value for cell in results if cell.value is not None])
    settings = {name: members[0].setting(name) for name in names}
    return Group(settings, tuple(members), tuple(results), mean, deviation)


def _is_whole(cell: CellState, finished: Collection[str]) -> bool:
    """Return whether a cell trained to its end; ``finished``: phases with a cell that ended before its time limit."""
    if cell.bad_end:
        return False
    return cell.state == "finished" or (cell.state == "timed_out" and cell.cell.phase not in finished)


def _find_forms(cells: Sequence[CellState], names: Sequence[str]) -> list[list[Form]]:
    """Return for each setting the normal forms of its values in ``cells``."""
    places = [_place(cell) for cell in cells]
    return [find_forms(name, [cell.setting(name) for cell in cells], places) for name in names]


def find_forms(name: str, values: Sequence[Any], places: Sequence[Place]) -> list[Form]:
    """Return the normal forms of one setting's values: ``1e-3`` and ``0.001`` are one setting, as in compare_runs."""
    texts = [value if isinstance(value, str) else _text(value) for value in values]
    distinct = dict.fromkeys(zip(texts, places))
    forms = find_equal_forms(name, [text for text, _ in distinct], [place for _, place in distinct])
    known = dict(zip(distinct, forms))
    return [None if value is None else known[pair] for value, pair in zip(values, zip(texts, places))]


def _place(cell: CellState) -> Place:
    return Place(str(cell.cell.launch.get("cwd") or ""))


def _name_key(cell: CellState, forms: Sequence[Form]) -> str:
    return _text([cell.cell.phase, cell.cell.variant, forms, find_changed(cell)])


def _rank(group: Group, goal: str, most: int) -> tuple[int, int, float]:
    if group.mean is not None:
        count = len(group.results)
        return 0, most - count if 2 * count <= most else 0, -group.mean if goal == "max" else group.mean
    states = {cell.state for cell in group.cells}
    is_bad = any(cell.bad_end for cell in group.cells)
    return (1 if LIVE in states else 2 if WAITING in states else 4 if is_bad else 3), 0, 0.0


def _value(cell: CellState) -> float | None:
    return cell.value if cell.value is not None and math.isfinite(cell.value) else None


def _text(value: Any) -> str:
    return json.dumps(value, default=str, sort_keys=True)


_TERMS = 10_000  # of the continued fraction: about the root of the degrees of freedom are needed
_EPSILON, _TINY = 1e-15, 1e-300


@dataclass(frozen=True)
class Welch:
    """The statistic ``t``, its degrees of freedom, and the two-sided ``p``."""

    t: float
    df: float
    p: float

    @property
    def text(self) -> str:
        """The test as papers write it: ``Welch t 2.45, df 1.9, p 0.14``."""
        return f"Welch t {self.t:.3g}, df {self.df:.3g}, p {self.p:.2g}"


def compare_means(one: Sequence[float], other: Sequence[float]) -> Welch | None:
    """Return Welch's test of two samples, or None below two values each, or where no float holds their variances.

    Two samples without any deviation have none: chance is unknown there.
    """
    if min(len(one), len(other)) < 2:  # noqa: PLR2004 - a variance takes two
        return None
    try:
        errors = [statistics.variance(values) / len(values) for values in (one, other)]
    except OverflowError:
        return None
    error = sum(errors)
    if not (error > 0 and math.isfinite(error)):
        return None
    t = (statistics.fmean(one) - statistics.fmean(other)) / math.sqrt(error)
    shares = [each / error for each in errors]  # not the squares of the errors: those may be too small for a float
    df = 1 / (shares[0] ** 2 / (len(one) - 1) + shares[1] ** 2 / (len(other) - 1))
    return Welch(t, df, beta_fraction(df / 2, 0.5, df / (df + t * t)))


def beta_fraction(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function, by its continued fraction (Lentz)."""
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1) / (a + b + 2):  # beyond it the fraction converges slowly
        return 1 - beta_fraction(b, a, 1 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    value, c, d = 1.0, 1.0, 0.0
    for number in range(_TERMS):
        half = number // 2
        if number == 0:
            term = 1.0
        elif number % 2:
            term = -(a + half) * (a + b + half) * x / ((a + number - 1) * (a + number))
        else:
            term = half * (b - half) * x / ((a + number - 1) * (a + number))
        d = 1 / (1 + term * d or _TINY)
        c = 1 + term / c or _TINY
        value *= c * d
        if abs(1 - c * d) < _EPSILON:
            break
    return front * (value - 1)
