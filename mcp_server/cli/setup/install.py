"""`runward install` and `runward uninstall`: this server, its agents and its skills in a client, or out of it.

All changes are summed up and confirmed at once. The registration comes first: without it the rest is useless. An entry
of the name `runward` that starts something else is left alone, in every client, with the way for a person.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mcp_server.cli.setup import client_settings as settings
from mcp_server.cli.setup.client_settings import NAME
from mcp_server.cli.setup.file_edits import Edit, apply_edits, confirm, without_controls
from mcp_server.errors import BadArgument
from mcp_server.resources.documents import list_files
from mcp_server.resources.register import render_skills

# Inspector 2.12 needs this Node; npm on an older one silently takes 0.15.0, which is another program.
_INSPECTOR, _INSPECTOR_NODE = "@modelcontextprotocol/inspector@2", (22, 19)
_PATIENCE_S = 60
# Claude Code starts a project's server in the directory of the session, which may lie below the project. Without
# braces: those it would take for a variable of its own.
_SEARCH_UPWARDS = (
    'd=$PWD; while [ ! -x "$d"/{program} ] && [ "$d" != / ]; do d=$(dirname "$d"); done; '
    '[ -x "$d"/{program} ] && exec "$d"/{program} {words}; {missing}'
)


def run(arguments: argparse.Namespace) -> int:
    """Register the server with a client, or remove it. Exit status 1: something was not confirmed, or failed."""
    sure, project, client = arguments.yes, _working_directory() if arguments.project else None, arguments.client
    if arguments.command == "uninstall":
        return _uninstall(client, project, sure=sure)
    if arguments.approve_launches and client != "codex":
        reason = f"{client} keeps no approval of single tools that a program could set."
        raise BadArgument("--approve-launches", reason, "In Claude Code a person sets it: /permissions.")
    command = server_command(sys.executable, find_source())
    if client == "inspector":
        return _inspect(command, sure=sure)
    if client == "opencode":
        note = "starts this server, and a turn for each news of its runs"
        text = (Path(__file__).parent / "opencode.js").read_text(encoding="utf-8")
        text = text.replace('["runward"]', json.dumps(command[:-1]))
        edit = Edit(opencode_plugin(project), project, partial(_as_is, text), note)
        return 0 if apply_edits([edit], sure=sure) else 1
    plugin = find_plugin(client, project)
    if client == "codex":  # whose own entry takes the place of the plugin's
        return _install_codex(command, project, arguments, has_plugin=bool(plugin), sure=sure)
    if plugin:
        print(f"The plugin {plugin} has server, agents and skills already; a registration would show each tool twice.")
        print(f"To have one instead of it, type: claude plugin uninstall {plugin}")
    return _install_claude(command, project, has_plugin=bool(plugin), sure=sure)


def _install_claude(command: Sequence[str], project: Path | None, *, has_plugin: bool, sure: bool) -> int:
    base, fine = claude_directory(project), True
    lines: list[list[str]] = []
    edits: list[Edit] = []
    if project is None and not has_plugin:
        fine, lines = _find_registration(command)
    elif not has_plugin and project is not None:
        change = partial(settings.in_mcp_json, command=in_project(command, project))
        edits = [Edit(project / ".mcp.json", project, change, "starts this server")]
    note = "allows the tools that change nothing without a question"
    edits.append(Edit(base / "settings.json", project, settings.allow_looking, note))
    if not has_plugin:
        edits += [Edit(base / "agents" / file.name, project, partial(_copy_of, file)) for file in list_files("agents")]
    done = apply_edits(edits, sure=sure, lines=lines, run=_run_line)
    if done and project is not None and not has_plugin:
        print("Claude Code asks once whether this project may start it: until then `claude mcp list` says Pending.")
    return 0 if done and fine and not has_plugin else 1


def _install_codex(
    command: Sequence[str], project: Path | None, arguments: argparse.Namespace, *, has_plugin: bool, sure: bool
) -> int:
    path = codex_config(project)
    variables = settings.list_variables(os.environ, arguments.env)

    def register(text: str) -> str:
        after = settings.in_codex_toml(settings.without_hook(text), command=command, variables=variables)
        after = settings.approve_launches(after) if arguments.approve_launches else after
        return settings.hook_in_codex_toml(after, command)

    note = "starts this server, passes on the variables that runs need, and asks its hook before commands"
    note += "; launches ask nobody" if arguments.approve_launches else ""
    edits = [Edit(path, project, register, note)]
    edits += [
        Edit(_codex_skills(project) / name / "SKILL.md", project, partial(_as_is, text))
        for name, text in ({} if has_plugin else render_skills()).items()
    ]
    done = apply_edits(edits, sure=sure)
    print("Codex runs the hook once you have trusted it: type /hooks there.")
    if project is not None:
        print(f"Codex reads {path} only in a trusted project: start codex there once, and trust it.")
    return 0 if done else 1


def _uninstall(client: str, project: Path | None, *, sure: bool) -> int:
    """Take out what ``install`` put there; files that were changed since stay."""
    if client == "inspector":
        print("The Inspector keeps nothing of runward.")
        return 0
    fine, lines = _find_unregistration() if client == "claude" and project is None else (True, [])
    changes: dict[Path, Callable[[str], str | None]] = {}
    ours = dict[Path, str]()
    if client == "opencode":
        changes = {opencode_plugin(project): _remove_plugin}
    elif client == "codex":
        changes = {codex_config(project): settings.out_of_codex_toml}
        ours = {_codex_skills(project) / name / "SKILL.md": text for name, text in render_skills().items()}
    else:
        base = claude_directory(project)
        changes = {base / "settings.json": settings.forbid_looking}
        changes |= {} if project is None else {project / ".mcp.json": settings.out_of_mcp_json}
        ours = {base / "agents" / file.name: _copy_of(file, "") for file in list_files("agents")}
    changes |= {path: partial(_remove_ours, text) for path, text in ours.items()}
    edits = [Edit(path, project, change, takes_out=True) for path, change in changes.items() if path.exists()]
    return 0 if apply_edits(edits, sure=sure, lines=lines, run=_run_line) and fine else 1


def find_plugin(client: str, project: Path | None) -> str:
    """Return the id of runward's plugin that a client has enabled, of this user or of a project; empty without one."""
    if client == "codex":
        files = [codex_config(None), *([codex_config(project)] if project else [])]
    else:
        files = [claude_directory(each) / "settings.json" for each in ({None, project})]
    for file in files:
        with suppress(OSError, ValueError, AttributeError):
            if plugin := settings.read_plugin(file.read_text(encoding="utf-8"), is_toml=client == "codex"):
                return plugin
    return ""


def _remove_ours(ours: str, text: str) -> str | None:
    return None if text == ours else text


def _remove_plugin(text: str) -> str | None:
    return None if text.startswith("// runward in OpenCode") else text


def _as_is(text: str, _: str) -> str:
    return text


def _copy_of(file: Path, _: str) -> str:
    return file.read_text(encoding="utf-8")


def _working_directory() -> Path:
    try:
        return Path.cwd()
    except OSError as error:
        cause = "the working directory does not exist any more. cd to the project first."
        raise BadArgument("--project", cause) from error


def claude_directory(project: Path | None) -> Path:
    """Return Claude Code's directory of a project, or of this user."""
    return project / ".claude" if project else Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude")


def codex_config(project: Path | None) -> Path:
    """Return the path of Codex's settings of a project, or of this user."""
    own = Path(os.environ.get("CODEX_HOME") or Path.home() / ".codex")
    return (project / ".codex" if project else own) / "config.toml"


def opencode_plugin(project: Path | None) -> Path:
    """Return the path of runward's plugin in OpenCode, of a project or of this user."""
    own = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "opencode"
    return (project / ".opencode" if project else own) / "plugins" / "runward.js"


def _codex_skills(project: Path | None) -> Path:
    return project / ".agents" / "skills" if project else codex_config(None).parent / "skills"


def server_command(python: str, source: str | None) -> list[str]:
    """Return the command by which a client starts this server: the script beside this Python, or uvx under uvx.

    ``source``: what this package was installed from, see ``find_source``. Without one, uvx would ask a registry for it,
    where the package of this name may be anybody's.
    """
    parts = Path(python).parts
    if source and "uv" in parts and any(part.startswith(("archive-v", "environments-v")) for part in parts):
        return ["uvx", "--from", source, NAME, "serve"]  # uv may empty such a directory at any time
    beside = Path(python).parent / NAME
    return [str(beside), "serve"] if os.access(beside, os.X_OK) else [python, "-m", "mcp_server", "serve"]


def find_source() -> str | None:
    """Return the directory, file or address that this package was installed from, None if it was a registry."""
    try:
        return read_source(distribution(NAME).read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return None


def read_source(direct_url: str) -> str | None:
    """Return the source that an installer noted, as `uvx --from` takes it."""
    try:
        facts = json.loads(direct_url)
        url, vcs = str(facts.get("url") or ""), facts.get("vcs_info")
        if vcs:
            return f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    except (ValueError, AttributeError, KeyError, TypeError):
        return None
    return unquote(urlsplit(url).path) if url.startswith("file:") else url or None


def in_project(command: Sequence[str], project: Path) -> list[str]:
    """Return a command for a project's file, which others share: a program inside the project is searched upwards."""
    program = Path(command[0])
    if not program.is_relative_to(project):
        return list(command)
    return ["sh", "-c", search_upwards(str(program.relative_to(project)), command[1:])]


def search_upwards(program: str, words: Sequence[str], *, missing: str = "") -> str:
    """Return the line of a shell that starts ``program`` of the nearest directory above, else the one in PATH.

    ``missing``: done instead where PATH has none either.
    """
    in_path = f"command -v {NAME} >/dev/null || {missing}; exec {NAME}" if missing else f"exec {NAME}"
    text = _SEARCH_UPWARDS.format(program=shlex.quote(program), words=shlex.join(words), missing=in_path)
    return f"{text} {shlex.join(words)}"


# --- programs of the clients


def read_user_entry() -> dict[str, object] | None:
    """Return the entry of this server in the file that `claude mcp add --scope user` writes."""
    own = os.environ.get("CLAUDE_CONFIG_DIR")
    try:
        return settings.user_entry((Path(own or Path.home()) / ".claude.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _find_registration(command: Sequence[str]) -> tuple[bool, list[list[str]]]:
    """Return whether the registration will be right, and the lines that a person confirms."""
    add, remove = ["claude", "mcp", "add", "--scope", "user", NAME, "--", *command], _removal()
    if shutil.which("claude") is None:
        print(f"Claude Code was not found. On a machine that has it, type:\n  {shlex.join(add)}")
        return False, []
    entry = read_user_entry()
    if entry is None:
        return True, [add]
    if [entry.get("command"), *_args_of(entry)] == list(command):
        return True, []
    print(f"claude mcp: registered as {without_controls(settings.describe_entry(entry))}")
    if settings.is_ours(entry):
        return True, [remove, add]
    both = f"{shlex.join(remove)} && {shlex.join(add)}"
    print(f"claude mcp: that starts something else, left as it is. To replace it, type:\n  {both}")
    return False, []


def _find_unregistration() -> tuple[bool, list[list[str]]]:
    entry = read_user_entry()
    if entry is None:
        return True, []
    if not settings.is_ours(entry):
        print(f"claude mcp: {without_controls(settings.describe_entry(entry))} starts something else, left as it is.")
        return False, []
    if shutil.which("claude") is None:
        print(f"Claude Code was not found. On a machine that has it, type:\n  {shlex.join(_removal())}")
        return False, []
    return True, [_removal()]


def _removal() -> list[str]:
    return ["claude", "mcp", "remove", "--scope", "user", NAME]


def _args_of(entry: dict[str, object]) -> list[object]:
    words = entry.get("args")
    return list(words) if isinstance(words, list) else []


def _run_line(line: Sequence[str]) -> bool:
    succeeded, output = _run_program(line)
    print(without_controls(output))
    return succeeded


def _run_program(line: Sequence[str]) -> tuple[bool, str]:
    try:
        done = subprocess.run(
            line,
            cwd=Path.home(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, str(error)
    return done.returncode == 0, f"{done.stdout}\n{done.stderr}".strip()


def _inspect(command: Sequence[str], *, sure: bool) -> int:
    line = ["npx", "-y", _INSPECTOR, *command]
    print(f"MCP Inspector, in a browser:\n  {shlex.join(line)}")
    print("Its --cli ends a call after 60 s: with it, pass timeout_s=50 to wait_run.")
    _, version = _run_program(["node", "--version"])
    match = re.fullmatch(r"v(\d+)\.(\d+)\..*", version)
    if match is None or (int(match[1]), int(match[2])) < _INSPECTOR_NODE or shutil.which("npx") is None:
        needed = ".".join(map(str, _INSPECTOR_NODE))
        has = version if match else "no Node"
        print(f"It needs Node {needed} or newer and npx; this machine has {has}. Not started.")
        return 1
    if not confirm("Start it?", sure=sure):
        return 1
    return subprocess.run(line, check=False).returncode
