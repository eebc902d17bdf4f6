"""Checks of the values of every cell before any is written: what would be refused at midnight is refused now."""

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from mcp_server.command.inputs import find_inputs, find_param_inputs
from mcp_server.command.shell import ReadCommand, parse
from mcp_server.errors import BadArgument, RunwardError
from mcp_server.hosts.config import Environment, HostsFile, find_host, read_hosts_file
from mcp_server.hosts.environment import find_distinct_secrets
from mcp_server.hosts.path_checks import MissingInput, find_missing_inputs, refuse_first
from mcp_server.record.spec import LaunchRequest
from mcp_server.record.sweeps.sweep_spec import BEST, Cell, SweepSpec
from mcp_server.runs.launch.arguments import check_arguments, check_no_key, check_no_secret, check_unicode
from mcp_server.store.state_home import StateHome
from mcp_server.sweeps.plan.filling import ALWAYS_FILLED, PLACEHOLDER, check_filled, fill_names, make_request
from mcp_server.sweeps.plan.plan_checks import spell_switches
from mcp_server.sweeps.plan.search import draw_points, parse_search
from mcp_server.text.secret_patterns import find_keys

_TYPO = 0.75  # of difflib: 1.0 is the same name
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
    site, known, known_names = read_hosts_file(home), set[object](), _list_names(spec)
    for cell in spec.cells:
        begun = begin_cell(spec, cell)
        request = make_request(spec, begun, 1)
        try:
            _check_placeholders(begun, request)
            if cell.promote == BEST:
                check_filled(begun, known_names)
            if request.command and request.blueprint is None:
                command = parse(request.command)
                check_arguments(request, command)
                _check_files(request, command, site, known, is_first=is_of_first_phase(spec, cell))
        except RunwardError as error:
            raise SweepRefused(cell.name, error) from error


def _list_names(spec: SweepSpec) -> set[str]:
    """Return the parameters that the best cell may have, and names in braces that are left to its program."""
    names = {name for search in spec.searches.values() for name in parse_search(search).space}
    for cell in spec.cells:
        if cell.promote != BEST:
            names.update(cell.params, PLACEHOLDER.findall(json.dumps(cell.launch, default=str)))
    return names


def begin_cell(spec: SweepSpec, cell: Cell) -> Cell:
    """Return a cell as it may begin: parameters that are chosen then have values that they may have."""
    if cell.trial is None and cell.promote != BEST:
        return cell
    params: dict[str, Any] = {}
    first = next((each for each in spec.cells if each.promote != BEST), cell)
    for each in (first, cell) if cell.promote == BEST else (cell,):
        if each.trial is not None:
            search = parse_search(spec.searches[each.phase])
            params |= draw_points(search.space, search.seed, 1)[0]
        params |= each.params
    return spell_switches(fill_names(replace(cell, params=params), spec.sweep_id))


def is_of_first_phase(spec: SweepSpec, cell: Cell) -> bool:
    """Return whether no phase runs before the cell's, so that nothing makes what it reads."""
    return cell.phase == spec.cells[0].phase


def _check_files(
    request: LaunchRequest, command: ReadCommand, site: HostsFile, known: set[object], *, is_first: bool
) -> None:
    """Refuse a cell whose config, data, model, script or other input does not exist. ``known``: those looked for."""
    host, is_far = find_host(site, request.host)
    key = (request.cwd, *find_inputs(command), *find_param_inputs(request.params, command))
    if not is_far and key not in known:
        known.add(key)
        missing = find_missing_inputs(request, command, site, host, Environment())
        refuse_first(one for one in missing if is_first or not (isinstance(one, MissingInput) and one.is_made))


def _check_placeholders(cell: Cell, request: LaunchRequest) -> None:
    """Refuse a placeholder that is nearly the name of one that there is: a program may have braces of its own."""
    known = [*cell.params, *request.params, *ALWAYS_FILLED]
    texts = [request.command, *request.env.values(), request.tensorboard or "", *map(str, request.params.values())]
    for text in texts:
        for name in PLACEHOLDER.findall(text if isinstance(text, str) else " ".join(text)):
            if name not in known and (near := difflib.get_close_matches(name, known, 2, _TYPO)):
                meant = " or ".join(f"{{{each}}}" for each in near)
                raise BadArgument("common", f"nothing fills in {{{name}}}.", f"Write {meant}.")


def _check_keys(spec: SweepSpec, cell: Cell) -> None:
    request = make_request(spec, cell, 1)
    check_no_key(request, parse(request.command))
    own = [f"{name}={value}" for name, value in cell.params.items() if isinstance(value, str)]
    if (name := next(find_keys(own), None)) is not None:
        raise BadArgument("params", f"{name[:40]} holds what looks like a key.", "Pass its variable in common.secrets.")


def _list_settings(value: object, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for inner_name, inner in value.items():
            yield from _list_settings(inner, inner_name if inner_name != "choices" else name)
    elif isinstance(value, list):
        for inner in value:
            yield from _list_settings(inner, name)
    elif isinstance(value, str):
        yield name, value
