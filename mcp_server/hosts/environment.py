"""What a run gets from this host: its environment, and secrets by name."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from mcp_server.errors import BadArgument, SecretNotSet, SecretsFileOpen, SecretsFileUnreadable
from mcp_server.text.redaction import SHORTEST_SECRET

# Whatever is named like this reaches a run only when it is asked for by name.
_SECRET_NAME = re.compile(
    r"(KEYS?|TOKENS?|SECRETS?|PASSWORD|PASSWD|PASSPHRASE|_(PASS|PWD|PAT|AUTH))(_?\d+)?$"
    r"|(API_?KEY|ACCESS_KEY|TOKEN|SECRET|PASSWORD|WEBHOOK)(_|$)",
    re.IGNORECASE,
)
# user:password@ in an address; a proxy's is needed by every download.
_SECRET_VALUE = re.compile(r"://[^/\s:@]+:[^/\s@]+@")
_PROXY = re.compile(r".*_PROXY", re.IGNORECASE)
_LINE = re.compile(
    r"(?:export\s+)?(?P<name>[A-Za-z_]\w*)\s*=\s*"
    r"(?:(?P<quote>[\"'])(?P<quoted>.*)(?P=quote)(?:\s+#.*)?|(?P<plain>\S.*)?)"
)
_FIXED = frozenset({"UID", "EUID", "PPID", "SHELLOPTS", "BASHOPTS", "BASH_VERSINFO", "TERM"})
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def names_a_secret(name: str) -> bool:
    """Tell whether a variable of this name usually holds a secret."""
    return bool(_SECRET_NAME.search(name))


def holds_a_secret(name: str, value: str) -> bool:
    """Tell whether a variable is called like a secret, or its value holds a password that is not a proxy's."""
    return names_a_secret(name) or bool(_SECRET_VALUE.search(value) and not _PROXY.fullmatch(name))


def check_environment(env: Mapping[str, str]) -> None:
    """Refuse variables that cannot be set, and secrets that would end in a file.

    Raises:
        BadArgument: names the variable, never its value.
    """
    for name, value in env.items():
        if not _VARIABLE.fullmatch(name) or "\0" in value:
            raise BadArgument("env", f"{name[:80]!r} cannot be an environment variable.")
        if name in _FIXED or name.startswith("RUNWARD_"):
            raise BadArgument("env", f"{name} cannot be set: bash or runward sets it.")
        if names_a_secret(name) and len(value) >= SHORTEST_SECRET:
            raise BadArgument(
                "env", f"{name} looks like a secret and would be written to a file: use secrets=[{name!r}]."
            )


def secrets_by_name(names: Iterable[str], environ: Mapping[str, str], file: Path) -> dict[str, str]:
    """Return the values of ``names``, from the server's environment or the 0600 ``file``.

    Raises:
        SecretNotSet: neither has it.
        SecretsFileOpen: the file can be read by others.
        BadArgument: a value is too short to be masked in the output.
    """
    found = {}
    for name in names:
        value = environ.get(name) or stored_secrets(file).get(name)
        if not value:
            raise SecretNotSet(name, file)
        if len(value.strip()) < SHORTEST_SECRET:
            raise BadArgument("secrets", f"{name} has fewer than {SHORTEST_SECRET} characters: it cannot be masked.")
        found[name] = value
    return found


def stored_secrets(file: Path) -> dict[str, str]:
    """Return what the secrets file holds; nothing when there is none.

    Raises:
        SecretsFileOpen, SecretsFileUnreadable: it was not used.
    """
    try:
        mode = file.stat().st_mode
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise SecretsFileOpen(file)
        lines = file.read_text(encoding="utf-8-sig").replace("\r\n", "\n").split("\n")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise SecretsFileUnreadable(file, "it cannot be read as text") from error
    found = {}
    for number, line in enumerate(lines, 1):
        if (match := _LINE.fullmatch(line.strip())) is not None:
            found[match["name"]] = match["quoted"] or match["plain"] or ""
        elif line.strip() and not line.strip().startswith("#"):
            raise SecretsFileUnreadable(file, f"line {number} is not NAME=VALUE")
    return found
