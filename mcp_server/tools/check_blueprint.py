"""check_blueprint: the values of a blueprint, and whether it can be run."""

from contextlib import suppress
from typing import Annotated

from pydantic import Field

from mcp_server.blueprints.apply import BlueprintCheck, check_file
from mcp_server.errors import ConfigInvalid
from mcp_server.hosts.config import find_this_host, read_hosts_file
from mcp_server.hosts.path_checks import Roots
from mcp_server.runs.launch.arguments import check_options
from mcp_server.threads import run_in_thread
from mcp_server.tools.support.context import Call, server_of
from mcp_server.tools.support.schema import READ_ONLY, tool


async def check_blueprint(
    ctx: Call, path: Annotated[str, Field(description="Absolute path of the blueprint (markdown)")]
) -> BlueprintCheck:
    """Read an experiment's blueprint: whether it can be run as written, its sections, and problems by line.

    ok is about the document; what is not on this host is a problem as well, and launch_run refuses it.
    Starts nothing, changes nothing. Then call launch_run(blueprint=path).
    """
    server = server_of(ctx)

    def check() -> BlueprintCheck:
        server.check_readable(ctx, {"path": path})
        roots = None
        with suppress(ConfigInvalid):  # launch_run and preflight report it; the document can be read without it
            site = read_hosts_file(server.store.home)
            roots = Roots.of(site, find_this_host(site))
        return check_file(path, roots=roots, check_options=check_options)

    return await run_in_thread(check)


TOOL = tool(
    check_blueprint,
    title="Check blueprint",
    annotations=READ_ONLY,
    search_hint="experiment document, plan, validate blueprint markdown",
)
