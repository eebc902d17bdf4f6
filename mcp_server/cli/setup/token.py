"""`runward token`: who may use the server over HTTP, one token an agent."""

import argparse
import json
import os
import sys

from mcp_server.store.state_home import StateHome
from mcp_server.store.tokens import Tokens


def run(arguments: argparse.Namespace) -> int:
    """Add, list or remove tokens, and return the exit status."""
    tokens = Tokens(StateHome.of(os.environ))
    if arguments.action == "add":
        print(tokens.add(arguments.name))
        print(f"Shown this once. {arguments.name} sends it as: Authorization: Bearer TOKEN", file=sys.stderr)
    elif arguments.action == "rm":
        tokens.remove(arguments.name)
        print(f"{arguments.name} has no access any more; its runs go on.")
    elif arguments.json:
        print(json.dumps({"tokens": tokens.names}))
    else:
        print("\n".join(tokens.names) or "No tokens: runward token add NAME")
    return 0
