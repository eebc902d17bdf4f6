"""The tables of guide://reference, made from the parser, the tools' schemas and the models of the settings.

``python -m tests.support.reference_tables`` writes them into the guide.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import anyio
from mcp.client import Client
from pydantic import BaseModel

from mcp_server.cli.parser import make_parser
from mcp_server.hosts.config import Environment, Host, Ray
from mcp_server.record.script import LONGEST_NAME
from mcp_server.resources.documents import find_folder
from mcp_server.runs.launch.arguments import NOT_IN_NAMES
from mcp_server.serve.app import build
from mcp_server.store.state_home import Config, NotifySettings

GUIDE = Path(find_folder("prompts")) / "reference.md"
BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"
SETTINGS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("config.toml", Config),
    ("config.toml, `[notify]`", NotifySettings),
    ("hosts.toml, `[hosts.NAME]`", Host),
    ("hosts.toml, `[environments.NAME]`", Environment),
    ("hosts.toml, `[environments.NAME.ray]`", Ray),
)
_RANGE = {"minimum": ">= {}", "exclusiveMinimum": "> {}", "maximum": "<= {}", "exclusiveMaximum": "< {}"}
_TYPES = {"integer": "whole number", "array": "list", "object": "table", "boolean": "true or false", "string": "text"}


def make_tables() -> str:
    """Return the generated part of the guide."""
    return "\n".join([*_names(), *_commands(), *_tools(), *_answers(), *_settings()])


def _names() -> Iterator[str]:
    signs = " ".join(f"`{sign}`" for sign in NOT_IN_NAMES)
    yield "## Names\n"
    yield f"A run and a sweep have a name of 1 to {LONGEST_NAME} characters that can be printed, without {signs}.\n"


def _commands() -> Iterator[str]:
    yield "## Commands\n\n| command | does | flags |\n| --- | --- | --- |"
    for name, parser, text in _list_parsers(make_parser()):
        words, flags = [f"runward {name}"], []
        for action in parser._actions:
            if isinstance(action, argparse._HelpAction | argparse._SubParsersAction | argparse._VersionAction):
                continue
            if not action.option_strings:
                word = str(action.metavar or "\\|".join(action.choices or ()) or action.dest.upper())
                words.append(f"[{word}]" if action.nargs == "?" else word)
                continue
            meta = action.metavar or ("" if action.nargs == 0 else action.dest.upper())
            value = " ".join(meta) if isinstance(meta, tuple) else meta
            name_of = " ".join(filter(None, [", ".join(action.option_strings), value]))
            flags.append(f"`{name_of}`" + (f": {action.help}" if action.help else ""))
        yield _row(f"`{' '.join(words)}`", text, "; ".join(flags))
    yield ""


def _list_parsers(
    parser: argparse.ArgumentParser, above: str = ""
) -> Iterator[tuple[str, argparse.ArgumentParser, str]]:
    for group in parser._actions:
        if not isinstance(group, argparse._SubParsersAction):
            continue
        texts = {each.dest: each.help or "" for each in group._choices_actions}
        for verb, sub in group.choices.items():
            name = f"{above}{verb}"
            if any(isinstance(action, argparse._SubParsersAction) for action in sub._actions):
                yield from _list_parsers(sub, f"{name} ")
            else:
                yield name, sub, texts.get(verb, "")


def _tools() -> Iterator[str]:
    yield "## Arguments of the tools\n"
    for tool in anyio.run(_list_tools):
        schema = tool["inputSchema"]
        yield f"| `{tool['name']}` | value | default | meaning |\n| --- | --- | --- | --- |"
        for name, facts in schema["properties"].items():
            default = "needed" if name in schema.get("required", ()) else _value(facts.get("default"))
            yield _row(f"`{name}`", _type(facts), default, facts.get("description", ""))
        yield ""


def _answers() -> Iterator[str]:
    """Yield every field of an answer: one that is new has its row, and one that is gone has none."""
    yield "## Fields of the answers\n\n| answer, or part of one | fields, left out without a value |\n| --- | --- |"
    parts: dict[str, Iterable[str]] = {}
    for tool in anyio.run(_list_tools):
        if (schema := tool.get("outputSchema")) is not None:
            parts[f"`{tool['name']}`"] = schema["properties"]
            parts |= {
                name: facts["properties"] for name, facts in schema.get("$defs", {}).items() if "properties" in facts
            }
    yield from (_row(name, ", ".join(f"`{field}`" for field in fields)) for name, fields in parts.items())
    yield ""


async def _list_tools() -> list[dict[str, Any]]:
    async with Client(build({"RUNWARD_HOME": "/nonexistent"})) as client:
        listed = (await client.list_tools()).tools
    return [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in listed]


def _settings() -> Iterator[str]:
    for title, model in SETTINGS:
        yield f"## {title}\n\n| key | value | default |\n| --- | --- | --- |"
        schema = model.model_json_schema()
        for name, facts in schema["properties"].items():
            if name != "name":  # which is that of the table
                yield _row(f"`{name}`", _type(facts, schema.get("$defs", {})), _value(facts.get("default")))
        yield ""


def _type(facts: dict[str, Any], definitions: dict[str, Any] | None = None) -> str:
    if "$ref" in facts:
        facts = (definitions or {}).get(facts["$ref"].rpartition("/")[2], {"type": "object"})
    if "anyOf" in facts:
        kinds = [_type(each, definitions) for each in facts["anyOf"] if each.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in facts or "const" in facts:
        return ", ".join(f'`"{word}"`' for word in facts.get("enum", [facts.get("const")]))
    bounds = [text.format(facts[key]) for key, text in _RANGE.items() if key in facts]
    bounds += [f"{facts[key]:,} {word}" for key, word in (("maxLength", "characters at most"),) if key in facts]
    kind = _TYPES.get(facts.get("type", ""), facts.get("type", "any"))
    if kind == "list" and (item := facts.get("items")):
        kind = f"list of {_type(item, definitions)}"
    return f"{kind} {', '.join(bounds)}".strip()


def _value(value: Any) -> str:
    if value is None or value is False or value in ("", [], {}):
        return ""
    if isinstance(value, bool):
        return "true"
    words = value if isinstance(value, list) else [value]
    return ", ".join(f"`{word:g}`" if isinstance(word, float) else f"`{word}`" for word in words)


def _row(*cells: str) -> str:
    lines = [re.sub(r"(?<!\\)\|", r"\\|", " ".join(cell.split())) for cell in cells]
    return f"| {' | '.join(lines)} |"


def insert(text: str) -> str:
    """Return the text of the guide with new tables between its marks."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{make_tables().strip()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    GUIDE.write_text(insert(GUIDE.read_text(encoding="utf-8")), encoding="utf-8")
