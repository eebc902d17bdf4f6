"""`python tests/maintenance/tool_diff.py REVISION`: how the tools' schemas differ from that revision's, as markdown.

Names what a client or a prompt may rely on first: tools and arguments that are gone, required or of another type.
"""

from __future__ import annotations

import difflib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = "mcp_server/tools/schemas"
Schemas = Mapping[str, dict[str, Any]]


def main(revision: str) -> int:
    """Print the difference between ``revision`` and the working tree."""
    print(describe(read_revision(revision), read_tree(ROOT / FOLDER)))
    return 0


def read_tree(folder: Path) -> Schemas:
    """Return the schemas in a directory by the name of the tool."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}


def read_revision(revision: str) -> Schemas:
    """Return the schemas of a commit by the name of the tool."""
    listed = _git("ls-tree", "--name-only", revision, f"{FOLDER}/").splitlines()
    return {
        Path(name).stem: json.loads(_git("show", f"{revision}:{name}")) for name in listed if name.endswith(".json")
    }


def describe(before: Schemas, after: Schemas) -> str:
    """Return the difference as markdown."""
    breaks = list(find_breaks(before, after))
    lines = ["## Tool schemas", ""]
    lines += [f"- **breaks callers:** {each}" for each in breaks]
    changed = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    lines += [] if changed else ["No tool changed."]
    for name in changed:
        old, new = (json.dumps(all_.get(name), indent=1, ensure_ascii=False).splitlines() for all_ in (before, after))
        lines += ["", f"<details><summary>{name}</summary>", "", "```diff"]
        lines += list(difflib.unified_diff(old, new, "before", "after", lineterm=""))
        lines += ["```", "</details>"]
    return "\n".join(lines)


def find_breaks(before: Schemas, after: Schemas) -> Iterator[str]:
    """Yield what a caller of the former tools can no longer rely on."""
    for name, old in before.items():
        if name not in after:
            yield f"`{name}` is gone"
            continue
        was, now = old["inputSchema"], after[name]["inputSchema"]
        for argument, facts in was["properties"].items():
            if argument not in now["properties"]:
                yield f"`{name}({argument}=)` is gone"
            elif lost := _types(facts) - _types(now["properties"][argument]):
                yield f"`{name}({argument}=)` no longer takes {', '.join(sorted(lost))}"
        for argument in sorted({*now.get("required", ())} - {*was.get("required", ())}):
            yield f"`{name}({argument}=)` is required now"


def _types(facts: dict[str, Any]) -> set[str]:
    if "anyOf" in facts:
        return set().union(*map(_types, facts["anyOf"]))
    if "enum" in facts:
        return {json.dumps(value) for value in facts["enum"]}
    return {json.dumps(facts["const"]) if "const" in facts else str(facts.get("type", "any"))}


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
