"""Cells of a comparison: short column names, facts of a run, metrics with their best, the newest checkpoint. Pure."""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from mcp_server.command.outputs import names_a_place
from mcp_server.record.state import Run
from mcp_server.results.checkpoints import Checkpoint
from mcp_server.results.evaluations.evaluation_series import MODEL_NAMES, plain_name
from mcp_server.results.evaluations.evaluation_series import format_value as format_figure
from mcp_server.results.metrics import Metric
from mcp_server.text.equal_settings import Place, find_equal_forms
from mcp_server.text.formatting import FEWEST_DIGITS, shorten_facts, shorten_line, shorten_middle

_CELL_CHARS, _REASON_CHARS = 36, 64
_MINUTE_S, _HOUR_S, _MIB_PER_GIB = 60, 3600, 1024
_FILE = "config:"  # see results/configuration.py
_OF_THE_LAUNCH = frozenset({"command", "cwd", "gpus", "host", "commit"})  # settings, not options of the program
_SEPARATORS = re.compile(r"[/.:]")

Cells = dict[str, str]


def fit(text: str) -> str:
    """Return a text as a cell: one line without the separator, its middle left out where it is long."""
    return shorten_middle(_plain(text), _CELL_CHARS, head=_CELL_CHARS // 2)


def evaluation_column(name: str) -> str:
    """Return the name of the column of an evaluation's figure."""
    return name if name.lower().startswith("eval") else f"eval {name}"


def format_value(value: float | str | None, digits: int = FEWEST_DIGITS) -> str:
    """Return a value as a cell, numbers with so many significant digits, or whole."""
    return "" if value is None else fit(format_figure(value, digits))


def shorten_names(names: Collection[str], other_columns: Collection[str], *, longest: int = 0) -> dict[str, str]:
    """Return for each name longer than ``longest`` the shortest end that no other, and no other column, has."""
    short = {}
    for name in names:
        parts = [] if len(name) <= longest else [match.end() for match in _SEPARATORS.finditer(name)]
        ends = (name[start:] for start in (*reversed(parts), 0))
        others = [other for other in names if other != name]
        short[name] = next(end for end in ends if end == name or (end and _is_alone(end, others, other_columns)))
    return short


def _is_alone(end: str, others: Collection[str], other_columns: Collection[str]) -> bool:
    return end not in other_columns and not any(re.search(rf"(?:^|[/.:]){re.escape(end)}$", other) for other in others)


def shorten_paths(values: Sequence[str]) -> list[str]:
    """Return paths without the directories at both ends that all of them have; of equal ones the last part."""
    parts = [value.split("/") for value in values]
    if len(set(values)) == 1:
        return [value.rpartition("/")[2] or value for value in values]
    ahead = _count_shared(parts)
    behind = _count_shared([one[:ahead:-1] for one in parts])
    return ["/".join(one[ahead : len(one) - behind]) or value for one, value in zip(parts, values, strict=True)]


def _count_shared(paths: Sequence[Sequence[str]]) -> int:
    return next((n for n, parts in enumerate(zip(*paths, strict=False)) if len(set(parts)) > 1), min(map(len, paths)))


def merge_overrides(settings: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return settings in which an option replaces the value of its name in a file, under the name of the option."""
    options = {name for one in settings for name in one if not name.startswith(_FILE)} - _OF_THE_LAUNCH
    merged = []
    for one in settings:
        own = {name.removeprefix(_FILE): value for name, value in one.items() if name.removeprefix(_FILE) in options}
        kept = {name: value for name, value in one.items() if name.removeprefix(_FILE) not in options}
        overrides = {name: value for name, value in one.items() if name in options}
        merged.append({**own, **overrides, **kept})
    return merged


def find_differences(
    settings: Sequence[Mapping[str, str]], ran_in: Sequence[Place] = ()
) -> tuple[list[str], list[str]]:
    """Return the names of settings that differ, those of files behind the command's own, and apart from them places.

    ``ran_in``: where each run ran. Values that mean the same there, such as ``1e-3`` and ``0.001``, do not differ.

    A place is a path or the name of a run: it nearly always differs, and explains nothing. A model's does.
    """
    names = dict.fromkeys(name for one in settings for name in one)
    ran_in = ran_in or [Place()] * len(settings)
    forms = {name: find_equal_forms(name, [one.get(name) for one in settings], ran_in) for name in names}
    differ = [name for name in names if len(set(forms[name])) > 1]
    places = [name for name in differ if _is_place(name, [one[name] for one in settings if one.get(name)])]
    others = [name for name in differ if name not in places]
    return sorted(others, key=lambda name: (name != "commit", ":" in name)), places


def _is_place(name: str, values: Sequence[str]) -> bool:
    if plain_name(name.rpartition(":")[2]) in MODEL_NAMES:
        return False
    return names_a_place(name) or all(value.startswith("/") for value in values)


def fact_cells(run: Run, step: int | None, elapsed_s: float | None) -> Cells:
    """Return what every run has: its state and why, its attempts, its last step, its time, its GPU memory."""
    peaks_mib, means = _usage_figures(run, "peak_mib"), _usage_figures(run, "mean_util")
    return {
        "run": run.run_id,
        "state": run.state,
        "why": describe_end(run),
        "attempts": f"{run.attempt}{f' ({run.earlier})' if run.earlier else ''}" if run.started_at else "",
        "step": run.last_known_step or ("" if step is None else str(step)),
        "time": "" if elapsed_s is None else _elapsed(elapsed_s),
        "peak GPU GiB": f"{max(peaks_mib) / _MIB_PER_GIB:.1f}" if peaks_mib else "",
        "mean GPU %": f"{sum(means) / len(means):.0f}" if means else "",
    }


def describe_end(run: Run) -> str:
    """Return why a run ended without success, or that it diverged. Else empty."""
    if not run.ended or (run.state == "finished" and not run.failure):
        return ""
    if run.failure:
        by = "policy: " if run.stopped_by == "policy" else ""
        line = _plain(str(run.failure.get("line") or ""))
        return shorten_line(f"{by}{run.failure.get('kind')}{f': {line}' if line else ''}", _REASON_CHARS)
    if run.reason:
        return shorten_facts(_plain(run.reason).partition(":")[0].rstrip("."), _REASON_CHARS)
    text = _plain(str(run.events[-1].get("text", "")) if run.events else "")
    because = re.search(r"\((.+)\)", text)
    if because is None:
        return shorten_facts(text.removeprefix(f"{run.state}: "), _REASON_CHARS)
    why, _, by = because[1].rpartition("; ")
    return shorten_facts(f"{by}: {why}" if why else because[1], _REASON_CHARS)


def metric_cells(
    metrics: Sequence[Metric],
    names: Mapping[str, str],
    other_columns: Collection[str],
    digits: Mapping[str, int] = MappingProxyType({}),
) -> Cells:
    """Return metrics by short name, last value and best with its step; ``digits``: significant ones, by tag."""
    cells = {}
    for one in metrics:
        if one.tag in names:
            last, best = (format_value(value, digits.get(one.tag, FEWEST_DIGITS)) for value in (one.last, one.best))
            name = f"{names[one.tag]} last/{one.best_is}@step" if one.best_is else names[one.tag]
            name = f"{name} last" if name in other_columns else name  # a setting, such as `lr`, is logged as well
            at = "" if one.best_step is None else f"@{one.best_step}"
            cells[name] = f"{last}/{best}{at}" if best not in ("", last) else last
    return cells


def checkpoint_cell(checkpoints: Sequence[Checkpoint], root: str) -> Cells:
    """Return the newest checkpoint, as a path below ``root``, and the number of others."""
    if not checkpoints:
        return {}
    more = len(checkpoints) - 1
    return {"checkpoint": f"{describe_checkpoint(checkpoints[0], root)}{f' +{more}' if more else ''}"}


def describe_checkpoint(one: Checkpoint, root: str) -> str:
    """Return a checkpoint as a path below ``root`` with its size, and its step where the path does not show it."""
    path = os.path.relpath(one.path, root)
    step = "" if one.step is None or re.search(rf"(?<!\d)0*{one.step}(?!\d)", path) else f" step {one.step}"
    return f"{path}{step} {one.size.replace(' ', '')}"


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("|", "¦")


def _elapsed(seconds: float) -> str:
    """Return a duration that takes little room in a table: ``97s``, ``62min``, ``2.5h``."""
    if seconds < 2 * _MINUTE_S:
        return f"{seconds:.0f}s"
    return f"{seconds / _MINUTE_S:.0f}min" if seconds < 2 * _HOUR_S else f"{seconds / _HOUR_S:.1f}h"


def _usage_figures(run: Run, name: str) -> list[float]:
    usages = run.progress.get("gpus")
    return [
        usage[name]
        for usage in (usages.values() if isinstance(usages, Mapping) else ())
        if isinstance(usage, Mapping) and isinstance(usage.get(name), int | float)
    ]
