"""A sweep over several benchmarks: its other settings by benchmark, since values of two are not comparable. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from mcp_server.record.sweep_ranking import Group, find_differing
from mcp_server.results.answers import BenchmarkTable
from mcp_server.results.benchmark_table import find_benchmark
from mcp_server.results.comparison_cells import fit, shorten_names
from mcp_server.text.formatting import plain_value, spread

_MOST_NAMED = 4


def build_benchmarks(groups: Sequence[Group], label: str) -> tuple[BenchmarkTable, str] | None:
    """Return the settings by benchmark, and the parameter that names it; None where none does, or one has no value.

    ``label``: the metric that ranks. A cell is the mean over seeds ± the deviation of the sample, and their number.
    """
    known = [group for group in groups if group.mean is not None]
    name = find_benchmark([group.settings for group in known])
    if name is None:
        return None
    settings = [each for each in find_differing(known) if each != name]
    has_phases = len({group.first.cell.phase for group in known}) > 1
    rows: dict[tuple[str, ...], dict[str, list[Group]]] = {}
    for group in sorted(known, key=lambda group: min(cell.number for cell in group.cells)):
        phase = [group.first.cell.phase] if has_phases else []
        key = (*phase, *(fit(plain_value(group.settings.get(each))) for each in settings))
        rows.setdefault(key, {}).setdefault(fit(plain_value(group.settings.get(name))), []).append(group)
    benchmarks = sorted({benchmark for row in rows.values() for benchmark in row})
    short = shorten_names(settings, {"phase", *benchmarks})
    names = [*(["phase"] if has_phases else []), *short.values(), *benchmarks]
    lines = [
        [*key, *(", ".join(_render(group) for group in row.get(benchmark, ())) for benchmark in benchmarks)]
        for key, row in rows.items()
    ]
    return BenchmarkTable(metric=label, columns="|".join(names), rows=["|".join(line) for line in lines]), name


def describe_best(groups: Sequence[Group], name: str) -> str:
    """Return which setting is the best by each of the first benchmarks, which ``groups`` have, the best first."""
    best: dict[str, str] = {}
    for group in groups:
        if group.mean is not None:
            best.setdefault(plain_value(group.settings.get(name)), f"{group.label} {group.text}")
    shown = "; ".join(f"{benchmark}: {text}" for benchmark, text in list(best.items())[:_MOST_NAMED])
    more = f"; {len(best) - _MOST_NAMED} more" if len(best) > _MOST_NAMED else ""
    return f"{name} is the benchmark: only within one are settings comparable, and best is of all. {shown}{more}."


def _render(group: Group) -> str:
    count = f" (n {len(group.results)})" if len(group.results) > 1 else ""
    return spread(group.mean, group.deviation) + count
