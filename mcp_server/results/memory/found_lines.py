"""A found run as one line: what it is, its figures, and why it was found. Pure."""

import contextlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from mcp_server.record.sweeps.sweep_ranking import is_seed
from mcp_server.results.memory.conditions import Question
from mcp_server.results.memory.index import Hit, normal_name, short_name, stem
from mcp_server.results.memory.vocabulary import list_meant
from mcp_server.text.formatting import significant

_MOST_DIFFERING, _MOST_REASONS = 3, 4
_BEFORE = 20  # characters of a line before the word
_SHORT = 60  # characters of a value or sentence that is shown
_SHOWN_ANYHOW = frozenset({"name", "tag", "owner", "why", "note", "verdict"})
_NOT_TOLD = frozenset({"command", "cwd", "host", "gpus", "commit"})  # settings that differ almost always, or in others


class KnownValue(NamedTuple):
    """A metric or setting of a run, with its step; None where there is none."""

    value: float | None
    step: int | None


def find_differing(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the names of settings that tell the shown runs apart, those with the fewest values first."""
    values: dict[str, set[str]] = {}
    for own in settings:
        for name, value in own.items():
            if name[0] not in ":$" and name not in _NOT_TOLD and len(value) <= _SHORT and "/" not in value:
                values.setdefault(name, set()).add(value)
    count = len(settings)
    differing = [name for name, each in values.items() if len(each) > 1 or sum(name in own for own in settings) < count]
    return sorted(differing, key=lambda name: (is_seed(name), -sum(name in own for own in settings), len(values[name])))


def describe_hit(
    hit: Hit,
    settings: Mapping[str, str],
    text: str,
    question: Question,
    values: Mapping[str, KnownValue],
    differing: Sequence[str],
) -> str:
    """Return a hit as a line: what it is, its figures, and why it was found."""
    began = _write_minute(hit.created_at)
    cause = "".join(f" {hit.facts[key]}" for key in ("cause", "nan") if hit.facts.get(key))
    cause += f" (before: {hit.facts['earlier']})" if hit.facts.get("earlier") else ""
    figures = [
        f"{name}={significant(one.value):.10g}" + (f"@{one.step}" if one.step is not None else "")
        for name, one in values.items()
        if one.value is not None
    ]
    shorts = {short_name(name): name for name in settings}
    asked = [*(each.name for each in question.comparisons), *question.shown, *question.words]
    named = [shorts[one] for name in asked for one in list_meant(short_name(normal_name(name)), shorts)]
    names = list(dict.fromkeys([*named, *differing[:_MOST_DIFFERING]]))
    reasons = [
        f"{name.removeprefix(':').removeprefix('config:')}={settings[name]}" for name in names if name in settings
    ]
    reasons += [
        f"{key}: {_quote(settings.get(f':{key}', value))}" for key, value in question.fields if key not in _SHOWN_ANYHOW
    ]
    facts = hit.facts
    why = [f"why: {_quote(facts['why'])}"] if facts.get("why") else []
    why += [_quote(facts["note"])] if facts.get("note") else []
    reasons += _quote_words(question.words, text, " ".join([hit.run_id, cause, *reasons, *why]))
    line = [f"{hit.run_id} {hit.state}{cause}", began, *figures]
    return " ".join(filter(None, line)) + (
        f" | {'; '.join([*reasons[: _MOST_REASONS + len(named)], *why])}" if reasons or why else ""
    )


def _write_minute(at: str) -> str:
    with contextlib.suppress(ValueError):
        return datetime.fromisoformat(at).strftime("%d %b %H:%MZ")
    return at


def _quote_words(words: Sequence[str], text: str, shown: str) -> list[str]:
    """Return the lines in which words stand that the answer does not show yet."""
    quoted: list[str] = []
    for word in words:
        lower = next((one for one in (stem(each).lower() for each in word.split("|")) if one in text.lower()), word)
        if lower in " ".join([shown, *quoted]).lower():
            continue
        line = next((one for one in text.split("\n") if lower in one.lower()), "")
        if line:
            at = line.rfind(" ", 0, max(0, line.lower().index(lower) - _BEFORE)) + 1
            quoted.append(_quote(line[at:]))
    return quoted


def _quote(text: str) -> str:
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 1]}…"
