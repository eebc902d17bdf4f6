"""Regular expressions: users' patterns are refused where they could search for ever, and old Pythons match the same."""

import gc
import importlib
import pkgutil
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

import mcp_server
from mcp_server.diagnosis.progress import formats, named_values
from mcp_server.errors import PatternError
from mcp_server.text import log_text, secret_patterns
from mcp_server.text.regex import (
    HAS_POSSESSIVE,
    _LazyPattern,
    compile_lazily,
    compile_user_pattern,
    expand_possessive,
    find_all,
    first_group,
)

_comparable = pytest.mark.skipif(not HAS_POSSESSIVE, reason="this Python's own possessive quantifiers are not right")
LINES = 4_000
WORDS = (
    "loss", "step", "epoch", "Train", "eval", "a21s", "nan", "inf", "tensor", "np.float32", "array", "total_timesteps",
    "(", "((", "[", "]", "'", '"', ":", "=", "|", "│", "#", "->", "->", "-", "+", ",", ".", "/", " of ", "<", ">", ";",
    " ", "  ", "        ", "\t", "1", "23", "456", "7,890", "1,234,567", "0.5", "1e-4", "3k", "2M", "10/100", "损失",
    "api_key", "token", "hf_token", "--password", "secret", "abc123def456ghi789", "zzzzzzzz",
    "\x1b[31m", "\x1b[", "\x1b]0;title", "\x1b]0;t\x07", "\x1bP1", "\x1b(B", "\x1b", "\x07", "\n",
    "[00:10<00:05,", "it/s]", "total timesteps", ",pass: ",
    "|    total_timesteps |", "| rollout/n_updates │",
)  # fmt: skip


def is_possessive(pattern: Any) -> bool:
    return bool(expand_possessive(pattern.pattern) != pattern.pattern)


def possessive_patterns() -> list[Any]:
    """Every pattern with a possessive quantifier in the modules that have any."""
    modules = (named_values, log_text, secret_patterns)
    constants = [value for module in modules for value in (*vars(module).values(), *vars(module._RX).values())]
    rows = [row.pattern for row in formats.STEP_FORMATS]
    return [value for value in constants + rows if isinstance(value, _LazyPattern) and is_possessive(value)]


def random_lines(seed: int) -> Iterator[str]:
    source = random.Random(seed)
    for _ in range(LINES):
        yield "".join(source.choices(WORDS, k=source.randint(1, 14)))


@_comparable
@pytest.mark.parametrize("pattern", possessive_patterns(), ids=lambda pattern: repr(pattern.pattern)[:40])
def test_without_possessive_quantifiers_a_pattern_matches_exactly_the_same(pattern: Any) -> None:
    expanded = re.compile(expand_possessive(pattern.pattern), pattern.flags & ~re.UNICODE)
    added = set(expanded.groupindex.values()) - {
        number for name, number in expanded.groupindex.items() if name in pattern.groupindex
    }
    own = [number for number in range(1, expanded.groups + 1) if number not in added]
    assert len(own) == pattern.groups
    matches = 0
    for line in random_lines(seed=7):
        text = line.encode() if isinstance(pattern.pattern, bytes) else line
        native = [(m.span(), *m.groups()) for m in pattern.finditer(text)]
        rewritten = [(m.span(), *(m[number] for number in own)) for m in expanded.finditer(text)]
        assert rewritten == native, repr(line)
        matches += len(native)
    assert matches > 0


@_comparable
def test_the_patterns_with_possessive_quantifiers_are_found() -> None:
    assert len(possessive_patterns()) >= 6


@pytest.mark.parametrize(
    ("pattern", "expanded"),
    [
        ("a*+b", "(?:(?=(?P<_held1>a*))(?P=_held1))b"),
        ("(?:ab)++", "(?:(?=(?P<_held1>(?:ab)+))(?P=_held1))"),
        (r"[x+\]]{2,}+", r"(?:(?=(?P<_held1>[x+\]]{2,}))(?P=_held1))"),
        (r"\x1b?+", r"(?:(?=(?P<_held1>\x1b?))(?P=_held1))"),
        ("(?>a|ab)c", "(?:(?=(?P<_held1>a|ab))(?P=_held1))c"),
        ("(?:a*+b)++", "(?:(?=(?P<_held2>(?:(?:(?=(?P<_held1>a*))(?P=_held1))b)+))(?P=_held2))"),
        *((same, same) for same in (r"\++a", "[*+]+", "a+?b", "a{2}b", "a{b}+", r"(a)\1", "(?P<n>a)(?P=n)+", "(?i)a+")),
    ],
)
def test_a_possessive_quantifier_becomes_a_lookahead_and_nothing_else_changes(pattern: str, expanded: str) -> None:
    assert expand_possessive(pattern) == expanded
    re.compile(expanded)


def test_a_reference_by_number_is_refused_where_numbers_would_shift() -> None:
    with pytest.raises(re.error, match="numbered group"):
        expand_possessive(r"(a)b*+\1")


def test_all_matches_are_read_by_name_whatever_groups_were_added() -> None:
    expanded = re.compile(expand_possessive(r"(?P<name>\w++)=(?P<value>\d++)?"))
    assert expanded.groups == 4
    assert find_all(expanded, "name", "value")("a=1 b=") == [("a", "1"), ("b", "")]
    plain = re.compile(r"(?P<name>\w+)=(?P<value>\d+)?")
    assert find_all(plain, "name", "value")("a=1 b=") == [("a", "1"), ("b", "")]


def test_a_pattern_is_compiled_once_when_it_is_first_used() -> None:
    pattern = compile_lazily(r"(?P<word>\w+)!", re.IGNORECASE)  # possessive, an older Python would count more groups
    assert pattern.pattern == r"(?P<word>\w+)!"
    assert vars(pattern)["_compiled"] is None
    matched = pattern.search("so it is!")
    assert matched is not None
    assert (matched["word"], pattern.groups, pattern.flags & re.IGNORECASE) == ("is", 1, re.IGNORECASE)
    assert pattern.search is pattern.search, "looked up once"
    assert pattern.sub("?", "no! NO!") == "? ?"
    assert not hasattr(pattern, "__len__")


def test_every_pattern_of_the_program_compiles() -> None:
    for room in ["text", "system", "command", "record", "diagnosis", "recovery", "gpus"]:
        for module in pkgutil.walk_packages([f"{mcp_server.__path__[0]}/{room}"], f"mcp_server.{room}."):
            importlib.import_module(module.name)
    gc.unfreeze()  # what was imported while tests were collected is listed too
    patterns = [found for found in gc.get_objects() if isinstance(found, _LazyPattern)]
    gc.freeze()
    assert len(patterns) > 400
    for pattern in patterns:
        pattern.flags  # noqa: B018 - compiles it


@pytest.mark.parametrize(("pattern", "number"), [("a", None), ("a*+", None), ("(a)", 1), (r"\s*+(a)", 2), ("(a*+)", 1)])
def test_the_first_group_is_the_first_that_its_author_wrote(pattern: str, number: int | None) -> None:
    assert first_group(re.compile(expand_possessive(pattern))) == number


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(", "unterminated"),
        ("x" * 1001, "more than 1,000 characters"),
        ("(a+)+", "repeat within a repeat"),
        ("((a|b)*c)*", "repeat within a repeat"),
    ],
)
def test_a_users_pattern_that_cannot_be_used_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(PatternError, match=why):
        compile_user_pattern(pattern)
