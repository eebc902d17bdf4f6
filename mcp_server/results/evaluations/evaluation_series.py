"""Evaluations as series by step: value, number of episodes and uncertainty of each metric, newest last. Pure."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mcp_server.results.evaluations.evaluation_text import NAMES, STEP_NAMES, Percent, Row, Value, find_step
from mcp_server.results.evaluations.evaluations import Evaluation
from mcp_server.scalars.tag_names import Best, best_direction
from mcp_server.text.formatting import FEWEST_DIGITS
from mcp_server.text.rows import read_patterns

_RX = read_patterns("results/patterns", "evaluation_series")

BENCHMARK_NAMES, MODEL_NAMES, _VALUE_NAMES = NAMES["benchmark"], NAMES["model"], NAMES["value"]
_EPISODE_NAMES, _TASK_NAMES = NAMES["episodes"], NAMES["tasks"]
_ATTEMPTS = "pass_n"  # attempts at each task
_SAME = 5e-4  # of a value, or of the whole for a rate: one file rounds to 51.2 %, the other has 0.5119
_FEWEST_DIGITS, _FEWEST_DECIMALS = 3, 2  # of a number that may be a rounded one
_PARENTS = 3


@dataclass(frozen=True)
class EvaluationPoint:
    """One value of a metric. ``unit`` is "%" or "". ``error``: one standard error, in the same unit.

    ``episodes``: how many episodes, or tasks where each is tried once, the value is of. ``text``: the value as written.
    ``repeat``: how many rows of the same step, model and benchmark stand above its own in the file.
    """

    value: float
    step: int | None = None
    unit: str = ""
    episodes: int | None = None
    error: float | None = None
    text: str = field(default="", compare=False)
    repeat: int = field(default=0, compare=False)

    @property
    def share(self) -> float:
        """The value, of a percentage its hundredth."""
        return self.value / 100 if self.unit else self.value


@dataclass(frozen=True)
class EvaluationSeries:
    """The points of one metric, by step. Those of one step, or without any, in the order written: newest last.

    ``benchmark`` and ``model``: as the file names them, or "". ``sources``: the files. ``goal``: where somebody has
    said whether higher or lower is better.
    """

    metric: str
    points: tuple[EvaluationPoint, ...]
    benchmark: str = ""
    model: str = ""
    sources: tuple[Path, ...] = ()
    goal: Best | None = None

    @property
    def name(self) -> str:
        """The metric with the labels of its rows."""
        return ".".join(part for part in (self.model, self.benchmark, self.metric) if part)

    @property
    def last(self) -> EvaluationPoint:
        """The newest point."""
        return self.points[-1]

    @property
    def best_is(self) -> Best | None:
        """Whether higher or lower is better, or None where the name does not say so."""
        return self.goal or (None if is_count(self.metric) else best_direction(self.metric))

    @property
    def best(self) -> EvaluationPoint | None:
        """The best point, the first of equal ones, or None where no direction is better or all are NaN."""
        finite = [point for point in self.points if math.isfinite(point.value)]
        if not finite or self.best_is is None:
            return None
        return (max if self.best_is == "max" else min)(finite, key=lambda point: point.share)


def name_series(series: Sequence[EvaluationSeries]) -> dict[str, EvaluationSeries]:
    """Return the series by name, without the model where all are of one model."""
    if len({one.model for one in series}) > 1:
        return {one.name: one for one in series}
    return {replace(one, model="").name: one for one in series}


def has_figures(evaluation: Evaluation) -> bool:
    """Return whether an evaluation has a number that belongs to a series."""
    return next(_read_rows(evaluation), None) is not None


def repeats_scalar(series: EvaluationSeries, tag: str, last: float | str, step: int | None) -> bool:
    """Return whether a scalar of a run is the same evaluation: its name but for ``eval/``, last step and last value."""
    if _RX.prefix.sub("", tag).lower() != _RX.prefix.sub("", series.name).lower() or isinstance(last, str):
        return False
    scalar = EvaluationPoint(last, series.last.step if step is None else step)
    return series.last.step in (None, scalar.step) and _is_equal(series.last, scalar)


@dataclass
class _Labels:
    step: int | None = None
    benchmark: str = ""
    model: str = ""
    columns: set[str] = field(default_factory=set)


_Key = tuple[str, str, str]
_Points = dict[_Key, list[EvaluationPoint]]  # of one file, in the order written


def build_series(evaluations: Sequence[Evaluation]) -> list[EvaluationSeries]:
    """Return the series in evaluations, newest first. What two files say alike counts once, with its steps."""
    files: dict[Path, _Points] = {}
    names: dict[_Key, str] = {}
    places = _name_places(evaluations)
    for evaluation in reversed(evaluations):
        of_file = files.setdefault(evaluation.source, {})
        written = {name.lower() for row in evaluation.rows for name in row}
        for labels, metric, point in _read_rows(evaluation):
            model = labels.model or (places.get(evaluation.source, "") if labels.step is None else "")
            plain = _RX.prefix.sub("", metric).lower()
            key = (model, labels.benchmark, metric.lower() if plain in written else plain)
            names.setdefault(key, metric)
            of_file.setdefault(key, []).append(point)
    points: dict[_Key, list[tuple[Path, EvaluationPoint]]] = {key: [] for key in names}
    for source, of_file in files.items():
        steps = next(filter(None, (_find_steps(of_file, other) for other in files.values())), ())
        for key, own in of_file.items():
            known = points[key]
            for point in (replace(one, step=step) for one, step in zip(own, steps, strict=True)) if steps else own:
                others = [(n, one) for n, (path, one) in enumerate(known) if path != source]
                twin = next((n for n, one in others if one.step == point.step and _is_equal(one, point)), -1)
                if twin < 0:
                    known.append((source, point))
                elif known[twin][1].error is None and point.error is not None:
                    known[twin] = known[twin][0], point
    series = []
    for key, known in points.items():
        ordered = sorted((point for _, point in known), key=lambda p: math.inf if p.step is None else p.step)
        sources = tuple(dict.fromkeys(path for path, _ in known))
        series.append(EvaluationSeries(names[key], tuple(ordered), key[1], key[0], sources))
    return series


def _name_places(evaluations: Sequence[Evaluation]) -> dict[Path, str]:
    """Return what tells the directories of files of one name apart: the models, where one file for each was written."""
    by_name: dict[str, list[Path]] = {}
    for path in dict.fromkeys(one.source for one in evaluations):
        by_name.setdefault(path.name, []).append(path)
    places: dict[Path, str] = {}
    for paths in by_name.values():
        parts = [path.parent.parts for path in paths]
        if len(paths) > 1 and len(set(map(len, parts))) == 1:
            differing = [n for n, level in enumerate(zip(*parts, strict=True)) if len(set(level)) > 1]
            places |= {path: "/".join(path.parts[n] for n in differing) for path in paths}
    return places


def _find_steps(points: _Points, other: _Points) -> tuple[int, ...]:
    """Return the steps of evaluations in a file without any, where ``other`` ends with the same values; else ()."""
    lengths = {len(own) for own in points.values()}
    shared = [key for key in points if key in other and not is_count(key[2])]
    if not shared or len(lengths) > 1 or any(point.step is not None for own in points.values() for point in own):
        return ()
    newest: set[tuple[int, ...]] = set()
    for key in shared:
        steps = {point.step: point for point in other[key] if point.step is not None}
        ends = [steps[step] for step in sorted(steps)][-len(points[key]) :]
        if len(ends) < len(points[key]) or not all(map(_is_equal, points[key], ends)):
            return ()
        newest.add(tuple(point.step for point in ends if point.step is not None))
    return newest.pop() if len(newest) == 1 else ()


def _is_equal(one: EvaluationPoint, other: EvaluationPoint) -> bool:
    if math.isnan(one.value) or math.isnan(other.value):
        return math.isnan(one.value) and math.isnan(other.value)
    width = max(abs(one.share), abs(other.share), 1.0 if one.unit or other.unit else 0.0)
    return abs(one.share - other.share) <= _SAME * width or _is_rounded(one, other) or _is_rounded(other, one)


def _is_rounded(one: EvaluationPoint, exact: EvaluationPoint) -> bool:
    """Return whether ``one`` is written with fewer decimals, and is what ``exact`` is with so many."""
    digits = one.text.rstrip("%").strip("+-")
    whole, point, decimals = digits.partition(".")
    if not point or not (whole + decimals).isdecimal():
        return False
    if len((whole + decimals).lstrip("0")) < _FEWEST_DIGITS and len(decimals) < _FEWEST_DECIMALS:
        return False
    places = len(decimals) + (2 if one.unit else 0)
    return abs(round(exact.share, places) - one.share) < 10.0 ** -(places + 2)


def _read_rows(evaluation: Evaluation) -> Iterator[tuple[_Labels, str, EvaluationPoint]]:
    epochs = {_find(row, {"epoch"}) for row in evaluation.rows}
    by_epoch = len(epochs) > 1 and not any(_find(row, STEP_NAMES) is not None for row in evaluation.rows)
    repeats: Counter[_Key] = Counter()
    for row in evaluation.rows:
        labels = _label_row(row, evaluation, by_epoch=by_epoch, is_only=len(evaluation.rows) == 1)
        metrics = [*_metrics_of(row, labels)]
        repeat = repeats[key := (str(labels.step), labels.model, labels.benchmark)]
        repeats[key] += 1
        for name, value in metrics:
            unit = "%" if isinstance(value, Percent) else ""
            point = EvaluationPoint(_as_float(value), labels.step, unit, text=str(value), repeat=repeat)
            yield labels, name, _add_uncertainty(point, name, row, getattr(value, "whole", None))


def _label_row(row: Row, evaluation: Evaluation, *, by_epoch: bool, is_only: bool) -> _Labels:
    labels = _Labels()
    step = _find(row, {*STEP_NAMES, *(("epoch",) if by_epoch else ())})
    if step is None:
        step = find_step(evaluation.title)
    if step is None:
        step = find_step(evaluation.source.stem)
    if step is None:
        names = (path.name for path in list(evaluation.source.parents)[:_PARENTS])
        step = next((find_step(name) for name in names if _RX.step_directory.fullmatch(name)), None)
    labels.step = None if step is None or not math.isfinite(step) else int(step)
    texts = {name: value for name, value in row.items() if isinstance(value, str) and value}
    for name, value in texts.items():
        if plain_name(name) in MODEL_NAMES and not labels.model:
            labels.model = value
        elif plain_name(name) in BENCHMARK_NAMES and not labels.benchmark:
            labels.benchmark = value
    if not labels.benchmark and not labels.model and not is_only and texts:
        labels.benchmark = next(iter(texts.values()))
    of_step = {*STEP_NAMES, "epoch"}
    labels.columns = {name for name in row if plain_name(name) in of_step or name in texts}
    return labels


def _metrics_of(row: Row, labels: _Labels) -> Iterator[tuple[str, float]]:
    numbers = {
        name: value
        for name, value in row.items()
        if name not in labels.columns and isinstance(value, int | float) and not isinstance(value, bool)
    }
    for name, value in numbers.items():
        if plain_name(name) in _VALUE_NAMES and labels.benchmark and len(numbers) == 1:
            metric, labels.benchmark = labels.benchmark, ""  # a table of names and values
            yield metric, value
        elif not any(name == spread for other in numbers if other != name for spread, _ in _spread_names(other)):
            yield name, value


def _as_float(value: float) -> float:
    """Return a number of any size."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _spread_names(metric: str) -> Iterator[tuple[str, bool]]:
    """Yield the names that the spread of a metric may have, and whether it is a standard error."""
    metric, comma, choice = metric.partition(",")  # lm-eval adds a filter
    scope, slash, name = metric.rpartition("/")
    choice = comma + choice
    bare = re.sub(r"(?i)^(mean|avg|average)[_ ]|[_ ](mean|avg|average)$", "", name)
    for word in dict.fromkeys((name, bare)):
        for form in (f"{word}_stderr", f"stderr_{word}", f"{word}_se", f"{word}_sem"):
            yield scope + slash + form + choice, True
        for form in (f"std_{word}", f"{word}_std", f"{word}_stddev", f"stddev_{word}"):
            yield scope + slash + form + choice, False


def _add_uncertainty(point: EvaluationPoint, metric: str, row: Row, counted: int | None) -> EvaluationPoint:
    """Return the point with its number of episodes and one standard error, where the row has what it takes.

    A standard error that is written counts; else a standard deviation over the root of the number of episodes; else,
    for a rate, that of a binomial. Attempts at one task count as independent. ``counted``: the number beside the value.
    """
    tasks = _count(row, _TASK_NAMES)
    attempts = _count(row, (_ATTEMPTS,)) or 1
    at = _RX.pass_at.search(metric)
    episodes = counted or _count(row, _EPISODE_NAMES) or (tasks * attempts if tasks else None)
    if at and (int(at[1]) > 1 or at["all"]):
        episodes = tasks  # of several attempts at a task one value is made
    if is_count(metric):
        return point
    for name, is_error in _spread_names(metric):
        spread = row.get(name)
        if isinstance(spread, int | float) and math.isfinite(spread) and spread >= 0:
            if is_error:
                return replace(point, episodes=episodes, error=float(spread))
            if episodes:
                return replace(point, episodes=episodes, error=float(spread) / math.sqrt(episodes))
    share = point.share
    if episodes and _RX.rate.search(metric) and not _RX.not_rate.search(metric) and 0 <= share <= 1:
        error = math.sqrt(share * (1 - share) / episodes) * (100 if point.unit else 1)
        return replace(point, episodes=episodes, error=error)
    return replace(point, episodes=episodes)


def is_count(metric: str) -> bool:
    """Return whether a name says how much was evaluated, and not how well."""
    plain = plain_name(metric)
    return plain in {*_EPISODE_NAMES, *_TASK_NAMES, _ATTEMPTS} or plain.startswith("num_")


def _count(row: Row, names: Iterable[str]) -> int | None:
    values = {plain_name(name): value for name, value in row.items()}
    for name in names:
        value = values.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool | Percent) and 0 < value < math.inf:
            return int(value)
    return None


def _find(row: Row, names: Iterable[str]) -> float | None:
    tags = frozenset(names)
    for name, value in row.items():
        if plain_name(name) in tags and isinstance(value, int | float) and not isinstance(value, bool):
            return _as_float(value)
    return None


def plain_name(name: str) -> str:
    """Return the last part of a name in lower case: ``eval/num_trajectories`` is ``num_trajectories``."""
    return name.strip().lower().replace(" ", "_").replace("-", "_").rpartition("/")[2].rpartition(".")[2]


def format_value(value: Value, digits: int = FEWEST_DIGITS) -> str:
    """Return a number with ``digits`` significant digits and its percent sign, or an integer whole."""
    if isinstance(value, Percent):
        return f"{float(value):.{digits}g}%"
    if not isinstance(value, float):
        return str(value)
    return str(int(value)) if value.is_integer() and abs(value) < 1e6 else f"{value:.{digits}g}"  # noqa: PLR2004


def format_point(point: EvaluationPoint, *, step: bool = True, digits: int = FEWEST_DIGITS) -> str:
    """Return ``0.51±0.02@30``, as far as known."""
    text = format_value(Percent(point.value) if point.unit else point.value, digits)
    if point.error is not None:
        text = f"{text.removesuffix('%')}±{point.error:.2g}{point.unit}"
    return text + (f"@{point.step}" if step and point.step is not None else "")


def format_series(series: EvaluationSeries, digits: int = FEWEST_DIGITS) -> str:
    """Return the newest value, and the best one where it is another: ``0.51@30/0.55@20``."""
    last, best = format_point(series.last, digits=digits), series.best
    steps = len(series.points) > 1
    if not steps:
        return format_point(series.last, step=False, digits=digits) if series.last.step is None else last
    is_other = best is not None and best.share != series.last.share
    return f"{last}/{format_point(best, digits=digits)}" if best and is_other else last
