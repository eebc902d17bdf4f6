"""Blueprints in many spellings, each with the values that its writer meant or the lines that refuse it."""

import functools
from pathlib import Path
from typing import Any

import yaml

from mcp_server.blueprints.parser import Blueprint, parse_blueprint
from tests.support.rows import for_each

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # every worker reads them
DATA = Path(__file__).parents[1] / "data" / "blueprints"


@functools.cache
def spellings() -> dict[str, dict[str, Any]]:
    """By name."""
    files = ("spellings.yaml", "spellings_again.yaml", "spellings_people.yaml")  # of several writers
    texts = [(DATA / file).read_text(encoding="utf-8") for file in files]
    return {each["name"]: each for text in texts for each in yaml.load(text, Loader=LOADER)}


def faults_by_line(blueprint: Blueprint, *, fatal: bool) -> dict[int, str]:
    faults: dict[int, str] = {}
    for fault in blueprint.faults:
        if fault.fatal is fatal:
            faults[fault.line] = f"{faults.get(fault.line, '')} {fault.text}"
    return faults


def value_of(blueprint: Blueprint, name: str) -> object:
    value = getattr(blueprint, name) if hasattr(blueprint, name) else getattr(blueprint.options, name)
    return list(value) if isinstance(value, tuple) else value


@for_each(spellings())
def test_a_spelling_has_the_values_that_its_writer_meant_or_is_refused_with_its_lines(name: str) -> None:
    expected = dict(spellings()[name]["expected"])
    blueprint = parse_blueprint(spellings()[name]["text"])
    for key, fatal in (("refused", True), ("said", False)):
        faults, words = faults_by_line(blueprint, fatal=fatal), expected.pop(key, {})
        assert faults.keys() == words.keys(), faults
        assert all(word in faults[line] for line, word in words.items()), faults
    assert expected.pop("notes_has", "") in blueprint.notes
    assert expected.pop("defaults_used_has", "exp_purpose") in (*blueprint.defaults_used, "exp_purpose")
    assert expected.pop("defaults_used_lacks", "") not in blueprint.defaults_used
    assert {key: value_of(blueprint, key) for key in expected} == expected


def test_there_are_many_spellings() -> None:
    refused = [name for name, spelling in spellings().items() if "refused" in spelling["expected"]]
    assert len(spellings()) >= 300
    assert len(refused) >= 80
