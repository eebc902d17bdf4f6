"""What a launch leaves open, filled in: by its blueprint first, then by this host and the named environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mcp_server.blueprints.apply import apply_blueprint, read_blueprint
from mcp_server.blueprints.paths import resolve_paths
from mcp_server.hosts.config import Environment, Host, Site, host_here, settings
from mcp_server.hosts.defaults import fitted
from mcp_server.hosts.path_checks import Roots, check_foreign_paths, check_foreign_variables, check_inputs
from mcp_server.record.spec import LaunchRequest
from mcp_server.store.state_home import StateHome
from mcp_server.text.shell import parse


@dataclass(frozen=True)
class Settled:
    """A request with nothing left open, and where it was filled in from."""

    request: LaunchRequest
    site: Site
    host: Host
    environment: Environment
    blueprint: Path | None = None
    result_dir: Path | None = None

    def check(self) -> None:
        """Refuse paths that are another host's, or not there.

        Raises:
            BadArgument: names the word, and the line to use instead where one is known.
        """
        check_foreign_variables(self.request.env, Roots.of(self.site, self.host))
        check_inputs(self.request, parse(self.request.command), self.site, self.host, self.environment, strict=False)


def settle(request: LaunchRequest, home: StateHome, environ: Mapping[str, str]) -> Settled:
    """Fill in what ``request`` leaves open; what it says itself wins.

    Raises:
        BadArgument: there is no such host here, or no such environment; or a path is another host's, told first.
        BlueprintUnreadable, BlueprintInvalid: its blueprint cannot be run.
        ConfigInvalid: hosts.toml is not what it should be.
    """
    site = settings(home)
    host = host_here(site, request.host)
    environment = site.environment(request.environment, host)
    roots = Roots.of(site, host)
    check_foreign_paths(request, parse(request.command), roots)
    if request.blueprint is None:
        return Settled(fitted(request, host, environment, environ), site, host, environment)
    path, blueprint = read_blueprint(request.blueprint, request.cwd)
    request = fitted(
        apply_blueprint(request, path, blueprint, host.keyword, environ, roots), host, environment, environ
    )
    return Settled(request, site, host, environment, path, resolve_paths(path, blueprint).result_dir)
