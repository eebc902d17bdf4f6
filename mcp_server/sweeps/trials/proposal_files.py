"""Proposals on their way to the conductor of an open sweep: a file each, whole at any moment, which nobody changes.

Whoever proposes writes it, and only then answers: no death loses a proposal that was answered.
"""

import contextlib
import json
import os
import re
import secrets
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from mcp_server.record.run_directory import load_json
from mcp_server.record.sweeps.sweep_spec import SweepDir
from mcp_server.system.files import write_atomic

_NAME = re.compile(r"t(\d{1,6})\.json")


def list_proposals(directory: SweepDir, known: Collection[str] = ()) -> dict[str, dict[str, Any]]:
    """Return all proposals but ``known`` ones by the names of their trials, in order. OSError: they cannot be read."""
    numbers = sorted(int(match[1]) for each in directory.requests.iterdir() if (match := _NAME.fullmatch(each.name)))
    names = [name for number in numbers if (name := f"t{number}") not in known]
    found = {name: load_json(directory.requests / f"{name}.json") for name in names}
    return {name: facts for name, facts in found.items() if facts is not None}


def add_proposal(directory: SweepDir, facts: Mapping[str, Any], diff: str = "") -> str:
    """Keep a proposal under the next free number, and return the name of its trial. OSError: it was not kept."""
    number = max((int(name[1:]) for name in list_proposals(directory)), default=0) + 1
    new = directory.requests / f".new-{secrets.token_hex(4)}"
    write_atomic(new, json.dumps(facts, ensure_ascii=False).encode(errors="replace"))
    try:
        while True:
            with contextlib.suppress(FileExistsError):
                os.link(new, directory.requests / f"t{number}.json")  # in one step, where nobody was faster
                break
            number += 1
    finally:
        new.unlink()
    if diff:
        with contextlib.suppress(OSError):  # the commit has it
            directory.trials.mkdir(mode=0o700, exist_ok=True)
            write_atomic(name_diff(directory, f"t{number}"), diff.encode(errors="replace"), durable=False)
    return f"t{number}"


def name_diff(directory: SweepDir, trial: str) -> Path:
    """Return the file with the change that a trial makes."""
    return directory.trials / f"{trial}.diff"
