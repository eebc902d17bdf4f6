"""The operator's ``hosts.toml``: hosts, the root directories of their projects, and named environments."""

import re
import socket
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from mcp_server.errors import BadArgument
from mcp_server.gpus.request import Requirements
from mcp_server.hosts.environment import check_environment
from mcp_server.store.state_home import StateHome, configuration_errors
from mcp_server.system.files import read_configuration
from mcp_server.system.ports import HIGHEST_PORT
from mcp_server.text.regex import compile_user_pattern
from mcp_server.text.secret_patterns import find_assigned_secrets, has_service_token, holds_a_secret, is_secret_variable

NO_ENVIRONMENT = "none"
_OTHER_MACHINE = "With ssh = ALIAS in its table of hosts.toml it is reached from here; guide://other_machines says how."
_NAME = re.compile(r"[\w.\-]{1,64}")


def _check_absolute(path: str) -> str:
    if not path.startswith("/") or path.rstrip("/") == "":
        raise ValueError(f"must be an absolute path, not {path[:200]!r}")
    return path.rstrip("/")


def _check_variables(env: dict[str, str]) -> dict[str, str]:
    for name, value in env.items():
        if is_secret_variable(name, value) or holds_a_secret("", value) or has_service_token(value):
            raise ValueError(f"{name} looks like a secret: name it in secrets instead")
        try:
            check_environment({name: value})
        except BadArgument as error:
            raise ValueError(f"{name[:80]!r} cannot be set") from error
    return env


def _check_alias(text: str) -> str:
    if not re.fullmatch(r"[\w.@:%\[\]][\w.@:%\[\]\-]*", text):
        raise ValueError(f"must be a name of ~/.ssh/config, not {text[:80]!r}")
    return text


def _check_line(text: str) -> str:
    if next(find_assigned_secrets(text), None) or has_service_token(text):
        raise ValueError("holds a secret, which others there can read: name it in secrets instead")
    return text


def _check_port_range(text: str) -> str:
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text)
    if match is None or not 0 < int(match[1]) <= int(match[2]) <= HIGHEST_PORT:
        raise ValueError('must be two ports, as in "20000-30000"')
    return text


def _check_template(text: str) -> str:
    if brace := re.search(r"[{}]", text.replace("{run_id}", "").replace("{port}", "")):
        raise ValueError(f"knows {{run_id}} and {{port}}, and no other {brace[0]}")
    return text


def _check_pattern(pattern: str) -> str:
    try:
        compile_user_pattern(pattern)
    except Exception as error:
        raise ValueError(str(error)) from error
    return pattern


def _check_dashboard(text: str) -> str:
    if not re.fullmatch(r"https?://[^\s/@?#]+/?", text):
        raise ValueError("must be the address of a Ray dashboard, as in 'http://head:8265'")
    return text


Directory = Annotated[str, AfterValidator(_check_absolute)]
Template = Annotated[str, AfterValidator(_check_template)]


class _Table(BaseModel):
    """Base of every table. An unknown key is refused: it can be a misspelt rule, which would be missing."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)


class Ray(_Table):
    """A run's own Ray. ``{port}`` is a free port of ``ports``, ``{run_id}`` the run's id.

    ``address`` is None where it follows from the command: that of the Ray that it starts, else ``local``, with which
    programs start one themselves. ``capacity_threshold``: the share of its disk that can be in use, 0 to 1.
    """

    ports: Annotated[str, AfterValidator(_check_port_range)] = "20000-30000"
    temp_dir: Template = "/tmp/ray-{run_id}"  # noqa: S108 - Ray's default; sockets need a short path
    namespace: Template = "{run_id}"
    address: Template | None = None
    capacity_threshold: float | None = Field(default=None, gt=0, le=1)


class Environment(_Table):
    """Settings that runs of one kind get in addition to the server's environment; secrets by name only."""

    env: Annotated[dict[str, str], AfterValidator(_check_variables)] = Field(default_factory=dict)
    secrets: list[str] = Field(default_factory=list)
    python: Directory | None = None
    pythonpath: list[Directory] = Field(default_factory=list)
    ray: Ray | None = None


class Host(_Table):
    """One machine. ``rewrites`` maps prefixes of other hosts' paths to those of this host.

    ``ssh`` is its name in ``~/.ssh/config``; ``state`` its state directory, ``prepare`` a line of sh before each login.
    ``sync_mib``: the most code that a launch sends, default 64. ``ray_address``: the dashboard of the cluster that
    ``backend="ray"`` hands jobs to, where neither the launch nor its environment names one.
    ``power_limit_w`` and ``max_sm_clock_mhz``: no launch of more than one GPU above them.
    """

    name: str = ""
    ssh: Annotated[str, AfterValidator(_check_alias)] | None = None
    state: Directory | None = None
    prepare: Annotated[str, AfterValidator(_check_line)] = ""
    sync_mib: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    ray_address: Annotated[str, AfterValidator(_check_dashboard)] | None = None
    hostnames: list[str] = Field(default_factory=list)
    roots: list[Directory] = Field(default_factory=list)
    rewrites: dict[Directory, Directory] = Field(default_factory=dict)
    python: Directory | None = None
    keyword: str = Field(default="", pattern=r"^[\w\-]{0,32}$")
    first_step_timeout_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    first_step_pattern: Annotated[str, AfterValidator(_check_pattern)] | None = None
    environment: str | None = None
    power_limit_w: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    max_sm_clock_mhz: int | None = Field(default=None, gt=0)

    @property
    def gpu_limits(self) -> Requirements:
        """Conditions for every GPU where a launch requests more than one."""
        return Requirements(
            power_limit_w=self.power_limit_w,
            max_sm_clock_mhz=self.max_sm_clock_mhz,
            clock_confirmed=self.max_sm_clock_mhz is not None,
        )

    def tighten(self, require: Mapping[str, Any] | None, *, takes_several: bool = True) -> dict[str, Any] | None:
        """Return ``require`` of a launch, for more than one GPU with this host's limits where they are lower.

        A person wrote this host's clock cap: it confirms one that the launch requires and no driver reports.
        """
        limits = {"power_limit_w": self.power_limit_w, "max_sm_clock_mhz": self.max_sm_clock_mhz}
        given = dict(require or {})
        lower = {name: min(given.get(name) or most, most) for name, most in limits.items() if most is not None}
        tightened = {**given, **lower} if takes_several else given
        cap, wanted = self.max_sm_clock_mhz, tightened.get("max_sm_clock_mhz")
        if cap is not None and isinstance(wanted, int | float) and cap <= wanted:
            tightened["clock_confirmed"] = True
        return tightened or None

    def is_called(self, hostname: str) -> bool:
        """Return whether ``hostname``, whole or up to its first dot, is a name of this machine."""
        names = {name.casefold() for name in (self.name, *self.hostnames)}
        return bool(names & {hostname.casefold(), hostname.casefold().partition(".")[0]})


class HostsFile(_Table):
    """The content of ``hosts.toml``; empty where the file is missing."""

    hosts: dict[str, Host] = Field(default_factory=dict)
    environments: dict[str, Environment] = Field(default_factory=dict)

    def environment(self, name: str | None, host: Host) -> Environment:
        """Return the environment ``name``, without it the host's, an empty one for ``none``; else raise BadArgument."""
        name = name or host.environment or NO_ENVIRONMENT
        if name in self.environments:
            return self.environments[name]
        if name == NO_ENVIRONMENT:
            return Environment()
        names = ", ".join([*self.environments, NO_ENVIRONMENT])
        raise BadArgument("environment", f"there is no {name[:80]!r} in hosts.toml. There are {names}.")


def read_hosts_file(home: StateHome) -> HostsFile:
    """Read ``hosts.toml``; a missing file means no hosts and no environments.

    Raises:
        ConfigInvalid: names the file, the key, and what is wrong with it.
    """
    with configuration_errors(home.path / "hosts.toml") as file, suppress(FileNotFoundError, NotADirectoryError):
        site = HostsFile.model_validate(tomllib.loads(read_configuration(file).decode()))
        site = site.model_copy(
            update={"hosts": {name: host.model_copy(update={"name": name}) for name, host in site.hosts.items()}}
        )
        _check(site)
        return site
    return HostsFile()


def _check(site: HostsFile) -> None:
    for kind, names in (("hosts", site.hosts), ("environments", site.environments)):
        if bad := next((name for name in names if not _NAME.fullmatch(name)), None):
            raise ValueError(f"{kind}.{bad[:80]}: a name has letters, digits, '.', '_' and '-'")
    owners: dict[str, str] = {}
    for name, host in site.hosts.items():
        for hostname in (name, *host.hostnames):
            if owners.setdefault(hostname.casefold(), name) != name:
                raise ValueError(f"hosts.{name}: {hostname!r} is hosts.{owners[hostname.casefold()]} already")
        if host.environment not in (None, NO_ENVIRONMENT, *site.environments):
            raise ValueError(f"hosts.{name}.environment: there is no [environments.{host.environment}]")


def find_this_host(site: HostsFile, name: str | None = None) -> Host:
    """Return this machine's host table; a ``name`` that is another machine's, or unknown, is a BadArgument."""
    hostname = socket.gethostname()
    here = next((host for host in site.hosts.values() if host.is_called(hostname)), None)
    here = here or Host(name=hostname, hostnames=["localhost"])
    if name is None or here.is_called(name) or name.casefold() in ("localhost", hostname.casefold()):
        return here
    other = next((host for host in site.hosts.values() if host.is_called(name)), None)
    if other is not None:
        cause = f"{other.name} is another machine, this is {here.name}: a run is started on the machine itself."
        raise BadArgument("host", cause, _OTHER_MACHINE)
    names = ", ".join(dict.fromkeys([here.name, *site.hosts]))
    raise BadArgument("host", f"{name[:80]!r} is not known. There are {names}; this is {here.name}.", _OTHER_MACHINE)


def find_host(site: HostsFile, name: str | None) -> tuple[Host, bool]:
    """Return the table of the host ``name``, without a name this machine's, and whether it is reached by ssh.

    Raises:
        BadArgument: it is another machine that hosts.toml does not reach, or unknown.
    """
    other = next((host for host in site.hosts.values() if name is not None and host.is_called(name)), None)
    if other is not None and other.ssh is not None and other.name != find_this_host(site).name:
        return other, True
    return find_this_host(site, name), False


def find_mirror(home: StateHome, name: str) -> str:
    """Return the mirror of the host ``name``, `hosts/NAME` in the state directory; empty for this machine."""
    host, is_far = find_host(read_hosts_file(home), name)
    return str(home.hosts / host.name) if is_far else ""


def read_gpu_limits(home: StateHome) -> Requirements:
    """Return what this machine's table in hosts.toml requires of a launch of more than one GPU."""
    return find_this_host(read_hosts_file(home)).gpu_limits


def find_foreign_roots(site: HostsFile, host: Host) -> Mapping[str, str | None]:
    """Return the path prefixes of other hosts, each with its prefix on ``host``; None where that is unknown.

    Two hosts with one root each are assumed to keep the same files there. A path below a root of ``host`` is its own.
    """
    roots: dict[str, str | None] = dict(host.rewrites)
    for other in site.hosts.values():
        if other.name == host.name:
            continue
        alike = len(other.roots) == len(host.roots) == 1
        for root in other.roots:
            if root not in roots and not any(PurePosixPath(root).is_relative_to(own) for own in host.roots):
                roots[root] = host.roots[0] if alike else None
    return roots
