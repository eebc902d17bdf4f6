"""The shapes of secrets: names, passwords in addresses, and the shapes of `secrets.rows`. Masks them. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial

from mcp_server.text.redaction import Redactor
from mcp_server.text.regex import compile_lazily
from mcp_server.text.rows import read_blocks, read_patterns
from mcp_server.text.secret_spellings import SHORTEST_SECRET

_RX = read_patterns("text/patterns", "secret_patterns")


MASKED = "[masked]"

_LOOKS_LIKE_A_KEY = compile_lazily(r"(?=[^A-Za-z]*[A-Za-z])(?=\D*\d)[A-Za-z0-9+/]{16,}")
_KEY, _CHANGE = compile_lazily(r"[A-Za-z0-9_+=\-]+"), compile_lazily(r"[A-Za-z](?=\d)|\d(?=[A-Za-z])")
_SHORTEST_KEY, _FEWEST_CHANGES = 16, 4
_WORDS_OF_LOGIN = 4
_SHORTEST_DISTINCT = 8
_LONGEST_VALUE = 500  # characters of a value that are searched
_BLOCKS = [dict(block) for block in read_blocks("text/secrets")]
# The two looks ahead of all: without them a search tries every service at every character, which takes 3 to 10 times as
# long. The last are Telegram's.
_SERVICE_TOKEN = compile_lazily(
    r"(?<![A-Za-z0-9])(?=[A-Za-z0-9])(?:(?<!\w)(?:"
    + "|".join(one["begin"] + one["rest"] for one in _BLOCKS if "begin" in one)
    + r")|(?:bot)?\d{8,10}:AA[\w-]{30,})"
)
_LOGIN = compile_lazily(r"(?P<name>://[^/\s:@]{0,100}:)(?P<value>[^/\s@]{1,200})(?=@)")  # user:password@ in an address
_LIKE_A_PASSWORD = compile_lazily(r"[A-Za-z]{2,}\S{0,100}\d|\d[A-Za-z]{3,}|[!@#%^&*]")


def names_a_secret(name: str) -> bool:
    """Return whether a variable of this name usually holds a secret."""
    return bool(_RX.variable_name.search(name))


def is_secret_variable(name: str, value: str) -> bool:
    """Return whether a variable that a caller sets is a secret: by its name, a mere `SORT_KEY` by its value."""
    if len(value) < SHORTEST_SECRET or not names_a_secret(name):
        return False
    if not _RX.setting_key.fullmatch(name) or _RX.sure_name.search(name) or _RX.cipher_key.fullmatch(name):
        return True
    return any(_RX.literal_key.fullmatch(word) for word in re.split(r"\{\w*\}|[\W_]", value))


def holds_a_secret(name: str, value: str) -> bool:
    """Return whether a name is a secret's, or the value holds a password, but not a proxy's, which downloads need."""
    return names_a_secret(name) or bool(_LOGIN.search(value) and not _RX.proxy_name.fullmatch(name))


def is_distinct(name: str, value: str) -> bool:
    """Return whether ``value``, of a variable ``name``, is a secret that no ordinary text contains by chance."""
    value = value.strip()
    if len(value) < _SHORTEST_DISTINCT or _is_plain(value) or _RX.placeholder.fullmatch(value):
        return False
    if not names_a_secret(name):
        return has_service_token(value) or _looks_like_one_key(value)
    return bool(_RX.distinct.search(value))


def has_service_token(text: str) -> bool:
    """Return whether ``text`` contains a token in the format of a known service."""
    return bool(_SERVICE_TOKEN.search(text))


def find_assigned_secrets(command: str) -> Iterator[str]:
    """Yield the names of secrets whose values a shell command contains, as in ``HF_TOKEN=hf_abc python train.py``."""
    for match in _RX.assignment.finditer(command):
        if _assigns_a_secret(match):
            yield match["name"]


def find_keys(words: Sequence[str]) -> Iterator[str]:
    """Yield the names under which the words of a command hold what looks like a key; empty for one without a name.

    ``NAME=value``, ``--name value`` and ``--name=value`` are names. A value under a name that means nothing but a
    secret is one; under other names (`prompt_key`, `max_tokens`) it must look like a key. A key in the format of a
    known service is one anywhere, and so is a password in an address. ``$NAME`` and ``EMPTY`` are not keys.
    """
    login = 0  # how many words `wandb login` may still be followed by
    for before, word in zip(("", *words), words):
        named = _RX.word_setting.fullmatch(word)
        name = named["name"] if named else before.lstrip("-") if _RX.word_flag.fullmatch(before) else ""
        value = named["value"].strip("\"'") if named else word
        login = _WORDS_OF_LOGIN if word == "login" else login - 1
        if _is_key_of(name, value):
            yield name
        elif login > 0 and _looks_like_one_key(word):
            yield "login"
        elif _SERVICE_TOKEN.search(word) or _RX.private_key.search(word) or _RX.bearer.search(word):
            yield name if named else ""
        elif not _RX.proxy_name.fullmatch(name) and any(m["value"][0] not in "${<" for m in _LOGIN.finditer(word)):
            yield ""


def _is_key_of(name: str, value: str) -> bool:
    last = name.rpartition(".")[2]
    if len(value) < SHORTEST_SECRET or value[0] in "$<{`" or not names_a_secret(last):
        return False
    if _RX.sure_name.search(last):
        return not (_is_plain(value) or _RX.placeholder.fullmatch(value))
    return _looks_like_one_key(value)


def _looks_like_one_key(value: str) -> bool:
    """Return whether ``value`` is one long mixture of letters and digits, as keys are; words and dates are not."""
    parts = re.split(r"[-_]", value) if _KEY.fullmatch(value) else []
    return any(len(part) >= _SHORTEST_KEY and len(_CHANGE.findall(part)) >= _FEWEST_CHANGES for part in parts)


def mask_assigned_secrets(command: str) -> str:
    """Return a shell command with the values of such secrets replaced by "…"."""
    return _RX.assignment.sub(
        lambda match: match[0].removesuffix(match["value"]) + "…" if _assigns_a_secret(match) else match[0], command
    )


def mask_secrets(text: str, values_by_name: Mapping[str, str] | None = None) -> str:
    """Return ``text`` without what looks like a secret, and without the secrets of ``values_by_name``."""
    if not text:
        return ""
    masked = _SERVICE_TOKEN.sub(MASKED, _RX.private_key.sub(MASKED, _mask_known(text, values_by_name)))
    folded = masked.casefold()  # a mask adds none of the words
    present = {word for word in _ALL_WORDS if word in folded}
    for pattern, words, is_sure in _SHAPES if present else ():
        if not present.isdisjoint(words):
            masked = pattern.sub(partial(_mask_value, is_sure=is_sure), masked)
    return masked


@lru_cache(4096)  # those of thousands of runs are mostly the same
def mask_value(name: str, value: str) -> str:
    """Return the value of a setting without secrets; its name may say that it is one."""
    return mask_secrets(f"{name}={value}").partition("=")[2]


def mask_source(text: str, values_by_name: Mapping[str, str] | None = None) -> str:
    """Return source code or settings without secrets, and without the literals of names such as ``token``."""
    masked = _mask_known(text, values_by_name)
    return mask_secrets(_RX.literal.sub(_mask_literal, masked))


def _mask_literal(match: re.Match[str]) -> str:
    value = match["quoted"] or match["bare"]
    is_value = bool(match["quote"]) and match["comma"] is None
    return match["before"] + MASKED if _is_secret_literal(match["name"], value, is_value=is_value) else match[0]


def _is_secret_literal(name: str, value: str, *, is_value: bool) -> bool:
    """Return whether a literal is a secret by its name and shape. ``is_value``: it is surely that name's value."""
    if value[0] in "$<{`[%/~." or "://" in value or _is_plain(value) or _RX.placeholder.fullmatch(value):
        return False
    if is_value and _RX.sure_name.search(name):
        return True  # with its spaces
    is_token = "token" in name.lower() and not _RX.ordinary_token.fullmatch(name)
    if is_value and is_token:
        return bool(_RX.literal_key.fullmatch(value))
    return (is_token or bool(_RX.cipher_key.fullmatch(name))) and bool(_RX.mixed_run.fullmatch(value))


def _mask_known(text: str, values_by_name: Mapping[str, str] | None) -> str:
    secrets = {name: value for name, value in (values_by_name or {}).items() if len(value.strip()) >= SHORTEST_SECRET}
    return Redactor(secrets).text(text) if secrets else text


def _mask_value(match: re.Match[str], is_sure: Callable[[str], bool]) -> str:
    return match["name"] + MASKED if is_sure(match["value"]) else match[0]


def _is_given(value: str) -> bool:
    return not value.startswith("$") and not _is_plain(value)


def _assigns_a_secret(match: re.Match[str]) -> bool:
    return names_a_secret(match["name"]) and not match["value"].startswith("$")


def _is_plain(value: str) -> bool:
    return value.startswith((MASKED[1:], "secret:")) or bool(_RX.plain.fullmatch(value))


def _looks_like(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda value: _is_given(value) and bool(pattern.search(value[:_LONGEST_VALUE]))


def _read_shapes(mask: str) -> Iterator[tuple[re.Pattern[str], tuple[str, ...]]]:
    """Yield the patterns of `secrets.rows` whose values are masked so, each with words without which there is none."""
    for one in _BLOCKS:
        if one.get("mask") == mask:
            yield compile_lazily(one["line"]), tuple(one["has"].split("|"))


# In the order in which they are masked. The words are found in a microsecond; the last is whether a value is masked.
_SHAPES: tuple[tuple[re.Pattern[str], tuple[str, ...], Callable[[str], bool]], ...] = (
    (_LOGIN, ("://",), bool),
    (_RX.bearer, ("bearer", "basic"), bool),
    *((*shape, _is_given) for shape in _read_shapes("given")),
    (_RX.setting, ("key", "secret", "passw", "passphrase", "token", "webhook"), _is_given),
    (_RX.argument, ("--",), _is_given),
    *((*shape, lambda value: _is_given(value) and _looks_like_one_key(value)) for shape in _read_shapes("key")),
    (_RX.loose, ("pass", "pwd", "credential"), _looks_like(_LIKE_A_PASSWORD)),
    (_RX.perhaps, ("key", "token", "pat", "auth", "credential"), _looks_like(_LOOKS_LIKE_A_KEY)),
)
_ALL_WORDS = frozenset(word for _, words, _ in _SHAPES for word in words)
