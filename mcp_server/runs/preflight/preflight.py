"""Check a machine before a launch: all checks at once; only problems are reported, and nothing is changed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from mcp_server.blueprints.apply import check_file
from mcp_server.errors import RunwardError
from mcp_server.hosts.config import Environment, Host, Site, find_this_host, read_hosts_file
from mcp_server.hosts.path_checks import Roots, is_missing
from mcp_server.runs.preflight import checks, python_imports
from mcp_server.runs.preflight.answers import Preflight, Problem
from mcp_server.runs.preflight.checks import CheckContext, PreflightRequest, describe_error
from mcp_server.store.run_store import RunStore

_PATIENCE_S, _GPU_PATIENCE_S = 10.0, 30.0
_BLOCKING_CHECKS = {
    "path": checks.check_files,
    "command": checks.check_command,
    "disk": checks.check_disk,
    "port": checks.check_ports,
    "secret": checks.check_secrets,
}


async def run_preflight(request: PreflightRequest, store: RunStore, environ: Mapping[str, str]) -> Preflight:
    """Check everything that ``request`` and its blueprint name, and what every run needs.

    An argument of ``request`` wins over the blueprint.
    """
    first: list[Problem] = []
    context = _prepare(request, store, environ, first)
    if request.blueprint is not None:
        roots = Roots.of(context.site, context.host)
        request = await anyio.to_thread.run_sync(partial(_apply_blueprint, request, request.blueprint, first, roots))
        context = replace(context, request=request)
    all_checks: dict[str, tuple[float, Callable[[], Awaitable[list[Problem]]]]] = {
        "python": (python_imports.PATIENCE_S + _PATIENCE_S, partial(checks.check_python, context)),
        **{what: (_PATIENCE_S, partial(_check_in_thread, check, context)) for what, check in _BLOCKING_CHECKS.items()},
        "gpus": (_GPU_PATIENCE_S, partial(checks.check_gpus, context)),
        "ray": (_PATIENCE_S, partial(checks.check_ray, context)),
    }
    problems: dict[str, list[Problem]] = {"first": first, **{what: [] for what in all_checks}}
    running: list[str] = []

    async def run_check(what: str, within_s: float, check: Callable[[], Awaitable[list[Problem]]]) -> None:
        problems[what] = [Problem(what=what, text=f"No answer within {within_s:g} s.", remedy="Check it by hand.")]
        with anyio.move_on_after(within_s):
            try:
                problems[what] = await check()
            except RunwardError as error:
                problems[what] = [describe_error(what, error)]
            except (OSError, ValueError) as error:  # a name too long, a NUL in it
                text = f"It cannot be checked: {getattr(error, 'strerror', None) or error}."
                problems[what] = [Problem(what=what, text=text, remedy="Correct the path.")]

    async def list_running() -> None:
        with anyio.move_on_after(_PATIENCE_S):
            running.extend(await checks.list_running(context))

    async with anyio.create_task_group() as group:
        group.start_soon(list_running)
        for what, (within_s, check) in all_checks.items():
            group.start_soon(run_check, what, within_s, check)
    all_problems = [problem for of_check in problems.values() for problem in of_check]
    return Preflight(ok=not all_problems, problems=all_problems, running=running or None)


def _apply_blueprint(request: PreflightRequest, path: str, problems: list[Problem], roots: Roots) -> PreflightRequest:
    """Return ``request`` with its open fields filled in from a blueprint; appends its problems to ``problems``."""
    try:
        check = check_file(path, request.cwd, roots)
    except RunwardError as error:
        problems.append(describe_error("blueprint", error))
        return request
    problems += [
        Problem(what="blueprint", text=f"Line {each.line}: {each.text}", remedy=f"Fix it in {path}.")
        for each in check.problems
    ]
    # A missing file is already among the problems, with its line.
    cwd = check.codebase_dir if check.codebase_dir and not is_missing(Path(check.codebase_dir)) else None
    python = check.venv_exe if check.venv_exe and not is_missing(Path(check.venv_exe)) else None
    config = [check.yaml_path] if check.yaml_path and not is_missing(Path(check.yaml_path)) else []
    return replace(
        request,
        cwd=request.cwd or cwd,
        python=request.python or python,
        command=request.command or (check.launch_command if cwd else None),
        paths=[*request.paths, *config],
        result_dir=request.result_dir or check.result_dir,
    )


def _prepare(
    request: PreflightRequest, store: RunStore, environ: Mapping[str, str], problems: list[Problem]
) -> CheckContext:
    """Return the input of all checks; appends problems of hosts.toml to ``problems``."""
    site, host, environment = Site(), Host(), Environment()
    try:
        site = read_hosts_file(store.home)
        host = find_this_host(site)
        find_this_host(site, request.host)
    except RunwardError as error:
        problems.append(describe_error("host", error))
    try:
        environment = site.environment(request.environment, host)
    except RunwardError as error:
        problems.append(describe_error("environment", error))
    return CheckContext(request, store, environ, site, host, environment)


async def _check_in_thread(check: Callable[[CheckContext], Iterator[Problem]], context: CheckContext) -> list[Problem]:
    """Run a check that can block in a thread of its own, which is abandoned if it takes too long."""
    return await anyio.to_thread.run_sync(lambda: list(check(context)), abandon_on_cancel=True)
