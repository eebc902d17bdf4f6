"""runward export: runs or a sweep in one HTML file, to keep or to send."""

import argparse
import os
from pathlib import Path

import anyio

from mcp_server.errors import BadArgument
from mcp_server.page.export import export_html
from mcp_server.system.files import write_atomic
from mcp_server.tools.support.context import ServerContext


def run(arguments: argparse.Namespace) -> int:
    """Write the file and say how large it is."""
    file = Path(arguments.output)
    if not file.parent.is_dir():
        raise BadArgument("-o", f"{file.parent} is not a directory.")
    text = anyio.run(export_html, ServerContext.of(os.environ), arguments.runs)
    write_atomic(file, text.encode())
    print(f"{file}: {file.stat().st_size / 1e6:.1f} MB; it opens in any browser, without a server.")
    return 0
