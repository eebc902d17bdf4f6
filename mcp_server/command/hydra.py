"""What a Hydra program's command line, script and lists of defaults say about its configs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from mcp_server.text.regex import compile_lazily

OPTIONS = {
    "--config-name": "name",
    "-cn": "name",
    "--config-path": "path",
    "-cp": "path",
    "--config-dir": "dir",
    "-cd": "dir",
}
_DECORATOR = compile_lazily(r"^\s*@(?:hydra\.)?main\((.{0,500}?)\)\s*(?:#.*)?$", re.MULTILINE | re.DOTALL)
_DECORATOR_ARGUMENT = compile_lazily(r"""\bconfig_(path|name)\s*=\s*[rR]?["']([^"']+)["']""")
_COMMENT = compile_lazily(r"#.*")
_OVERRIDE = compile_lazily(r"\+{0,2}([\w/]+)(?:@[\w.]*)?=(.*)", re.DOTALL)
_NO_CONFIG = ("null", "_self_", "")


def read_hydra_options(words: Sequence[str]) -> dict[str, str]:
    """Return the values of ``--config-path``, ``--config-name`` and ``--config-dir`` as ``path``, ``name``, ``dir``."""
    options: dict[str, str] = {}
    for word, following in zip(words, [*words[1:], ""]):
        name, equals, value = word.partition("=")
        value = value if equals else following
        if name in OPTIONS and value:
            options[OPTIONS[name]] = value
    return options


def read_hydra_decorator(script: str) -> dict[str, str] | None:
    """Return ``path`` and ``name`` of ``@hydra.main`` in the text of a script. None where it has no such decorator."""
    match = _DECORATOR.search(script)
    return None if match is None else dict(_DECORATOR_ARGUMENT.findall(_COMMENT.sub("", match[1])))


def read_hydra_overrides(words: Sequence[str]) -> dict[str, str]:
    """Return the options that a command chooses by group: ``model=large``, ``+experiment=a``."""
    return {match[1]: match[2] for match in map(_OVERRIDE.fullmatch, words) if match}


def list_config_names(name: str) -> list[str]:
    """Return the file names that a config of this name can have."""
    return [name] if name.endswith((".yaml", ".yml")) else [f"{name}.yaml", f"{name}.yml"]


def expand_default(
    key: str, options: Sequence[str], group: str, overrides: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield name and group of each config that one entry of a list of defaults means.

    ``key`` may have ``override``, ``optional`` and a package; without ``options`` it is a config itself. ``group`` is
    that of the config with the list.
    """
    plain = key.replace("override ", "").replace("optional ", "").partition("@")[0].strip()
    if plain == "_self_":
        return
    name = plain[1:] if plain.startswith("/") else f"{group}/{plain}" if group else plain
    if not options:
        yield name, name.rpartition("/")[0]
        return
    for option in [overrides[name]] if name in overrides else options:
        if option not in _NO_CONFIG:
            yield f"{name}/{option}", name
