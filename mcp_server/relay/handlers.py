"""The relay's answers: each function is a request of the server, with JSON values in and out."""

from __future__ import annotations

import contextlib
import difflib
import errno
import glob
import hashlib
import os
import shutil
import signal
import stat
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mcp_server.errors import LaunchFailed
from mcp_server.gpus.leases import Leases, lease_directory
from mcp_server.gpus.query import query_gpus
from mcp_server.record import run_processes
from mcp_server.record.code.code_snapshot import read_code_snapshot
from mcp_server.record.codec import encode
from mcp_server.record.relay_channel import MOST_CONTENT_BYTES, REQUESTS
from mcp_server.record.results.result_page import EXPERIMENT_LOG, FILE_MODE, make_directory
from mcp_server.record.run_directory import RunDir, expiry, put_stop_request
from mcp_server.record.slurm.job import read_screen, was_started_in
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Run
from mcp_server.relay import supervisor_start
from mcp_server.relay.code import CodeStore
from mcp_server.relay.run_watch import RunWatch
from mcp_server.relay.slurm_jobs import is_job
from mcp_server.relay.supervisor_start import State
from mcp_server.system import processes, tmux
from mcp_server.system.directory_scan import DirectoryScan, list_names
from mcp_server.system.files import open_regular, read_regular_file, write_atomic
from mcp_server.system.lock_files import may_be_locked
from mcp_server.system.ports import describe_ray, describe_taken, find_free_port
from mcp_server.system.python_modules import Fault, describe_python

_DISCARDED_WITHIN_S = 2.0
_POLL_S = 0.01
_EXPIRES_S = 60.0  # a stop request that its server could not withdraw
_NEAR, _MOST_NEAR = 0.6, 3
_MOST_FILES = 2_000
_SCREEN_BYTES = 64 * 2**10


class Answers:
    """The requests of one server."""

    def __init__(self, state: State, watch: RunWatch) -> None:
        self._state, self._watch, self._jobs, self._host = state, watch, watch.jobs, run_processes.ThisHost()
        self._code = CodeStore(state.path / "code")
        self.by_name: dict[str, Callable[[dict[str, Any]], tuple[dict[str, Any], bytes]]] = {
            name: getattr(self, f"_{name}") for name in REQUESTS
        }

    def _ping(self, _: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        return {"time": time.time()}, b""

    def _subscribe(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        self._watch.subscribe(request["have"], request["dead"])
        return {}, b""

    def _launch(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        try:
            if (options := request.get("options")) is not None:
                spec, handover = request["spec"], request["handover"]
                return supervisor_start.launch_job(self._state, self._jobs, spec, options, handover), b""
            return supervisor_start.launch(self._state, request["spec"], request["handover"]), b""
        finally:
            self._watch.push_now(str(request["spec"]["run_id"]))

    def _launch_array(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        words = (request["runs"], request["options"], request["name"], request["most_at_once"])
        try:
            return supervisor_start.launch_array(self._state, self._jobs, *words), b""
        finally:
            for each in request["runs"]:
                self._watch.push_now(str(each["spec"]["run_id"]))

    def _preview_array(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        words = (request["name"], request["count"], request["options"], request["most_at_once"])
        return {"lines": self._jobs.preview_array(*words).splitlines()}, b""

    def _preview_job(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        return {"lines": self._jobs.preview(request["run"], request["options"]).splitlines()}, b""

    def _withdraw(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        return {"withdrawn": supervisor_start.withdraw(self._state, request["run"])}, b""

    def _discard(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        directory = self._state.directory(request["run"])
        spec = run_processes.read_spec(directory)
        give_up_s = time.monotonic() + _DISCARDED_WITHIN_S
        while may_be_locked(directory.lock) and time.monotonic() < give_up_s:
            time.sleep(_POLL_S)
        self._close_session(spec)
        shutil.rmtree(directory.path, ignore_errors=True)
        self._watch.push_now(directory.run_id)
        return {}, b""

    def _stop_request(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        directory = self._state.directory(request["run"])
        stop = request["request"]
        if stop is not None and "expires_at" in stop:  # a question to this host's clock
            stop = {**stop, **expiry(_EXPIRES_S)}
        put_stop_request(directory, stop)
        self._watch.push_now(directory.run_id)
        return {}, b""

    def _interrupt(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        directory = self._state.directory(request["run"])
        run = self._read_run(directory)
        if is_job(run.spec):
            reached = self._jobs.interrupt(directory, run)
            self._watch.push_now(directory.run_id)
            return {"reached": reached}, b""
        supervisor = run_processes.supervisor_of(directory.path, run)
        return {"reached": supervisor is not None and processes.send_signal(supervisor, signal.SIGTERM)}, b""

    def _reap(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        directory = self._state.directory(request["run"])
        run = self._read_run(directory)
        result = self._jobs.reap(directory, run, self._host) if is_job(run.spec) else None
        reaping = run_processes.Reaping(self._host, directory.path, run)
        while result is None and (result := reaping.step()) is None:
            time.sleep(run_processes.REAP_STEP_S)
        self._watch.push_now(directory.run_id)
        return {
            "signals_sent": list(result.signals_sent),
            "survivors": _pairs(list(result.survivors)),
            "unsupervised": result.unsupervised,
        }, b""

    def _leftovers(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        run = self._read_run(self._state.directory(request["run"]))
        if is_job(run.spec) and not was_started_in(run, self._host.boot_id):
            return {"processes": []}, b""  # on other nodes Slurm ends all that a job started
        return {"processes": _pairs(run_processes.name_processes(self._host.find_leftovers(run)))}, b""

    def _screen(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        directory = self._state.directory(request["run"])
        spec = run_processes.read_spec(directory)
        if is_job(spec):
            return {}, "\n".join(read_screen(directory, history=request["history"])).encode(errors="replace")
        if not spec.session:
            log = directory.log(directory.newest_attempt())
            data = zlib.decompress(_read_range(log, -_SCREEN_BYTES, _SCREEN_BYTES)[0]) if log.is_file() else b""
            return {"is_log": True}, data
        command = tmux.capture_command(spec.session, history=request["history"])
        lines = tmux.read_capture(tmux.query(spec.tmux_socket, command), spec.session, history=request["history"])
        return {}, "\n".join(lines).encode(errors="replace")

    def _close_screens(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        closed = 0
        for run_id in request["ended"]:
            with contextlib.suppress(Exception):
                closed += self._close_session(run_processes.read_spec(self._state.directory(run_id)))
        return {"closed": closed}, b""

    def _sessions(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        names = tmux.query(request["socket"], ["list-sessions", "-F", "#{session_name}"]) or []
        return {"sessions": names}, b""

    def _read(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        data, status = _read_range(self._state.path / request["path"], int(request["offset"]), int(request["count"]))
        return {"size": status.st_size, "inode": status.st_ino, "mtime_ns": status.st_mtime_ns}, data

    def _files(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        files: dict[str, list[int]] = {}
        for pattern in request["patterns"]:
            for path in glob.iglob(str(self._state.path / os.path.expanduser(pattern)), recursive=True):  # noqa: PTH111, PTH207
                with contextlib.suppress(OSError):
                    status = os.stat(path)  # noqa: PTH116
                    if os.path.isfile(path):  # noqa: PTH113
                        files[path] = [status.st_size, status.st_mtime_ns, status.st_ino]
                if len(files) >= _MOST_FILES:
                    return {"files": files, "cut": True}, b""
        return {"files": files}, b""

    def _gpus(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        snapshot: dict[str, Any] = {}
        env = {**os.environ, **request.get("env", {})}
        if request.get("query", True):
            near, since_s = bool(request.get("near")), request.get("since_s")
            snapshot = encode(query_gpus(request.get("python") or sys.executable, env, near=near, since_s=since_s))
        holders = {uuid: holder.text for uuid, holder in Leases(lease_directory(os.environ)).holders().items()}
        return {"snapshot": snapshot, "holders": holders, "cpu_slots": os.cpu_count() or 1}, b""

    def _paths(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        return {"paths": {path: _describe_path(path) for path in request["paths"]}}, b""

    def _trees(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        return list_trees(request["roots"]), b""

    def _contents(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        return read_files(request["paths"])

    def _write_documents(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        write_documents(Path(request["directory"]), request["files"], request.get("data") or b"")
        return {}, b""

    def _code_look(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        return self._code.look(request), b""

    def _code_put(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        self._code.put(str(request["token"]), int(request["offset"]), request["data"])
        return {}, b""

    def _code_make(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        return self._code.make(request), b""

    def _code_restore(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        snapshot = read_code_snapshot(self._state.directory(request["run"]), int(request["attempt"]))
        return {"directory": self._code.restore(snapshot, str(request["name"]), only_look=request["dry_run"])}, b""

    def _code_guard(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        self._code.guard(Path(request["cwd"]), str(request["base"]), request["protect"], Path(request["clone"]))
        return {}, b""

    def _code_changes(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        return {"changed": self._code.list_changes(Path(request["cwd"]))}, b""

    def _code_remove(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        self._code.remove(Path(request["cwd"]))
        return {}, b""

    def _free_port(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        return {"port": find_free_port(int(request["low"]), int(request["high"]))}, b""

    def _check(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        env = {**os.environ, **request["env"]}
        cwd = Path(request["cwd"] or "/").expanduser()
        problems: list[list[str]] = []
        found: list[str] = []
        if request["python"] or request["imports"]:
            for each in describe_python(request["python"], request["imports"], env, cwd, _suggest_names):
                if isinstance(each, Fault):
                    problems.append(["python", each.text, each.remedy])
                else:
                    found.append(each)
        problems += [["port", *fault] for port in request["ports"] if (fault := describe_taken(int(port)))]
        faults, facts = describe_ray(env.get("RAY_ADDRESS", ""), asks=bool(request["ray"]))
        return {"problems": problems + [["ray", *fault] for fault in faults], "found": found + facts}, b""

    def _disk(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        path = Path(request["path"]).expanduser()
        while not path.is_dir():
            path = path.parent
        usage = shutil.disk_usage(path)
        return {"path": str(path), "free": usage.free, "total": usage.total, "writable": os.access(path, os.W_OK)}, b""

    def _close_session(self, spec: RunSpec) -> bool:
        if not spec.session:
            return False
        condition = ["-F", "-t", f"={spec.session}:", "#{?session_attached,0,1}"]
        command = ["if-shell", *condition, f"kill-session -t ={spec.session}"]
        return tmux.query(spec.tmux_socket, command) is not None

    def _read_run(self, directory: RunDir) -> Run:
        spec = run_processes.read_spec(directory)
        return run_processes.read_run(
            directory, self._host, self._jobs.report(directory, spec) if is_job(spec) else None
        )


def _pairs(members: list[run_processes.RunProcess]) -> list[list[Any]]:
    return [[process.pid, process.program] for process in members]


def _read_range(path: Path, offset: int, count: int) -> tuple[bytes, os.stat_result]:
    """Return bytes of a file, compressed, and its status. A negative ``offset`` counts from the end."""
    with open_regular(path) as file:
        status = os.fstat(file.fileno())
        begin = max(0, status.st_size + offset) if offset < 0 else offset
        data = os.pread(file.fileno(), max(0, min(count, MOST_CONTENT_BYTES)), begin)
    return zlib.compress(data, 1), status


def _describe_path(text: str) -> dict[str, Any]:
    try:
        path = Path(text).expanduser()
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return {"kind": "missing", "near": _near_names(path), "parent": path.parent.is_dir()}
    except (OSError, ValueError, RuntimeError):
        return {"kind": "unknown"}
    return {"kind": "directory" if path.is_dir() else "file", "path": str(path)}


def _suggest_names(path: Path) -> str:
    near = _near_names(path)
    return f"Near: {', '.join(near)}." if near else ""


def _near_names(path: Path) -> list[str]:
    """Return existing paths that a missing one can mean."""
    return [
        str(path.parent / name)
        for name in difflib.get_close_matches(path.name, list_names(path.parent), _MOST_NEAR, _NEAR)
    ]


_DEEPEST, _MOST_DIRECTORIES, _MOST_ENTRIES, _LONGEST_SCAN_S = 6, 2_000, 20_000, 2.0
_MOST_CONTENTS_BYTES = 16 * 2**20  # of one answer
# Whole environments and downloads are stored next to the code; none of them holds results.
_FOREIGN = frozenset({"node_modules", "site-packages", "__pycache__", "venv", "env"})


def list_trees(roots: Sequence[str]) -> dict[str, Any]:
    """Return names, sizes and times of the regular files below ``roots``, by directory. ``cut``: there are more."""
    scan = DirectoryScan(_DEEPEST, max_directories=_MOST_DIRECTORIES, max_entries=_MOST_ENTRIES, max_s=_LONGEST_SCAN_S)
    directories: dict[str, list[list[Any]]] = {}
    for root in map(Path, roots):
        if root not in (Path("/"), Path.home()):  # too many other files are stored there
            for directory, files in scan.walk(root, _describe_entry, skip=_is_foreign):
                directories[str(directory)] = files
    return {"directories": directories, "cut": scan.cut}


def read_files(paths: Sequence[str]) -> tuple[dict[str, Any], bytes]:
    """Return the contents of small files one after the other, compressed, and the size of each; -1: not readable."""
    sizes: list[int] = []
    contents: list[bytes] = []
    left = _MOST_CONTENTS_BYTES
    for path in paths:
        try:
            with open_regular(Path(path), follow_links=False) as file:
                content = file.read(left + 1)
        except OSError:
            sizes.append(-1)
            continue
        if len(content) > left:
            break
        left -= len(content)
        sizes.append(len(content))
        contents.append(content)
    return {"sizes": sizes}, zlib.compress(b"".join(contents), 1)


def write_documents(directory: Path, files: Sequence[Sequence[Any]], data: bytes) -> None:
    """Write documents into a result directory, which is created if missing, in this order, each whole or not at all.

    ``files``: name, the SHA-256 of what is there as far as the server knows, empty where nothing is, and the size. To
    the experiment log only what is new is appended, as other runs append to it too.

    Raises:
        LaunchFailed: a file has changed meanwhile; nothing was written after it.
        OSError: it cannot be written.
    """
    make_directory(directory)
    at = 0
    for name, known, size in files:
        content, at = data[at : at + size], at + size
        path = directory / name
        if "/" in name or name in ("", ".", ".."):
            raise OSError(errno.EINVAL, f"{name} is not a name")
        try:
            before = read_regular_file(path, follow_links=False)
        except FileNotFoundError:
            before = b""
        if known != (hashlib.sha256(before).hexdigest() if before or path.exists() else ""):
            raise LaunchFailed(f"{path} has changed meanwhile.", "It was not written.", "Call again.")
        if name == EXPERIMENT_LOG and path.exists() and content.startswith(before):
            with path.open("ab") as file:
                file.write(content[len(before) :])
        else:
            write_atomic(path, content, mode=FILE_MODE)


def _is_foreign(name: str) -> bool:
    return (name[0] == "." and name != ".hydra") or name in _FOREIGN


def _describe_entry(entry: os.DirEntry[str]) -> list[Any] | None:
    status = entry.stat(follow_symlinks=False)
    return [entry.name, status.st_size, status.st_mtime_ns] if stat.S_ISREG(status.st_mode) else None
