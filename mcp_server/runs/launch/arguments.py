"""Checks of a launch's arguments by their values alone: what is refused before this machine is read. Pure."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from mcp_server.command.shell import ReadCommand, parse
from mcp_server.errors import BadArgument
from mcp_server.hosts.environment import check_environment
from mcp_server.record.script import LONGEST_NAME, takes_arguments
from mcp_server.record.spec import LaunchRequest
from mcp_server.recovery import policy
from mcp_server.recovery.changes import find_impossible_changes
from mcp_server.recovery.policy import LANGUAGE
from mcp_server.runs.launch.gpu_admission import check_gpu_arguments, check_placeholders
from mcp_server.text.redaction import Redactor
from mcp_server.text.regex import compile_user_pattern
from mcp_server.text.secret_patterns import find_keys, mask_secrets

_KEY_VARIABLES = {
    "wandb": "WANDB_API_KEY",
    "login": "WANDB_API_KEY",
    "hf": "HF_TOKEN",
    "hugging": "HF_TOKEN",
    "openai": "OPENAI_API_KEY",
}
NOT_IN_NAMES = ("/", "\\", ":", "..")
_MOST_TAGS, _LONGEST_TAG, _LONGEST_REASON = 64, 64, 2_000
_MOST_VARIABLES, _MOST_NAMES = 1000, 1000
_LONGEST_COMMAND = 256 * 1024  # characters; more belongs in a script
_LONGEST_ARGUMENTS = 100_000  # Linux takes 128 KiB in one word, 2 MiB in all


def check_sizes(request: LaunchRequest) -> None:
    """Refuse arguments of a size that no run has and every answer on it would have to carry. Looks at no content."""
    command = [request.command] if isinstance(request.command, str) else request.command
    size = sum(map(len, command))
    if size > _LONGEST_COMMAND:
        cause = f"has {size:,} characters; it may have {_LONGEST_COMMAND:,}."
        raise BadArgument("command", cause, "Write it to a script, and launch that.")
    if len(request.tags) > _MOST_TAGS or any(len(tag) > _LONGEST_TAG for tag in request.tags):
        raise BadArgument("tags", f"takes at most {_MOST_TAGS} tags of {_LONGEST_TAG} characters.")
    if len(request.why or "") > _LONGEST_REASON:
        raise BadArgument("why", f"has {len(request.why or ''):,} characters; it may have {_LONGEST_REASON:,}.")
    if len(request.env) > _MOST_VARIABLES:
        raise BadArgument("env", f"has {len(request.env):,} variables; it may have {_MOST_VARIABLES:,}.")
    for name, value in request.env.items():
        if len(name) + len(value) > _LONGEST_ARGUMENTS:
            cause = f"{name[:80]!r} is longer than a variable may be: {_LONGEST_ARGUMENTS:,} characters."
            raise BadArgument("env", cause)
    for argument in ("secrets", "needs"):
        if len(getattr(request, argument)) > _MOST_NAMES:
            raise BadArgument(argument, f"takes at most {_MOST_NAMES:,} names.")


def check_arguments(request: LaunchRequest, command: ReadCommand) -> LaunchRequest:
    """Return ``request``, parsed as ``command``, with ``recovery``, ``gpus`` and ``require`` in normal forms."""
    check_sizes(request)
    words = (command.source,) if isinstance(command.source, str) else command.source
    if not words or not words[0].strip():
        raise BadArgument("command", "is empty.")
    if any("\0" in word for word in words):
        raise BadArgument("command", "holds a NUL character.")
    options: object = request.backend_options
    if not isinstance(options, Mapping):  # of a sweep's cell, whose arguments no schema checks
        raise BadArgument("backend_options", f"is a table of options, not {options!r:.60}.")
    if request.name is not None:
        check_name(request.name)
    if request.owner is not None and not (request.owner.isprintable() and 0 < len(request.owner) <= LONGEST_NAME):
        raise BadArgument("owner", f"must be 1 to {LONGEST_NAME} printable characters.")
    for argument in ("time_limit_s", "first_step_timeout_s", "stall_timeout_s"):
        seconds = getattr(request, argument)
        if seconds is not None and not 0 < seconds < float("inf"):
            raise BadArgument(argument, "must be a number of seconds above 0.")
    if request.first_step_pattern is not None:
        compile_user_pattern(request.first_step_pattern)
    check_params(request.params, request.resume_args, command)
    recovery = normalize_policy(request.recovery)
    check_changes(recovery, request.params)
    gpus = check_gpu_arguments(request.gpus, request.require, request.env, queue=request.queue)
    params = [each for each in request.params.values() if isinstance(each, str)]
    placed = {"command": words, "env": request.env.values(), "params": params, "resume_args": request.resume_args}
    check_placeholders(gpus, placed)
    check_environment(request.env)
    check_no_key(request, command)
    return replace(request, recovery=recovery, gpus=gpus, require=request.require or None)


def check_options(request: LaunchRequest) -> None:
    """Refuse the options of a launch that a blueprint may hold, where the command cannot take them."""
    command = parse(request.command)
    check_params(request.params, request.resume_args, command)
    normal = normalize_policy(request.recovery)
    check_no_key(request, command)
    check_changes(normal, request.params)


def check_name(name: str) -> None:
    """Refuse a name that can be mistaken for a path, a tmux target or nothing."""
    if not name.strip() or len(name) > LONGEST_NAME:
        raise BadArgument("name", f"must have 1 to {LONGEST_NAME} characters, this one has {len(name)}.")
    if any(part in name for part in NOT_IN_NAMES) or not name.isprintable():
        raise BadArgument("name", "must hold no '/', '\\', ':', '..' or control characters.")


def check_unicode(arguments: Mapping[str, object]) -> None:
    """Refuse arguments, by their names, that JSON cannot hold: a file name that is not UTF-8 has lone surrogates."""
    for argument, value in arguments.items():
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise BadArgument(argument, "holds text that is not Unicode.") from error


def normalize_policy(value: str | Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a recovery policy in its normal form, or None for the default: report and propose."""
    if value in (None, "none"):
        return None
    try:
        normal = policy.normalize_policy(value)
    except ValueError as error:
        raise BadArgument("recovery", str(error).removeprefix("recovery "), LANGUAGE) from error
    for rule in normal["rules"]:
        if pattern := rule["when"].get("pattern"):
            compile_user_pattern(pattern)
        for step in rule["steps"]:
            for name, change in (step.get("change") or {}).items():
                _check_change(name, change)
    return normal


def check_changes(normal: Mapping[str, Any] | None, params: Mapping[str, Any]) -> None:
    """Refuse a recovery policy, in its normal form, with changes that no retry of these parameters could make."""
    for problem in find_impossible_changes(normal or {"rules": []}, params):
        raise BadArgument("recovery", problem.text, problem.remedy)


def check_params(params: Mapping[str, Any], resume_args: list[str], command: ReadCommand) -> None:
    """Refuse parameters that cannot be written on the command line."""
    for name, value in params.items():
        _check_param("params", name, value)
    if any("\0" in word for word in resume_args):
        raise BadArgument("resume_args", "holds a NUL character.")
    if len(json.dumps([dict(params), resume_args])) > _LONGEST_ARGUMENTS:
        raise BadArgument("params", f"is longer than a command line may be: {_LONGEST_ARGUMENTS:,} characters.")
    if (params or resume_args) and not takes_arguments(command):
        cause = (
            "has no position in this command, which is not a single program, or a text for a shell: write {params} as "
            'a word of its own, outside quotes, where the arguments belong, or "$@" in the text of bash -c.'
        )
        raise BadArgument("params" if params else "resume_args", cause)


def check_no_key(request: LaunchRequest, command: ReadCommand) -> None:
    """Refuse arguments that hold what looks like a key, by the name of the setting and never its value."""
    texts = {
        "command": _list_words(command),
        "params": [f"{name}={value}" for name, value in request.params.items() if isinstance(value, str)],
        "resume_args": request.resume_args,
        "env": [f"{name}={value}" for name, value in request.env.items()],
        "recovery": [f"{name}={value}" for name, value in _list_settings(request.recovery)],
        "name": (request.name or "").split(),
        "idempotency_key": (request.idempotency_key or "").split(),
        "owner": [request.owner or ""],
        "tags": request.tags,
        "why": (request.why or "").split(),
    }
    keys = {argument: next(find_keys(words), None) for argument, words in texts.items()}
    keys["backend_options"] = _find_key_of_options(request.backend_options)
    for argument, name in keys.items():
        if name is not None:
            where, variable = f" ({name[:40]})" if name else "", _suggest_variable(name)
            raise BadArgument(
                argument,
                f"holds what looks like a key{where}, and arguments are kept in files and shown in answers.",
                f'Pass secrets=["{variable}"]: the value comes from the server\'s environment or its secrets file, and '
                f"the command reads ${variable}.",
            )


def _suggest_variable(name: str) -> str:
    """Return the variable in which the owner of the setting ``name`` would look for a key."""
    for part, variable in _KEY_VARIABLES.items():
        if part in name.lower():
            return variable
    return re.sub(r"\W", "_", name.rpartition(".")[2]).upper() or "NAME"


def _list_words(command: ReadCommand, depth: int = 2) -> list[str]:
    """Return the words of a command, then those of each text in it, which another shell may run."""
    texts = [word for word in command.words if " " in word] if depth else []
    return command.words + [word for text in texts for word in _list_words(parse(text), depth - 1)]


def _list_settings(value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if isinstance(inner, str):
                yield str(name).lstrip("$"), inner
            yield from _list_settings(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _list_settings(inner)


def _find_key_of_options(options: Mapping[str, object]) -> str | None:
    """Return the name under which a scheduler's options hold a key, or an address with a signature; None for none."""
    words = list(_list_option_words(options))
    masked = ("" for word in words if mask_secrets(word) != word)
    return next(find_keys(words), next(masked, None))


def _list_option_words(value: object, name: str = "") -> Iterator[str]:
    """Yield the options of a scheduler, which shows them to its users, as words ``NAME=value``, at any depth."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield str(key)
            yield from _list_option_words(inner, str(key))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _list_option_words(inner)
    elif isinstance(value, str):
        yield f"{name}={value}" if name else value


def check_no_secret(arguments: Mapping[str, object], secrets: Mapping[str, str]) -> None:
    """Refuse arguments, by name, that hold the value of a secret in any spelling: they are kept, and seen by all."""
    redactors = {name: Redactor({name: value}) for name, value in secrets.items()}
    for argument, value in arguments.items():
        text = "\n".join(_list_texts(value))
        for name, redactor in redactors.items():
            if redactor.finds(text) and "." in name:  # no variable: see ``hosts/environment``
                raise BadArgument(
                    argument,
                    "holds an address of config.toml that notices go to, and arguments are kept.",
                    'The operator moves it to secrets.env (webhook_secret = "NAME"); then pass secrets=["NAME"].',
                )
            if redactor.finds(text):
                raise BadArgument(
                    argument,
                    f"holds the value of a secret, {name}, and arguments are kept: name it in secrets instead.",
                    f'Pass secrets=["{name}"]; the command reads ${name}.',
                )


def _check_param(argument: str, name: str, value: object) -> None:
    if not re.fullmatch(r"[+~]*[A-Za-z_][\w.\-/@]*", name):
        raise BadArgument(argument, f"has a name that cannot stand on a command line: {name[:80]!r}.")
    if not isinstance(value, str | int | float | None) or (isinstance(value, str) and "\0" in value):
        raise BadArgument(argument, f"{name} must be a text, a number, true, false or null.")


def _check_change(name: str, change: object) -> None:
    if name.startswith("@"):
        return
    value = "" if isinstance(change, Mapping) else change
    if not name.startswith("$"):
        _check_param("recovery", name, value)
    elif isinstance(value, bool | None) or "\0" in str(value):
        raise BadArgument("recovery", f"{name} must be a text or a number.")
    else:
        check_environment({name[1:]: str(value)})


def _list_texts(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield str(name)
            yield from _list_texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _list_texts(inner)
    else:
        yield str(value)
