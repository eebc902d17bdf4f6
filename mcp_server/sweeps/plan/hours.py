"""How long a plan takes and how many of its cells run at once, by what like runs took, else by time limits."""

from __future__ import annotations

import contextlib
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mcp_server.backends.base import backend_of
from mcp_server.command.outputs import may_name_an_output
from mcp_server.command.shell import parse
from mcp_server.errors import RunwardError
from mcp_server.gpus.request import parse_gpus
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Run
from mcp_server.record.sweeps.sweep_ranking import is_seed
from mcp_server.record.sweeps.sweep_spec import Cell, SweepSpec
from mcp_server.record.sweeps.sweep_state import Sweep
from mcp_server.runs.launch.gpu_admission import count_gpus, find_quota
from mcp_server.store.run_index import RunQuery
from mcp_server.store.run_store import RunStore
from mcp_server.sweeps.plan.filling import as_text
from mcp_server.text.formatting import rough_duration
from mcp_server.views.length_fit import LENGTH
from mcp_server.views.sweep_eta import estimate_lengths_s, schedule_s

_MOST_READ, _MOST_ALIKE = 500, 20  # runs, the newest
_HOUR_S = 3600
_OF_FILES = re.compile(r"^output; .* has step (\d+)$")


@dataclass(frozen=True)
class _Program:
    """The program of a command: its words but for options, the values of these, and where."""

    words: tuple[str, ...]
    options: Mapping[str, str]
    cwd: str
    gpus: int

    @classmethod
    def of(cls, launch: Mapping[str, Any]) -> _Program:
        """Return the program of a launch."""
        options, words = parse(launch["command"]).split_options()
        params = {name: as_text(value) for name, value in (launch.get("params") or {}).items()}
        gpus = count_gpus(launch.get("gpus"), launch.get("require"))
        return cls(tuple(words), {**options, **params}, str(launch.get("cwd") or ""), gpus)

    @cached_property
    def lengths(self) -> Mapping[str, float]:
        """The options that set how long it trains."""
        return {name: float(value) for name, value in self.options.items() if LENGTH.search(name) and _is_number(value)}

    def fixed(self, free: set[str]) -> list[tuple[str, str]]:
        """Return the other options, without seeds, places of output, and those named ``free``, in order."""
        aside = free | self.lengths.keys()
        named = sorted(self.options.items())
        return [(n, value) for n, value in named if n not in aside and not is_seed(n) and not may_name_an_output(n)]


def describe_hours(
    spec: SweepSpec, checked: Mapping[str, RunSpec], store: RunStore, former: Sweep | None = None
) -> str:
    """Return how many cells a plan has, how many run at once, and how long they take. Reads finished runs.

    ``former``: the sweep that would go on with these cells, which says how long they and their like took.
    """
    at_once = count_at_once(spec, checked, store)
    start = f"{len(spec.cells)} cell{'s' * (len(spec.cells) != 1)}"
    start += "" if at_once is None else f", {at_once} at once at most"
    own_s = {} if former is None else estimate_lengths_s(former)
    runs = store.list_runs(RunQuery(state="finished", mirror=""), _MOST_READ)
    return f"{start}; {_describe_time(spec, at_once, runs, own_s)}"


def count_at_once(spec: SweepSpec, checked: Mapping[str, RunSpec], store: RunStore) -> int | None:
    """Return how many cells run at once at most, by max_parallel, this machine's GPUs or cpu slots, and the quota.

    None where nothing limits it that is known here: jobs of a scheduler, cells on other hosts.
    """
    most = [len(spec.cells)] if spec.max_parallel is None else [min(spec.max_parallel, len(spec.cells))]
    is_limited = spec.max_parallel is not None
    run = next(iter(checked.values()), None)
    request = parse_gpus(run.gpus) if run is not None else None
    if run is not None and request is not None and not run.mirror and not spec.hosts and backend_of(run).leases_gpus:
        needed = count_gpus(run.gpus, run.require)
        with contextlib.suppress(RunwardError, OSError):
            known = backend_of(run).query_gpus(run, run.env, near=True, query=not request.cpu).snapshot.gpus
            have, each = (run.cpu_slots, request.cpu) if request.cpu else (len(known), needed)
            if have and each:
                most.append(max(1, have // each))
                is_limited = True
        if needed and (quota := find_quota(store.home.read_config().quotas, spec.owner)) is not None:
            most.append(max(1, quota // needed))
            is_limited = True
    return min(most) if is_limited else None


def _describe_time(spec: SweepSpec, at_once: int | None, runs: Sequence[Run], own_s: Mapping[str, float]) -> str:
    find_alike = _Alike(runs)
    lengths: list[float] = []
    alike: set[str] = set()
    limits = 0
    for cell in spec.cells:
        limit_s = cell.launch.get("time_limit_s")
        usual_s, found = own_s.get(cell.name), set[str]()
        if usual_s is None:
            usual_s, found = find_alike.estimate_s(cell)
        alike |= found
        if usual_s is None and isinstance(limit_s, int | float):
            limits += 1
            usual_s = limit_s
        if usual_s is None:
            unknown = f"no run with the command, cwd and GPUs of {cell.name} has finished here"
            if cell.promote is not None or cell.trial is not None or not cell.launch.get("command"):
                unknown = f"what {cell.name} runs is known when it begins"
            return f"hours are not known: {unknown}, and it has no time_limit_s."
        lengths.append(min(usual_s, limit_s) if isinstance(limit_s, int | float) else usual_s)
    held = [count_gpus(cell.launch.get("gpus"), cell.launch.get("require")) for cell in spec.cells]
    work = sum(length_s * (count or 1) for length_s, count in zip(lengths, held, strict=True)) / _HOUR_S
    unit = "hours of cells, a GPU counted each" if any(held) else "hours of cells"
    work_text = f"{work:.3g} {'GPU-hours' if all(held) else unit}"
    if work < 1:
        work_text = f"{rough_duration(work * _HOUR_S)} {'of a GPU' if all(held) else unit.removeprefix('hours ')}"
    runs_count = f"{len(alike)} finished runs" if len(alike) > 1 else "the finished run"
    others = " with other settings" if alike & find_alike.of_others else ""
    by = ["as cells of this sweep took"] if any(cell.name in own_s for cell in spec.cells) else []
    by += [f"{'the others ' if by else ''}as {runs_count} of this command{others} took"] if alike else []
    by += [f"{'the others ' if by else ''}by time_limit_s"] if limits else []
    took = ""
    if at_once is not None:
        phases = [
            [s for s, cell in zip(lengths, spec.cells, strict=True) if cell.phase == phase] for phase in spec.phases
        ]
        took = f"{rough_duration(sum(schedule_s([0.0] * at_once, phase, (), at_once) for phase in phases))}, "
    text = f"{'at most' if limits else 'about'} {took}{work_text}, {', '.join(by)}."
    last = max((_find_last_step(run) for run in runs if run.run_id in alike), default=0)
    rungs = [step for step in (spec.halving or {}).get("steps", ()) if 0 < last < step]
    return (
        f"{text} {runs_count.capitalize()} came no further than step {last}: halving at {rungs[0]} is not reached."
        if rungs
        else text
    )


def _find_last_step(run: Run) -> int:
    """Return the step to which a run came, by its output or by its files where those count further; 0 if unknown."""
    step, of_files = run.progress.get("step"), _OF_FILES.search(str(run.progress.get("read_from") or ""))
    return max(step if isinstance(step, int) else 0, int(of_files[1]) if of_files else 0)


class _Alike:
    """Finished runs of the same command as a cell: the same words and options, but for the cell's own parameters."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = [(run, _Program.of(vars(run.spec))) for run in runs]
        self._known: dict[tuple[object, ...], tuple[float | None, set[str]]] = {}
        self.of_others: set[str] = set()  # of those that had a number more or less, such as a rate that was varied

    def estimate_s(self, cell: Cell) -> tuple[float | None, set[str]]:
        """Return how long a cell takes by them, longer or shorter with a setting such as ``max_steps``, and their ids.

        None where there are none, or nothing of the cell's command is known yet.
        """
        if not cell.launch.get("command") or cell.promote is not None:
            return None, set()
        params = {**(cell.launch.get("params") or {}), **cell.params}
        program, own = (
            _Program.of({**cell.launch, "params": params}),
            {as_text(value) for value in cell.params.values()},
        )

        def is_own(text: str) -> bool:
            return text in own or "{" in text or cell.name in text.split("/")

        words = tuple(None if is_own(word) else word for word in program.words)
        free = {name for name, value in program.options.items() if is_own(value)} | set(cell.params)
        key = (words, *program.fixed(free), *program.lengths.items(), program.cwd, program.gpus)
        if key not in self._known:
            same = [
                (run.run_id, elapsed_s * _ratio(program.lengths, other.lengths), other.fixed(free))
                for run, other in self._runs
                if (other.cwd, other.gpus, other.lengths.keys()) == (program.cwd, program.gpus, program.lengths.keys())
                and len(words) == len(other.words)
                and all(word in (None, its) for word, its in zip(words, other.words, strict=True))
                and (elapsed_s := run.elapsed_s(0.0)) is not None
            ]
            fixed = program.fixed(free)
            found = [(run_id, s) for run_id, s, its in same if its == fixed][:_MOST_ALIKE]
            if not found:
                found = [(run_id, s) for run_id, s, its in same if _are_near(its, fixed)][:_MOST_ALIKE]
                self.of_others.update(run_id for run_id, _ in found)
            mean_s = statistics.fmean(each_s for _, each_s in found) if found else None
            self._known[key] = mean_s, {run_id for run_id, _ in found}
        return self._known[key]


def _are_near(one: list[tuple[str, str]], other: list[tuple[str, str]]) -> bool:
    """Return whether options differ in numbers alone that one of both leaves at what its program takes without."""
    differing = set(one) ^ set(other)
    names = [name for name, _ in differing]
    return len(names) == len(set(names)) and all(_is_number(value) for _, value in differing)


def _ratio(here: Mapping[str, float], there: Mapping[str, float]) -> float:
    return math.prod(value / there[name] for name, value in here.items() if name in there)


def _is_number(text: str) -> bool:
    try:
        return 0 < float(text) < math.inf
    except ValueError:
        return False
