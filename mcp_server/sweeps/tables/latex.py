"""The settings of a sweep as a LaTeX table for a paper, with the rules of booktabs."""

import math
import re
from collections.abc import Iterable
from pathlib import Path

from mcp_server.record.sweeps.sweep_ranking import Group, find_differing, rank_groups
from mcp_server.record.sweeps.sweep_state import Sweep
from mcp_server.results.evaluations.benchmark_table import find_benchmark
from mcp_server.sweeps.tables.settings_table import Ranking, describe_ranking, describe_states
from mcp_server.text.formatting import count_digits, plain_value, printable, spread

_ESCAPES = str.maketrans(
    {sign: f"\\{sign}" for sign in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"→": r"$\to$", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}"}
)
_PLAIN_FROM, _PLAIN_TO = 1e-4, 1e6  # numbers that are written without a power
_POWER = re.compile(r"(?P<digits>-?[\d.]+)e(?P<sign>[+-])0*(?P<power>\d+)")


def render_latex(sweep: Sweep, home: Path) -> str:
    """Return the table, the best setting in bold, of several benchmarks the best of each.

    Comments say what counts in no mean, and how the best two compare.
    """
    by = Ranking(sweep.spec.metric, sweep.spec.ranking, sweep.spec.goal)
    groups = rank_groups(sweep.cells, by.goal)
    names = find_differing(groups)
    benchmark = find_benchmark([group.settings for group in groups])
    digits = count_digits([cell.value for group in groups for cell in group.results if cell.value is not None], least=4)
    has_phases = len({group.first.cell.phase for group in groups}) > 1
    header = [*(["phase"] if has_phases else []), *names, by.label if by.metric else "metric", "n"]
    lines = [
        f"% Sweep {_comment(sweep.sweep_id)}: mean and deviation of the sample over n whole trainings, {by.goal}.",
        "% In the preamble: \\usepackage{booktabs}",
    ]
    lines += [f"% {_comment(note)}" for note in describe_ranking(groups, by, home).notes]
    lines += [f"\\begin{{tabular}}{{{'l' * (len(header) - 2)}rr}}", "\\toprule"]
    lines += [_row(map(_escape, header)), "\\midrule"]
    bold: set[str] = set()
    for group in groups:
        of = plain_value(group.settings.get(benchmark)) if benchmark else ""
        is_best = group.mean is not None and of not in bold
        bold |= {of} if is_best else set()
        value = "--" if group.mean is None else _math(_align(group, digits), bold=is_best)
        phase = [_escape(group.first.cell.phase)] if has_phases else []
        lines.append(_row([*phase, *(_escape(group.show(name)) for name in names), value, str(len(group.results))]))
        if rest := describe_states(group, by.metric):
            lines.append(f"% {_comment(group.label)}: {_comment(rest)}")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def _align(group: Group, digits: int) -> str:
    """Return mean and deviation with equal decimals, two digits of the deviation, as papers have them."""
    mean, deviation = group.mean, group.deviation
    if mean is None or deviation is None or not _PLAIN_FROM <= deviation < _PLAIN_TO or abs(mean) >= _PLAIN_TO:
        return spread(mean, deviation, digits)
    decimals = max(0, 1 - math.floor(math.log10(float(f"{deviation:.2g}"))))
    return f"{mean:.{decimals}f}±{deviation:.{decimals}f}"


def _row(fields: Iterable[str]) -> str:
    return " & ".join(fields) + r" \\"


def _escape(text: str) -> str:
    return printable(" ".join(text.split())).translate(_ESCAPES)


def _comment(text: str) -> str:
    return printable(" ".join(text.split()))


def _math(text: str, *, bold: bool) -> str:
    shown = _POWER.sub(lambda m: rf"{m['digits']} \times 10^{{{m['sign'].strip('+')}{m['power']}}}", text)
    shown = shown.replace("±", r" \pm ")
    return rf"$\mathbf{{{shown}}}$" if bold else f"${shown}$"
