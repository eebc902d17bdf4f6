"""In what two runs differ: settings, files, code, packages, data, machine, and where their curves part. Reads files."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

from mcp_server.errors import NotOfSweeps, RunNotFound, RunUnreadable
from mcp_server.record.code.code_snapshot import CodeSnapshot, read_code_snapshot
from mcp_server.record.code.drift import compare_inputs, compare_packages
from mcp_server.record.state import Run
from mcp_server.results.code_differences import (
    CodeOfRun,
    describe_other_code,
    find_code_differences,
    name_functions,
    read_code_diff,
    read_ran_code,
)
from mcp_server.results.comparison_cells import find_differences, merge_overrides
from mcp_server.results.configuration import read_configuration
from mcp_server.results.figures import choose_goal, measure
from mcp_server.results.memory.index import Memory
from mcp_server.results.memory.question import Question
from mcp_server.results.memory.remembered import sign
from mcp_server.results.memory.searcher import Searcher
from mcp_server.scalars.run_scalars import NoScalars, Scalars
from mcp_server.scalars.series import Series
from mcp_server.scalars.summary import find_parting, share_steps
from mcp_server.scalars.tag_names import best_direction, rank_headline
from mcp_server.store.run_store import RunStore
from mcp_server.text.formatting import join_some, shorten_middle, significant

_MOST_SETTINGS, _VALUE_CHARS, _MOST_VARIABLES, _MOST_FILES = 16, 40, 8, 6
_MOST_CURVES, _MOST_SEEDS, _MOST_ALIKE, _READ_S = 3, 8, 24, 2.0
_BEYOND = 2.0  # deviations of a difference between two runs


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
    kept = [code.archive for code in (first, second)]
    is_same_commit = kept[0].commit == kept[1].commit
    if is_same_commit and all(one.root for one in kept) and kept[0].digest != kept[1].digest:
        yield "Changed or untracked files differ."


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
    first, second = (_read(scalars, each) for each in (run, other))
    tags = [tag for tag in first if tag in second and best_direction(tag)]
    lines = {tag: shared for tag in tags if (shared := share_steps(first[tag], second[tag])) is not None}
    for tag in sorted(lines, key=rank_headline)[:_MOST_CURVES]:
        steps, before, now = lines[tag]
        parts = find_parting(before, now)
        if parts is None:
            yield f"{tag}: the same up to step {int(steps[-1])}, within its own scatter."
            continue
        change = now[-1] - before[-1]
        noise = _describe_noise(_find_seed_noise(store, scalars, (run, other), tag), change)
        ends = f"{significant(before[-1]):.6g} → {significant(now[-1]):.6g} ({change:+.3g}) at step {int(steps[-1])}"
        yield f"{tag}: parts at step {int(steps[parts])}, {ends}; {noise}."


def _read(scalars: Scalars, run: Run) -> Mapping[str, Series]:
    try:
        locations = scalars.locate(run).locations
        return scalars.read(locations, run.run_id).series if locations else {}
    except NoScalars:
        return {}


def _find_seed_noise(store: RunStore, scalars: Scalars, runs: Sequence[Run], tag: str) -> tuple[float, int] | None:
    """Return by how much runs that differ in their seed alone end apart, and how many these are; None without any.

    A run whose code is known to be other, or of the same seed once more, is none of these.
    """
    Searcher(store, scalars, "", read_s=_READ_S).remember_all()
    goal, squares, freedom, count = choose_goal(tag, None), 0.0, 0, 0
    counted: set[str] = set()
    for run in runs:
        if run.run_id in counted:
            continue
        asked = Question(states=("finished",), fields=(("alike", _sign(run)[1]),))
        hits = store.ask(lambda index: Memory.of(index).select(asked))  # noqa: B023 - called at once
        code, seeds = _read_code(store, run), {_sign(run)[0]}
        values: list[float] = []
        for run_id in [run.run_id, *(hit.run_id for hit in hits if hit.run_id != run.run_id)][:_MOST_ALIKE]:
            try:
                other = store.observe(run_id)
                is_again = other.run_id != run.run_id and _sign(other)[0] in seeds
                if len(values) == _MOST_SEEDS or is_again or describe_other_code([code, _read_code(store, other)]):
                    continue
                value = measure(other, store, scalars, tag, goal).value
            except (RunNotFound, RunUnreadable, NotOfSweeps, OSError):
                continue
            counted.add(run_id)
            seeds.add(_sign(other)[0])
            values += [value] if value is not None else []
        if len(values) > 1:
            squares += statistics.variance(values) * (len(values) - 1)
            freedom += len(values) - 1
            count += len(values)
    return (math.sqrt(squares / freedom), count) if freedom else None


def _sign(run: Run) -> tuple[str, str]:
    return sign(run.command, run.spec.cwd, run.spec.env)


def _read_code(store: RunStore, run: Run) -> CodeOfRun:
    return read_ran_code(run.run_id, run.spec.cwd, read_code_snapshot(store.record_of(run), run.attempt))


def _describe_noise(noise: tuple[float, int] | None, change: float) -> str:
    if noise is None:
        return "no other seeds say how much chance does"
    deviation, count = noise
    word = "beyond" if abs(change) > _BEYOND * deviation * math.sqrt(2) else "within"
    return f"{word} the seeds' noise (±{deviation:.2g} over {count} runs)"
