"""`runward dash`: a link to the page, of the server that runs, or of one that serves the page alone until Ctrl-C."""

import argparse
import os
import sys
import webbrowser

from mcp_server.errors import BadArgument
from mcp_server.page.sessions import PageSessions
from mcp_server.serve.http import serve_page
from mcp_server.store.page_servers import find_server
from mcp_server.store.state_home import StateHome
from mcp_server.system.ports import HIGHEST_PORT, is_port_free

_PORT, _MORE = 8765, 20
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - how servers that listen there are reached


def run(arguments: argparse.Namespace) -> int:
    """Print a link that opens the page once, open it in a browser where there is one, and return the exit status."""
    home, port = StateHome.of(os.environ), arguments.port
    if port is not None and port > HIGHEST_PORT:
        raise BadArgument("--port", f"is at most {HIGHEST_PORT}.")
    sessions = PageSessions(home)

    def describe(address: str) -> str:
        host, _, number = address.rpartition(":")
        link = f"http://{_EVERYWHERE.get(host, host)}:{number}/open/{sessions.make_link(arguments.owner)}"
        if not arguments.no_browser and _has_browser():
            webbrowser.open(link)
        return f"{link}\nIt opens the page once, within ten minutes."

    if (address := find_server(home, port)) is not None:
        print(describe(address))
        return 0
    port = port or next(filter(is_port_free, range(_PORT, _PORT + _MORE)), None)
    if port is None:
        cause = f"Ports {_PORT} to {_PORT + _MORE - 1} are all taken."
        raise BadArgument("--port", cause, "Pass --port N.")
    end = "Ctrl-C ends the page; runs go on."
    serve_page(port, lambda address: f"{describe(address)} {end}")
    print("The page has ended; runs go on.", file=sys.stderr)
    return 0


def _has_browser() -> bool:
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
