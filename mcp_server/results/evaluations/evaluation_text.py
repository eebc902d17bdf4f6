"""Reads the numbers in the markdown and the printed lines that evaluations leave: tables, blocks, dicts. Pure."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from mcp_server.text.rows import read_patterns, read_words

_RX = read_patterns("results/patterns", "evaluation_text")

Value = float | int | str | bool | None

_INTEGER = re.compile(r"[+-]?\d{1,300}")
NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?(?:nan|inf)", re.IGNORECASE)
PERCENT = re.compile(rf"({NUMBER.pattern})\s?[%\uff05]", re.IGNORECASE)
_SHARE = r"(?P<part>\d{1,9})\s?/\s?(?P<whole>\d{1,9})"
_COUNTED = (
    re.compile(rf"(?P<value>\S+(?:\s?[%\uff05])?)\s*\({_SHARE}(?:\s\w+)?\)"),
    re.compile(rf"{_SHARE}(?:\s*=\s*|\s*\()(?P<value>[^()]+)\)?"),
)
FRACTION = re.compile(_SHARE)
_ROUNDING = 0.006  # of a share that is written with two digits
_LONGEST_ANNOTATED = 60


class Percent(float):
    """A number that was written with a percent sign: 51.2 for ``51.2 %``. ``whole``: of how many it was counted."""

    whole: int | None = None

    def __str__(self) -> str:
        return f"{float(self):.15g}%"

    __repr__ = __str__


class Counted(float):
    """A share beside which stands of how many it is: 0.6 for ``12/20``."""

    whole: int | None = None


def parse_value(text: str) -> Value:
    """Return the text as a number where all of it is one, with its percent sign, or else the text."""
    plain = text.strip().strip("*`").strip()
    if _INTEGER.fullmatch(plain):
        return int(plain)
    if NUMBER.fullmatch(plain):
        return float(plain)
    if percent := PERCENT.fullmatch(plain):
        return Percent(percent[1])
    if _RX.thousands.fullmatch(plain):
        return float(plain.replace(",", ""))
    return _parse_annotated(plain)


def _parse_annotated(text: str) -> Value:
    """Return the number before a spread, which may be of any kind, or beside the fraction that it is, else the text."""
    if len(text) > _LONGEST_ANNOTATED:
        return text
    if match := _RX.spread.fullmatch(text):
        value = parse_value(match["value"])
        return value if isinstance(value, int | float) else text
    for pattern in _COUNTED:
        if (match := pattern.fullmatch(text)) and int(match["whole"]):
            value = parse_value(match["value"])
            if not isinstance(value, int | float) or isinstance(value, bool):
                continue
            share = float(value) / 100 if isinstance(value, Percent) else float(value)
            if abs(int(match["part"]) / int(match["whole"]) - share) <= _ROUNDING:
                return _count_of(value, int(match["whole"]))
    if (match := _RX.twice.fullmatch(text)) and abs(float(match["value"]) * 100 - float(match["percent"])) <= 1:
        return float(match["value"])
    return text


def _count_of(value: float, whole: int) -> Percent | Counted:
    counted = Percent(value) if isinstance(value, Percent) else Counted(value)
    counted.whole = whole
    return counted


def parse_rate(text: str) -> float | None:
    """Return the share that ``text`` states of successes, also as a bare fraction, or None."""
    value = parse_value(text)
    if (
        isinstance(value, str)
        and (match := FRACTION.fullmatch(value))
        and 0 < int(match["whole"]) >= int(match["part"])
    ):
        return _count_of(int(match["part"]) / int(match["whole"]), int(match["whole"]))
    return value if isinstance(value, int | float) else None


def parse_named(name: str, text: str) -> Value:
    """Return a value as :func:`parse_value` does; a fraction is a number where the name is one of successes."""
    value = parse_value(text)
    if isinstance(value, str) and _RX.success.search(name):
        return value if (rate := parse_rate(value)) is None else rate
    return value


Row = Mapping[str, Value]

NAMES = read_words("scalars/names")

MOST_ROWS = 200
MOST_COLUMNS = 200
_MOST_TABLES = 20
_MOST_ROWS = 50
_LONGEST_LINE, _LONGEST_DICT = 1_000, 50_000
_FENCE = re.compile(r"(```|~~~)[ \t]*(?:json)?[ \t]*\n(?P<body>.*?)\n[ \t]*\1", re.DOTALL | re.IGNORECASE)
_CELLS = re.compile(r"(?<!\\)\|")
_BARE_NAN, _BARE_INF = re.compile(r"(?<=[\s:,\[])nan(?=[\s,}\]])"), re.compile(r"(?<=[\s:,\[-])inf(?=[\s,}\]])")
_NAN_TEXT = "not a number"
_MODEL_KEYS = ("model", "model_name", "model_path", "checkpoint", "ckpt_path", "policy_path")
_NO_TASKS = frozenset(
    "train eval val valid validation test dev config args metadata info timing time".split()  # noqa: SIM905 - words
)


class Table(NamedTuple):
    """Rows that belong together. ``title``: the heading above. ``cut``: which of how many rows these are."""

    rows: list[Row]
    title: str = ""
    cut: str | None = None

    @classmethod
    def newest(cls, rows: list[Row]) -> Table:
        """Return the last rows of ``rows``, which were appended one after the other."""
        cut = f"only the last {MOST_ROWS} of {len(rows)} rows" if len(rows) > MOST_ROWS else None
        return cls(rows[-MOST_ROWS:], cut=cut)


def find_step(text: str) -> int | None:
    """Return the training step that a heading, a file name or a line names, or 0 for a baseline before training."""
    if match := _RX.step.search(text):
        return int(match[1] or match[2])
    return 0 if _RX.baseline.search(text) else None


def flatten(value: Mapping[str, Any], before: str = "") -> dict[str, Value]:
    """Return the scalars of nested objects, without the filter that lm-eval adds to a name (`acc,none`)."""
    flat: dict[str, Value] = {}
    for name, one in value.items():
        label = before + str(name).removesuffix(",none")
        if isinstance(one, Mapping):
            flat |= flatten(one, f"{label}.")
        elif isinstance(one, str | int | float | bool) and len(str(one)) <= MOST_ROWS and name != "alias":
            flat[label] = _parse_scalar(str(name), one)
        if len(flat) >= MOST_COLUMNS:
            break
    return flat


def _parse_scalar(name: str, value: Value) -> Value:
    """Return a value of JSON: percentages as such, also lerobot's, and fractions of successes as numbers."""
    if name == "pc_success" and isinstance(value, int | float):
        return Percent(value)
    if isinstance(value, str) and (PERCENT.fullmatch(value.strip()) or FRACTION.match(value.strip())):
        return parse_named(name, value)
    return value


def parse_dict(text: str) -> dict[str, Value] | None:
    """Return the scalars of a Python dict or a JSON object as text, or None where it is neither."""
    value = parse_mapping(text)
    return None if value is None else flatten(value)


def parse_mapping(text: str) -> Mapping[str, Any] | None:
    """Return a Python dict or JSON object as text, or None; ``np.float64(0.5)``, ``tensor(0.5)``, ``nan`` too."""
    if not text.startswith("{") or len(text) > _LONGEST_DICT:
        return None
    plain = _RX.wrapped.sub(r"\1", text)
    try:
        value = json.loads(plain)
    except (ValueError, RecursionError):
        plain = _BARE_INF.sub("1e999", _BARE_NAN.sub(repr(_NAN_TEXT), plain))
        try:
            value = ast.literal_eval(plain)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
    return _restore_nan(value) if isinstance(value, dict) else None


def _restore_nan(value: Mapping[Any, Any]) -> dict[Any, Any]:
    return {
        name: _restore_nan(one) if isinstance(one, dict) else float("nan") if one == _NAN_TEXT else one
        for name, one in value.items()
    }


def parse_line(line: str) -> dict[str, Value] | None:
    """Return the numbers of a line with a dict, or several ``name=value`` after a step, with step and ``label``."""
    begin, end = line.find("{"), line.rfind("}")
    if 0 <= begin < end:
        row = parse_dict(line[begin : end + 1])
        if not row or not any(isinstance(one, float | int) and not isinstance(one, bool) for one in row.values()):
            return None
        step = find_step(line[:begin])
        return row if step is None or has_step(row) else {"step": step, **row}
    if line.count("=") < 2 or len(line) > _LONGEST_LINE:  # noqa: PLR2004 - of one number nobody knows what it is
        return None
    pairs = list(_RX.printed_pair.finditer(line))
    if len(pairs) < 2 or (step := find_step(line[: pairs[0].start()])) is None:  # noqa: PLR2004
        return None
    label = line[: pairs[0].start()].rpartition("]")[2].strip(" \t:-|")
    return {"step": step, **({"label": label} if label else {}), **{m[1]: parse_value(m[2]) for m in pairs}}


STEP_NAMES = NAMES["step"]


def has_step(row: Row) -> bool:
    """Return whether a row has a column with a training step."""
    return any(name.lower().replace(" ", "_").rpartition("/")[2] in STEP_NAMES for name in row)


def parse_markdown(text: str) -> Iterator[Table]:
    """Yield tables, JSON in fences, dicts, and ``name: number`` lines by block; headings name steps and labels."""
    yield from islice(_parse_tables(text), _MOST_TABLES)
    for match in islice(_FENCE.finditer(text), _MOST_TABLES):
        if rows := _fenced_rows(match["body"]):
            yield Table.newest(rows)
    outside = _FENCE.sub(lambda match: match["body"] if not _fenced_rows(match["body"]) else "", text)
    if rows := list(parse_lines(outside)):
        yield Table.newest(rows)
    if rows := _parse_blocks(outside):
        yield Table.newest(rows)


def parse_lines(text: str) -> Iterator[Row]:
    """Yield a row per line that holds a dict, or several ``name=value`` after a step."""
    for line in text.splitlines():
        if ("{" in line or "=" in line) and (row := parse_line(line.strip())):
            yield row


def parse_rows(value: Any) -> Iterator[Row]:
    """Yield the rows of a JSON value: objects of a list or by task, else nested objects as one dotted row. Pure."""
    if isinstance(value, list):
        for item in value:
            yield from parse_rows(item)
        return
    if not isinstance(value, Mapping):
        return
    if rows := list(_lerobot_rows(value)):
        yield from rows
        return
    results = value.get("results")
    if isinstance(results, Mapping) and results and all(isinstance(one, Mapping) for one in results.values()):
        yield from _rows_by_task(results, value)
    elif tasks := _find_tasks(value):
        yield from _rows_by_task({task: value[task] for task in tasks}, value)
        yield from filter(None, [flatten({name: one for name, one in value.items() if name not in tasks})])
    elif isinstance(results, list) and any(isinstance(one, Mapping) for one in results):
        yield from parse_rows(results)
        yield from filter(None, [flatten({name: one for name, one in value.items() if name != "results"})])
    elif flat := flatten(value):
        yield flat


def _lerobot_rows(value: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of lerobot's eval_info.json: of all episodes, of each suite, of each task; none of other files."""
    episodes, total = value.get("per_episode"), value.get("aggregated")
    if isinstance(episodes, list) and isinstance(total, Mapping) and "pc_success" in total:
        yield {**flatten(total), "n_episodes": len(episodes)}
        return
    total, suites, tasks = value.get("overall"), value.get("per_group"), value.get("per_task")
    if not isinstance(total, Mapping) or "pc_success" not in total:
        return
    yield flatten(total)
    for suite, one in suites.items() if isinstance(suites, Mapping) else ():
        if isinstance(one, Mapping):
            yield {"task": str(suite), **flatten(one)}
    for task in tasks if isinstance(tasks, list) else ():
        metrics = task.get("metrics") if isinstance(task, Mapping) else None
        successes = metrics.get("successes") if isinstance(metrics, Mapping) else None
        if isinstance(successes, list) and successes and all(isinstance(one, bool) for one in successes):
            share = Percent(100 * sum(successes) / len(successes))
            name = f"{task.get('task_group')}/{task.get('task_id')}"
            yield {"task": name, "pc_success": share, "n_episodes": len(successes)}


def _rows_by_task(results: Mapping[str, Any], beside: Mapping[str, Any]) -> Iterator[Row]:
    steps = {name: one for name, one in beside.items() if isinstance(one, int) and has_step({name: one})}
    models = {name: one for name, one in beside.items() if name in _MODEL_KEYS and isinstance(one, str)}
    samples = beside.get("n-samples")  # of lm-eval
    for task, one in results.items():
        row = {"task": task, **dict(list(steps.items())[:1]), **dict(list(models.items())[:1]), **flatten(one)}
        counts = samples.get(task) if isinstance(samples, Mapping) else None
        if isinstance(counts, Mapping) and isinstance(counts.get("effective"), int):
            row.setdefault("n_samples", counts["effective"])
        yield row


def _find_tasks(value: Mapping[str, Any]) -> list[str]:
    """Return the names of objects that share the name of a number: several tasks, each with the same figures."""
    numbers = {
        str(name): {k for k, v in one.items() if isinstance(v, int | float) and not isinstance(v, bool)}
        for name, one in value.items()
        if isinstance(one, Mapping)
    }
    if len(numbers) < 2 or _NO_TASKS & {name.lower() for name in numbers}:  # noqa: PLR2004 - one is no table
        return []
    return list(numbers) if set.intersection(*numbers.values()) else []


def _fenced_rows(body: str) -> list[Row]:
    try:
        return list(parse_rows(json.loads(body)))
    except (ValueError, RecursionError):
        return []


def _parse_blocks(text: str) -> list[Row]:
    """Return ``name: number`` lines as one row, or a row per block: a heading, a repeated name, another step."""
    blocks: list[tuple[str, dict[str, Value]]] = [("", {})]
    for line in text.splitlines():
        stripped = line.strip()[:_LONGEST_LINE]
        if _RX.heading.fullmatch(stripped):
            blocks.append((stripped.strip("# \t"), {}))
            continue
        pair = None if "|" in line or "{" in line else _RX.pair.fullmatch(stripped)
        value = parse_named(pair["name"], pair["value"]) if pair else None
        if pair is None or not isinstance(value, int | float):
            continue
        name, (title, block) = pair["name"].strip(), blocks[-1]
        if name in block or (block and has_step({name: value}) and not has_step(block)):
            blocks.append((title if find_step(title) is None else "", block := {}))
        block[name] = value
    filled = [(title, block) for title, block in blocks if block]
    names = [name for _, block in filled for name in block]
    steps = [find_step(title) for title, _ in filled]
    if len(names) == len(set(names)) and not any(step is not None for step in steps):
        return [dict(pair for _, block in filled for pair in block.items())] if filled else []
    epochs = [_RX.epoch.search(title) for title, _ in filled]
    if not any(step is not None for step in steps) and len({match[1] for match in epochs if match}) > 1:
        return [
            {**({"epoch": int(match[1])} if match else {}), **block}
            for (_, block), match in zip(filled, epochs, strict=True)
        ]
    return [
        _titled(title, step, block, is_label=len(filled) > 1)
        for (title, block), step in zip(filled, steps, strict=True)
    ]


def _titled(title: str, step: int | None, block: Mapping[str, Value], *, is_label: bool) -> Row:
    row: dict[str, Value] = {}
    if step is not None and not has_step(block):
        row["step"] = step
    label = _RX.label.search(title)
    if label and step is not None and find_step(label[1]) is None:
        row["label"] = label[1].strip()
    elif step is None and title and is_label and not _RX.after.search(title):
        row["label"] = title
    return {**row, **block}


def _parse_tables(text: str) -> Iterator[Table]:
    lines = text.splitlines()
    title, number = "", 0
    while number < len(lines):
        line = lines[number].strip()
        if _RX.heading.fullmatch(line[:_LONGEST_LINE]):
            title = line[:_LONGEST_LINE].strip("# \t")
        following = lines[number + 1].strip() if number + 1 < len(lines) else ""
        if "|" not in line or "|" not in following or not _RX.separator.fullmatch(following):
            number += 1
            continue
        names = split_cells(line)
        number += 2
        rows: list[Row] = []
        while number < len(lines) and "|" in lines[number]:
            cells = zip(names, split_cells(lines[number]), strict=False)
            rows.append({name: parse_named(name, cell) for name, cell in cells})
            number += 1
        if rows:
            cut = f"only the first {MOST_ROWS} of {len(rows)} rows" if len(rows) > MOST_ROWS else None
            yield Table(rows[:MOST_ROWS], title, cut)


def split_cells(line: str) -> list[str]:
    """Return the cells of a line of a markdown table, without their emphasis."""
    inner = line.strip().removeprefix("|")
    inner = inner[:-1] if inner.endswith("|") and not inner.endswith("\\|") else inner
    return [cell.strip().replace("\\|", "|").strip("*`").strip() for cell in _CELLS.split(inner)]


def render_table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return a markdown table. None is an empty cell, and ``|`` in a value is escaped."""
    lines = [f"| {' | '.join(map(_cell, names))} |", f"|{' --- |' * len(names)}"]
    return [*lines, *(f"| {' | '.join(map(_cell, row))} |" for row in rows)]


def render_rows(rows: Sequence[Row]) -> list[str]:
    """Return the first 50 rows as a markdown table, followed by the total where there are more."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = render_table(names, [[row.get(name) for name in names] for row in rows[:_MOST_ROWS]])
    return [*lines, "", f"… of {len(rows)} rows the first {_MOST_ROWS}."] if len(rows) > _MOST_ROWS else lines


def _cell(value: object) -> str:
    return "" if value is None else " ".join(str(value).split()).replace("|", "\\|")
