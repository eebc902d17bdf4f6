"""From the arguments of ``launch_sweep`` to its cells. Pure.

A phase varies its settings by a grid, a list of cells, blueprints, or a source. Where it has several of these, each
combines with each. ``common`` holds the arguments of ``launch_run`` for all cells; phases and cells may override them.
"""

import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import PurePath
from typing import Any

from mcp_server.command.configs import unfold
from mcp_server.command.shell import parse
from mcp_server.errors import BadArgument
from mcp_server.gpus.request import parse_gpus, takes_several
from mcp_server.record.sweeps.sweep_ranking import is_seed
from mcp_server.record.sweeps.sweep_spec import BEST, Cell
from mcp_server.sweeps.plan import filling
from mcp_server.sweeps.plan.cell_names import LONGEST_CELL_NAME, Label, clean_name, make_unique, name_cells
from mcp_server.sweeps.plan.search import draw_points, parse_search
from mcp_server.sweeps.sources.source import SourceCell
from mcp_server.text.formatting import shorten_middle

MOST_CELLS = 2000
_LONGEST_VALUE, _SHOWN_VALUE = 100_000, 500  # characters; Linux takes 128 KiB in one word of a command
_SOURCE, _BLUEPRINT = " source", " blueprint"  # in a label: no parameters, so without a name
# Of arguments of launch_run, and of phases.
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("command",), (str, list)),
    **dict.fromkeys(("secrets", "tags", "needs", "resume_args", "cells", "blueprints"), (list, tuple)),
    **dict.fromkeys(("env", "params", "require", "grid", "search"), Mapping),
    **dict.fromkeys(("time_limit_s", "first_step_timeout_s", "stall_timeout_s"), (int, float)),
    **dict.fromkeys(("cwd", "first_step_pattern", "param_style", "tensorboard", "blueprint", "host"), str),
    **dict.fromkeys(("environment", "source", "promote", "why"), str),
}
_OF_TEXTS = frozenset({"command", "env", "secrets", "tags", "needs", "resume_args", "blueprints"})
LABELS = frozenset({"params", "tags", "why"})  # parameters by themselves, and what is said of a run


@dataclass(frozen=True, kw_only=True)
class CellSources:
    """The arguments that name cells."""

    grid: Mapping[str, Sequence[Any]] | None = None
    cells: Sequence[Mapping[str, Any]] | None = None
    search: Mapping[str, Any] | None = None
    blueprints: Sequence[str] | None = None
    source: str | None = None
    promote: str | None = None


DEFINING = tuple(each.name for each in fields(CellSources))


@dataclass(frozen=True)
class Phase(CellSources):
    """One phase as it was asked for, with its source read. ``promote``: a run id, or ``best``.

    ``own_params``, and ``fixed``, the names of other arguments: those of its own ``common``, in a call without phases
    of the call's. They win over those of a promoted run: its parameters, and what is ``inherited``, the arguments in
    which its launch differed from other cells. ``braces``: names in braces that its command left to its program.
    """

    name: str
    common: Mapping[str, Any] = field(default_factory=dict)
    source_cells: Sequence[SourceCell] | None = None
    promoted: Mapping[str, Any] | None = None
    inherited: Mapping[str, Any] = field(default_factory=dict)
    braces: frozenset[str] = frozenset()
    doubts: tuple[str, ...] = ()  # about the run that is promoted
    own_params: Mapping[str, Any] = field(default_factory=dict)
    fixed: tuple[str, ...] = ()


def parse_phases(
    phases: Sequence[Mapping[str, Any]] | None, only: Mapping[str, Any], common: Mapping[str, Any]
) -> list[Phase]:
    """Return the phases of a sweep; ``only`` holds the arguments of a sweep without ``phases``.

    Raises:
        BadArgument: a phase has an unknown field, no name, or defines no cells.
    """
    check_common("common", common)
    values = {name: value for name, value in only.items() if value is not None}
    if phases is None:
        phase = _make_phase("", {"name": "1", **values}, common)
        return [replace(phase, own_params=common.get("params") or {}, fixed=tuple(filling.name_arguments(common)))]
    if values:
        raise BadArgument(next(iter(values)), "belongs into one of the phases.", "Each phase has its own.")
    if not phases:
        raise BadArgument("phases", "is empty.")
    result: list[Phase] = []
    for number, facts in enumerate(phases, 1):
        where = f"phases[{number - 1}]"
        if unknown := set(facts) - (keys := {"name", "common", *DEFINING}):
            cause = f"{where} has an unknown field {min(unknown)!r}; there are {', '.join(sorted(keys))}."
            raise BadArgument("phases", cause)
        own = facts.get("common") or {}
        check_common(f"{where}.common", own)
        _check_types(where, {name: value for name, value in facts.items() if name != "name"})
        phase = _make_phase(where, {"name": str(number), **facts}, filling.merge(common, own))
        phase = replace(phase, own_params=own.get("params") or {}, fixed=tuple(filling.name_arguments(own)))
        if phase.name in {each.name for each in result}:
            raise BadArgument("phases", f"two are named {phase.name!r}.")
        result.append(phase)
    return result


_SEEDS_ALONE = (
    'A grid of seeds alone is taken: {"seed": [1, 2, 3]}, or a name that ends in rng or random_state; a program with '
    "another has `--NAME {seed}` in common.command."
)


def _make_phase(where: str, facts: Mapping[str, Any], common: Mapping[str, Any]) -> Phase:
    phase = Phase(**{**facts, "name": str(facts["name"]), "common": common})
    if not phase.name.isprintable() or not 0 < len(phase.name) <= LONGEST_CELL_NAME:
        raise BadArgument("phases", f"{where}.name must have 1 to {LONGEST_CELL_NAME} printable characters.")
    defining = [phase.grid, phase.cells, phase.blueprints, phase.search]
    if all(value is None for value in [*defining, phase.source, phase.promote]):
        cause = "names no cells."
        raise BadArgument(where or "grid", cause, "Pass grid, cells, search, blueprints, source or promote.")
    seeds = isinstance(phase.grid, Mapping) and all(is_seed(name) for name in phase.grid)
    if phase.promote is not None and any(value is not None for value in (defining[1:] if seeds else defining)):
        cause = "takes its parameters from a run: leave cells, search, blueprints and a grid out."
        raise BadArgument("promote", cause, _SEEDS_ALONE)
    if phase.search is not None and any(value is not None for value in defining[:-1]):
        raise BadArgument("search", "chooses the parameters itself: leave grid, cells and blueprints out.")
    return phase


def check_common(argument: str, launch: Mapping[str, Any]) -> None:
    """Raise BadArgument for an argument that no launch of a cell takes."""
    if not isinstance(launch, Mapping):
        raise BadArgument(argument, "must be an object with arguments of launch_run.")
    if isinstance(launch.get("params"), str):
        raise BadArgument(argument, "params must be an object here.", 'A YAML file is a source: "hydra:CONFIG.yaml".')
    for name in launch:
        if name == "code" and launch[name] in (None, "now", "kept"):
            continue
        if name in filling.OF_THE_SWEEP:
            raise BadArgument(argument, f"{name} is set by the sweep: leave it out.")
        if name not in filling.LAUNCH_ARGUMENTS:
            names = ", ".join(sorted(filling.LAUNCH_ARGUMENTS))
            raise BadArgument(argument, f"launch_run has no argument {name!r}; there are {names}.")
    _check_types(argument, launch)


def _check_types(argument: str, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if value is None or name not in _TYPES:
            continue
        inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
        is_right = isinstance(value, _TYPES[name]) and not isinstance(value, bool)
        if not is_right or (name in _OF_TEXTS and not all(isinstance(each, str) for each in inner)):
            raise BadArgument(argument, f"{name}: {value!r:.80} is of another type than it takes.")


def expand(phases: Sequence[Phase], sweep_id: str, known: Sequence[Cell] = ()) -> tuple[Cell, ...]:
    """Return the cells of all phases in order, each with a name of its own.

    ``known``: the cells that a sweep has; those that are the same keep their names, and no other gets one of these.

    Raises:
        BadArgument: a value is not a parameter, a name is used twice, there are no cells, or more than MOST_CELLS.
    """
    cells: list[Cell] = []
    names = {cell.name for cell in known}
    kept: dict[str, list[str]] = {}
    for cell in known:
        kept.setdefault(identify(cell), []).append(cell.name)
    for phase in phases:
        weaker = _list_weaker(phase, cells) if phase.promote == BEST else []
        for unnamed in _expand_phase(phase):
            if len(cells) == MOST_CELLS:
                raise BadArgument("grid", f"makes more than {MOST_CELLS:,} cells.", "Use several sweeps.")
            notes = [*unnamed.notes, *([_describe_weaker(phase, weaker, "the best run")] if weaker else [])]
            cell = replace(unnamed, variant=_describe_variant(unnamed), notes=tuple(notes))
            former = kept.get(identify(_fill(cell, sweep_id))) if kept else None
            cell = replace(cell, name=former.pop(0) if former else make_unique(cell.name, names))
            names.add(cell.name)
            cells.append(_fill(cell, sweep_id))
    if not cells:
        raise BadArgument("grid", "makes no cells: a parameter has no values.")
    return tuple(cells)


def _list_weaker(phase: Phase, former: Sequence[Cell]) -> list[str]:
    """Return the parameters of the sweep's ``common`` that the best of former cells overrides in a promotion."""
    common = phase.common.get("params") or {}
    return [
        name
        for name, value in common.items()
        if name not in phase.own_params and any(cell.params.get(name, value) != value for cell in former)
    ]


def _fill(cell: Cell, sweep_id: str) -> Cell:
    return filling.fill_names(cell, sweep_id) if cell.promote is None and cell.trial is None else cell


def identify(cell: Cell) -> str:
    """Return what makes a cell the one that it is, whatever its name: two plans that contain it mean the same run."""
    own = [cell.phase, cell.params, cell.variant, find_seeds(cell), cell.promote, cell.trial]
    return json.dumps(own, default=str, sort_keys=True)


def _describe_variant(cell: Cell) -> str:
    """Return a short text that cells have in common whose launches differ in nothing but their own parameters."""
    launch, seeds = dict(cell.launch), find_seeds(cell)
    if seeds:
        launch["env"] = {name: value for name, value in launch["env"].items() if name not in seeds}
    text = json.dumps(launch, default=str, sort_keys=True)
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:8]


def find_seeds(cell: Cell) -> dict[str, str]:
    """Return the random seeds among the variables of a cell's launch."""
    return {name: value for name, value in (cell.launch.get("env") or {}).items() if is_seed(f"${name}")}


def _expand_promotion(phase: Phase) -> Iterable[Cell]:
    """Return the cells of a promotion: one, or one a seed. The best cell's parameters are known when it begins."""
    promote = BEST if phase.promote == BEST else None
    name = "promotion" if promote else f"from-{(phase.promote or '').rpartition('-')[2]}"
    if phase.source_cells is not None and len(phase.source_cells) != 1:
        raise BadArgument("promote", f"has a source of {len(phase.source_cells)} cells.", "Name one task or config.")
    source = phase.source_cells[0] if phase.source_cells else None
    launch, own = _add_source(source, phase.common), phase.own_params
    if source is not None:  # it has read them, and has those that are its program's
        own = {each: value for each, value in source.params.items() if each in own}
    fixed = {*phase.fixed, *(filling.name_arguments(source.launch) if source else ())}
    written = parse(launch["command"]).split_options()[0] if "command" in fixed and launch.get("command") else {}
    promoted = {each: value for each, value in (phase.promoted or {}).items() if each in own or each not in written}
    inherited = {each: value for each, value in phase.inherited.items() if each not in fixed}
    params, common = {**promoted, **own}, {**filling.name_arguments(launch), **(launch.get("params") or {})}
    weaker = [each for each, value in {**promoted, **inherited}.items() if each in common and common[each] != value]
    notes = [*(source.notes if source else ()), *phase.doubts]
    if weaker := [each for each in weaker if each not in own]:
        notes.append(_describe_weaker(phase, weaker, phase.promote or ""))
    launch = filling.merge(filling.apply_overrides(launch, inherited), {"params": params} if params else {})
    points = _expand_grid(phase.grid) if phase.grid is not None else [{}]
    labels = name_cells(
        [{_SOURCE: name, **{seed: filling.as_text(value) for seed, value in seeds.items()}} for seeds in points]
    )
    for seeds, label in zip(points, labels, strict=True):
        for seed, value in seeds.items():
            _check_value(seed, value)
        cell = Cell(label, phase.name, {**params, **seeds}, launch, promote, notes=tuple(notes), fixed=phase.fixed)
        if promote is None:
            filling.check_filled(cell, phase.braces)
        yield cell


def _describe_weaker(phase: Phase, names: Sequence[str], origin: str) -> str:
    values = {**filling.name_arguments(phase.common), **(phase.common.get("params") or {})}
    given = ", ".join(f"{name} {filling.as_text(values[name])}" for name in names)
    return f"{given} of common: not used, as {origin} has its own; the phase's own common would win"


def _expand_phase(phase: Phase) -> Iterable[Cell]:
    if phase.promote is not None:
        yield from _expand_promotion(phase)
        return
    if phase.search is not None:
        yield from _expand_search(phase, phase.search)
        return
    found = list(itertools.islice(_combine(phase), MOST_CELLS + 1))  # one more, which expand() refuses
    names = iter(name_cells([label for _, label in found if not isinstance(label, str)]))
    for cell, label in found:
        own = clean_name(label)[:LONGEST_CELL_NAME].strip("-.") if isinstance(label, str) else next(names)
        yield replace(cell, name=own)


def _combine(phase: Phase) -> Iterator[tuple[Cell, Label | str]]:
    """Yield the cells of a phase, each with the name that it was given, else with the values that name it."""
    sources = phase.source_cells if phase.source_cells is not None else [None]
    blueprints = phase.blueprints if phase.blueprints is not None else [None]
    points = _expand_grid(phase.grid) if phase.grid is not None else [{}]
    listed = phase.cells if phase.cells is not None else [{}]
    varying = _varying_names(phase.grid, phase.cells)
    overridden = _list_overridden(listed)
    for source, blueprint, entry, point in itertools.product(sources, blueprints, listed, points):
        own = entry.get("launch") or {}
        label = own.get("name") if isinstance(own, Mapping) else None
        if isinstance(own, Mapping):
            own = {name: value for name, value in own.items() if name != "name"}
        check_common("cells[].launch", own)
        params = {**{name: value for name, value in entry.items() if name != "launch"}, **point}
        for name, value in params.items():
            _check_value(name, value)
        params = {**(own.get("params") or {}), **params}
        own = {name: value for name, value in own.items() if name != "params"}
        _check_source_gpus(source, phase.common, own)
        launch = filling.merge(_add_source(source, phase.common), own)
        if blueprint is not None:
            launch = {**launch, "blueprint": blueprint}
        varied = {name: params[name] for name in varying if name in params}
        parts = {_SOURCE: source.name if source else "", _BLUEPRINT: PurePath(blueprint or "").stem, **varied}
        texts = {name: filling.as_text(value) for name, value in parts.items() if value != ""}
        named = filling.name_arguments(launch)
        overrides = {name: named.get(name) for name in overridden}
        if source is not None and len(sources) > 1:
            overrides["source"] = source.name
        if len(blueprints) > 1:
            overrides["blueprint"] = blueprint
        notes = source.notes if source else ()
        yield Cell("", phase.name, params, launch, notes=notes, overrides=overrides), str(label) if label else texts


def _check_source_gpus(source: SourceCell | None, common: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Refuse several GPUs for one cell of a source that was read for one, and the other way round."""
    if source is None or not source.launch.get("command") or "gpus" not in own:
        return
    if _are_several(own) != _are_several(common):
        cause = "gpus: which command of the source runs depends on it (one GPU, or several)."
        remedy = "Set gpus in common, or make these cells a phase with a common of its own."
        raise BadArgument("cells[].launch", cause, remedy)


def _are_several(launch: Mapping[str, Any]) -> bool:
    try:
        return takes_several(parse_gpus(launch.get("gpus")))
    except ValueError:
        return False  # refused with the launch


def _list_overridden(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    own = [launch for entry in entries if isinstance(launch := entry.get("launch"), Mapping)]
    return list(dict.fromkeys(name for launch in own for name in filling.name_arguments(launch) if name not in LABELS))


def _expand_search(phase: Phase, facts: Mapping[str, Any]) -> Iterable[Cell]:
    if phase.source_cells is not None and len(phase.source_cells) != 1:
        raise BadArgument("search", f"has a source of {len(phase.source_cells)} cells.", "Name one task or config.")
    source = phase.source_cells[0] if phase.source_cells else None
    launch, notes = _add_source(source, phase.common), source.notes if source else ()
    search = parse_search(facts)
    points = [] if search.needs_history else draw_points(search.space, search.seed, search.budget)
    for number in range(search.budget):
        name = f"trial{number + 1:0{len(str(search.budget))}}"
        if points:
            yield Cell(name, phase.name, points[number], launch, notes=notes)
        else:
            yield Cell(name, phase.name, {}, launch, trial=number, notes=notes)


def _add_source(source: SourceCell | None, common: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments of a source's cell: its own win over common ones, except for variables.

    The parameters in ``common`` were read with the source: it has them where they belong.
    """
    if source is None:
        return common
    if common.get("command") and source.launch.get("command"):
        raise BadArgument("common", "holds a command, and the source brings its own.", "Leave one of them out.")
    launch = {**common, **source.launch}
    if "env" in source.launch:
        launch["env"] = {**source.launch["env"], **(common.get("env") or {})}
    return {**launch, "params": dict(source.params)}


def _expand_grid(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    if not isinstance(grid, Mapping) or not grid:
        raise BadArgument("grid", 'must be an object of lists, e.g. {"lr": [0.001, 0.0001], "seed": [1, 2, 3]}.')
    for name, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Sequence):
            cause = f"{name} must be a list of values."
            meant = (unfold(values) if isinstance(values, str) else None) or [values]
            raise BadArgument("grid", cause, f"E.g. {json.dumps({name: meant})}.")
        texts = [json.dumps(value, default=str) for value in values]
        if repeated := next((text for text in texts if texts.count(text) > 1), None):
            cause = f"{name} has {repeated} twice."
            raise BadArgument("grid", cause, "For several runs of a setting add a seed: [1, 2, 3].")
    count = math.prod(map(len, grid.values()))
    if count > MOST_CELLS:
        raise BadArgument("grid", f"makes {count:,} cells; at most {MOST_CELLS:,} are taken.")
    return [dict(zip(grid, point, strict=True)) for point in itertools.product(*grid.values())]


def _varying_names(grid: Mapping[str, Sequence[Any]] | None, cells: Sequence[Mapping[str, Any]] | None) -> list[str]:
    names = [name for name, values in (grid or {}).items() if len(values) > 1]
    listed = list(cells or ())
    if not all(isinstance(entry, Mapping) for entry in listed):
        raise BadArgument("cells", "must be a list of objects: parameter names with their values.")
    own = dict.fromkeys(name for entry in listed for name in entry if name != "launch")
    if both := [name for name in own if name in (grid or {})]:
        cause = f"{both[0]} is set by a cell and by the grid, each of whose points combines with each cell."
        raise BadArgument("cells", cause, "Leave it out of one, or make the cells a phase of their own.")
    values = {name: {json.dumps(entry.get(name), default=str) for entry in listed} for name in own}
    return list(dict.fromkeys([*(name for name, seen in values.items() if len(seen) > 1), *names]))


def _check_value(name: str, value: object) -> None:
    if not isinstance(value, str | int | float | bool | None):
        shown = shorten_middle(json.dumps(value, default=str), _SHOWN_VALUE)
        cause = f"{name:.80} must have plain values (text, number, true, false, null), not {shown}."
        raise BadArgument("grid", cause, f'As text it is one value: "{shown}".')
    if isinstance(value, str) and len(value) > _LONGEST_VALUE:
        cause = f"{name:.80} has a value of {len(value):,} characters; it may have {_LONGEST_VALUE:,}."
        raise BadArgument("grid", cause, "Write it to a file, and pass its path.")
