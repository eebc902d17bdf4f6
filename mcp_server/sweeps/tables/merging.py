"""Several sweeps as one, so that one table has the settings of all, and seeds are grouped over them. Pure."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mcp_server.command.shell import parse
from mcp_server.errors import BadArgument
from mcp_server.record.state import RunState
from mcp_server.record.sweeps.sweep_ranking import find_changed, find_whole, is_seed
from mcp_server.record.sweeps.sweep_spec import Cell
from mcp_server.record.sweeps.sweep_state import CellState, Sweep
from mcp_server.sweeps.plan.filling import FILLED, as_text
from mcp_server.sweeps.plan.plan import find_seeds

# Arguments of a launch that do not change what is trained.
_ASIDE = frozenset(
    {
        *("params", "tags", "why", "tensorboard", "recovery", "resume_args", "secrets", "needs", "require", "queue"),
        *("first_step_pattern", "first_step_timeout_s", "stall_timeout_s", "code", "param_style", "filled"),
    }
)
_SWEEP = "sweep"


@dataclass(frozen=True)
class MergedSweep:
    """One sweep with the cells of several. ``sources``: the sweep and the name there of each cell, by its name here."""

    sweep: Sweep
    sources: Mapping[str, tuple[Sweep, str]]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class _Member:
    sweep: Sweep
    state: CellState
    variant: str

    @property
    def place(self) -> tuple[str, str]:
        return self.sweep.sweep_id, self.state.cell.name

    @property
    def key(self) -> str | None:
        """The common part of cells that repeat one training: all settings and a seed. None without a seed."""
        cell = self.state.cell
        seeds = find_seeds(cell)
        settings = {name: as_text(value) if is_seed(name) else value for name, value in self.state.settings.items()}
        if not seeds and not any(map(is_seed, settings)):
            return None
        parts = [cell.phase, self.variant, settings, seeds, find_changed(self.state)]
        return json.dumps(parts, default=str, sort_keys=True)


def merge_sweeps(sweeps: Sequence[Sweep]) -> MergedSweep:
    """Return the sweeps as one. Cells whose launches mean the same training are those of one setting.

    A training that several sweeps have, with its seed, counts once. A sweep whose launches are not those of any other
    has its name as a setting.

    Raises:
        BadArgument: they rank by different figures.
    """
    first, *others = sweeps
    for other in others:
        if (first.spec.ranked_by, first.spec.goal) != (other.spec.ranked_by, other.spec.goal):
            texts = [f"{each.sweep_id} by {each.spec.ranked_by}, {each.spec.goal}" for each in (first, other)]
            raise BadArgument(
                "sweep", f"they rank by different figures: {'; '.join(texts)}.", "Compare each by itself."
            )
    members, notes = _unify(_read_settings([_align_phases(sweep, sweeps) for sweep in sweeps]))
    members, repeated = _drop_repeated(members)
    if repeated:
        cells_count = "1 cell ran" if repeated == 1 else f"{repeated} cells ran"
        counted = "it counts" if repeated == 1 else "each counts"
        notes.append(f"{cells_count} in several sweeps with the same seed: {counted} once.")
    counts = Counter(member.state.cell.name for member in members)
    cells: list[CellState] = []
    sources: dict[str, tuple[Sweep, str]] = {}
    for number, member in enumerate(members, 1):
        own = member.state.cell.name
        name = own if counts[own] == 1 else f"{member.sweep.sweep_id}/{own}"
        sources[name] = member.sweep, own
        cell = replace(member.state.cell, name=name, variant=member.variant)
        cells.append(replace(member.state, cell=cell, number=number))
    spec = replace(
        first.spec,
        sweep_id=", ".join(sweep.sweep_id for sweep in sweeps),
        cells=tuple(cell.cell for cell in sorted(cells, key=lambda each: _phase_order(each, sweeps))),
        searches={},
        halving=None,
    )
    return MergedSweep(Sweep(spec, _join_states(sweeps), tuple(cells), conducted=True), sources, notes)


def _phase_order(cell: CellState, sweeps: Sequence[Sweep]) -> tuple[int, int]:
    longest = max((sweep.spec.phases for sweep in sweeps), key=len)
    return longest.index(cell.cell.phase) if cell.cell.phase in longest else len(longest), cell.number


def _join_states(sweeps: Sequence[Sweep]) -> RunState:
    states = {sweep.state for sweep in sweeps}
    if not all(sweep.ended for sweep in sweeps):
        return "running"
    return "failed" if "failed" in states else "killed" if "killed" in states else "finished"


def _align_phases(sweep: Sweep, sweeps: Sequence[Sweep]) -> Sweep:
    """Return a sweep of one phase with the name of the first phase that others have: it repeats those cells."""
    if len(sweep.spec.phases) > 1:
        return sweep
    phase = max((each.spec.phases for each in sweeps), key=len)[0]
    cells = tuple(replace(each, cell=replace(each.cell, phase=phase)) for each in sweep.cells)
    return replace(sweep, cells=cells)


def _read_settings(sweeps: Sequence[Sweep]) -> list[Sweep]:
    """Return the sweeps with the parameters of each other, where their launches have a value in the same place.

    A value that one sweep varied stands in the command, the environment or the params of another.
    """
    places: dict[str, dict[str, set[str]]] = {}  # by parameter, where it stands: the texts with it, by place
    values: dict[str, dict[str, Any]] = {}  # as they were planned, by text
    for cell in (state.cell for sweep in sweeps for state in sweep.cells):
        known = {name: value for name, value in cell.params.items() if not is_seed(name)}
        forms = _list_forms(cell, known) if known.keys() - places.keys() else {}
        for name, value in known.items():
            values.setdefault(name, {})[as_text(value)] = value
            texts = places.setdefault(name, {f"--{name}": {f"{{{name}}}"}})
            for place, text in forms.items():
                if f"{{{name}}}" in text:
                    texts.setdefault(place, set()).add(text)

    def fill(state: CellState) -> CellState:
        cell = state.cell
        missing = places.keys() - cell.params.keys()
        forms = _list_forms(cell, cell.params) if missing and cell.promote is None and cell.trial is None else {}
        found: dict[str, Any] = {}
        for name in sorted(missing):
            read = {
                match[1]
                for place, texts in places[name].items()
                for text in texts
                if place in forms and (match := re.fullmatch(_as_pattern(text, name), forms[place]))
            }
            if len(read) == 1:
                (text,) = read
                found[name] = values[name].get(text, text)
        own = replace(cell, params={**cell.params, **found})
        ran = {name: state.params.get(name, state.planned(name)) or value for name, value in found.items()}
        return replace(state, cell=own, params={**state.params, **ran})

    return [replace(sweep, cells=tuple(map(fill, sweep.cells))) for sweep in sweeps]


def _as_pattern(text: str, name: str) -> str:
    return re.escape(text).replace(re.escape(f"{{{name}}}"), "(.+)", 1).replace(re.escape(f"{{{name}}}"), r"\1")


def _list_forms(cell: Cell, params: Mapping[str, Any]) -> dict[str, str]:
    """Return the options, words and variables of a launch by place, with the names of ``params`` for their values."""
    own = cell.launch.get("params") or {}
    launch = {name: cell.launch[name] for name in ("command", "env") if name in cell.launch}
    launch = _mask(launch, {name: as_text(value) for name, value in params.items() if name not in own})
    options, words = parse(launch.get("command") or []).split_options()
    forms = {f"--{name}": text for name, text in options.items()}
    forms |= {f"--{name}": as_text(value) for name, value in own.items()}
    forms |= {f"{number} of {len(words)}": word for number, word in enumerate(words)}
    return forms | {f"${name}": str(value) for name, value in (launch.get("env") or {}).items()}


def _unify(sweeps: Sequence[Sweep]) -> tuple[list[_Member], list[str]]:
    """Return the cells with a variant that those of other sweeps share whose launch is the same."""
    names: dict[str, str] = {}  # variants by launch, and by the variant that a sweep has given them
    found: list[list[_Member]] = []
    for sweep in sweeps:
        texts: dict[str, set[str]] = {}
        for state in sweep.cells:
            text = json.dumps(_spread_command(_reduce(state.cell, sweep.sweep_id)), default=str, sort_keys=True)
            texts.setdefault(state.cell.variant, set()).add(text)
        unified = {
            variant: next((names[text] for text in sorted({variant, *own}) if text in names), variant)
            for variant, own in texts.items()
        }
        found.append([_Member(sweep, state, unified[state.cell.variant]) for state in sweep.cells])
        for variant, own in texts.items():
            names |= dict.fromkeys({variant, *own}, unified[variant])
    variants = [{(member.state.cell.phase, member.variant) for member in members} for members in found]
    members: list[_Member] = []
    notes: list[str] = []
    alike = _join_alike(variants)
    for at, same in enumerate(found):
        if len(alike[at]) == len(sweeps):
            members += same
            continue
        name = ", ".join(sweeps[number].sweep_id for number in sorted(alike[at]))
        members += [replace(member, state=_name_sweep(member.state, name)) for member in same]
        base, sweep = sweeps[0 if at else 1], sweeps[at]
        if len(alike[at]) == 1 and (at or len(sweeps) > 2):  # noqa: PLR2004 - of two, one differs from the other
            differing = ", ".join(_list_differing(base, sweep)) or "its launches"
            notes.append(f"{sweep.sweep_id} differs from {base.sweep_id} in {differing}: its rows are its own.")
    return members, notes


def _join_alike(variants: Sequence[set[tuple[str, str]]]) -> list[set[int]]:
    """Return for each sweep which ones share launches with it, or with others that do."""
    alike: list[set[int]] = []
    for at, known in enumerate(variants):
        joined = [each for each in alike if any(known & variants[number] for number in each)]
        alike = [each for each in alike if each not in joined] + [{at}.union(*joined)]
    return [next(each for each in alike if at in each) for at in range(len(variants))]


def _name_sweep(state: CellState, name: str) -> CellState:
    return replace(state, cell=replace(state.cell, overrides={**state.cell.overrides, _SWEEP: name}))


def _list_differing(one: Sweep, other: Sweep) -> Iterator[str]:
    """Yield the arguments of which the two have other values, also where some of their cells have the same."""
    launches = [
        [
            {**_reduce(state.cell, sweep.sweep_id), "recovery": state.cell.launch.get("recovery")}
            for state in sweep.cells
        ]
        for sweep in (one, other)
    ]
    for name in sorted({name for each in launches for launch in each for name in launch}):
        values = [{json.dumps(launch.get(name), default=str, sort_keys=True) for launch in each} for each in launches]
        if values[0] != values[1]:
            yield name


def _reduce(cell: Cell, sweep_id: str) -> dict[str, Any]:
    """Return what a launch trains, without what tells its cell from others: parameters, seeds, and its names.

    A parameter in the command stands there with its value. That becomes its name again where it can be no other's.
    """
    params, seeds = cell.launch.get("params") or {}, find_seeds(cell)
    launch = {name: value for name, value in cell.launch.items() if name not in _ASIDE and value is not None}
    if launch.get("gpus") == "cpu":  # a lease that limits how many run at once
        del launch["gpus"]
    if env := {name: value for name, value in (launch.pop("env", None) or {}).items() if name not in seeds}:
        launch["env"] = env
    common = {name: value for name, value in params.items() if name not in cell.params and "{run_id}" not in str(value)}
    used = {name: as_text(value) for name, value in cell.params.items() if name not in params}
    used |= {"cell": cell.name, "sweep": sweep_id}
    if common:
        launch["params"] = common
    return _mask(launch, used)


def _spread_command(launch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a reduced launch with the options of its command among the params, where they mean the same."""
    options, words = parse(launch.get("command") or []).split_options()
    given = {name: as_text(value) for name, value in launch.get("params", {}).items()}
    given |= {name: text for name, text in options.items() if text != f"{{{name}}}" and "{run_id}" not in text}
    return {**launch, "command": words, "params": given}


def _mask(launch: Mapping[str, Any], used: Mapping[str, str]) -> dict[str, Any]:
    """Return a launch with the names of parameters for their values, in the arguments where they may stand."""
    filled = {name: launch[name] for name in FILLED if name in launch}
    text = json.dumps(filled, default=str)
    for name, value in sorted(used.items(), key=lambda item: -len(item[1])):
        # A word or a number by itself, also in front of an ending: flat.json, and not 0.1 of 0.1.5.
        pattern = rf"(?<!\w)(?<!\d\.){re.escape(json.dumps(value)[1:-1])}(?!\w|\.\d)"
        if value and (name in ("cell", "sweep") or len(re.findall(pattern, text)) == 1):
            text = re.sub(pattern, lambda _, name=name: f"{{{name}}}", text)  # type: ignore[misc]
    return {**launch, **json.loads(text)}


def _drop_repeated(members: Sequence[_Member]) -> tuple[list[_Member], int]:
    """Return the cells without those that repeat one of another sweep, and how many these are; a result stays."""
    whole = {
        (sweep.sweep_id, name)
        for sweep in {member.sweep.sweep_id: member.sweep for member in members}.values()
        for name in find_whole(sweep.cells)
    }
    kept: dict[str, int] = {}
    result: list[_Member] = []
    repeated = 0
    for member in members:
        key = member.key
        at = None if key is None else kept.get(key)
        if at is None or result[at].sweep.sweep_id == member.sweep.sweep_id:
            if key is not None:
                kept.setdefault(key, len(result))
            result.append(member)
            continue
        repeated += 1
        if member.place in whole and result[at].place not in whole:
            result[at] = member
    return result, repeated
