"""The plan of an open sweep: what ``search`` says with ``"strategy": "open"``. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from mcp_server.errors import BadArgument
from mcp_server.record.codec import decode
from mcp_server.record.sweeps.sweep_spec import SweepSpec
from mcp_server.text.near_names import find_near_names

OPEN, NO_GIT = "open", "none"
BASELINE = "t0"  # the name of the base among the trials
_MOST_TRIALS, _MOST_RUNS = 1000, 20
LANGUAGE = (
    'E.g. {"strategy": "open", "budget": 100, "hours": 8, "protect": ["prepare.py"], "measure": "python evaluate.py"}.'
)


@dataclass(frozen=True)
class OpenPlan:
    """The fields of the call, and from ``repository`` on those of the project.

    ``ledger``: the path of results.tsv in the project, empty for none. ``base``: a commit, empty in a directory without
    git, where parameters alone are tried. ``branch``: below ``runward/``. ``common``: the launch of cells, with its
    placeholders.
    """

    budget: int | None = None
    hours: float | None = None
    base: str = ""
    paths: tuple[str, ...] = ()
    protect: tuple[str, ...] = ()
    measure: str = ""
    repeats: int = 4
    min_gain: float = 0.0
    baseline_runs: int = 4
    suspect_sd: float = 8.0
    steps: str = ""
    limits: Mapping[str, float] = field(default_factory=dict)
    ahead: int = 2
    ledger: str = "results.tsv"
    stop_after: int = 20
    repository: str = ""
    branch: str = ""
    common: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, spec: SweepSpec) -> OpenPlan:
        """Return the plan of an open sweep."""
        return decode(cls, dict(spec.open or {}))

    def facts(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


def is_open(search: object) -> bool:
    """Return whether a search is an open one."""
    return isinstance(search, Mapping) and search.get("strategy") == OPEN


def _is_whole(least: int, most: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _are_paths(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(map(_is_text, value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and value.isprintable()


def _are_limits(value: Any) -> bool:
    return isinstance(value, Mapping) and {*value} <= {"peak_gpu_mib"} and all(map(_is_number, value.values()))


_CHANGEABLE = ("budget", "hours", "stop_after", "ahead")  # where a sweep goes on
_CHECKS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "budget": (_is_whole(1, _MOST_TRIALS), f"a number of trials, 1 to {_MOST_TRIALS:,}"),
    "hours": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    "base": (_is_text, "a commit"),
    "paths": (_are_paths, "a list of paths"),
    "protect": (_are_paths, "a list of paths"),
    "measure": (_is_text, "a command line"),
    "repeats": (_is_whole(0, _MOST_RUNS), f"a number of pairs, 0 to {_MOST_RUNS}"),
    "min_gain": (lambda value: _is_number(value) and value >= 0, "a number from 0 on"),
    "baseline_runs": (_is_whole(1, _MOST_RUNS), f"a number of runs, 1 to {_MOST_RUNS}"),
    "suspect_sd": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    "steps": (_is_text, "the name of a printed count"),
    "limits": (_are_limits, 'an object such as {"peak_gpu_mib": 46000}'),
    "ahead": (_is_whole(0, _MOST_TRIALS), "a number of proposals"),
    "ledger": (lambda value: value is False or _is_text(value), "a path in the project, or false"),
    "stop_after": (_is_whole(1, _MOST_TRIALS), "a number of trials"),
}


def parse_open(search: Mapping[str, Any]) -> OpenPlan:
    """Return the plan that a call says; a wrong field is a BadArgument that names it."""
    given = {name: value for name, value in search.items() if name != "strategy" and value is not None}
    for name, value in given.items():
        if name not in _CHECKS:
            near = ", ".join(find_near_names(name, list(_CHECKS)))
            remedy = "An open sweep has no space: its agents propose." if name == "space" else near and f"Near: {near}."
            cause = f"strategy open has no field {name[:40]!r}; there are {', '.join(_CHECKS)}."
            raise BadArgument("search", cause, remedy)
        check, meant = _CHECKS[name]
        if not check(value):
            raise BadArgument("search", f"{name} must be {meant}, not {value!r:.60}.", LANGUAGE)
    if "budget" not in given and "hours" not in given:
        raise BadArgument("search", "strategy open needs budget (trials) or hours: either ends it.", LANGUAGE)
    if given.get("repeats") == 1:
        remedy = "At least 2 pairs keep a trial; 0: one run decides."
        raise BadArgument("search", "repeats: 1 pair proves nothing.", remedy)
    if "ledger" in given:
        given["ledger"] = given["ledger"] or ""
    return OpenPlan(**given | {name: tuple(given[name]) for name in ("paths", "protect") if name in given})


def change_open(plan: OpenPlan, search: Mapping[str, Any]) -> OpenPlan:
    """Return a plan with the limits that a call says. BadArgument: it says something else than they."""
    if not is_open(search):
        raise BadArgument("search", "the sweep is of strategy open, and stays so.")
    said = parse_open({"budget": plan.budget, "hours": plan.hours, **search})
    for name in search.keys() - {"strategy", *_CHANGEABLE}:
        own, new = getattr(plan, name), getattr(said, name)
        if new != own and not (name == "base" and own.startswith(new)):
            cause = f"{name} is {own!r:.60} there, {new!r:.60} in this call; {', '.join(_CHANGEABLE)} may change."
            raise BadArgument("search", cause, "Another name starts another sweep.")
    return replace(plan, **{name: getattr(said, name) for name in _CHANGEABLE if name in search})
