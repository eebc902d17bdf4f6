"""Check a machine before a launch: all checks at once. Nothing is changed, and nothing that a caller names is run."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from mcp_server.backends.ssh.ssh_backend import query_host_gpus
from mcp_server.backends.ssh.ssh_channel import channel_of
from mcp_server.blueprints.apply import check_file
from mcp_server.errors import BadArgument, GpusNotFree, RunwardError, SecretNotSet
from mcp_server.hosts.config import (
    Environment,
    Host,
    HostsFile,
    find_host,
    find_mirror,
    find_this_host,
    read_hosts_file,
)
from mcp_server.hosts.path_checks import Roots, is_missing
from mcp_server.record.spec import LaunchRequest
from mcp_server.runs.launch.arguments import check_options
from mcp_server.runs.launch.launch import rehearse
from mcp_server.runs.launch.resolve import apply_host_defaults
from mcp_server.runs.preflight import checks
from mcp_server.runs.preflight.checks import (
    CheckContext,
    CheckOutcome,
    Preflight,
    PreflightRequest,
    Problem,
    describe_error,
)
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.text.formatting import format_size, shorten_quotes
from mcp_server.threads import run_in_thread

_PATIENCE_S, _GPU_PATIENCE_S = 10.0, 30.0
_PROBLEM_CHARS = 1_500
_BLOCKING_CHECKS = {
    "python": checks.check_python,
    "path": checks.check_files,
    "command": checks.check_command,
    "disk": checks.check_disk,
    "port": checks.check_ports,
    "secret": checks.check_secrets,
    "recovery": checks.check_recovery,
}


async def run_preflight(request: PreflightRequest, store: RunStore, environ: Mapping[str, str]) -> Preflight:
    """Check all that ``request`` and its blueprint name, where an argument wins, and what every run needs."""
    first: list[Problem] = []
    given = request
    context = await run_in_thread(_prepare, request, store, environ, first)
    if request.blueprint is not None:
        roots = Roots.of(context.site, context.host)
        request = await run_in_thread(partial(_apply_blueprint, request, request.blueprint, first, roots))
        context = replace(context, request=request)
    all_checks: dict[str, tuple[float, Callable[[], Awaitable[CheckOutcome]]]] = {
        **{
            what: (_PATIENCE_S, partial(_check_in_thread, what, check, context))
            for what, check in _BLOCKING_CHECKS.items()
        },
        "gpus": (_GPU_PATIENCE_S, partial(checks.check_gpus, context)),
        "ray": (_PATIENCE_S, partial(checks.check_ray, context)),
        "launch": (_GPU_PATIENCE_S, partial(checks.check_launch, replace(context, request=given))),
    }
    outcomes: dict[str, CheckOutcome] = {"first": CheckOutcome(first), **{what: CheckOutcome() for what in all_checks}}
    running: list[str] = []

    async def run_check(what: str, within_s: float, check: Callable[[], Awaitable[CheckOutcome]]) -> None:
        late = Problem(what=what, text=f"No answer within {within_s:g} s.", remedy="Check it by hand.")
        outcomes[what] = CheckOutcome([late])
        with anyio.move_on_after(within_s):
            try:
                outcomes[what] = await check()
            except RunwardError as error:
                outcomes[what] = CheckOutcome([describe_error(_name_subject(what, error), error)])
            except (OSError, ValueError, RuntimeError) as error:  # a name too long, a NUL in it, a loop of links
                text = f"It cannot be checked: {getattr(error, 'strerror', None) or error}."
                outcomes[what] = CheckOutcome([Problem(what=what, text=text, remedy="Correct the path.")])

    async def list_running() -> None:
        with anyio.move_on_after(_PATIENCE_S):
            running.extend(await checks.list_running(context))

    async with anyio.create_task_group() as group:
        group.start_soon(list_running)
        for what, (within_s, check) in all_checks.items():
            group.start_soon(run_check, what, within_s, check)
    refusal = outcomes["launch"]
    listed = [problem for what, each in outcomes.items() if what != "launch" for problem in each.problems]
    others = list({(problem.what, problem.text): problem for problem in listed}.values())
    texts = {problem.text for problem in others}
    more = [problem for problem in refusal.problems if problem.text not in texts and not _is_listed(problem, others)]
    facts = [text for each in outcomes.values() for text in each.facts]
    all_problems = [_shorten(problem) for problem in (*others, *more)]
    found = list(dict.fromkeys(facts)) or None
    return Preflight(ok=not all_problems, problems=all_problems, found=found, running=running or None)


def _shorten(problem: Problem) -> Problem:
    """Return a problem whose texts quote at most the ends of a long argument."""
    text, remedy = (shorten_quotes(part, _PROBLEM_CHARS) for part in (problem.text, problem.remedy))
    return problem.model_copy(update={"text": text, "remedy": remedy})


def _name_subject(what: str, error: RunwardError) -> str:
    """Return what an error is about: the argument that a launch refuses, else ``what``."""
    if isinstance(error, BadArgument):
        return error.argument
    return {GpusNotFree: "gpus", SecretNotSet: "secret"}.get(type(error), what)


def _is_listed(refusal: Problem, others: list[Problem]) -> bool:
    """Return whether a launch's refusal repeats other problems: of a blueprint it names all lines at once."""
    return refusal.what == "launch" and any(problem.what in ("blueprint", "host", "environment") for problem in others)


def _apply_blueprint(request: PreflightRequest, path: str, problems: list[Problem], roots: Roots) -> PreflightRequest:
    """Return ``request`` with its open fields filled in from a blueprint; appends its problems to ``problems``."""
    arguments: dict[str, object] = {
        "codebase_dir": request.cwd,
        "launch_command": request.command,
        "yaml_path": request.command,
    }
    arguments |= {"max_time": request.launch.time_limit_s, "recovery": request.recovery, "params": request.params}
    arguments["seeds"] = request.command or "seed" in request.params
    given = {name for name, value in arguments.items() if value}
    try:
        check = check_file(path, request.cwd, roots, check_options, given)
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
        command=request.command or (check.launch_command if cwd else None) or "",
        paths=[*request.paths, *config],
        result_dir=request.result_dir or check.result_dir,
        params={**(check.params or {}), **request.params},
        recovery=check.recovery if request.recovery is None else request.recovery,
    )


def _prepare(
    request: PreflightRequest, store: RunStore, environ: Mapping[str, str], problems: list[Problem]
) -> CheckContext:
    site, host, environment = HostsFile(), Host(), Environment()
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


async def _check_in_thread(
    what: str, check: Callable[[CheckContext], Iterator[Problem | str]], context: CheckContext
) -> CheckOutcome:
    """Run a check in a thread, which is abandoned if it takes too long. What it yielded before an error counts."""

    def run() -> CheckOutcome:
        outcome = CheckOutcome()
        try:
            for each in check(context):
                (outcome.facts if isinstance(each, str) else outcome.problems).append(each)  # type: ignore[arg-type]
        except RunwardError as error:
            outcome.problems.append(describe_error(_name_subject(what, error), error))
        return outcome

    return await run_in_thread(run)


_LOW_DISK_BYTES, _GB = 2**30, 10**9


async def check_far_host(request: PreflightRequest, home: StateHome, environ: Mapping[str, str]) -> Preflight:
    """Check on another host what a launch needs there: it looks for itself. HostUnreachable: it does not answer."""
    mirror = Path(await run_in_thread(find_mirror, home, str(request.host)))
    problems, found = await run_in_thread(_check_files, request, mirror)
    more, facts = await run_in_thread(_check_programs, request, mirror, home)
    problems, found = problems + more, found + facts
    try:
        await rehearse(request.launch, home, environ)
    except RunwardError as error:
        what = error.argument if isinstance(error, BadArgument) else "launch"
        what = {GpusNotFree: "gpus", SecretNotSet: "secret"}.get(type(error), what)
        problems.append(describe_error(what, error))
    return Preflight(ok=not problems, problems=problems, found=found or None)


def _check_programs(request: PreflightRequest, mirror: Path, home: StateHome) -> tuple[list[Problem], list[str]]:
    site = read_hosts_file(home)
    host, _ = find_host(site, str(request.host))
    environment = site.environment(request.environment, host)
    channel = channel_of(mirror)
    login = {"PATH": str(channel.hello.get("path") or ""), "PYTHONPATH": str(channel.hello.get("pythonpath") or "")}
    env = apply_host_defaults(LaunchRequest("true", env=dict(request.env)), host, environment, login).env
    answer, _ = channel.ask(
        "check",
        env=env,
        cwd=request.cwd,
        python=request.python or environment.python or host.python,
        imports=request.imports,
        ports=request.ports,
        ray=request.ray and environment.ray is None,
    )
    there = f"{mirror.name}: "
    problems = [Problem(what=what, text=there + text, remedy=remedy) for what, text, remedy in answer["problems"]]
    return problems, [f"{mirror.name}: {text}" for text in answer["found"]]


def _check_files(request: PreflightRequest, mirror: Path) -> tuple[list[Problem], list[str]]:
    channel = channel_of(mirror)
    problems: list[Problem] = []
    channel.open()
    hello = channel.hello
    found = [f"{mirror.name}: Python {hello.get('python')}, {hello.get('tmux') or 'no tmux'}."]
    paths = [str(Path(request.cwd or "/") / path) if path[:1] not in "/~" else path for path in request.paths]
    described: dict[str, dict[str, Any]] = channel.ask("paths", paths=paths)[0]["paths"] if paths else {}
    for path, facts in described.items():
        if facts["kind"] == "missing":
            near = ", ".join(facts.get("near") or ())
            remedy = f"Near: {near}." if near else "Correct the path."
            problems.append(Problem(what="path", text=f"{mirror.name} has no {path}.", remedy=remedy))
    directory = request.result_dir or request.cwd or str(channel.hello.get("home") or "/")
    disk, _ = channel.ask("disk", path=directory)
    found.append(f"{format_size(int(disk['free']))} free at {disk['path']}.")
    if int(disk["free"]) < max(_LOW_DISK_BYTES, (request.disk_gb or 0) * _GB):
        text = f"only {format_size(int(disk['free']))} are free at {disk['path']} of {mirror.name}."
        problems.append(Problem(what="disk", text=text, remedy="Free some, or write elsewhere."))
    if request.result_dir and not disk["writable"]:
        text = f"{disk['path']} of {mirror.name} cannot be written."
        problems.append(Problem(what="result_dir", text=text, remedy="Pass another directory."))
    snapshot = query_host_gpus(mirror).snapshot
    found.append(f"{len(snapshot.gpus)} GPUs." if not snapshot.trouble else f"GPUs: {snapshot.trouble}.")
    return problems, found
