"""Edits of clients' settings files that add this server, and take it out again: text in, text out. Pure."""

import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

NAME = "runward"
# The longest scheduled wait is 960 s. Codex ends a call after 60 s by default, and allows 10 s for the start.
TOOL_TIMEOUT_S, STARTUP_TIMEOUT_S = 1200, 20
# Codex starts a server without the variables of its own environment, but for a few; it reads these by name.
CODEX_VARIABLES = (
    *("CONDA_PREFIX", "CUDA_HOME", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "MUJOCO_GL", "PYOPENGL_PLATFORM"),
    *("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_HUB_OFFLINE", "HF_ENDPOINT", "TRANSFORMERS_OFFLINE"),
    *("TORCH_HOME", "OMP_NUM_THREADS", "NCCL_SOCKET_IFNAME", "NCCL_DEBUG", "NCCL_IB_DISABLE", "NCCL_P2P_DISABLE"),
    *("WANDB_MODE", "WANDB_PROJECT", "WANDB_ENTITY", "WANDB_BASE_URL", "WANDB_DIR"),
    *("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
    *("HF_TOKEN", "WANDB_API_KEY"),
)
_OF_TRAININGS = re.compile(r"(?:HF|NCCL|WANDB|MLFLOW|TORCH|OMP|MUJOCO|CUDA|XLA|JAX|RAY|GLOO|UCX)_\w+")
LOOKING_TOOLS = (
    *("capture_pane", "check_blueprint", "compare_runs", "gpu_check", "list_runs", "preflight", "read_log", "read_tb"),
    *("wait_run", "find_runs"),
)
"""The tools that change nothing: a client need not ask a person before it calls them."""

TOOL_PREFIXES = (f"mcp__{NAME}__", f"mcp__plugin_{NAME}_{NAME}__")
"""Before the names of tools in Claude Code: of a server that is registered, and of the plugin's."""

_KEY = re.compile(r"\s*\"?([\w-]+)\"?\s*=")
_OF_SERVER = rf"mcp_servers\s*\.\s*\"?{NAME}\"?"
_HEADER = re.compile(rf"\s*\[\s*{_OF_SERVER}\s*\]\s*(#.*)?")
_ANY_HEADER = re.compile(rf"\s*\[\s*{_OF_SERVER}\s*(?:\.[^\]]*)?\]\s*(#.*)?")
_HOOK = """\
# runward names its call for raw commands of the shell
[[hooks.PreToolUse]]
matcher = "Bash"
[[hooks.PreToolUse.hooks]]
type = "command"
command = {command}
timeout = 5
"""
_HOOK_BLOCK = re.compile(r"\n*" + re.escape(_HOOK).replace(r"\{command\}", ".*") + r"(?=\n|\Z)")
_LAUNCHING_TOOLS = ("launch_run", "launch_sweep")


class Unreadable(ValueError):
    """A file cannot be changed safely. The message has the reason and the entry that a person can add."""


class NotOurs(ValueError):
    """The name is taken by an entry that starts something else, only a person may replace it."""


def is_ours(entry: Mapping[str, Any]) -> bool:
    """Return whether an entry starts a runward over stdio, wherever that is installed."""
    words = [str(entry.get("command", "")), *map(str, entry.get("args", []))]
    programs = {PurePath(word).name for word in words}
    starts = NAME in programs or "mcp_server" in words or any(f"/{NAME} " in f"{word} " for word in words)
    return "url" not in entry and (starts or not entry.get("command"))


# --- Claude Code


def in_mcp_json(text: str, command: Sequence[str]) -> str:
    """Return a ``.mcp.json`` with this server registered. Unreadable: it is none. NotOurs: the name is taken."""
    entry = {"type": "stdio", "command": command[0], "args": list(command[1:])}

    def register(settings: dict[str, Any]) -> bool:
        servers = settings.setdefault("mcpServers", {})
        former = servers.get(NAME, {})
        _refuse_foreign(former)
        servers[NAME] = {**former, **entry}  # keys that a person added, such as env, stay
        return bool(servers[NAME] != former)

    return _edit_json(text, ".mcp.json", register, {"mcpServers": {NAME: entry}})


def out_of_mcp_json(text: str) -> str:
    """Return a ``.mcp.json`` without this server, or raise as ``in_mcp_json``."""

    def remove(settings: dict[str, Any]) -> bool:
        if (entry := settings.get("mcpServers", {}).get(NAME)) is None:
            return False
        _refuse_foreign(entry)
        del settings["mcpServers"][NAME]
        if not settings["mcpServers"]:
            del settings["mcpServers"]
        return True

    return _edit_json(text, ".mcp.json", remove)


def _edit_json(text: str, form: str, edit: Callable[[dict[str, Any]], bool], entry: object = None) -> str:
    """Return ``text`` as ``edit`` changes it, or unchanged. Unreadable: it is not of this form; ``entry`` would do."""
    try:
        settings = json.loads(text) if text.strip() else {}
        return json.dumps(settings, indent=2, ensure_ascii=False) + "\n" if edit(settings) else text
    except (json.JSONDecodeError, RecursionError, AttributeError, TypeError) as error:
        add = f". A person can add: {json.dumps(entry)}" if entry else ""
        raise Unreadable(f"it is not a {form} ({error}){add}") from error


def user_entry(text: str) -> dict[str, Any] | None:
    """Return the entry of this server in Claude Code's own ``.claude.json``, or None where there is none to read."""
    try:
        entry = json.loads(text)["mcpServers"][NAME]
    except (ValueError, KeyError, TypeError):
        return None
    return entry if isinstance(entry, dict) else None


def describe_entry(entry: Mapping[str, Any]) -> str:
    """Return what an entry starts or connects to, without the values of headers and variables."""
    if "url" in entry:
        text = re.sub(r"//[^/@]*@", "//***@", str(entry["url"]).partition("?")[0])
    else:
        text = " ".join([str(entry.get("command", "")), *map(str, entry.get("args", []))])
    hidden = [*entry.get("headers", {}), *entry.get("env", {})]
    return text + (f" (with {', '.join(hidden)}: values not shown)" if hidden else "")


def allow_looking(text: str) -> str:
    """Return Claude Code's ``settings.json`` that allows the tools which change nothing. Unreadable: it is none."""
    return _with_rules(text, lambda rules: [*rules, *(rule for rule in _rules() if rule not in rules)])


def forbid_looking(text: str) -> str:
    """Return ``settings.json`` without what ``allow_looking`` added. Unreadable: it is none."""
    return _with_rules(text, lambda rules: [rule for rule in rules if rule not in _rules()])


def _rules() -> list[str]:
    return [f"{prefix}{tool}" for prefix in TOOL_PREFIXES for tool in LOOKING_TOOLS]


def _with_rules(text: str, change: Callable[[list[str]], list[str]]) -> str:
    def edit(settings: dict[str, Any]) -> bool:
        permissions = settings.get("permissions", {})
        before = list(permissions.get("allow", []))
        if (after := change(before)) == before:
            return False
        settings["permissions"] = {**permissions, "allow": after}
        if not after:
            del settings["permissions"]["allow"]
        if not settings["permissions"]:
            del settings["permissions"]
        return True

    return _edit_json(text, "settings.json", edit, {"permissions": {"allow": _rules()}})


def _refuse_foreign(entry: Mapping[str, Any]) -> None:
    """Raise NotOurs where an entry is neither this server's nor new."""
    if entry and not is_ours(entry):
        raise NotOurs(f"{NAME} is registered there as {describe_entry(entry)}. A person can remove that entry first")


# --- Codex


def in_codex_toml(text: str, command: Sequence[str], variables: Iterable[str] = CODEX_VARIABLES) -> str:
    """Return Codex's ``config.toml`` with this server's table, or raise as ``in_mcp_json``."""
    start = {"command": command[0], "args": list(command[1:])}
    # Required: otherwise the first request of a session mostly lacks the tools.
    least = {"startup_timeout_sec": STARTUP_TIMEOUT_S, "tool_timeout_sec": TOOL_TIMEOUT_S}
    names = list(variables)
    add = _table({**start, **least, "required": True, "env_vars": names})
    try:
        before = tomllib.loads(text)
        former = before.get("mcp_servers", {}).get(NAME, {})
        _refuse_foreign(former)
        passed = former.get("env_vars", [])
        entry = {
            **former,
            **start,
            **{key: max(value, former.get(key, 0)) for key, value in least.items()},
            "required": former.get("required", True),
            "env_vars": [*passed, *(name for name in names if name not in passed)],
        }
        if former == entry:
            return text
        after = _with_table(text, entry)
        expected = {**before, "mcp_servers": {**before.get("mcp_servers", {}), NAME: entry}}
        if tomllib.loads(after) != expected:
            raise Unreadable(f"it has {NAME} in a form that cannot be edited safely. A person can change it to:\n{add}")
    except (tomllib.TOMLDecodeError, AttributeError, TypeError) as error:
        raise Unreadable(f"it is not a Codex config.toml ({error}). A person can add:\n{add}") from error
    return after


def list_variables(environ: Mapping[str, str], named: Sequence[str]) -> list[str]:
    """Return the variables that Codex shall pass on: the usual ones, those of trainings set here, those ``named``."""
    return list(dict.fromkeys([*CODEX_VARIABLES, *sorted(filter(_OF_TRAININGS.fullmatch, environ)), *named]))


def approve_launches(text: str) -> str:
    """Return ``config.toml`` in which launches ask nobody. Unreadable: it cannot be read, or not be added to."""
    table = "\n".join(f'[mcp_servers.{NAME}.tools.{tool}]\napproval_mode = "approve"\n' for tool in _LAUNCHING_TOOLS)
    try:
        tools = tomllib.loads(text).get("mcp_servers", {}).get(NAME, {}).get("tools", {})
        missing = [tool for tool in _LAUNCHING_TOOLS if tool not in tools]
        tables = "\n".join(f'[mcp_servers.{NAME}.tools.{tool}]\napproval_mode = "approve"\n' for tool in missing)
        after = f"{text.rstrip(chr(10))}\n\n{tables}" if missing else text
        tomllib.loads(after)
    except (tomllib.TOMLDecodeError, AttributeError, TypeError) as error:
        raise Unreadable(f"it is no config.toml that can be added to ({error}). A person can add:\n{table}") from error
    return after


def read_plugin(text: str, *, is_toml: bool) -> str:
    """Return the id of runward's plugin where settings enable it: those of Codex in TOML, of Claude Code in JSON.

    ValueError: the text is no such file.
    """
    found = tomllib.loads(text).get("plugins") if is_toml else json.loads(text or "{}").get("enabledPlugins")
    listed = found.items() if isinstance(found, dict) else ()
    states = {name: each.get("enabled", True) if isinstance(each, dict) else each for name, each in listed}
    return next((name for name, is_on in states.items() if name.partition("@")[0] == NAME and is_on), "")


def without_hook(text: str) -> str:
    """Return Codex's ``config.toml`` without the hook of ``hook_in_codex_toml``."""
    return _HOOK_BLOCK.sub("", text)


def hook_in_codex_toml(text: str, command: Sequence[str]) -> str:
    """Return ``config.toml`` in which Codex asks ``runward hook`` before commands. Unreadable: it cannot be added."""
    line = json.dumps(shlex.join([*command[:-1], "hook"]), ensure_ascii=False)
    block = _HOOK.format(command=line)
    before = without_hook(text)
    after = f"{before.rstrip(chr(10))}\n\n{block}".lstrip("\n")
    try:
        tomllib.loads(after)
    except tomllib.TOMLDecodeError as error:
        raise Unreadable(f"a hook cannot be added safely ({error}). A person can add:\n{block}") from error
    return after


def out_of_codex_toml(text: str) -> str:
    """Return a ``config.toml`` without this server, or raise as ``in_codex_toml``."""
    text = without_hook(text)
    try:
        before = tomllib.loads(text)
        entry = before.get("mcp_servers", {}).get(NAME)
        if entry is None:
            return text
        _refuse_foreign(entry)
        lines, inside = [], False
        for line in text.splitlines(keepends=True):
            if line.lstrip().startswith("["):
                inside = _ANY_HEADER.fullmatch(line.rstrip("\n")) is not None
            lines += [] if inside else [line]
        after = "".join(lines).rstrip("\n") + "\n" if any(map(str.strip, lines)) else ""
        servers = {name: each for name, each in before["mcp_servers"].items() if name != NAME}
        rest = {name: each for name, each in before.items() if name != "mcp_servers"}
        if tomllib.loads(after) != {**rest, **({"mcp_servers": servers} if servers else {})}:
            raise Unreadable(f"it has {NAME} in a form that cannot be edited safely: a person can remove it")
    except (tomllib.TOMLDecodeError, AttributeError, TypeError) as error:
        raise Unreadable(f"it is not a Codex config.toml ({error})") from error
    return after


def _with_table(text: str, entry: Mapping[str, Any]) -> str:
    tables = {key for key, value in entry.items() if isinstance(value, Mapping)}
    table = _table({key: value for key, value in entry.items() if key not in tables})
    lines = text.splitlines(keepends=True)
    start = next((n for n, line in enumerate(lines) if _HEADER.fullmatch(line.rstrip("\n"))), None)
    if start is None:
        return (text.rstrip("\n") + "\n\n" if text.strip() else "") + table
    end = next((n for n in range(start + 1, len(lines)) if lines[n].lstrip().startswith("[")), len(lines))
    # An inner table, such as env = {...}, keeps its lines.
    inner = [line for line in lines[start:end] if (match := _KEY.match(line)) and match[1] in tables]
    table += "".join(line.rstrip("\n") + "\n" for line in inner)
    rest = "".join(lines[end:])
    return "".join(lines[:start]) + table + ("\n" + rest if rest else "")


def _table(entry: Mapping[str, Any]) -> str:
    # Strings, whole numbers, booleans and lists of them read the same in JSON and TOML.
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in entry.items()]
    return "\n".join([f"[mcp_servers.{NAME}]", *lines]) + "\n"
