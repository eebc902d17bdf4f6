"""In what two runs differ: settings, files, code, packages, data, machine, and where their curves part. Reads files."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mcp_server.errors import NotOfSweeps, RunNotFound, RunUnreadable
from mcp_server.record.code.code_snapshot import CodeSnapshot, read_code_snapshot
from mcp_server.record.code.drift import compare_inputs, compare_packages
from mcp_server.record.state import Run
from mcp_server.record.sweeps.sweep_ranking import beta_fraction
from mcp_server.results.code_differences import (
    CodeOfRun,
    find_code_differences,
    list_differing_files,
    name_functions,
    read_code_diff,
    read_ran_code,
)
from mcp_server.results.comparison_cells import find_differences, merge_overrides
from mcp_server.results.configuration import read_configuration
from mcp_server.results.figures import choose_goal, measure
from mcp_server.results.memory.conditions import Question
from mcp_server.results.memory.index import Memory
from mcp_server.results.memory.remembered import sign
from mcp_server.results.memory.searcher import Searcher
from mcp_server.scalars.from_log import read_printed
from mcp_server.scalars.run_scalars import NoScalars, Scalars
from mcp_server.scalars.series import Series
from mcp_server.scalars.summary import find_parting, share_steps
from mcp_server.scalars.tag_names import best_direction, rank_headline
from mcp_server.store.run_store import RunStore
from mcp_server.text.formatting import join_some, shorten_middle, significant

_MOST_SETTINGS, _VALUE_CHARS, _MOST_VARIABLES, _MOST_FILES = 16, 40, 8, 6
_MOST_CURVES, _MOST_SEEDS, _READ_S = 3, 8, 2.0
_MOST_LOOKED_AT = 40  # runs, among which other code is left out
_CHANCE = 0.05  # of a difference as large between two seeds


def describe_run_differences(
    store: RunStore, scalars: Scalars, run: Run, other: Run, *, environ: Mapping[str, str], settings: bool = True
) -> list[str]:
    """Return one line for each difference from ``run`` to ``other``, by what was kept of their newest attempts.

    The curves come last. Without ``settings`` the lines about these are left out.
    """
    lines = list(_compare_records(store, environ, run, other, with_settings=settings))
    return [*lines, *compare_curves(store, scalars, run, other)] or ["Nothing that was kept."]


def _compare_records(
    store: RunStore, environ: Mapping[str, str], run: Run, other: Run, *, with_settings: bool
) -> Iterator[str]:
    runs = (run, other)
    snapshots = [read_code_snapshot(store.fetch_record(each), each.attempt) for each in runs]
    if with_settings:
        yield from _compare_settings(runs, snapshots)
    first, second = snapshots
    if first is None or second is None:
        unknown = [each.run_id for each, kept in zip(runs, snapshots, strict=True) if kept is None]
        yield f"What {' and '.join(unknown)} ran was not kept: code, packages and data are not compared."
        return
    code = list(_compare_code(runs, first, second))
    yield from code
    if code:
        if functions := name_functions(read_code_diff(store, environ, other, run)[0]):
            yield f"In {join_some(functions, _MOST_FILES)}."
        yield f"The whole diff: run://{run.run_id}/diff/{other.run_id}."
    yield from _compare_machine(first, second)


def _compare_settings(runs: Sequence[Run], snapshots: Sequence[CodeSnapshot | None]) -> Iterator[str]:
    settings = merge_overrides([read_configuration(each, kept) for each, kept in zip(runs, snapshots, strict=True)])
    names = [name for group in find_differences(settings) for name in group]
    variables = [name for name in names if name.startswith("$")]
    others = [name for name in names if not name.startswith("$")]
    values = [[shorten_middle(own.get(name, "none"), _VALUE_CHARS) for own in settings] for name in others]
    lines = [f"{name}: {before} → {now}" for name, (before, now) in zip(others, values, strict=True)]
    yield from lines[:_MOST_SETTINGS]
    if len(lines) > _MOST_SETTINGS:
        yield f"{len(lines) - _MOST_SETTINGS} more settings"
    if variables:
        yield f"Variables: {join_some(variables, _MOST_VARIABLES)}."


def _compare_code(runs: tuple[Run, Run], first: CodeSnapshot, second: CodeSnapshot) -> Iterator[str]:
    codes = [read_ran_code(run.run_id, run.spec.cwd, kept) for run, kept in zip(runs, (first, second), strict=True)]
    if codes[0].commit != codes[1].commit:
        before, now = (code.described_commit or "none" for code in codes)
        yield f"Commit {before} → {now}."
    yield from find_code_differences(codes)


def _compare_machine(first: CodeSnapshot, second: CodeSnapshot) -> Iterator[str]:
    yield from compare_packages(first.read_packages(), second.read_packages())
    yield from compare_inputs(first.inputs, second.inputs)
    for name, before, now in (
        ("Python", first.python_version, second.python_version),
        ("NVIDIA driver", first.driver, second.driver),
    ):
        if before != now:
            yield f"{name} {before or 'unknown'} → {now or 'unknown'}."


def compare_curves(store: RunStore, scalars: Scalars, run: Run, other: Run) -> Iterator[str]:
    """Yield a line for each of the main metrics that both runs have. Reads files."""
    first, second = (_read(store, scalars, each) for each in (run, other))
    both = [tag for tag in first if tag in second]
    tags = [tag for tag in both if best_direction(tag)] or both
    lines = {tag: shared for tag in tags if (shared := share_steps(first[tag], second[tag])) is not None}
    for tag in sorted(lines, key=rank_headline)[:_MOST_CURVES]:
        steps, before, now = lines[tag]
        parts = find_parting(before, now)
        if parts is None:
            most = int(abs(now - before).argmax())
            gap = f"{significant(before[most]):.6g} → {significant(now[most]):.6g} at step {int(steps[most])}"
            is_alike, up_to = before[most] == now[most], f"up to step {int(steps[-1])}"
            yield f"{tag}: identical {up_to}." if is_alike else f"{tag}: no lasting gap {up_to}, the largest {gap}."
            continue
        change = now[-1] - before[-1]
        noise = _describe_noise(_find_seed_noise(store, scalars, (run, other), tag), change)
        ends = f"{significant(before[-1]):.6g} → {significant(now[-1]):.6g} ({change:+.3g}) at step {int(steps[-1])}"
        yield f"{tag}: parts at step {int(steps[parts])}, {ends}; {noise}."


def _read(store: RunStore, scalars: Scalars, run: Run) -> Mapping[str, Series]:
    with contextlib.suppress(NoScalars):
        if locations := scalars.locate(run).locations:
            return scalars.read(locations, run.run_id).series
    printed = read_printed(run, store)
    return printed[1].series if printed is not None else {}


def _find_seed_noise(store: RunStore, scalars: Scalars, runs: Sequence[Run], tag: str) -> tuple[float, int, int] | None:
    """Return by how much runs of one code and setting that differ in their seed end apart; None without any.

    The deviation of one seed, its degrees of freedom, and how many seeds it is of. Repeats of a seed count once.
    """
    Searcher(store, scalars, "", read_s=_READ_S).remember_all()
    goal, groups = choose_goal(tag), list[list[float]]()
    known: list[tuple[str, _Ran]] = []
    for run in runs:
        alike, ran = sign(run.command, run.spec.cwd, run.spec.env)[1], _read_ran(store, run)
        if ran is None or any(alike == other and ran.equals(one) for other, one in known):
            continue
        known.append((alike, ran))
        asked = Question(states=("finished",), fields=(("alike", alike),))
        hits = store.ask(lambda index: Memory.of(index).select(asked))  # noqa: B023 - called at once
        seeds: dict[str, list[float]] = {}
        for hit in hits[:_MOST_LOOKED_AT]:
            with contextlib.suppress(RunNotFound, RunUnreadable, NotOfSweeps, OSError):
                other = store.observe(hit.run_id)
                own = _read_ran(store, other)
                if own is None or not own.equals(ran):
                    continue
                same = sign(other.command, other.spec.cwd, other.spec.env)[0]
                seed = hit.run_id if same == alike else same  # without a seed in its command each run has its own
                if (value := measure(other, store, scalars, tag, goal).value) is not None:
                    seeds.setdefault(seed, []).append(value)
            if len(seeds) == _MOST_SEEDS:
                break
        groups += [[statistics.fmean(values) for values in seeds.values()]] if len(seeds) > 1 else []
    freedom = sum(len(values) - 1 for values in groups)
    if not freedom:
        return None
    squares = math.fsum(statistics.variance(values) * (len(values) - 1) for values in groups)
    return math.sqrt(squares / freedom), freedom, freedom + len(groups)


@dataclass(frozen=True)
class _Ran:
    """The code of a run, and the digests of the files that its command names beside it."""

    code: CodeOfRun
    configs: Mapping[str, str]

    def equals(self, other: _Ran) -> bool:
        """Return whether no difference is known, and the commits are the same."""
        same = self.code.commit == other.code.commit and not list_differing_files([self.code, other.code])
        return same and self.configs == other.configs


def _read_ran(store: RunStore, run: Run) -> _Ran | None:
    snapshot = read_code_snapshot(store.fetch_record(run), run.attempt)
    if snapshot is None:
        return None
    configs = {one.path: one.sha256 for one in snapshot.files if one.path != run.spec.blueprint}
    return _Ran(read_ran_code(run.run_id, run.spec.cwd, snapshot), configs)


def _describe_noise(noise: tuple[float, int, int] | None, change: float) -> str:
    if noise is None:
        return "no other seeds say how much chance does"
    deviation, freedom, count = noise
    apart = deviation * math.sqrt(2)  # of two runs
    times = abs(change) / apart if apart else math.inf
    chance = beta_fraction(freedom / 2, 0.5, freedom / (freedom + times * times)) if math.isfinite(times) else 0.0
    word = "within" if times <= 1 or not change else "beyond" if chance < _CHANCE else f"{times:.2g} times"
    few = "" if word in ("within", "beyond") else ": too few runs to tell"
    return f"{word} the seeds' noise (two of {count} seeds of one code and setting differ by ±{apart:.2g}){few}"
