"""`runward doctor`: checks this machine for everything runward needs, with a remedy for what is missing."""

import argparse
import json
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple

import anyio
from rich.console import Console
from rich.text import Text

from mcp_server import __version__
from mcp_server.backends import tmux_client
from mcp_server.backends.local import tmux_socket
from mcp_server.cli.hosts import report_hosts
from mcp_server.cli.setup import client_settings as settings
from mcp_server.cli.setup.install import claude_directory, codex_config, find_plugin, opencode_plugin, read_user_entry
from mcp_server.cli.tables import draw_table
from mcp_server.errors import RunwardError, StateUnusable
from mcp_server.gpus.health import find_faults
from mcp_server.gpus.leases import Leases, lease_directory
from mcp_server.gpus.query import query_gpus
from mcp_server.hosts.environment import find_targets, read_secrets_file
from mcp_server.record.notices.notice import RECORD, find_undelivered
from mcp_server.record.run_processes import find_unrecorded
from mcp_server.record.slurm.commands import SlurmError, describe_site, find_missing
from mcp_server.runs.preflight.checks import PreflightRequest
from mcp_server.runs.preflight.run_preflight import run_preflight
from mcp_server.store.file_watch import is_inotify_available
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.system.files import is_shared_filesystem
from mcp_server.system.lock_files import LeaseError, is_locked, take_lock
from mcp_server.text.secret_patterns import names_a_secret

_LOW_DISK_BYTES = 2**30
_WEEK_S, _MOST_RECORDS = 7 * 86_400.0, 500  # of notices
_COLOURS = {"ok": "green", "warning": "yellow", "missing": "red"}


@dataclass(frozen=True)
class Finding:
    """The result of one check. ``missing`` means that runs cannot be started; ``remedy`` is what to do."""

    what: str
    verdict: Literal["ok", "warning", "missing"]
    detail: str
    remedy: str = ""


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; return 1 if runs cannot be started on this machine."""
    findings = list(check_machine(StateHome.of(os.environ)))
    fit = all(f.verdict != "missing" for f in findings)
    if arguments.json:
        print(json.dumps({"ok": fit, "findings": [asdict(f) for f in findings]}, indent=2))
        return 0 if fit else 1
    rows = [(f.what, Text(f.verdict, style=_COLOURS[f.verdict]), Text(f.detail), Text(f.remedy)) for f in findings]
    console = Console()
    console.print(draw_table(("", "VERDICT", "FOUND", "REMEDY"), rows, overflow="fold"))
    console.print("Ready." if fit else "Not ready: see the remedies.", style="bold")
    return 0 if fit else 1


def check_machine(home: StateHome) -> Iterator[Finding]:
    """Check everything a run needs; creates nothing but the state directory."""
    system = platform.system()
    yield Finding("system", "ok" if system == "Linux" else "warning", f"{system}, Python {platform.python_version()}")
    yield from _programs()
    yield from _state(home)
    if home.runs.is_dir():
        yield from _kernel(home)
        yield from _unrecorded(home)
    yield from _tmux_environment()
    yield _gpus()
    yield _leases()
    yield from _preflight(home)
    yield from _far_hosts(home)
    yield from _slurm(home)
    yield Finding("runward", "ok", f"{__version__}, mcp {version('mcp')}")
    for client in check_clients():
        yield Finding(client.name, "warning" if client.remedy else "ok", client.detail, client.remedy)


def _preflight(home: StateHome) -> Iterator[Finding]:
    try:
        answer = anyio.run(run_preflight, PreflightRequest(), RunStore(home), os.environ)
    except RunwardError as error:
        yield Finding("preflight", "missing", str(error))
        return
    if answer.ok:
        yield Finding("preflight", "ok", "nothing is missing")
    for problem in answer.problems:
        yield Finding(problem.what, "warning", problem.text, problem.remedy)


def _far_hosts(home: StateHome) -> Iterator[Finding]:
    with suppress(RunwardError):  # of hosts.toml, which the preflight reports
        for host in report_hosts(home):
            detail = f"python {host.python}, tmux {host.tmux}, GPUs: {host.gpus}"
            detail = detail if host.reachable else f"cannot be reached: {host.why}"
            remedy = "" if host.reachable else f"runward hosts {host.name}; guide://other_machines"
            yield Finding(f"host {host.name}", "ok" if host.reachable else "warning", detail, remedy)


def _slurm(home: StateHome) -> Iterator[Finding]:
    if shutil.which("sbatch") is None:
        return
    if missing := find_missing():
        yield Finding("slurm", "warning", f"{', '.join(missing)} not found", "runs by backend=slurm need them in PATH")
        return
    try:
        site = describe_site()
    except SlurmError as error:
        yield Finding("slurm", "warning", error.cause, "a person looks with: sinfo; scontrol ping")
        return
    forgets = "an unknown time" if site.forgets_after_s is None else f"{site.forgets_after_s} s"
    detail = f"{site.version}; partitions up: {', '.join(site.partitions) or 'none'}; "
    detail += "accounting by sacct" if site.accounting else f"no accounting: an ended job is forgotten after {forgets}"
    remedy = "" if site.partitions else "no job starts before a person sets one up"
    yield Finding("slurm", "ok" if site.partitions else "warning", detail, remedy)
    others = sorted(site.node_hosts - {platform.node(), platform.node().partition(".")[0]})
    if others and not is_shared_filesystem(home.path):
        detail = f"{home.path} is on a disk of this host, which {others[0]} and other nodes may not see"
        remedy = "set RUNWARD_HOME to a directory that login and compute nodes share"
        yield Finding("slurm disk", "warning", detail, remedy)


def _gpus() -> Finding:
    snapshot = query_gpus(sys.executable, os.environ)
    if snapshot.trouble is not None:
        if snapshot.trouble == "no_driver":
            return Finding("gpus", "ok", "no NVIDIA driver; only runs on GPUs need one")
        return Finding("gpus", "warning", snapshot.text or snapshot.trouble)
    wrong = [f"GPU {gpu.index}: {words}" for gpu in snapshot.gpus for words in find_faults(gpu)]
    detail = "; ".join(wrong) or f"{len(snapshot.gpus)}, driver {snapshot.driver}"
    return Finding("gpus", "warning" if wrong else "ok", detail, "runward gpu" if wrong else "")


def _leases() -> Finding:
    path = lease_directory(os.environ)
    try:
        Leases(path).prepare()
    except LeaseError as error:
        return Finding("leases", "warning", f"{error}")
    if warning := Leases(path).find_warning():
        return Finding("leases", "warning", warning)
    return Finding("leases", "ok", f"{path}, {len(Leases(path).holders())} held")


def _programs() -> Iterator[Finding]:
    for name in ("tmux", "bash"):
        path = shutil.which(name)
        detail = path or "not found"
        if name == "tmux" and path:
            detail = f"{path}, {tmux_client.read_version()}"
        yield Finding(name, "ok" if path else "missing", detail, "" if path else f"sudo apt-get install {name}")


def _state(home: StateHome) -> Iterator[Finding]:
    try:
        home.create()
        with tempfile.TemporaryFile(dir=home.path):
            pass
    except (StateUnusable, OSError) as error:
        yield Finding("state", "missing", str(error), "set RUNWARD_HOME to a directory of yours")
        return
    mode = stat.S_IMODE(home.path.stat().st_mode)
    private = not mode & (stat.S_IRWXG | stat.S_IRWXO)
    verdict: Literal["ok", "warning"] = "ok" if private else "warning"
    yield Finding("state", verdict, f"{home.path}, mode {mode:04o}", "" if private else f"chmod 700 {home.path}")
    free = shutil.disk_usage(home.path).free
    enough = free >= _LOW_DISK_BYTES
    yield Finding("disk", "ok" if enough else "warning", f"{free / 2**30:.1f} GiB free for logs")
    yield _readable("config", home.read_config)
    yield _readable("secrets", lambda: read_secrets_file(home.secrets))
    with suppress(RunwardError):
        targets, problems = find_targets(home.read_config(), os.environ, home.secrets)
        yield from (Finding("notices", "warning", problem) for problem in problems)
        if targets:
            yield Finding("notices", "ok", f"{', '.join(each.name for each in targets)}; try runward notify test")
    yield from _lost_notices(home)


def _unrecorded(home: StateHome) -> Iterator[Finding]:
    for run_id, supervisor in find_unrecorded(home.runs):
        detail = f"{run_id} runs on, but its record was removed: no list shows it"
        yield Finding("record", "warning", detail, f"runward kill {run_id}  # its supervisor: {supervisor.pid}")


def _lost_notices(home: StateHome) -> Iterator[Finding]:
    with suppress(OSError):
        newest: list[tuple[float, Path]] = []
        for entry in os.scandir(home.runs):
            with suppress(OSError):
                newest.append(((Path(entry.path) / RECORD).stat().st_mtime, Path(entry.path)))
        fresh = [path for at_s, path in sorted(newest, reverse=True) if at_s > time.time() - _WEEK_S][:_MOST_RECORDS]
        lost = [f"{path.name}, {each}" for path in fresh for each in find_undelivered(path)]
        if lost:
            more = f" ({len(lost) - 1} more)" if len(lost) > 1 else ""
            yield Finding("notices", "warning", f"not delivered: {lost[0]}{more}", "runward notify test")


def _readable(what: str, read: Callable[[], object]) -> Finding:
    try:
        read()
    except RunwardError as error:
        return Finding(what, "missing", str(error))
    return Finding(what, "ok", "readable, or absent")


def _kernel(home: StateHome) -> Iterator[Finding]:
    shared = is_shared_filesystem(home.path)
    news = is_inotify_available() and not shared
    detail = "inotify" if news else "polled every second: " + ("a shared filesystem" if shared else "no inotify")
    yield Finding("news", "ok" if news else "warning", detail)
    with tempfile.TemporaryDirectory(dir=home.path) as scratch:
        path = Path(scratch) / "lock"
        lock = take_lock(path)
        works = lock is not None and is_locked(path)
        if lock is not None:
            os.close(lock)
    yield Finding("locks", "ok" if works else "missing", "flock", "" if works else "put RUNWARD_HOME on a local disk")
    try:
        for fd in os.openpty():
            os.close(fd)
    except OSError as error:
        yield Finding("terminals", "missing", f"no pty can be opened: {error.strerror}", "mount /dev/pts")
    else:
        yield Finding("terminals", "ok", "ptys can be opened")


def _tmux_environment() -> Iterator[Finding]:
    if shutil.which("tmux") is None:
        return
    names = [line.partition("=")[0] for line in tmux_client.read_global_environment(tmux_socket(os.environ))]
    secret = sorted(name for name in names if names_a_secret(name))
    if secret:
        remedy = "; ".join(f"tmux set-environment -gu {name}" for name in secret[:5])
        yield Finding("tmux server", "warning", f"every session inherits {', '.join(secret)}", remedy)
    else:
        yield Finding("tmux server", "ok", "holds no secrets" if names else "not running yet")


_VERSION_S = 10


class ClientState(NamedTuple):
    """A client on this machine. ``remedy`` is empty where it has the server."""

    name: str
    detail: str
    remedy: str


def check_clients() -> Iterator[ClientState]:
    """Yield Claude Code, Codex and OpenCode as far as they are installed. Starts no server and prints no secret."""
    project = Path.cwd()
    if version := _read_version("claude"):
        of_project = _read_json(project / ".mcp.json").get("mcpServers", {}).get(settings.NAME)
        entries = {"of this user": read_user_entry(), "of this project": of_project}
        allowed = _read_json(claude_directory(None) / "settings.json").get("permissions", {}).get("allow", [])
        allows = all(f"{settings.TOOL_PREFIXES[0]}{tool}" in allowed for tool in settings.LOOKING_TOOLS)
        rules = "tools that look are allowed" if allows else "asks before each tool that looks"
        yield _describe("claude", version, entries, rules)
    if version := _read_version("codex"):
        entry = _read_codex(codex_config(None))
        approval = entry.get("tools", {}).get("launch_run", {}).get("approval_mode", "") if entry else ""
        rules = "launch_run needs no approval" if approval == "approve" else "asks before launch_run"
        entries = {"of this user": entry, "of this project": _read_codex(codex_config(project))}
        yield _describe("codex", version, entries, rules)
    if version := _read_version("opencode"):
        files = [str(path) for path in (opencode_plugin(None), opencode_plugin(project)) if path.exists()]
        detail = f"{version}: {', '.join(files) or 'does not know this server'}"
        remedy = "" if files else "runward install opencode"
        double = "each news starts two turns: runward uninstall opencode"
        yield ClientState("opencode", detail, double if files[1:] else remedy)


def _describe(client: str, version: str, entries: dict[str, Any], rules: str) -> ClientState:
    there = [(where, entry) for where, entry in entries.items() if isinstance(entry, dict)]
    known = [f"{settings.describe_entry(entry)} ({where})" for where, entry in there]
    if plugin := find_plugin(client, Path.cwd()):
        detail = f"{version}: {'; '.join([f'plugin {plugin}', *known])}; {rules}"
        places = "".join(
            f"; runward uninstall {client}{' --project' * where.endswith('project')}" for where, _ in there
        )
        is_double = bool(there) and client == "claude"  # an entry of Codex takes the place of the plugin's server
        remedy = f"each tool is there twice: keep the plugin, and type{places[1:]}" if is_double else ""
        return ClientState(client, detail, remedy)
    if not known:
        return ClientState(client, f"{version}: does not know this server", f"runward install {client}")
    return ClientState(client, f"{version}: {'; '.join(known)}; {rules}", "")


def _read_version(program: str) -> str:
    if (path := shutil.which(program)) is None:
        return ""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=_VERSION_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "version unknown"
    return done.stdout.strip().partition("\n")[0][:60] or "version unknown"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _read_codex(path: Path) -> dict[str, Any] | None:
    try:
        entry = tomllib.loads(path.read_text(encoding="utf-8")).get("mcp_servers", {}).get(settings.NAME)
    except (OSError, ValueError, AttributeError):
        return None
    return entry if isinstance(entry, dict) else None
