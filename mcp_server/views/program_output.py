"""Program output as an answer: between two lines of which no program can print the second, and without secrets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from secrets import token_hex

from mcp_server.hosts.environment import list_known_secrets
from mcp_server.text.secret_patterns import mask_secrets

FRAME_BYTES = 48  # that the two lines take beside the header's own words


def frame_output(header: str, body: str, environ: Mapping[str, str], secrets_file: Path) -> str:
    """Return ``body`` between ``header``, a line in brackets, and a closing line that the header announces.

    The closing line has a word of its own in each answer: whatever a program prints, it cannot end its output earlier.
    Values that this server knows to be secret, and what looks like one, are masked in both. Without a body there is
    nothing to enclose. It reads the file of secrets: call it in a thread.
    """
    known = list_known_secrets(environ, secrets_file)
    if not body:
        return mask_secrets(header, known)
    opening, mark = mask_secrets(header, known).removesuffix("]"), f"[end {token_hex(4)}]"
    return f"{opening} It ends at {mark}.]\n{mask_secrets(body, known)}\n{mark}"
