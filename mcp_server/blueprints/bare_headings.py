"""Headings that no mark of markdown shows: underlined ones, and words alone on their line. Pure."""

# ruff: noqa: RUF001 - people write full-width punctuation, which is searched for here

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mcp_server.blueprints.headings import (
    ALIAS_LABEL,
    BARE,
    NO_HASHES,
    NOTES,
    OPTIONS,
    Heading,
    find_heading,
    find_in_words,
)
from mcp_server.blueprints.markdown import SourceLine

_UNDERLINE = re.compile(r" {0,3}(=+|-{2,})\s*")
_WORDS_ALONE = re.compile(r"[^\W\d_][^:：=`|<>\[\]{}\"/\\$;,.!?。，；]{1,60}?\s*[:：]?")
_TITLE = re.compile(
    r"(?:[A-ZÄÖÜÉÀ][\w'-]*)(?: (?:[A-ZÄÖÜÉÀ&][\w'-]*|of|and|for|the|to|in|on|und|et|de|du|des)){0,4}\s*:?"
)
_FEWEST_BARE = 3  # words alone on their lines that begin sections, in a document without any other heading
# Sections of one value: behind it, words alone on a line begin something else.
_SINGLE = frozenset({"codebase_dir", "venv_exe", "yaml_path", "result_dir", "max_time"})


def find_underlined(lines: Sequence[SourceLine], headings: Mapping[int, Heading]) -> dict[int, Heading]:
    """Return the headings that are underlined by ``===`` or ``---``; elsewhere these are rules."""
    underlined: dict[int, Heading] = {}
    for line, below in itertools.pairwise(lines):
        mark = _UNDERLINE.fullmatch(below.text) if below.text[:4].strip()[:1] in ("=", "-") else None
        if mark is None or line.fence is not None or line.level or not line.content or below.number != line.number + 1:
            continue
        heading = find_heading(replace(line, level=1 if mark[1][0] == "=" else 2, list_mark=""))
        if (
            heading is not None
            and not heading.is_row
            and (line.number not in headings or headings[line.number].level == NO_HASHES)
        ):
            underlined[line.number] = heading
    return underlined


def find_bare(lines: Sequence[SourceLine], headings: Mapping[int, Heading]) -> dict[int, Heading]:
    """Return the headings that are words alone on a line, with text below.

    Sections begin so only in a document that has no other headings, notes in every document.
    """
    bare: dict[int, Heading] = {}
    single, has_value, is_after_blank = "", False, True
    for line, below in itertools.pairwise([*lines, SourceLine(0, "", "", "")]):
        text = line.content.strip()
        if (heading := headings.get(line.number)) is not None:
            single, has_value = heading.section if heading.section in _SINGLE else "", bool(heading.inline)
        elif line.level:
            single = ""
        elif line.fence is None and is_after_blank and not line.list_mark and _WORDS_ALONE.fullmatch(text):
            name = find_in_words(text.rstrip(" :："))
            if name == NOTES or (name is None and single and has_value and _TITLE.fullmatch(text) and below.content):
                bare[line.number] = Heading(NOTES, ALIAS_LABEL, NO_HASHES, text, "" if name else text)
                single = ""
            elif name is not None and name not in OPTIONS and below.content:
                bare[line.number] = Heading(name, BARE, NO_HASHES, text, "")
        has_value = has_value or bool(single and text and headings.get(line.number) is None)
        is_after_blank = not text
    sections = [heading.section for heading in bare.values() if heading.section != NOTES]
    is_bare = len(sections) >= _FEWEST_BARE and "launch_command" in sections
    if is_bare and not any(heading.section != NOTES for heading in headings.values()):
        return bare
    return {number: heading for number, heading in bare.items() if heading.section == NOTES}
