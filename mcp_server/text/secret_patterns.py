"""Masks what looks like a secret in text that is kept: a diff, a configuration, a command. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from mcp_server.text.redaction import SHORTEST_SECRET, Redactor

MASKED = "[masked]"

# Names that nothing but a secret has. `max_tokens`, `sort_key` and `eos_token` are settings: their values
# count only when they look like keys.
_SURE = (
    r"api[_-]?key|access[_-]?key(?:[_-]?id)?|secret(?:[_-]?(?:access[_-]?)?key)?|client[_-]?secret|passw(?:or)?d"
    r"|passphrase|private[_-]?key|(?:access|auth|api|hf|hub|bearer|bot|refresh)[_-]?token|webhook(?:[_-]?url)?"
)
_MAYBE = r"keys?|tokens?|pat|auth|credentials?"
_IS = r"[\"']?\s*(?:[:=]|,\s*(?=[\"']))\s*[\"']?"
_VALUE = rf"[^\s\"'(){{}}\[\],;<>$]{{{SHORTEST_SECRET},}}+(?![(\[])"
_NAMED = re.compile(
    rf"(?P<name>(?<![\w\[-])(?:[\w-]{{0,60}}[_-])?(?:{_SURE})(?:_?\d+)?{_IS})(?P<value>{_VALUE})", re.IGNORECASE
)
_PERHAPS = re.compile(rf"(?P<name>(?<!\w)\w{{0,60}}(?:{_MAYBE}){_IS})(?P<value>{_VALUE})", re.IGNORECASE)
_ARGUMENT = re.compile(
    rf"(?P<name>--[\w-]{{0,60}}(?:{_SURE}|token)[ ]+[\"']?)(?P<value>(?!-){_VALUE})",
    re.IGNORECASE,
)
_LOOKS_LIKE_A_KEY = re.compile(r"(?=[^A-Za-z]*[A-Za-z])(?=\D*\d)[A-Za-z0-9+/]{16,}")
_PLAIN = re.compile(
    r"(?:none|null|true|false|str|os\.environ|getenv|required|optional|\*+|x+|\.+|-?\d+(?:\.\d+)?).{0,2}", re.IGNORECASE
)
_LONGEST = 500  # characters of a value that are looked at
# What services hand out, recognised anywhere.
_KNOWN = re.compile(
    r"\bsk-[A-Za-z0-9_-]{16,}|\bhf_[A-Za-z0-9]{16,}|\bgh[pousr]_[A-Za-z0-9]{16,}|\bgithub_pat_\w{16,}"
    r"|\bAKIA[0-9A-Z]{12,}|\bAIza[\w-]{30,}|\bxox[abprs]-[\w-]{10,}|\bglpat-[\w-]{16,}|\bwandb_v\d_\w{16,}"
    r"|\beyJ[\w-]{10,1000}\.[\w-]{10,1000}\.[\w-]*"
)
_BEARER = re.compile(r"(?P<name>\b(?:Bearer|Basic)\s+)(?P<value>[\w\-.~+/]{12,}=*)")
_LOGIN = re.compile(r"(?P<name>://[^/\s:@]{1,100}:)(?P<value>[^/\s@]{1,200})(?=@)")
_BLOCK = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)


def mask(text: str, known: Mapping[str, str] | None = None) -> str:
    """Return ``text`` without what looks like a secret, and without the values of ``known`` secrets by name."""
    secrets = {name: value for name, value in (known or {}).items() if len(value.strip()) >= SHORTEST_SECRET}
    shown = Redactor(secrets).text(text) if secrets else text
    shown = _KNOWN.sub(MASKED, _BLOCK.sub(MASKED, shown))
    for pattern in (_LOGIN, _BEARER):
        shown = pattern.sub(lambda match: match["name"] + MASKED, shown)
    for pattern in (_NAMED, _ARGUMENT):
        shown = pattern.sub(lambda match: match[0] if _is_plain(match["value"]) else match["name"] + MASKED, shown)
    return _PERHAPS.sub(
        lambda match: match["name"] + MASKED if _LOOKS_LIKE_A_KEY.search(match["value"][:_LONGEST]) else match[0], shown
    )


def _is_plain(value: str) -> bool:
    return value.startswith((MASKED[1:], "secret:")) or bool(_PLAIN.fullmatch(value))


_SECRET_NAME = re.compile(
    r"(KEYS?|TOKENS?|SECRETS?|PASSWORD|PASSWD|PASSPHRASE|_(PASS|PWD|PAT|AUTH))(_?\d+)?$"
    r"|(API_?KEY|ACCESS_KEY|TOKEN|SECRET|PASSWORD|WEBHOOK)(_|$)",
    re.IGNORECASE,
)


def holds_a_secret(name: str, value: str) -> bool:
    """Temporary."""
    return bool(_SECRET_NAME.search(name)) or bool(_LOGIN.search(value) and not name.upper().endswith("_PROXY"))
