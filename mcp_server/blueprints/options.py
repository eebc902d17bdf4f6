"""Options of a launch in a blueprint: recovery, params, param_style, resume_args, tensorboard, seeds. Pure.

They are written as YAML, in front matter or below their own names: ``[exp_params]`` with ``num_envs: 4096`` or
``num_envs=4096`` in each line. One seed is the parameter ``seed``, unless the command names ``${exp_seeds}``.
"""

import re
from dataclasses import dataclass, field
from typing import Any

from mcp_server.blueprints.fields import BlueprintReader, read_path
from mcp_server.blueprints.front_matter import YamlFault, compose, to_data
from mcp_server.blueprints.headings import Section, split_row
from mcp_server.blueprints.sections import is_explanation
from mcp_server.text.rows import read_patterns

_RX = read_patterns("blueprints/patterns", "options")

# The styles, and how people write them.
_STYLES = {
    "--k v": re.compile(r"--<?(?:k|key|name|param)>?(?:\s+|\s*<)(?:v|val|value)>?(?![\w=]).*", re.IGNORECASE),
    "k=v": re.compile(r"<?(?:k|key|name|param)>?=<?(?:v|val|value)>?(?!\w).*", re.IGNORECASE),
}
_MAX_SEEDS = 1_000


@dataclass(frozen=True)
class Options:
    """Options of a launch as a blueprint has them. A field that it leaves open has its default."""

    recovery: Any = None
    params: dict[str, Any] = field(default_factory=dict)
    param_style: str | None = None
    resume_args: tuple[str, ...] = ()
    tensorboard: str | None = None
    seeds: tuple[int, ...] = ()


def read_options(reader: BlueprintReader) -> Options:
    """Return the options of a document. A text that is not understood is a fault with its line."""
    return Options(
        recovery=_read_recovery(reader),
        params=_read_params(reader),
        param_style=_read_style(reader),
        resume_args=_read_words(reader),
        tensorboard=read_path(reader, "tensorboard"),
        seeds=_read_seeds(reader),
    )


def _refuse(reader: BlueprintReader, name: str, cause: str) -> None:
    reader.refuse(name, reader.lines[name], cause)


def _read_recovery(reader: BlueprintReader) -> Any:
    value = _read_value(reader, "recovery")
    if value is None or isinstance(value, dict) or value in ("none", "default"):
        return value
    cause = f"is none, default or a table by failure kind, not {str(value)[:60]!r}. See guide://recovery."
    return _refuse(reader, "recovery", cause)


def _read_params(reader: BlueprintReader) -> dict[str, Any]:
    value = _read_value(reader, "params")
    if isinstance(value, list) and all(isinstance(each, dict) for each in value):
        pairs = [pair for each in value for pair in each.items()]
        value = dict(pairs)
        if len(pairs) > len(value):
            _refuse(reader, "params", "has a name twice: write it once.")
    if value is None or value == "none":
        return {}
    if not isinstance(value, dict):
        cause = f"is not a table of names and values: {str(value)[:60]!r}."
        _refuse(reader, "params", f"{cause} Write e.g. num_envs: 4096 in each line.")
        return {}
    for key, each in value.items():
        if isinstance(each, str) and _RX.no_value.fullmatch(each):
            cause = f"{str(key)[:40]!r} is {each[:40]!r}: write the number without commas, and one value."
            _refuse(reader, "params", cause)
    return value


def _read_style(reader: BlueprintReader) -> str | None:
    value = _read_value(reader, "param_style")
    style = next((style for style, written in _STYLES.items() if written.fullmatch(str(value))), None)
    if value is not None and style is None:
        _refuse(reader, "param_style", f"is `--k v` or `k=v`, not {str(value)[:40]!r}.")
    return style


def _read_words(reader: BlueprintReader) -> tuple[str, ...]:
    value = _read_value(reader, "resume_args")
    words = value.split() if isinstance(value, str) else [] if value is None else value
    if isinstance(words, list) and all(isinstance(word, str | int | float) for word in words):
        return tuple(map(str, words))
    _refuse(reader, "resume_args", "is a list of words, as --resume.")
    return ()


def _read_seeds(reader: BlueprintReader) -> tuple[int, ...]:
    value = _read_value(reader, "seeds")
    if value is None:
        return ()
    if isinstance(value, dict) and len(value) == 1:  # `seed: 7` below its own name
        value = next(iter(value.values()))
    if isinstance(value, str):
        text = re.sub(r"^(?:random\s+)?seeds?\s*[:=：]?\s*|[\[\]]|\band\b|和", " ", value.strip(), flags=re.IGNORECASE)
        words = re.split(r"[\s,;、，]+", text.strip())
        value = [int(word) if re.fullmatch(r"\d{1,18}", word) else word for word in words]
    seeds = value if isinstance(value, list) else [value]
    is_right = all(isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0 for seed in seeds)
    if is_right and 0 < len(seeds) <= _MAX_SEEDS and len(set(seeds)) == len(seeds):
        return tuple(seeds)
    _refuse(reader, "seeds", f"is not a list of different numbers: {str(value)[:60]!r}. Write each, as 0, 1, 2.")
    return ()


def _read_value(reader: BlueprintReader, name: str) -> Any:
    """Return the value of an option as JSON value; None if it is absent or cannot be read."""
    section = reader.sections.get(name)
    if section is None:
        return None
    reader.lines[name] = section.line
    if section.exact is not None:
        return section.data
    is_words = name in ("param_style", "resume_args")  # in which `k=v` stays as it is
    lines = _value_lines(section, is_table=not is_words)
    if not lines:
        return None
    reader.lines[name] = first = lines[0][0]
    numbers = [number for number, _ in lines]
    texts = [text for _, text in lines]
    plain = " ".join(texts).strip().strip("`*\"'").strip()
    if _RX.absent.fullmatch(plain):
        return "none" if name == "recovery" else None
    if is_words or (name == "recovery" and plain in ("none", "default")):
        return plain.removeprefix("- ").strip("`")
    if any("<" in text and ">" in text for text in texts) and name != "recovery":
        cause = f"still holds the template's {plain[:40]!r}: write the value, or remove the section."
        reader.refuse(name, first, cause)
        return None
    has_several = any(_RX.flags.fullmatch(text) or len(_RX.pair.findall(text)) > 1 for text in texts)
    has_several = has_several and all(_RX.flags.fullmatch(text) or _RX.pairs.fullmatch(text) for text in texts)
    if name == "params" and has_several:
        pairs = [(number, *pair) for number, text in lines for pair in _RX.pair.findall(text)]
        numbers, texts = [pair[0] for pair in pairs], [f"{flag or key}: {value}" for _, flag, key, value in pairs]
    try:
        return to_data(compose("\n".join(texts), 0), 0)
    except YamlFault as fault:
        reader.refuse(name, numbers[min(fault.line, len(numbers) - 1)], f"is {fault.text}.")
        return None


def _value_lines(section: Section, *, is_table: bool) -> list[tuple[int, str]]:
    """Return the lines of an option as YAML: from its code block, else without explanations, marks and table bars.

    ``is_table``: names and values, so that ``k=v`` means ``k: v``.
    """
    assigned = r"\1\2: " if is_table else r"\g<0>"
    code = [(line.number, line.text) for line in section.all_lines if line.fence is not None]
    if code:
        return [(number, _RX.assigned.sub(assigned, text)) for number, text in code]
    rows = [(line.number, split_row(line.text.strip())) for line in section.all_lines if line.text.strip()[:1] == "|"]
    if len(rows) == 3 and _is_wide(*(cells for _, cells in rows)):  # noqa: PLR2004 - names, line, values
        pairs = zip(rows[0][1], rows[2][1], strict=True)
        return [(rows[2][0], f"{name.strip(' `')}: {value.strip(' `')}") for name, value in pairs]
    lines: list[tuple[int, str]] = []
    for line in section.all_lines:
        text = re.sub(r"~~[^~]+~~", "", line.text.replace("**", "")).rstrip()
        if line.level or not text.strip() or re.fullmatch(r"[-=_*|: ]{3,}", text.strip()):
            continue
        label = _RX.label.match(text)
        if label and is_explanation(label[1].strip().lower()):
            continue
        if text.strip().startswith("|"):
            cells = [cell.strip(" `") for cell in split_row(text.strip())]
            if len(cells) < 2 or _RX.table_head.fullmatch(cells[0]):  # noqa: PLR2004 - name and value
                continue
            text = f"{cells[0]}: {cells[1]}"
        text = _RX.remark.sub(r"\1", text)
        text = re.sub(r"^(\s*)[*+](?=\s)", r"\1-", _RX.assigned.sub(assigned, text).replace("：", ": "))
        lines.append((line.number, re.sub(r"`", "", text)))
    depth = min((len(text) - len(text.lstrip()) for _, text in lines), default=0)
    return [(number, text[depth:]) for number, text in lines]


def _is_wide(names: list[str], line: list[str], values: list[str]) -> bool:
    has_names = all(re.fullmatch(r"[ `]*[A-Za-z_][\w.-]*[ `]*", name) for name in names)
    is_head = _RX.table_head.fullmatch(names[0]) is not None
    return len(names) == len(values) == len(line) and has_names and not is_head and bool(re.match(r"\W*\d", values[0]))
