"""`runward notify test`: sends a notice to every target of config.toml, and says what became of it."""

import argparse
import json
import os
import socket

from mcp_server.hosts.environment import find_targets
from mcp_server.record.handover import base_environment
from mcp_server.record.notices.notice import NoticedRun, make_notice
from mcp_server.record.notices.sender import DeliveryFailed, deliver
from mcp_server.record.run_directory import now
from mcp_server.store.state_home import StateHome

_EXAMPLE = '[notify]\nwebhook = "https://ntfy.sh/A_TOPIC_THAT_NOBODY_GUESSES"'


def run(arguments: argparse.Namespace) -> int:
    """Send the test notices, once each. Exit status 1 where one did not arrive or nothing is configured."""
    home = StateHome.of(os.environ)
    targets, problems = find_targets(home.read_config(), os.environ, home.secrets)
    owner = home.owner(os.environ)
    event = {"kind": "ended", "state": "finished", "text": "A test: notices of runs arrive here.", "at": now()}
    notice = make_notice(event, NoticedRun("a-test", "a test", owner, socket.gethostname()))
    results = []
    for target in targets:
        try:
            deliver(target, notice, base_environment(os.environ))
        except DeliveryFailed as error:
            results.append({"target": target.name, "service": target.service, "sent": False, "cause": error.cause})
        else:
            results.append({"target": target.name, "service": target.service, "sent": True})
    if arguments.json:
        print(json.dumps({"targets": results, "problems": problems}))
    else:
        for each in results:
            print(f"{each['target']}: {'sent' if each['sent'] else 'not sent: ' + str(each['cause'])}")
        for problem in problems:
            print(problem)
        if not results and not problems:
            print(f"No target of notices: add to {home.path / 'config.toml'}, e.g.\n{_EXAMPLE}")
    return 0 if results and not problems and all(each["sent"] for each in results) else 1
