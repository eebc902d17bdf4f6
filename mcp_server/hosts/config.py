"""The operator's ``hosts.toml``: which hosts there are, where each keeps its projects, and environments by name."""

from __future__ import annotations

import re
import socket
import tomllib
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from mcp_server.errors import BadArgument, ConfigInvalid
from mcp_server.hosts.environment import check_environment, holds_a_secret, names_a_secret
from mcp_server.store.state_home import StateHome
from mcp_server.system.ports import HIGHEST_PORT
from mcp_server.text.redaction import SHORTEST_SECRET
from mcp_server.text.regex import checked

NO_ENVIRONMENT = "none"
_NAME = re.compile(r"[\w.\-]{1,64}")
# Tokens whose makers gave them a beginning of their own: Hugging Face, OpenAI, GitHub, AWS.
_TOKEN = re.compile(r"(?:hf_|sk-|gh[pousr]_|github_pat_|AKIA)[A-Za-z0-9_\-]{12,}")


def _absolute(path: str) -> str:
    if not path.startswith("/") or path.rstrip("/") == "":
        raise ValueError(f"must be an absolute path, not {path[:200]!r}")
    return path.rstrip("/")


def _variables(env: dict[str, str]) -> dict[str, str]:
    for name, value in env.items():
        named = names_a_secret(name) and len(value) >= SHORTEST_SECRET
        if named or holds_a_secret("", value) or _TOKEN.search(value):
            raise ValueError(f"{name} looks like a secret: name it in secrets instead")
        try:
            check_environment({name: value})
        except BadArgument as error:
            raise ValueError(f"{name[:80]!r} cannot be set") from error
    return env


def _span(text: str) -> str:
    found = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text)
    if found is None or not 0 < int(found[1]) <= int(found[2]) <= HIGHEST_PORT:
        raise ValueError('must be two ports, as in "20000-30000"')
    return text


def _fields(text: str) -> str:
    if rest := re.search(r"[{}]", text.replace("{run_id}", "").replace("{port}", "")):
        raise ValueError(f"knows {{run_id}} and {{port}}, and no other {rest[0]}")
    return text


def _regex(pattern: str) -> str:
    try:
        checked(pattern)
    except Exception as error:
        raise ValueError(str(error)) from error
    return pattern


Directory = Annotated[str, AfterValidator(_absolute)]
Template = Annotated[str, AfterValidator(_fields)]


class _Table(BaseModel):
    """Base of every table: an unknown key is refused, since a misspelt rule must not be a missing one."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)


class Ray(_Table):
    """The Ray that a run has for itself. ``{port}`` is a free one of ``ports``, ``{run_id}`` the run's id.

    ``address`` is ``local`` for programs that start their Ray by themselves. ``capacity_threshold``: how full its disk
    may be, 0 to 1.
    """

    ports: Annotated[str, AfterValidator(_span)] = "20000-30000"
    temp_dir: Template = "/tmp/ray-{run_id}"  # noqa: S108 - Ray's own default lies there; sockets need a short path
    namespace: Template = "{run_id}"
    address: Template = "127.0.0.1:{port}"
    capacity_threshold: float | None = Field(default=None, gt=0, le=1)


class Environment(_Table):
    """What runs of one kind get beside the server's own environment; secrets by name only."""

    env: Annotated[dict[str, str], AfterValidator(_variables)] = Field(default_factory=dict)
    secrets: list[str] = Field(default_factory=list)
    python: Directory | None = None
    pythonpath: list[Directory] = Field(default_factory=list)
    ray: Ray | None = None


class Host(_Table):
    """One machine. ``rewrites``: prefixes of paths on other hosts, and what they are here."""

    name: str = ""
    hostnames: list[str] = Field(default_factory=list)
    roots: list[Directory] = Field(default_factory=list)
    rewrites: dict[Directory, Directory] = Field(default_factory=dict)
    python: Directory | None = None
    keyword: str = Field(default="", pattern=r"^[\w\-]{0,32}$")
    first_step_timeout_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    first_step_pattern: Annotated[str, AfterValidator(_regex)] | None = None
    environment: str | None = None

    def is_called(self, hostname: str) -> bool:
        """Whether ``hostname``, whole or up to its first dot, means this machine."""
        names = {name.casefold() for name in (self.name, *self.hostnames)}
        return bool(names & {hostname.casefold(), hostname.casefold().partition(".")[0]})


class Site(_Table):
    """Everything in ``hosts.toml``; nothing where there is none."""

    hosts: dict[str, Host] = Field(default_factory=dict)
    environments: dict[str, Environment] = Field(default_factory=dict)

    def environment(self, name: str | None, host: Host) -> Environment:
        """Return the environment called ``name``, else the host's own; an empty one for ``none``.

        Raises:
            BadArgument: there is none of that name; says which there are.
        """
        name = name or host.environment or NO_ENVIRONMENT
        if name in self.environments:
            return self.environments[name]
        if name == NO_ENVIRONMENT:
            return Environment()
        known = ", ".join([*self.environments, NO_ENVIRONMENT])
        raise BadArgument("environment", f"there is no {name[:80]!r} in hosts.toml. There are {known}.")


def settings(home: StateHome) -> Site:
    """Read ``hosts.toml``; a missing file means no hosts and no environments.

    Raises:
        ConfigInvalid: names the file, the key, and what is wrong with it.
    """
    file = home.path / "hosts.toml"
    try:
        site = Site.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
        site = site.model_copy(
            update={"hosts": {name: host.model_copy(update={"name": name}) for name, host in site.hosts.items()}}
        )
        _check(site)
    except (FileNotFoundError, NotADirectoryError):
        return Site()
    except ValidationError as error:
        first = error.errors()[0]
        cause = first["msg"].removeprefix("Value error, ")
        raise ConfigInvalid(file, f"{'.'.join(map(str, first['loc']))}: {cause.rstrip('.')}.") from error
    except (OSError, ValueError) as error:
        raise ConfigInvalid(file, f"{error}.") from error
    return site


def _check(site: Site) -> None:
    """Refuse what no single table shows.

    Raises:
        ValueError: a name that cannot be said, is taken twice, or means nothing.
    """
    for kind, names in (("hosts", site.hosts), ("environments", site.environments)):
        if bad := next((name for name in names if not _NAME.fullmatch(name)), None):
            raise ValueError(f"{kind}.{bad[:80]}: a name has letters, digits, '.', '_' and '-'")
    owners: dict[str, str] = {}
    for name, host in site.hosts.items():
        for called in (name, *host.hostnames):
            if owners.setdefault(called.casefold(), name) != name:
                raise ValueError(f"hosts.{name}: {called!r} is hosts.{owners[called.casefold()]} already")
        if host.environment not in (None, NO_ENVIRONMENT, *site.environments):
            raise ValueError(f"hosts.{name}.environment: there is no [environments.{host.environment}]")


def host_here(site: Site, name: str | None = None) -> Host:
    """Return what is known of this machine, which ``name`` must mean if it is given.

    Raises:
        BadArgument: it is another machine's name, or nobody's.
    """
    hostname = socket.gethostname()
    here = next((host for host in site.hosts.values() if host.is_called(hostname)), None)
    here = here or Host(name=hostname, hostnames=["localhost"])
    if name is None or here.is_called(name) or name.casefold() in ("localhost", hostname.casefold()):
        return here
    other = next((host for host in site.hosts.values() if host.is_called(name)), None)
    if other is not None:
        raise BadArgument(
            "host", f"{other.name} is another machine, this is {here.name}: a run is started on the machine itself."
        )
    known = ", ".join(dict.fromkeys([here.name, *site.hosts]))
    raise BadArgument("host", f"{name[:80]!r} is not known. There are {known}; this is {here.name}.")


def foreign_roots(site: Site, host: Host) -> Mapping[str, str | None]:
    """Return the prefixes of other hosts, and what each is on ``host``; None where nobody said.

    Two hosts with one root each keep the same there. What lies below one of the host's own roots is not foreign.
    """
    found: dict[str, str | None] = dict(host.rewrites)
    for other in site.hosts.values():
        if other.name == host.name:
            continue
        alike = len(other.roots) == len(host.roots) == 1
        for root in other.roots:
            if root not in found and not any(PurePosixPath(root).is_relative_to(own) for own in host.roots):
                found[root] = host.roots[0] if alike else None
    return found
