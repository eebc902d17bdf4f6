"""The machine of a launch: this one, or a host that is reached by ssh. Both answer the same questions. Blocks."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

from mcp_server.backends.ssh.ssh_channel import Channel, channel_of
from mcp_server.blueprints.apply import read_blueprint
from mcp_server.blueprints.parser import Blueprint
from mcp_server.blueprints.paths import FarPlace, resolve_paths
from mcp_server.command.configs import find_script_configs
from mcp_server.command.inputs import Input, find_inputs, find_param_inputs
from mcp_server.command.shell import ReadCommand
from mcp_server.errors import BadArgument, HostUnreachable
from mcp_server.hosts.config import Environment, Host, HostsFile, find_host, read_hosts_file
from mcp_server.hosts.path_checks import (
    LONGEST_CONFIG,
    Roots,
    find_config_files,
    find_config_roots,
    find_foreign_lines,
    find_missing_data,
    find_missing_inputs,
    refuse_first,
    suggest_names,
)
from mcp_server.record.handover import base_environment
from mcp_server.record.spec import LaunchRequest
from mcp_server.runs.code.code_copy import CodeCopy, FormerCode, find_sweep_copy, plan_copy, plan_restored
from mcp_server.runs.code.code_sync import CodeSync, plan_sync
from mcp_server.runs.launch.gpu_admission import count_cpu_slots
from mcp_server.runs.warnings.warning_inputs import read_scripts
from mcp_server.store.state_home import Config, StateHome
from mcp_server.system.ports import find_free_port

_FAR_BACKENDS = (LaunchRequest.backend, "slurm")
_NO_FAR_BACKEND = "Run a server on that host, and pass no host to it."
_RESTORED_WITHIN_S = 300.0
_Document = tuple[Path, Blueprint]


def find_site(
    request: LaunchRequest, home: StateHome, environ: Mapping[str, str]
) -> tuple[ThisSite | FarSite, LaunchRequest]:
    """Return the machine of a launch, and ``request`` with the paths of the code that is sent there as it has them."""
    hosts = read_hosts_file(home)
    host, is_far = find_host(hosts, request.host)
    environment = hosts.environment(request.environment, host)
    roots = Roots.of(hosts, host, is_far=is_far)
    if request.sync is not None and request.host is None:
        raise BadArgument("sync", "sends code to another host.", "Pass host too.")
    if is_far:
        return FarSite.reach(request, home.hosts / host.name, host, environment, roots, environ)
    return ThisSite(host, environment, roots, hosts, home, environ), request


@dataclass(frozen=True)
class ThisSite:
    """The machine of this server. ``environ``: the server's environment. ``roots``: other hosts' paths as it has them.

    ``runs_commands``: whether its supervisors can run this machine's commands of notices.
    """

    host: Host
    environment: Environment
    roots: Roots
    hosts: HostsFile
    home: StateHome
    environ: Mapping[str, str]
    mirror: ClassVar[str] = ""
    runs_commands: ClassVar[bool] = True
    place: ClassVar[None] = None

    @property
    def inherited(self) -> dict[str, str]:
        """The variables that its run has besides those of the launch."""
        return base_environment(self.environ)

    @property
    def hostname(self) -> str:
        """The name that the machine has for itself."""
        return socket.gethostname()

    @property
    def runs(self) -> Path:
        """Where this machine keeps the records of its runs."""
        return self.home.runs

    def count_cpu_slots(self, config: Config) -> int:
        """Return how many cpu slots it has: as configured, else one per core."""
        return count_cpu_slots(config.cpu_slots)

    def read_blueprint(self, request: LaunchRequest) -> _Document:
        """Return the path and the content of the request's blueprint."""
        return read_blueprint(str(request.blueprint), request.cwd)

    def find_directory(self, cwd: str | None) -> Path:
        """Return the directory to run in. See :func:`find_directory`."""
        return find_directory(cwd)

    def check_inputs(self, request: LaunchRequest, command: ReadCommand) -> None:
        """Refuse a launch whose python, config, checkpoint, data or model certainly does not exist there."""
        cwd, searched = Path(request.cwd or ""), None
        if request.backend == LaunchRequest.backend:
            searched = request.env.get("PATH") or self.environ.get("PATH") or os.defpath
        refuse_first(find_missing_inputs(request, command, self.hosts, self.host, self.environment, searched))
        configs = find_config_files(request, command, cwd)
        chosen = find_script_configs(request.command, cwd) if self.roots.foreign else []
        refuse_first(find_config_roots([*configs, *chosen], self.roots))
        refuse_first(find_missing_data(configs, command, request.params, cwd))

    def find_free_port(self, low: int, high: int) -> int | None:
        """Return a free port of its own, or None."""
        return find_free_port(low, high)

    def read_scripts(self, request: LaunchRequest) -> Iterable[str]:
        """Return the texts of scripts that the command names, as far as they can be read from here."""
        return read_scripts(request.command, Path(request.cwd or "")).values()

    def plan_code(
        self, request: LaunchRequest, run_id: str, former: FormerCode | None
    ) -> tuple[LaunchRequest, CodeCopy | None]:
        """Return ``request`` with its paths in the code that is sent or copied before the start, and that code."""
        if not request.keep_code:
            return request, None
        there = str(self.home.path / "code" / run_id)
        copy = plan_copy(request, run_id, self.home.path) if former is None else plan_restored(request, former, there)
        return copy.move(request), copy


def find_directory(cwd: str | None) -> Path:
    """Return the directory of this machine to run in, by default the server's. BadArgument: it cannot be used."""
    try:
        path = Path(cwd or Path.cwd()).expanduser()
        if not path.is_absolute():
            raise BadArgument("cwd", f"must be an absolute path, not {cwd!r}.")
        if not path.is_dir():
            raise BadArgument("cwd", f"is not a directory: {str(path)[:200]!r}.", suggest_names(path))
    except (OSError, RuntimeError) as error:  # too long, not readable, or no such user
        raise BadArgument("cwd", f"cannot be used: {str(error)[:200]}.") from error
    return path


@dataclass(frozen=True)
class FarSite:
    """A host that is reached by ssh, with an open connection. It has all names of :class:`ThisSite`.

    ``directory``: that of its mirror. ``code``: sent before the run starts. ``document``: the blueprint of a launch.
    """

    host: Host
    environment: Environment
    roots: Roots
    directory: Path
    code: CodeSync | None = None
    document: _Document | None = None
    runs_commands: ClassVar[bool] = False
    inherited: ClassVar[dict[str, str]] = {}  # a run there has the variables of the login

    @classmethod
    def reach(
        cls,
        request: LaunchRequest,
        directory: Path,
        host: Host,
        environment: Environment,
        roots: Roots,
        environ: Mapping[str, str],
    ) -> tuple[FarSite, LaunchRequest]:
        """Return the host, and ``request`` with its paths there. Without ``cwd`` the blueprint's code here is sent."""
        if request.backend not in _FAR_BACKENDS:
            raise BadArgument("backend", f'"{request.backend}" cannot be combined with host.', _NO_FAR_BACKEND)
        try:
            channel_of(directory).open()
        except HostUnreachable as error:
            raise HostUnreachable(error.host, error.why, "Nothing was started.", error.remedy) from error
        document = read_blueprint(request.blueprint, request.cwd) if request.blueprint is not None else None
        if request.sync is None and (request.like or not request.keep_code):
            return cls(host, environment, roots, directory, None, document), request
        cwd = request.cwd or (str(resolve_paths(*document).codebase_dir) if document else None)
        kept = None
        if request.sweep and cwd:
            kept = find_sweep_copy(request.sweep, str(Path(cwd).expanduser()), directory.parents[1])
        source = kept if request.keep_code and kept is not None and kept.is_dir() else None
        sent = replace(request, cwd=cwd, sync=request.sync or "rsync")
        code = plan_sync(sent, directory, roots, host.sync_mib, environ, source)
        roots = replace(roots, own=(*roots.own, code.there))
        return cls(host, environment, roots, directory, code, document), code.move(request)

    @property
    def _channel(self) -> Channel:
        return channel_of(self.directory)

    @property
    def environ(self) -> Mapping[str, str]:
        """The variables of its login that a launch adds to."""
        hello = self._channel.hello
        return {"PATH": str(hello.get("path") or os.defpath), "PYTHONPATH": str(hello.get("pythonpath") or "")}

    @property
    def hostname(self) -> str:
        """The name that the machine has for itself."""
        return str(self._channel.hello.get("host") or self.host.name)

    @property
    def mirror(self) -> str:
        """Its directory `hosts/NAME` in the state directory."""
        return str(self.directory)

    @property
    def runs(self) -> Path:
        """Where this machine keeps the records of its runs."""
        return self.directory / "runs"

    @cached_property
    def place(self) -> FarPlace:
        """The host as the place of a blueprint."""
        known: dict[str, str] = {}
        roots, code = replace(self.roots, own=tuple(self.host.roots)), self.code
        if code is not None:
            roots = replace(roots, foreign={**roots.foreign, str(code.here): code.there})

        def look(path: str) -> str:
            if code is not None and code.holds(path):
                is_file = Path(path).relative_to(code.there).as_posix() in code.files
                return "file" if is_file else "directory"
            if path not in known:
                known[path] = str(self._describe([path])[path]["kind"])
            return known[path]

        def move(text: str, *, is_command: bool = False) -> str:
            rewrite = roots.rewrite(text, is_command=is_command)
            return rewrite.text if rewrite and rewrite.is_known else text

        def may_write(path: str) -> bool:
            if code is not None and Path(path).is_relative_to(code.there):
                return True
            return bool(self._channel.ask("disk", path=path)[0]["writable"])

        home = str(self._channel.hello.get("home") or "/")
        return FarPlace(self.host.name, home, move, partial(move, is_command=True), look, may_write)

    def count_cpu_slots(self, config: Config) -> int:
        """Return how many cpu slots it has, as it says."""
        del config
        return int(self._channel.hello.get("cpu_slots") or 1)

    def read_blueprint(self, request: LaunchRequest) -> _Document:
        """Return the path and the content of the request's blueprint."""
        return self.document or read_blueprint(str(request.blueprint), request.cwd)

    def find_directory(self, cwd: str | None) -> Path:
        """Return the directory to run in. See :func:`find_directory`."""
        if self.code is not None:
            return Path(self.code.cwd)
        path = cwd or str(Path.cwd())
        if not path.startswith(("/", "~")):
            raise BadArgument("cwd", f"must be an absolute path, not {cwd!r}.")
        there = self._describe([path])[path]
        if there["kind"] == "directory":
            return Path(str(there["path"]))
        if cwd is None:
            raise BadArgument("cwd", f"{self.host.name} has no {path}.", "Pass cwd, a directory of that host.")
        raise BadArgument("cwd", f"{self.host.name} has no directory {path[:200]}.", _suggest(there))

    def check_inputs(self, request: LaunchRequest, command: ReadCommand) -> None:
        """Refuse a launch whose python, config, checkpoint, data or model certainly does not exist there."""
        places = dict(_list_places(request, command, self.environment))
        there = self._describe(list(places)) if places else {}
        for path, (argument, kind) in places.items():
            if there[path]["kind"] != "missing" or (self.code and self.code.holds(path)):
                continue
            if self.code is None or not Path(path).is_relative_to(self.code.there):
                raise BadArgument(argument, f"{self.host.name} has no {kind} {path}.", _suggest(there[path]))
            below = Path(path).relative_to(self.code.there)
            why = 'git add it, or pass sync="rsync".' if request.sync == "git" else "Name what is sent."
            raise BadArgument(argument, f"{kind} {below} is not part of the code that sync sends.", why)
        if self.roots.foreign:
            refuse_first(self._find_foreign_lines(request, command))

    def _find_foreign_lines(self, request: LaunchRequest, command: ReadCommand) -> Iterator[BadArgument]:
        """Yield the lines of configs, there or to be sent there, that name another host's path."""
        files = (*find_inputs(command), *find_param_inputs(request.params, command))
        configs = [str(Path(request.cwd or "").joinpath(*f.base, f.path)) for f in files if f.kind == "config"]
        code = self.code
        sent = {path: code.here / Path(path).relative_to(code.there) for path in configs if code and code.holds(path)}
        for file in sent.values():
            yield from find_foreign_lines(file, self.roots)
        others = [path for path in configs if path not in sent]
        for path, facts in (self._describe(others) if others else {}).items():
            if facts["kind"] == "file":
                data = self._channel.ask("read", path=str(facts["path"]), offset=0, count=LONGEST_CONFIG + 1)[1]
                yield from find_foreign_lines(Path(path), self.roots, data)

    def find_free_port(self, low: int, high: int) -> int | None:
        """Return a free port of its own, or None."""
        port: int | None = self._channel.ask("free_port", low=low, high=high)[0]["port"]
        return port

    def read_scripts(self, request: LaunchRequest) -> Iterable[str]:
        """Return nothing: they are on that host."""
        del request
        return ()

    def plan_code(
        self, request: LaunchRequest, run_id: str, former: FormerCode | None
    ) -> tuple[LaunchRequest, CodeSync | CodeCopy | None]:
        """Return ``request`` and the code that is sent, or laid out again there, before the start."""
        if former is None or not request.keep_code:
            return request, self.code

        def ask(*, dry_run: bool) -> str:
            words: dict[str, Any] = {
                "run": former.run_id,
                "attempt": former.attempt,
                "name": run_id,
                "dry_run": dry_run,
            }
            return str(self._channel.ask("code_restore", timeout_s=_RESTORED_WITHIN_S, **words)[0]["directory"])

        copy = plan_restored(request, former, ask(dry_run=True), partial(ask, dry_run=False))
        return copy.move(request), copy

    def _describe(self, paths: list[str]) -> dict[str, dict[str, Any]]:
        try:
            answer, _ = self._channel.ask("paths", paths=paths)
        except HostUnreachable as error:
            raise HostUnreachable(error.host, error.why, "Nothing was started.", error.remedy) from error
        described: dict[str, dict[str, Any]] = answer["paths"]
        return described


def _list_places(
    request: LaunchRequest, command: ReadCommand, environment: Environment
) -> Iterator[tuple[str, tuple[str, str]]]:
    if environment.python:
        yield environment.python, ("environment", "python")
    inputs = {"command": find_inputs(command), "params": find_param_inputs(request.params, command)}
    for argument, files in inputs.items():
        for file in filter(_is_certain, files):
            yield str(Path(request.cwd or "").joinpath(*file.base, file.path)), (argument, file.kind)


def _is_certain(file: Input) -> bool:
    """Return whether a command without the file is certain to fail."""
    is_named = file.is_certain or file.kind in ("program", "script") or file.path.startswith(("/", "~"))
    is_input = not file.may_be_output and file.kind != "data directory"
    return is_named and is_input and not any("~" in step for step in file.base)


def _suggest(there: Mapping[str, Any]) -> str:
    near = there.get("near")
    return f"Near: {', '.join(map(str, near))}." if isinstance(near, list) and near else ""
