"""The prompts as skills (`SKILL.md`), for clients that show no prompts of servers.

The format is that of agentskills.io: a directory named as the skill, with name and description in the front matter.
"""

from __future__ import annotations

import json

from mcp_server.resources.documents import read_documents
from mcp_server.resources.register import fill_slots


def render_skills() -> dict[str, str]:
    """Return the text of each skill by its name."""
    skills = {}
    for document in read_documents("prompts").values():
        if "arguments" not in document.tables:
            continue
        name = f"runward-{document.name.replace('_', '-')}"
        arguments = document.tables["arguments"]
        slots = {argument: argument.upper() for argument in arguments}
        answers = [f"{slots[argument]} is what your user wrote: {text}." for argument, text in arguments.items()]
        front = f"---\nname: {name}\ndescription: {json.dumps(document.description)}\n---\n"
        body = fill_slots(document, slots).strip()
        skills[name] = front + "\n".join([*answers, "", body]) + "\n"
    return skills
