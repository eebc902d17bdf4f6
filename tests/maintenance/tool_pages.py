"""Adds a page for each tool to the documentation site, from the schemas that the server lists.

MkDocs calls ``on_files``; see ``hooks`` in mkdocs.yml.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

SCHEMAS = Path(__file__).parents[2] / "mcp_server" / "tools" / "schemas"
_HINTS = {
    "readOnlyHint": "changes nothing",
    "destructiveHint": "may destroy something",
    "idempotentHint": "may be repeated",
}


def on_files(files: Files, /, *, config: MkDocsConfig) -> Files:
    """Add ``tools/NAME.md`` for each tool, below *Tools* of the navigation."""
    names = sorted(path.stem for path in SCHEMAS.glob("*.json"))
    for name in names:
        schema = json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))
        files.append(File.generated(config, f"tools/{name}.md", content=make_page(schema)))
    assert config.nav is not None
    config.nav[0] = {"Tools": ["tools.md", *(f"tools/{name}.md" for name in names)]}
    return files


def make_page(schema: dict[str, Any]) -> str:
    """Return the page of a tool as markdown."""
    return "\n".join(_lines(schema))


def _lines(schema: dict[str, Any]) -> Iterator[str]:
    hints = [text for hint, text in _HINTS.items() if schema["annotations"].get(hint)]
    yield from (f"# {schema['name']}", "", schema["description"], "")
    if hints:
        yield from (f"This tool {' and '.join(hints)}.", "")
    yield from ("## Arguments", "", *_table(schema["inputSchema"]), "")
    if answer := schema.get("outputSchema"):
        yield from ("## Answer", "", *_table(answer), "")
        for name, definition in sorted(answer.get("$defs", {}).items()):
            if "properties" in definition:
                yield from (f"### {name}", "", definition.get("description", ""), "", *_table(definition), "")


def _table(schema: dict[str, Any]) -> Iterator[str]:
    required = schema.get("required", ())
    yield from ("| name | type | default | meaning |", "| --- | --- | --- | --- |")
    for name, facts in schema.get("properties", {}).items():
        default = "required" if name in required else json.dumps(facts["default"]) if "default" in facts else ""
        cells = (f"`{name}`", describe_type(facts), default and f"`{default}`", facts.get("description", ""))
        yield "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def describe_type(facts: dict[str, Any]) -> str:
    """Return the type of a value in words, such as ``list of text``."""
    if "$ref" in facts:
        return str(facts["$ref"]).rpartition("/")[2]
    if "anyOf" in facts:
        return " or ".join(dict.fromkeys(describe_type(each) for each in facts["anyOf"]))
    if "enum" in facts or "const" in facts:
        return ", ".join(f"`{json.dumps(value)}`" for value in facts.get("enum", [facts.get("const")]))
    if facts.get("type") == "array":
        return f"list of {describe_type(facts['items'])}" if facts.get("items") else "list"
    words = {"string": "text", "object": "table", "boolean": "true or false", "null": "nothing"}
    kind = str(facts.get("type", "any value"))
    return words.get(kind, kind)
