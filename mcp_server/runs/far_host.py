"""Questions of a launch to another host: directories, inputs, its environment. Blocks. Use a thread."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mcp_server.backends.ssh_channel import channel_of
from mcp_server.blueprints.paths import FarPlace
from mcp_server.command.inputs import Input, find_inputs, find_param_inputs
from mcp_server.command.shell import ReadCommand
from mcp_server.errors import BadArgument, HostUnreachable
from mcp_server.hosts.config import Environment, Host
from mcp_server.hosts.path_checks import Roots
from mcp_server.record.spec import LaunchRequest
from mcp_server.store.state_home import StateHome

if TYPE_CHECKING:
    from mcp_server.runs.code_sync import CodeSync


@dataclass(frozen=True)
class FarHost:
    """A host that is reached by ssh, with an open connection. ``mirror`` is `hosts/NAME` in the state directory."""

    name: str
    mirror: Path

    @property
    def environ(self) -> Mapping[str, str]:
        """The variables of its login that a launch adds to."""
        hello = channel_of(self.mirror).hello
        return {"PATH": str(hello.get("path") or os.defpath), "PYTHONPATH": str(hello.get("pythonpath") or "")}

    @property
    def hostname(self) -> str:
        """The name that the host has for itself."""
        return str(channel_of(self.mirror).hello.get("host") or self.name)

    @property
    def cpu_slots(self) -> int:
        """How many cpu slots it has: one per core."""
        return int(channel_of(self.mirror).hello.get("cpu_slots") or 1)

    def find_directory(self, cwd: str | None) -> Path:
        """Return the directory to run in. Without ``cwd``, the one that this server is in, if that host has it.

        Raises:
            BadArgument: it is relative, or missing there.
            HostUnreachable: the host does not answer.
        """
        path = cwd or str(Path.cwd())
        if not path.startswith(("/", "~")):
            raise BadArgument("cwd", f"must be an absolute path, not {cwd!r}.")
        there = self._describe([path])[path]
        if there["kind"] == "directory":
            return Path(str(there["path"]))
        if cwd is None:
            raise BadArgument("cwd", f"{self.name} has no {path}.", "Pass cwd, a directory of that host.")
        raise BadArgument("cwd", f"{self.name} has no directory {path[:200]}.", _suggest(there))

    def check_inputs(
        self,
        request: LaunchRequest,
        command: ReadCommand,
        environment: Environment,
        cwd: Path,
        code: CodeSync | None = None,
    ) -> None:
        """Refuse a launch whose python, config, checkpoint, data or model certainly does not exist there.

        ``code``: what will be there as soon as it is sent.

        Raises:
            BadArgument: names the word, and near names.
            HostUnreachable: the host does not answer.
        """
        places = dict(_list_places(request, command, environment, cwd))
        if not places:
            return
        there = self._describe(list(places))
        for path, (argument, kind) in places.items():
            if there[path]["kind"] == "missing":
                if code is not None and Path(path).is_relative_to(code.there):
                    if code.holds(path):
                        continue
                    below = Path(path).relative_to(code.there)
                    why = 'git add it, or pass sync="rsync".' if request.sync == "git" else "Name what is sent."
                    raise BadArgument(argument, f"{kind} {below} is not part of the code that sync sends.", why)
                raise BadArgument(argument, f"{self.name} has no {kind} {path}.", _suggest(there[path]))

    def find_free_port(self, low: int, high: int) -> int | None:
        """Return a free port of that host, None where there is none.

        Raises:
            HostUnreachable: the host does not answer.
        """
        answer, _ = channel_of(self.mirror).ask("free_port", low=low, high=high)
        port: int | None = answer["port"]
        return port

    def make_place(self, roots: Roots, code: CodeSync | None) -> FarPlace:
        """Return this host as the place of a blueprint. ``roots``: other hosts' paths as it has them."""
        known: dict[str, str] = {}
        if code is not None:
            roots = replace(roots, foreign={**roots.foreign, str(code.here): code.there})

        def look(path: str) -> str:
            if code is not None and Path(path).is_relative_to(code.there) and code.holds(path):
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
            return bool(channel_of(self.mirror).ask("disk", path=path)[0]["writable"])

        home = str(channel_of(self.mirror).hello.get("home") or "/")
        return FarPlace(self.name, home, move, partial(move, is_command=True), look, may_write)

    def _describe(self, paths: list[str]) -> dict[str, dict[str, object]]:
        try:
            answer, _ = channel_of(self.mirror).ask("paths", paths=paths)
        except HostUnreachable as error:
            raise HostUnreachable(error.host, error.why, "Nothing was started.", error.remedy) from error
        described: dict[str, dict[str, object]] = answer["paths"]
        return described


def reach(home: StateHome, host: Host) -> FarHost:
    """Return a host with an open connection.

    Raises:
        HostUnreachable: there is none; says why, and what a person can do.
    """
    mirror = home.hosts / host.name
    try:
        channel_of(mirror).open()
    except HostUnreachable as error:
        raise HostUnreachable(error.host, error.why, "Nothing was started.", error.remedy) from error
    return FarHost(host.name, mirror)


def _list_places(
    request: LaunchRequest, command: ReadCommand, environment: Environment, cwd: Path
) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the absolute paths that must exist, with the argument and the kind of each."""
    if environment.python:
        yield environment.python, ("environment", "python")
    for argument, files in (
        ("command", find_inputs(command)),
        ("params", find_param_inputs(request.params, command)),
    ):
        for file in files:
            if _is_certain(file):
                base = cwd
                for step in file.base:
                    base /= step
                yield str(base / file.path), (argument, file.kind)


def _is_certain(file: Input) -> bool:
    """Return whether a command without the file is certain to fail."""
    is_named = file.is_certain or file.kind in ("program", "script") or file.path.startswith(("/", "~"))
    is_input = not file.may_be_output and file.kind != "data directory"
    return is_named and is_input and not any("~" in step for step in file.base)


def _suggest(there: Mapping[str, object]) -> str:
    near = there.get("near")
    return f"Near: {', '.join(map(str, near))}." if isinstance(near, list) and near else ""
