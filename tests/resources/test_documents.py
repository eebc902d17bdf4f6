"""Documents and their front matter, and the files that registries and clients read."""

import json
import re
from pathlib import Path

import pytest

import mcp_server
from mcp_server.cli.setup.client_settings import NAME
from mcp_server.cli.setup.install import in_project
from mcp_server.resources.documents import Document, list_files, parse_document, read_documents


def test_front_matter_is_facts_tables_and_a_text() -> None:
    source = """---
name: x
title: "a: \\"b\\"\\nc"
arguments:
  path: Where it is
  notes: Optional. More
model: m
---
# T
"""
    assert parse_document("x", source) == Document(
        "x",
        {"name": "x", "title": 'a: "b"\nc', "model": "m"},
        {"arguments": {"path": "Where it is", "notes": "Optional. More"}},
        "# T\n",
    )


@pytest.mark.parametrize("value", ["yes", "1.0", "2026-11-21", "null", "x #1", "'x'"])
def test_a_value_of_front_matter_is_text(value: str) -> None:
    text = {"x #1": "x", "'x'": "x"}.get(value, value)
    assert parse_document("x", f"---\nname: {value}\n---\n").facts == {"name": text}


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("# no front matter", "x.md has no front matter"),
        ("---\nname: x\n", "x.md has no front matter"),
        ("---\nname: a: b\n---\n", "x.md, line 2: mapping values are not allowed"),
        ("---\ntext: t\nname: *x\n---\n", "x.md, line 3: found undefined alias"),
        ("---\nname: x\ntitle: [a]\n---\n", "x.md: 'title' is neither text nor a table of texts"),
        ("---\ntable:\n  title: [a]\n---\n", "x.md: 'table' is neither text nor a table of texts"),
        ('---\nname: "x\n---\n', "x.md, line 2: found unexpected end of stream"),
        ("---\nname x\n---\n", "x.md: the front matter is not a table"),
        ("---\nname: \x07\n---\n", "x.md: "),
    ],
)
def test_front_matter_that_cannot_be_used_is_refused(source: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)):
        parse_document("x", source)


def test_every_file_can_be_parsed() -> None:
    assert (len(read_documents("prompts")), len(read_documents("agents"))) == (33, 5)


# --- what registries and clients read at the root of the repository

ROOT = Path(mcp_server.__file__).parent.parent


@pytest.mark.parametrize("name", ["README.md", *(f"prompts/{path.name}" for path in list_files("prompts"))])
def test_no_text_offers_the_package_from_a_registry_where_it_is_not(name: str) -> None:
    text = (ROOT / name).read_text()
    assert not re.search(
        r"\buvx (?!--from )|\bpip(?:x)? install (?:-\S+ )*'?runward\b|registry\.modelcontextprotocol", text
    )


def test_the_repository_offers_its_own_server_to_claude_code() -> None:
    program = ROOT / ".venv" / "bin" / NAME
    command = in_project([str(program), "serve"], ROOT)  # found from every sub-directory
    (server,) = json.loads((ROOT / ".mcp.json").read_text())["mcpServers"].values()
    assert server == {"type": "stdio", "command": command[0], "args": command[1:]}
