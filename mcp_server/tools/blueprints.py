"""check_blueprint: whether a blueprint can be run, and what it says."""

from functools import partial
from typing import Annotated

import anyio.to_thread
from mcp.server.mcpserver.tools import Tool
from pydantic import Field

from mcp_server.blueprints import BlueprintCheck, check
from mcp_server.tools.toolbox import LOOKS, Toolbox, tool


def tools(_box: Toolbox) -> list[Tool]:
    """Return the tool that reads blueprints."""

    async def check_blueprint(
        path: Annotated[str, Field(description="Absolute path of the blueprint (markdown)")],
    ) -> BlueprintCheck:
        """Read an experiment's blueprint: whether it can be run as written, its sections, and problems by line.

        ok is about the document; what is not on this host is a problem as well, and launch_run refuses it.
        Starts nothing, changes nothing. Then call launch_run(blueprint=path).
        """
        return await anyio.to_thread.run_sync(partial(check, path), abandon_on_cancel=True)

    return [tool(check_blueprint, title="Check blueprint", annotations=LOOKS)]
