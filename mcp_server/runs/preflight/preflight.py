"""Whether what a training needs is here, before it is started: everything at once, and nothing is changed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from mcp_server.blueprints.apply import check_file
from mcp_server.errors import RunwardError
from mcp_server.hosts.config import Environment, Host, Site, host_here, settings
from mcp_server.hosts.path_checks import Roots, is_missing
from mcp_server.runs.preflight import checks, python_imports
from mcp_server.runs.preflight.answers import Preflight, Problem
from mcp_server.runs.preflight.checks import Ground, Wish, problem_of
from mcp_server.store.run_store import RunStore

_PATIENCE_S, _GPU_PATIENCE_S = 10.0, 30.0
_LOOKS = {
    "path": checks.files,
    "command": checks.command,
    "disk": checks.disk,
    "port": checks.taken_ports,
    "secret": checks.secrets,
}


async def preflight(wish: Wish, store: RunStore, environ: Mapping[str, str], blueprint: str | None = None) -> Preflight:
    """Look at everything that ``wish`` and a blueprint name, and at what every run needs; says only what is wrong.

    What ``wish`` says stands above what the blueprint says.
    """
    first: list[Problem] = []
    ground = _ground(wish, store, environ, first)
    if blueprint is not None:
        roots = Roots.of(ground.site, ground.host)
        wish = await anyio.to_thread.run_sync(partial(_with_blueprint, wish, blueprint, first, roots))
        ground = replace(ground, wish=wish)
    looks: dict[str, tuple[float, Callable[[], Awaitable[list[Problem]]]]] = {
        "python": (python_imports.PATIENCE_S + _PATIENCE_S, partial(checks.python, ground)),
        **{what: (_PATIENCE_S, partial(_aside, look, ground)) for what, look in _LOOKS.items()},
        "gpus": (_GPU_PATIENCE_S, partial(checks.gpus, ground)),
        "ray": (_PATIENCE_S, partial(checks.ray, ground)),
    }
    found: dict[str, list[Problem]] = {"first": first, **{what: [] for what in looks}}
    running: list[str] = []

    async def look(what: str, within_s: float, ask: Callable[[], Awaitable[list[Problem]]]) -> None:
        found[what] = [Problem(what=what, text=f"No answer within {within_s:g} s.", remedy="Look at it by hand.")]
        with anyio.move_on_after(within_s):
            try:
                found[what] = await ask()
            except RunwardError as error:
                found[what] = [problem_of(what, error)]
            except (OSError, ValueError) as error:  # a name too long, a NUL in it
                text = f"It cannot be looked at: {getattr(error, 'strerror', None) or error}."
                found[what] = [Problem(what=what, text=text, remedy="Correct the path.")]

    async def see_others() -> None:
        with anyio.move_on_after(_PATIENCE_S):
            running.extend(await checks.running(ground))

    async with anyio.create_task_group() as group:
        group.start_soon(see_others)
        for what, (within_s, ask) in looks.items():
            group.start_soon(look, what, within_s, ask)
    problems = [problem for each in found.values() for problem in each]
    return Preflight(ok=not problems, problems=problems, running=running or None)


def _with_blueprint(wish: Wish, path: str, problems: list[Problem], roots: Roots) -> Wish:
    """Return ``wish`` with what a blueprint says where it says nothing itself; adds what is wrong to ``problems``."""
    try:
        check = check_file(path, wish.cwd, roots)
    except RunwardError as error:
        problems.append(problem_of("blueprint", error))
        return wish
    problems += [
        Problem(what="blueprint", text=f"Line {each.line}: {each.text}", remedy=f"Mend it in {path}.")
        for each in check.problems
    ]
    # What is not there has been told with its line.
    cwd = check.codebase_dir if check.codebase_dir and not is_missing(Path(check.codebase_dir)) else None
    python = check.venv_exe if check.venv_exe and not is_missing(Path(check.venv_exe)) else None
    config = [check.yaml_path] if check.yaml_path and not is_missing(Path(check.yaml_path)) else []
    return replace(
        wish,
        cwd=wish.cwd or cwd,
        python=wish.python or python,
        command=wish.command or (check.launch_command if cwd else None),
        paths=[*wish.paths, *config],
        result_dir=wish.result_dir or check.result_dir,
    )


def _ground(wish: Wish, store: RunStore, environ: Mapping[str, str], problems: list[Problem]) -> Ground:
    site, host, environment = Site(), Host(), Environment()
    try:
        site = settings(store.home)
        host = host_here(site)
        host_here(site, wish.host)
    except RunwardError as error:
        problems.append(problem_of("host", error))
    try:
        environment = site.environment(wish.environment, host)
    except RunwardError as error:
        problems.append(problem_of("environment", error))
    return Ground(wish, store, environ, site, host, environment)


async def _aside(look: Callable[[Ground], Iterator[Problem]], ground: Ground) -> list[Problem]:
    """Let a look that may block have a thread of its own, which may be left behind."""
    return await anyio.to_thread.run_sync(lambda: list(look(ground)), abandon_on_cancel=True)
