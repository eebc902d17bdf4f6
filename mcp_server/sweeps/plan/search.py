"""Points of a search: which parameters the next cell gets, from the space, the seed and what came of the others. Pure.

Optuna's mathematics is Optuna's: TPE. Random points are drawn here, also where Optuna is installed. They are a few
lines of ``random``, they are all known when the sweep is planned, and a seed means the same points in any version.

Nothing is kept between two proposals: the events of a sweep hold all of its history, and the same history, number and
seed give the same proposal in any process. So a conductor that takes over goes on as the former one would have.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Literal, TypeGuard

from mcp_server.errors import BadArgument

INSTALL = "pip install 'optuna>=5'"


def load_optuna() -> Any:
    """Return the package ``optuna``."""
    import optuna  # noqa: PLC0415 - an extra, which takes 1,000 ms

    return optuna


Value = str | int | float | bool | None
Point = dict[str, Value]
TrialState = Literal["live", "finished", "stopped", "failed"]
STRATEGIES = ("random", "tpe")
MOST_POINTS = 1000
LANGUAGE = (
    'A space is e.g. {"lr": {"low": 1e-5, "high": 1e-2, "log": true}, "layers": {"low": 2, "high": 8, "int": true}, '
    '"optimizer": ["adam", "sgd"]}.'
)
_RANGE_KEYS = frozenset({"low", "high", "log", "int", "step"})
_SEARCH_KEYS = frozenset({"strategy", "space", "budget", "seed"})
_DIGITS, _STEPPED_DIGITS = 6, 10  # significant, of a proposed number: a person reads it
_MOST_DRAWS, _MOST_ASKS = 200, 5  # for one point that is not there yet
_STARTUP = 10  # measured cells before Optuna proposes, as it has by default


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, both included. ``log``: even in the exponent. ``step``: in steps from low."""

    low: float
    high: float
    log: bool = False
    is_int: bool = False
    step: float | None = None

    def fit(self, number: float) -> int | float:
        """Return the allowed number nearest to ``number``."""
        if self.step is not None:
            number = self.low + round((number - self.low) / self.step) * self.step
            number = number if number <= self.high else number - self.step
        if self.is_int:
            return min(max(round(number), math.ceil(self.low)), math.floor(self.high))
        rounded = float(f"{number:.{_STEPPED_DIGITS if self.step else _DIGITS}g}")
        return min(max(rounded, self.low), self.high)

    def draw(self, generator: random.Random) -> int | float:
        """Return a random allowed number."""
        half = (self.step or 1) / 2 if self.is_int or self.step else 0.0  # so that both ends are as likely as others
        if self.log:
            low, high = math.log(max(self.low - half, self.low / 2)), math.log(self.high + half)
            return self.fit(math.exp(generator.uniform(low, high)))
        return self.fit(generator.uniform(self.low - half, self.high + half))

    def count(self) -> float:
        """Return how many numbers are allowed."""
        if self.step is None and not self.is_int:
            return math.inf
        return math.floor((self.high - self.low) / (self.step or 1) + 1e-9) + 1


Dimension = Range | tuple[Value, ...]
Space = dict[str, Dimension]


@dataclass(frozen=True)
class Trial:
    """The outcome of a point. ``value``: the metric, None where unknown. ``step``: where a stopped one reached it."""

    params: Mapping[str, Value]
    state: TrialState
    value: float | None = None
    step: int | None = None


@dataclass(frozen=True)
class Search:
    """A search that is asked for: ``budget`` cells in ``space``."""

    strategy: str
    space: Space
    budget: int
    seed: int = 0

    @property
    def needs_history(self) -> bool:
        """Whether a point depends on what came of others, else all are known before the first cell begins."""
        return self.strategy != "random"


def parse_search(facts: Mapping[str, Any]) -> Search:
    """Return the search that JSON describes: ``strategy`` (default random), ``space``, ``budget``, ``seed``.

    Raises:
        BadArgument: it is not a search, or needs a package that this Python does not have.
    """
    if unknown := set(facts) - _SEARCH_KEYS:
        keys = ", ".join(sorted(_SEARCH_KEYS))
        remedy = "The time of each cell is time_limit_s in common." if "budget_s" in unknown else ""
        raise BadArgument("search", f"has an unknown field {min(unknown)!r}; there are {keys}.", remedy)
    strategy, budget, seed = facts.get("strategy", "random"), facts.get("budget"), facts.get("seed", 0)
    if strategy not in STRATEGIES:
        raise BadArgument("search", f"strategy must be one of {', '.join(STRATEGIES)}, not {strategy!r}.")
    if not _is_int(budget) or not 0 < budget <= MOST_POINTS:
        raise BadArgument("search", f"budget must be a number of cells, 1 to {MOST_POINTS:,}.")
    if not _is_int(seed):
        raise BadArgument("search", "seed must be an integer.")
    space = parse_space(facts.get("space"))
    points = math.prod(len(each) if isinstance(each, tuple) else each.count() for each in space.values())
    if points < budget:
        raise BadArgument("search", f"the space has only {points:,.0f} points, fewer than the budget of {budget:,}.")
    if strategy == "tpe" and find_spec("optuna") is None:
        remedy = f"A person can {INSTALL}. Strategy random needs nothing."
        raise BadArgument("search", "needs Optuna, which is not installed.", remedy)
    return Search(strategy, space, budget, seed)


def parse_space(facts: object) -> Space:
    """Return the space that JSON describes, by parameter a list of values or a range; else raise BadArgument."""
    if not isinstance(facts, Mapping) or not facts:
        raise BadArgument("space", "must be an object with a list or a range for each parameter.", LANGUAGE)
    return {str(name): _parse_dimension(str(name), each) for name, each in facts.items()}


def draw_points(space: Space, seed: int, count: int) -> list[Point]:
    """Return the first ``count`` random points: the same for the same seed, a longer list begins with a shorter one.

    No point is there twice, as long as others can be found.
    """
    points: list[Point] = []
    for number in range(count):
        points.append(_draw_new(space, f"{seed} {number}", points))
    return points


def propose(search: Search, history: Sequence[Trial], number: int, goal: str = "max") -> Point:
    """Return the parameters of cell ``number``, from 0. ``history`` holds the other cells that began, in their order.

    ``random`` ignores the history. ``tpe`` draws at random until ten cells have a value; from then on Optuna proposes
    where values are likely to be good. It expects bad values near live cells, so that cells beside each other differ.
    Failed cells, and cells with values outside of the space, count for nothing.
    """
    trials = [trial for trial in history if _is_inside(trial.params, search.space)]
    measured = sum(_is_measured(trial) for trial in trials)
    if search.strategy == "random" or measured < _STARTUP:
        return draw_points(search.space, search.seed, number + 1)[number]
    others: list[Point] = [dict(trial.params) for trial in trials]
    for attempt in range(_MOST_ASKS):
        chance = random.Random(f"{search.seed} {number} {attempt}")  # noqa: S311 - reproducible, not secret
        point = _ask_optuna(search, trials, goal, chance.getrandbits(32))
        if point not in others:
            return point
    return _draw_new(search.space, f"{search.seed} {number}", others)


def _ask_optuna(search: Search, trials: Sequence[Trial], goal: str, seed: int) -> Point:
    distributions = {name: _make_distribution(each) for name, each in search.space.items()}
    optuna = load_optuna()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=0, constant_liar=True)
    study = optuna.create_study(direction="maximize" if goal == "max" else "minimize", sampler=sampler)
    study.add_trials([_make_trial(trial, distributions) for trial in trials])
    params = study.ask(distributions).params
    return {
        name: each.fit(params[name]) if isinstance(each, Range) else params[name] for name, each in search.space.items()
    }


def _make_distribution(dimension: Dimension) -> Any:
    kinds = load_optuna().distributions
    if not isinstance(dimension, Range):
        return kinds.CategoricalDistribution(list(dimension))
    if dimension.is_int:
        step = int(dimension.step or 1)
        return kinds.IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log, step=step)
    return kinds.FloatDistribution(dimension.low, dimension.high, log=dimension.log, step=dimension.step)


def _make_trial(trial: Trial, distributions: Mapping[str, Any]) -> Any:
    create_trial, states = load_optuna().trial.create_trial, load_optuna().trial.TrialState
    params = {name: trial.params[name] for name in distributions}
    known: dict[str, Any] = {"params": params, "distributions": dict(distributions)}
    if trial.state == "live":
        return create_trial(state=states.RUNNING, **known)
    if not _is_measured(trial):
        return create_trial(state=states.FAIL, **known)
    if trial.state == "stopped":
        return create_trial(state=states.PRUNED, intermediate_values={trial.step or 0: trial.value or 0.0}, **known)
    return create_trial(state=states.COMPLETE, value=trial.value, **known)


def _is_measured(trial: Trial) -> bool:
    return trial.state in ("finished", "stopped") and trial.value is not None and math.isfinite(trial.value)


def _is_inside(params: Mapping[str, Value], space: Space) -> bool:
    """Return whether a point has an allowed value for each parameter: a retry can have changed one."""
    return all(name in params and _allows(each, params[name]) for name, each in space.items())


def _allows(dimension: Dimension, value: Value) -> bool:
    if not isinstance(dimension, Range):
        return any(value == each and type(value) is type(each) for each in dimension)
    if not isinstance(value, int | float) or isinstance(value, bool) or not dimension.low <= value <= dimension.high:
        return False
    is_exact = not dimension.is_int and dimension.step is None
    return is_exact or math.isclose(value, dimension.fit(value), rel_tol=1e-9, abs_tol=1e-9)


def _draw_new(space: Space, seed: str, others: Sequence[Point]) -> Point:
    generator = random.Random(seed)  # noqa: S311 - as above
    point: Point = {}
    for _ in range(_MOST_DRAWS):
        point = {
            name: each.draw(generator) if isinstance(each, Range) else generator.choice(each)
            for name, each in space.items()
        }
        if point not in others:
            break
    return point


def _parse_dimension(name: str, facts: object) -> Dimension:
    if isinstance(facts, list | tuple):
        values = tuple(facts)
        if not values or not all(isinstance(value, str | int | float | None) for value in values):
            raise BadArgument("space", f"{name} must have at least one plain value (text, number, true, false, null).")
        if any(value in values[:index] for index, value in enumerate(values)):
            raise BadArgument("space", f"{name} has a value twice.")
        return values
    if not isinstance(facts, Mapping):
        raise BadArgument("space", f"{name} must be a list of values or a range, not {facts!r}.", LANGUAGE)
    if unknown := set(facts) - _RANGE_KEYS:
        raise BadArgument("space", f"{name} has an unknown field {min(unknown)!r}.", LANGUAGE)
    low, high, step = facts.get("low"), facts.get("high"), facts.get("step")
    log, is_int = facts.get("log", False), facts.get("int", False)
    numbers = [low, high] if step is None else [low, high, step]
    if not all(
        isinstance(each, int | float) and not isinstance(each, bool) and math.isfinite(each) for each in numbers
    ):
        raise BadArgument("space", f"{name} needs low and high as numbers, and step, if any, as one.", LANGUAGE)
    if not isinstance(log, bool) or not isinstance(is_int, bool):
        raise BadArgument("space", f"{name}: log and int are true or false.")
    one = Range(low, high, log, is_int, step)  # type: ignore[arg-type] # checked above
    _check_range(name, one)
    return one if one.step is None else replace(one, high=one.fit(one.low + (one.count() - 1) * one.step))


def _check_range(name: str, one: Range) -> None:
    if not one.low < one.high:
        raise BadArgument("space", f"{name}: low must be below high.")
    if one.log and one.low <= 0:
        raise BadArgument("space", f"{name}: low must be above 0 for log.")
    if one.log and one.step is not None:
        raise BadArgument("space", f"{name}: log and step exclude each other.")
    if one.step is not None and not 0 < one.step <= one.high - one.low:
        raise BadArgument("space", f"{name}: step must be above 0 and fit between low and high.")
    if one.is_int and any(each != round(each) for each in (one.low, one.high, one.step or 1)):
        raise BadArgument("space", f"{name}: low, high and step of an int are integers.")


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
