"""Preflight for another host: what a launch there would refuse, paths, disk and GPUs. The host looks for itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mcp_server.backends.ssh.ssh_backend import query_host_gpus
from mcp_server.backends.ssh.ssh_channel import channel_of
from mcp_server.errors import BadArgument, GpusNotFree, RunwardError, SecretNotSet
from mcp_server.hosts.config import find_host, find_mirror, read_hosts_file
from mcp_server.record.spec import LaunchRequest
from mcp_server.runs.launch.launch import rehearse
from mcp_server.runs.launch.resolve import apply_host_defaults
from mcp_server.runs.preflight.checks import Preflight, PreflightRequest, Problem, describe_error
from mcp_server.store.state_home import StateHome
from mcp_server.text.formatting import format_size
from mcp_server.threads import run_in_thread

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
    problems = [
        Problem(what=what, text=f"{mirror.name}: {text}", remedy=remedy) for what, text, remedy in answer["problems"]
    ]
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
