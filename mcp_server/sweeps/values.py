"""Checks of the values of every cell before any is written: what would be refused at midnight is refused now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mcp_server.errors import BadArgument, RunwardError
from mcp_server.hosts.environment import find_distinct_secrets
from mcp_server.record.sweep_spec import Cell, SweepSpec
from mcp_server.runs.arguments import check_arguments, check_no_key, check_no_secret, check_unicode
from mcp_server.store.state_home import StateHome
from mcp_server.sweeps.requests import make_request
from mcp_server.text.secret_patterns import find_keys
from mcp_server.text.shell import parse

_NOT_SEARCHED = frozenset({"cwd", "blueprint", "secrets"})  # for values of secrets, as at a launch


class SweepRefused(RunwardError):
    """The launch of a cell would be refused."""

    def __init__(self, cell: str, error: RunwardError) -> None:
        super().__init__(f"Cell {cell}: {error.cause}", "No cell was started.", error.remedy)
        self.cell = cell


def check_values(spec: SweepSpec, home: StateHome, environ: Mapping[str, str]) -> None:
    """Refuse a sweep with a cell whose arguments no launch takes, or that hold a key. Reads the secrets file.

    Raises:
        BadArgument: a search, or the sweep's own settings, cannot be kept.
        SweepRefused: names the cell; by its number where its name may hold a key.
    """
    facts = spec.facts()
    check_unicode(facts)
    searched = [f"{name}={value}" for name, value in _list_settings(spec.searches)]
    if next(find_keys(searched), None) is not None:
        raise BadArgument("search", "holds what looks like a key.", "Pass its variable in common.secrets.")
    for number, cell in enumerate(spec.cells, 1):
        try:
            _check_keys(spec, cell)
        except RunwardError as error:
            raise SweepRefused(f"{number} of {len(spec.cells)}", error) from None
    secrets = find_distinct_secrets(environ, home.secrets)
    launches = [{n: v for n, v in cell.launch.items() if n not in _NOT_SEARCHED} for cell in spec.cells]
    own = [{n: v for n, v in cell.items() if n not in ("launch", "overrides")} for cell in facts["cells"]]  # one text
    check_no_secret({**facts, "cells": [launches, own], "tmux_socket": ""}, secrets)
    for cell in spec.cells:
        request = make_request(spec, cell, 1)
        try:
            if request.command and request.blueprint is None:
                check_arguments(request, parse(request.command))
        except RunwardError as error:
            raise SweepRefused(cell.name, error) from error


def _check_keys(spec: SweepSpec, cell: Cell) -> None:
    request = make_request(spec, cell, 1)
    check_no_key(request, parse(request.command))
    own = [f"{name}={value}" for name, value in cell.params.items() if isinstance(value, str)]
    if (name := next(find_keys(own), None)) is not None:
        raise BadArgument("params", f"{name[:40]} holds what looks like a key.", "Pass its variable in common.secrets.")


def _list_settings(value: object, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the texts in a table, at any depth, each with the name next above it."""
    if isinstance(value, Mapping):
        for inner_name, inner in value.items():
            yield from _list_settings(inner, inner_name if inner_name != "choices" else name)
    elif isinstance(value, list):
        for inner in value:
            yield from _list_settings(inner, name)
    elif isinstance(value, str):
        yield name, value
