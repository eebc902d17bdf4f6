"""A launch that repeats a run: ``like`` names the run, ``change`` what is to be other. Blocks. Use a thread.

The record of the run is the truth: its specification, and the parameters of one of its attempts. Its owner, its key,
and its place in a sweep stay its own.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from mcp_server.command.inputs import find_inputs
from mcp_server.command.outputs import resumes
from mcp_server.command.shell import parse
from mcp_server.errors import BadArgument
from mcp_server.hosts.path_checks import Roots
from mcp_server.record.attempt_params import find_attempt_params
from mcp_server.record.run_directory import read_json
from mcp_server.record.script import RUN_ID, write_value
from mcp_server.record.spec import LaunchRequest
from mcp_server.record.state import IMPORTED, Run
from mcp_server.recovery.changes import is_near
from mcp_server.runs.code.code_sync import KINDS
from mcp_server.store.run_store import RunStore

_ATTEMPT = re.compile(r"(?P<run>.+)@(?P<attempt>[1-9]\d{0,3})")
# Of one launch, or found out again: the rest is repeated.
_OWN = frozenset(
    "owner idempotency_key sweep cell filled like change keep_code sync environment params_file host".split()  # noqa: SIM905
)
_NOT_CHANGED = frozenset({"code", "like", "change", "owner", "idempotency_key"})
# Made for one run: `ray_variables` of `runs/launch/resolve`. The first one no user sets.
_RAY = ("RLINF_NAMESPACE", "RAY_ADDRESS", "RAY_PORT", "RAY_TMPDIR", "RAY_NAMESPACE")
_FLAG_OFF = (False, None)


def repeat(request: LaunchRequest, store: RunStore) -> LaunchRequest:
    """Return ``request`` with all that it leaves open as the run ``request.like`` had it; ``like`` is RUN@ATTEMPT then.

    Arguments beside ``like`` win; of ``env`` and ``params`` each name for itself. BadArgument, RunNotFound.
    """
    if not request.like:
        if request.change:
            raise BadArgument("change", "changes the run that like names.", "Pass like too.")
        return request
    run, attempt = find_attempt(request.like, store)
    if run.state == IMPORTED:
        remedy = f"Its command: {run.command}." if run.command else "Pass command and cwd."
        raise BadArgument("like", f"{run.run_id} was imported: where its command ran is not known.", remedy)
    if request.params_file is not None:
        raise BadArgument("params", "beside like is a table: the parameters that are other.")
    given = {
        each.name: value for each in fields(LaunchRequest) if (value := getattr(request, each.name)) != _open(each)
    }
    if own := given.keys() & {"command", "blueprint"}:
        remedy = 'Leave like out; or change one option: change={"lr": 0.001}.'
        raise BadArgument(min(own), f"is that of {run.run_id}, which like repeats.", remedy)
    former = _restore(run, attempt, store, keeps_code=request.keep_code)
    tables = [name for name in ("env", "params") if name in given]
    merged: dict[str, Any] = {name: getattr(former, name) | given[name] for name in tables}
    repeated = replace(former, **{**given, **merged, "like": f"{run.run_id}@{attempt}"})
    changed = apply_change(repeated, request.change, run.run_id)
    if run.spec.cell and changed.params != former.params and changed.name == former.name and changed.name:
        # The cell's name says what it had; its sweep's is the sweep's own.
        changed = replace(changed, name=f"{changed.name.removesuffix(f'-{run.spec.cell}')}-again")
    return changed if resumes(changed.command, changed.params) else _write_apart(changed, run)


def _write_apart(request: LaunchRequest, run: Run) -> LaunchRequest:
    """Return ``request`` with a result directory of its own where it names that of ``run``, but for what it reads."""
    directory = run.spec.result_dir
    if not directory:
        return request
    read = {Path(request.cwd or "/", file.path) for file in find_inputs(parse(request.command))}
    named = re.compile(rf"{re.escape(directory)}(?P<below>/[^\s'\"`;&|)]*)?(?=$|[\s'\"`;:,&|)])")

    def move(value: Any) -> Any:
        if isinstance(value, str):
            return named.sub(
                lambda found: (
                    found[0] if Path(found[0]) in read else f"{name_own_directory(directory)}{found['below'] or ''}"
                ),
                value,
            )
        if isinstance(value, list):
            return [move(one) for one in value]
        return {name: move(one) for name, one in value.items()} if isinstance(value, dict) else value

    places = ("command", "params", "env", "tensorboard", "resume_args")
    return replace(request, **{name: move(getattr(request, name)) for name in places})


def name_own_directory(directory: str, run_id: str = RUN_ID) -> str:
    """Return the result directory of a run that repeats one with ``directory``."""
    return f"{directory}-{run_id}"


def find_attempt(like: str, store: RunStore) -> tuple[Run, int]:
    """Return the run that ``like`` names, RUN or RUN@ATTEMPT, and the number of the attempt, the newest without one."""
    named = _ATTEMPT.fullmatch(like)
    run = store.find(named["run"] if named else like)
    attempt = int(named["attempt"]) if named else run.attempt
    if attempt > run.attempt:
        raise BadArgument("like", f"names attempt {attempt}, and {run.run_id} has {run.attempt}.")
    return run, attempt


def _open(each: Any) -> object:
    return each.default if each.default is not MISSING else each.default_factory()


def _restore(run: Run, attempt: int, store: RunStore, *, keeps_code: bool) -> LaunchRequest:
    """Return the launch of a run, with the parameters and variables that an attempt had."""
    spec, own = run.spec, find_attempt_params(run.spec, run.events, attempt)
    kept = read_json(store.record_of(run).spec) or {}  # as written: {attempt} is not filled in
    environ = {**spec.env, **own.environment}
    ray = [name for name in _RAY if _RAY[0] in environ]
    request = LaunchRequest(
        **{each.name: getattr(spec, each.name) for each in fields(LaunchRequest) if each.name not in _OWN}
    )
    sync = (spec.code or {}).get("sync")
    stays_there = bool(spec.mirror) and keeps_code  # the record that has the code is on that host
    board = kept.get("tensorboard")
    request = replace(
        request,
        params=dict(own.params),
        env={name: value for name, value in environ.items() if name not in ray},
        tensorboard=board.replace(run.run_id, RUN_ID) if isinstance(board, str) else None,
        host=spec.host if spec.mirror else None,
        sync=sync if sync in KINDS and not stays_there else None,
        environment=kept.get("environment") if ray and not spec.needs else None,
    )
    if (code := spec.code) is not None and code.get("to") and not stays_there:
        request = Roots({code["to"]: code["from"]}, (), "").move(request, spec.project)  # as its code is now
    return request


@cache
def _list_types() -> Mapping[str, tuple[str, TypeAdapter[Any]]]:
    """Return the field and the type of each argument of a launch that ``change`` may name."""
    hints = get_type_hints(LaunchRequest)
    names = {each.metadata.get("name", each.name): each.name for each in fields(LaunchRequest) if each.metadata}
    return {name: (own, TypeAdapter(hints[own])) for name, own in names.items() if name not in _NOT_CHANGED}


def apply_change(request: LaunchRequest, change: Mapping[str, Any], run_id: str = "") -> LaunchRequest:
    """Return ``request`` with changes by the names of parameters, options of the command, ``$VARIABLE``, arguments.

    A name that none of them has becomes a parameter. BadArgument: it is nearly one of them, or cannot be decided.
    """
    params, env, command, arguments = dict(request.params), dict(request.env), request.command, _list_types()
    others: dict[str, Any] = {}
    for name, value in change.items():
        if name in params:
            params[name] = value
        elif name.startswith("$"):
            env[name[1:]] = write_value(value)
        elif (count := sum(1 for word in parse(command).words if _is_option(word, name))) and name in arguments:
            remedy = f'Write "--{name}" for the option; pass {name} beside like for the launch.'
            raise BadArgument("change", f"{name} is an option of the command and an argument of launch_run.", remedy)
        elif count > 1:
            raise BadArgument("change", f"{name} stands {count} times in the command.", "Pass the whole command.")
        elif count:
            command = _set_option(command, name, value)
        elif name in arguments:
            others |= _read_argument(name, value)
        else:
            options = parse(command).split_options()[0]
            near = [other for other in (*params, *options, *arguments) if is_near(name, other)]
            if near:
                raise BadArgument("change", f"{run_id} has no {name}.", f"Did you mean {' or '.join(near)}?")
            params[name.lstrip("-")] = value
    if isinstance(others.get("command"), str | list):
        command = others["command"]
    merged = {"params": params | others.get("params", {}), "env": env | others.get("env", {}), "command": command}
    return replace(request, **{**others, **merged})


def _read_argument(name: str, value: object) -> dict[str, Any]:
    own, kind = _list_types()[name]
    try:
        return {own: kind.validate_python(value)}
    except ValidationError as error:
        raise BadArgument(
            "change", f"{name}: {error.errors()[0]['msg']}.", f"Write it as launch_run's {name}."
        ) from error


def _is_option(word: str, name: str) -> bool:
    head, equals, _ = word.partition("=")
    is_named = head.lstrip("+~").lstrip("-") == name.lstrip("-")
    return is_named and (head.startswith("-") or (bool(equals) and not name.startswith("-")))


def _set_option(command: str | list[str], name: str, value: object) -> str | list[str]:
    """Return the command with the only option of this name set to ``value``; false takes a flag away."""
    words = [(word, 0, 0) for word in command] if isinstance(command, list) else _place_words(command)
    at = next(index for index, (word, *_) in enumerate(words) if _is_option(word, name))
    word, follows = words[at][0], words[at + 1][0] if at + 1 < len(words) else ""
    head, equals, _ = word.partition("=")
    count = 1  # of the words that are replaced
    if equals:
        new = [f"{head}={write_value(value)}"]
    else:
        takes_value = parse([words[0][0], word, follows]).split_options()[0].get(name.lstrip("-")) == follows != ""
        count += takes_value
        is_off = any(value is off for off in _FLAG_OFF)
        new = [] if is_off else [word] if value is True and not takes_value else [word, write_value(value)]
    if isinstance(command, list):
        return [*command[:at], *new, *command[at + count :]]
    start, end = words[at][1], words[at + count - 1][2]
    text = " ".join(map(shlex.quote, new))
    return f"{command[:start]}{text}{command[end:]}" if text else f"{command[:start].rstrip()}{command[end:]}"


def _place_words(command: str) -> list[tuple[str, int, int]]:
    """Return the words and operators of a text with their beginnings and ends."""
    read = parse(command)
    if read.open_quote:
        raise BadArgument("change", "cannot be made in a command with an open quote.", "Pass the whole command.")
    return [(token.text, token.start, token.start + len(token.raw)) for token in read.tokens]
