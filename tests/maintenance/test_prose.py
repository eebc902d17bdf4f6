"""The prose of docstrings, messages and guides: a sentence begins with its subject, not with "Of …" or "What …"."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import mcp_server

PACKAGE = Path(mcp_server.__file__).parent
ROOT = PACKAGE.parent
# At the beginning, behind the end of a sentence, or in a cell of a table.
BEGINS_WITH_OF = re.compile(r"(?:\A|[.!?] +|[.!?:]?\n\s*\n\s*|^\| |: )(Of (?!course\b)[^.\n]{0,60})", re.MULTILINE)

BEGINS_WITH_WHAT = re.compile(r"\A(What (?!is\b|are\b|does\b|do\b|to\b)[^?]{0,60})(?!.*\?)", re.DOTALL)


@functools.cache
def parsed(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text("utf-8"))))


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The docstrings and other texts of a module, with their lines."""
    for node in parsed(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    for node in parsed(path):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield getattr(node, "lineno", 1), ast.get_docstring(node) or ""


def found(pattern: re.Pattern[str], path: Path, parts: Iterator[tuple[int, str]]) -> list[str]:
    return [f"{path.relative_to(ROOT)}:{line}: {match[1]}" for line, text in parts for match in pattern.finditer(text)]


def test_no_sentence_of_the_product_begins_with_of() -> None:
    assert [each for path in sorted(PACKAGE.rglob("*.py")) for each in found(BEGINS_WITH_OF, path, texts(path))] == []


def test_no_sentence_of_a_guide_begins_with_of() -> None:
    guides = [path for folder in ("prompts", "agents") for path in sorted((ROOT / folder).glob("*.md"))]
    guides += sorted(ROOT.glob("*.md"))
    assert [each for path in guides for each in found(BEGINS_WITH_OF, path, iter([(0, path.read_text("utf-8"))]))] == []


def test_no_docstring_replaces_its_noun_by_what() -> None:
    assert [
        each for path in sorted(PACKAGE.rglob("*.py")) for each in found(BEGINS_WITH_WHAT, path, docstrings(path))
    ] == []


def test_the_patterns_see_such_sentences() -> None:
    for text in ("Of several, the first.", "It ends. Of two GPUs one lags.", "| Of params | x |"):
        assert BEGINS_WITH_OF.search(text), text
    assert not BEGINS_WITH_OF.search("It is of use. Of course.")
    assert BEGINS_WITH_WHAT.search("What one run wrote.")
    assert not BEGINS_WITH_WHAT.search("What one run wrote?")
