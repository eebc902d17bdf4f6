"""Starting a run: arguments become a spec, then a directory, then a supervisor."""

from __future__ import annotations

import json
import os
import secrets as random
import shutil
import socket
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path

import anyio

from mcp_server.backends.base import backend_of, load_backend
from mcp_server.errors import BadArgument, GpusNotFree, LaunchFailed, RunwardError
from mcp_server.gpus.leases import lease_directory
from mcp_server.hosts.environment import check_environment, secrets_by_name
from mcp_server.record.environment import base_environment
from mcp_server.record.handover import Handover
from mcp_server.record.run_directory import LAYOUT, RunDir, boot_id, now, write_json
from mcp_server.record.script import LONGEST_NAME, name_of, slug
from mcp_server.record.spec import LaunchRequest, RunSpec
from mcp_server.record.state import Run
from mcp_server.runs.cleanup import clean_up
from mcp_server.runs.gpu_admission import check_admission, check_gpu_arguments, count_cpu_slots
from mcp_server.runs.idempotency import held_key, known_run
from mcp_server.runs.parameters import check_no_secret, check_params, checked_policy
from mcp_server.store.file_watch import FileWatch
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.text.regex import checked
from mcp_server.text.shell import parse

_ID_LETTERS = "abcdefghjkmnpqrstvwxyz23456789"  # none that a reader confuses
_CLEANUP_S = 2.0  # a launch does not wait longer for screens that do not close


def check_name(name: str) -> None:
    """Refuse names that could be taken for something else.

    Raises:
        BadArgument: empty, too long, or with ``/`` ``:`` ``..`` or control characters in it.
    """
    if not name.strip() or len(name) > LONGEST_NAME:
        raise BadArgument("name", f"must have 1 to {LONGEST_NAME} characters, this one has {len(name)}.")
    if any(part in name for part in ("/", "\\", ":", "..")) or not name.isprintable():
        raise BadArgument("name", "must hold no '/', '\\', ':', '..' or control characters.")


def plan(request: LaunchRequest, home: StateHome, environ: Mapping[str, str]) -> tuple[RunSpec, Handover]:
    """Turn a request into a spec and what is handed over in memory; touches nothing.

    Raises:
        BadArgument, BlueprintInvalid, SecretNotSet, SecretsFileOpen, TmuxMissing, …: it cannot be carried out.
    """
    from mcp_server.hosts.defaults import own_ray  # noqa: PLC0415 - a server starts without them
    from mcp_server.runs.resolve import settle  # noqa: PLC0415

    settled = settle(request, home, environ)
    request = settled.request
    words = [request.command] if isinstance(request.command, str) else request.command
    if not words or not words[0].strip():
        raise BadArgument("command", "is empty.")
    if any("\0" in word for word in words):
        raise BadArgument("command", "holds a NUL character.")
    if request.name is not None:
        check_name(request.name)
    if request.owner is not None and not (request.owner.isprintable() and 0 < len(request.owner) <= LONGEST_NAME):
        raise BadArgument("owner", f"must be 1 to {LONGEST_NAME} printable characters.")
    for argument in ("time_limit_s", "first_step_timeout_s", "stall_timeout_s"):
        seconds = getattr(request, argument)
        if seconds is not None and not 0 < seconds < float("inf"):
            raise BadArgument(argument, "must be a number of seconds above 0.")
    if request.first_step_pattern is not None:
        checked(request.first_step_pattern)
    check_params(request.params, request.resume_args, request.command)
    policy = checked_policy(request.recovery)
    gpus = check_gpu_arguments(request.gpus, request.require, request.env, queue=request.queue)
    cwd = _directory(request.cwd)
    check_environment(request.env)
    for argument, value in {**asdict(request), "cwd": str(cwd)}.items():
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise BadArgument(argument, "holds what is no Unicode text.") from error
    values = secrets_by_name(dict.fromkeys(request.secrets), environ, home.secrets)
    kept = {"params": request.params, "resume_args": request.resume_args, "recovery": policy}
    check_no_secret(kept, values.values())
    settled.check()
    backend = load_backend("local")
    backend.check_usable()
    name = request.name or "".join(filter(str.isprintable, name_of(parse(request.command))))[:LONGEST_NAME]
    run_id = next(run_id for run_id in _ids(slug(name)) if not (home.runs / run_id).exists())
    config = home.read_config()
    spec = RunSpec(
        layout=LAYOUT,
        run_id=run_id,
        name=name,
        command=request.command,
        cwd=str(cwd),
        env={**own_ray(settled.environment, run_id), **request.env},
        secrets=list(values),
        owner=request.owner or home.owner(environ),
        tags=request.tags,
        time_limit_s=request.time_limit_s,
        first_step_timeout_s=request.first_step_timeout_s,
        first_step_pattern=request.first_step_pattern,
        stall_timeout_s=request.stall_timeout_s,
        recovery=policy,
        params=dict(request.params),
        param_style=request.param_style,
        resume_args=request.resume_args,
        gpus=gpus,
        queue=request.queue,
        require=dict(request.require) if request.require else None,
        leases=str(lease_directory(environ)),
        cpu_slots=count_cpu_slots(config.cpu_slots),
        gpu_sample_s=config.gpu_sample_s,
        gpu_window_s=config.gpu_window_s,
        tensorboard=str(cwd / Path(request.tensorboard).expanduser()) if request.tensorboard else None,
        blueprint=str(settled.blueprint) if settled.blueprint else None,
        result_dir=str(settled.result_dir) if settled.result_dir else None,
        stop_grace_s=config.stop_grace_s,
        idempotency_key=request.idempotency_key,
        created_at=now(),
        host=socket.gethostname(),
        boot_id=boot_id(),
    )
    return backend.complete_spec(spec, environ), Handover(base_environment(environ), values, _umask())


def _umask() -> int:
    """Return this process's umask; it can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _ids(slugged: str) -> Iterator[str]:
    while True:
        yield f"{slugged}-{''.join(random.choice(_ID_LETTERS) for _ in range(4))}"


def _directory(cwd: str | None) -> Path:
    """Return the directory to run in.

    Raises:
        BadArgument: it is relative, missing, or cannot be looked at.
    """
    try:
        path = Path(cwd or Path.cwd()).expanduser()
        if not path.is_absolute():
            raise BadArgument("cwd", f"must be an absolute path, not {cwd!r}.")
        if not path.is_dir():
            raise BadArgument("cwd", f"is no directory: {str(path)[:200]!r}.")
    except (OSError, RuntimeError) as error:  # too long, not readable, or no such user
        raise BadArgument("cwd", f"cannot be used: {str(error)[:200]}.") from error
    return path


async def launch(request: LaunchRequest, store: RunStore, file_watch: FileWatch, environ: Mapping[str, str]) -> Run:
    """Start a run and return once its command runs; with a repeated idempotency key, return the first run.

    Raises:
        RunwardError: the command does not run. What was refused before its directory was made left nothing there.
    """
    try:
        spec, handover = plan(request, store.home, environ)
    except RunwardError:
        if (first := known_run(store, request.idempotency_key)) is not None:
            return first  # what has changed since does not concern it
        raise
    store.home.create()
    with anyio.move_on_after(_CLEANUP_S):
        await clean_up(store, spec)
    async with held_key(store, request.idempotency_key) as key:
        if key is not None and (first := await key.run(store, file_watch)) is not None:
            return first
        snapshot = await check_admission(spec, handover.env)
        handover = replace(handover, snapshot=snapshot.to_json() if snapshot else None)
        if spec.result_dir is not None:
            from mcp_server.record.result_directory import append_launch  # noqa: PLC0415 - only blueprints have one

            append_launch(Path(spec.result_dir), spec)
        rundir = _create(spec, store)
        if key is not None:
            key.remember(spec.run_id)
        return await _start(RunDir(rundir), spec, handover, store, file_watch)


def _create(spec: RunSpec, store: RunStore) -> Path:
    """Make the run's directory appear whole, with its spec and the handover FIFO in it."""
    path = store.home.runs / spec.run_id
    new = RunDir(path.with_name(f".new-{spec.run_id}"))
    new.path.mkdir(mode=0o700)
    try:
        os.mkfifo(new.handover, 0o600)
        write_json(new.spec, spec.facts())
        new.path.rename(path)
    except OSError as error:
        shutil.rmtree(new.path, ignore_errors=True)
        raise LaunchFailed(f"{store.home.path}: {error.strerror}. Nothing was started.") from error
    return path


async def _start(rundir: RunDir, spec: RunSpec, handover: Handover, store: RunStore, file_watch: FileWatch) -> Run:
    """Start the supervisor and return the run with its first events.

    Raises:
        LaunchFailed: the supervisor did not start, or refused.
        GpusNotFree: another run took the GPUs in the meantime; nothing is left of the launch.
    """
    backend = backend_of(spec)
    with file_watch.subscribe([rundir.path]) as subscription:

        async def first_event() -> None:
            while not store.observe(spec.run_id).events:
                await subscription.next_change()

        await backend.start(rundir, spec, handover, first_event)
    run = store.observe(spec.run_id)
    refusal = next((event for event in run.events if event["kind"] == "refused"), None)
    if refusal is None:
        return run
    if (not_free := refusal.get("not_free")) is None:
        raise LaunchFailed(f"{refusal['text']} See {rundir.path}.")
    await backend.discard(rundir, spec)
    raise GpusNotFree(str(not_free), never=bool(refusal.get("never")))
