"""In what two runs differ: settings, files, code, packages, data, machine. Reads files."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.record.code.code_snapshot import CodeSnapshot, read_code_snapshot
from mcp_server.record.code.drift import compare_inputs, compare_packages
from mcp_server.record.state import Run
from mcp_server.results.code_differences import find_code_differences, read_ran_code
from mcp_server.results.comparison_cells import find_differences, merge_overrides
from mcp_server.results.configuration import read_configuration
from mcp_server.store.run_store import RunStore
from mcp_server.text.formatting import join_some, shorten_middle

_MOST_SETTINGS, _VALUE_CHARS, _MOST_VARIABLES = 16, 40, 8


def describe_run_differences(store: RunStore, run: Run, other: Run) -> list[str]:
    """Return one line for each difference from ``run`` to ``other``, by what was kept of their newest attempts."""
    runs = (run, other)
    snapshots = [read_code_snapshot(store.fetch_record(each), each.attempt) for each in runs]
    settings = merge_overrides([read_configuration(each, kept) for each, kept in zip(runs, snapshots, strict=True)])
    names = [name for group in find_differences(settings) for name in group]
    variables = [name for name in names if name.startswith("$")]
    others = [name for name in names if not name.startswith("$")]
    values = [[shorten_middle(own.get(name, "none"), _VALUE_CHARS) for own in settings] for name in others]
    lines = [f"{name}: {before} → {now}" for name, (before, now) in zip(others, values, strict=True)]
    more = [f"{len(lines) - _MOST_SETTINGS} more settings"] if len(lines) > _MOST_SETTINGS else []
    lines = [*lines[:_MOST_SETTINGS], *more]
    if variables:
        lines.append(f"Variables: {join_some(variables, _MOST_VARIABLES)}.")
    first, second = snapshots
    if first is None or second is None:
        unknown = [each.run_id for each, kept in zip(runs, snapshots, strict=True) if kept is None]
        return [*lines, f"What {' and '.join(unknown)} ran was not kept: code, packages and data are not compared."]
    return [*lines, *_compare_code(runs, first, second), *_compare_machine(first, second)] or ["Nothing that was kept."]


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
