"""Documents that agents read: markdown files with YAML front matter, in ``prompts/`` and ``agents/``."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

MARKDOWN, JSON = "text/markdown", "application/json"
Shelf = Literal["prompts", "agents"]

_FENCE = "---\n"
_FIRST_YAML_LINE = 2  # counted from 1; the first line is the fence


@dataclass(frozen=True)
class Document:
    """One file: its name without ``.md``, the text values and tables of its front matter, and its text."""

    name: str
    facts: dict[str, str]
    tables: dict[str, dict[str, str]]
    text: str

    @property
    def description(self) -> str:
        """The purpose of the document in one sentence."""
        return self.facts.get("description", "")


def find_folder(shelf: Shelf) -> Path:
    """Return the directory of a shelf: in the installed package, else at the root of the repository."""
    package = Path(__file__).parents[1]
    installed = package / "_data" / shelf
    return installed if installed.is_dir() else package.parent / shelf


def list_files(shelf: Shelf) -> list[Path]:
    """Return the files of a shelf, sorted by name."""
    return sorted(find_folder(shelf).glob("*.md"))


@cache
def read_documents(shelf: Shelf) -> dict[str, Document]:
    """Return the documents of a shelf by name, read once. ValueError names the file and the line of a fault."""
    return {path.stem: parse_document(path.stem, path.read_text(encoding="utf-8")) for path in list_files(shelf)}


def parse_document(name: str, source: str) -> Document:
    """Return the document in ``source``. Its front matter has text, as written, or tables of texts."""
    import yaml  # noqa: PLC0415 - 10 ms of a server's start

    front_matter, closing, text = source.removeprefix(_FENCE).partition(f"\n{_FENCE}")
    if not source.startswith(_FENCE) or not closing:
        raise ValueError(f"{name}.md has no front matter between two lines of ---")
    try:
        # The loader in C parses the files of this package in 1 ms, the one in Python in 15 ms.
        values = yaml.load(front_matter, getattr(yaml, "CBaseLoader", yaml.BaseLoader))  # noqa: S506 - makes only text
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = _FIRST_YAML_LINE + (mark.line if mark else 0)
        raise ValueError(f"{name}.md, line {line}: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ValueError(f"{name}.md: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{name}.md: the front matter is not a table of keys and values")  # noqa: TRY004 - of a file
    facts: dict[str, str] = {}
    tables: dict[str, dict[str, str]] = {}
    for key, value in values.items():
        if isinstance(value, str):
            facts[key] = value
        elif isinstance(value, dict) and all(isinstance(cell, str) for cell in value.values()):
            tables[key] = value
        else:
            raise ValueError(f"{name}.md: {key!r} is neither text nor a table of texts")
    return Document(name, facts, tables, text.strip() + "\n")
