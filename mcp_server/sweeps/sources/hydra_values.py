"""A nested configuration as overrides of a Hydra program: flat names, and values in Hydra's grammar. Pure."""

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from mcp_server.errors import BadArgument
from mcp_server.hosts.path_checks import suggest_names
from mcp_server.sweeps.sources.cell import Scalar
from mcp_server.system.files import read_regular_file

_MOST_BYTES, _MOST_VALUES = 400_000, 10_000
_SUFFIXES = (".yaml", ".yml")
_DIRECTORIES = ("", "conf", "config", "configs")  # of the project, where a name without a suffix is looked for
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_FLOAT = re.compile(
    r"""(?:[-+]?[0-9]+(?:_[0-9]+)*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?[0-9]+(?:_[0-9]+)*(?:[eE][-+]?[0-9]+)
    |\.[0-9]+(?:_[0-9]+)*(?:[eE][-+][0-9]+)?
    |[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$""",
    re.VERBOSE,
)


class _HydraLoader(yaml.SafeLoader):
    """PyYAML's safe loader with the types of OmegaConf."""


_HydraLoader.yaml_implicit_resolvers = {
    letter: [pair for pair in pairs if pair[0] != _TIMESTAMP]
    for letter, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_HydraLoader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def list_candidates(word: str, cwd: Path | None) -> list[Path]:
    """Return the files that a source may mean, in the order in which they are looked for."""
    path, base = Path(word).expanduser(), cwd or Path("/")
    if not path.name:
        return [base / path]
    names = [path] if path.suffix in _SUFFIXES else [path.with_name(path.name + suffix) for suffix in _SUFFIXES]
    return [base / directory / name for directory in _DIRECTORIES for name in names]


def find_config(word: str, cwd: Path | None) -> Path:
    """Return the file that a source means: a path, relative to ``cwd``, or a name in a directory of configs.

    Raises:
        BadArgument: there is no such file; names those that are like it.
    """
    if not Path(word).expanduser().is_absolute() and cwd is None:
        raise BadArgument("source", f"names the file {word[:200]!r} by a relative path, and cwd is not given.")
    files = list_candidates(word, cwd)
    for file in files:
        if file.is_file():
            return file
    raise BadArgument("source", f"there is no config {files[0]}.", suggest_names(files[0]))


def read_config(file: Path) -> dict[str, Any]:
    """Return the content of a config; one that cannot be read, or is no table, is a BadArgument."""
    try:
        data = read_regular_file(file, max_bytes=_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise BadArgument("source", f"{file} has more than {_MOST_BYTES:,} bytes.")
        config = yaml.load(data.decode(), Loader=_HydraLoader)  # noqa: S506 - derived from the safe one
    except OSError as error:
        raise BadArgument("source", f"{file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise BadArgument("source", f"{file} is not UTF-8 text.") from None
    except RecursionError:
        raise BadArgument("source", f"{file} is nested too deeply.") from None
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        reason = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise BadArgument("source", f"{file}{where}: not YAML: {str(reason)[:200]}.") from None
    if not isinstance(config, dict):
        raise BadArgument("source", f"{file} holds no table of names and values.")
    if _count_values(config) > _MOST_VALUES:  # anchors can repeat a few lines without end
        raise BadArgument("source", f"{file} has more than {_MOST_VALUES:,} values, or contains itself.")
    return config


def _count_values(value: object) -> int:
    count, queue = 0, [value]
    while queue and count <= _MOST_VALUES:
        count += 1
        each = queue.pop()
        queue += each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
    return count


# Hydra reads these words as themselves; everything else is quoted.
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_/.:@%+*?$-]*|\.{1,2}/[A-Za-z0-9_/.:@%+*?$-]*")
_KEYWORDS = frozenset({"true", "false", "null", "nan", "inf"})  # in any case
_NAME = re.compile(r"[A-Za-z_][\w.\-/@]*", re.ASCII)
_KEY_IN_TABLE = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_PREFIX = re.compile(r"[+~]{1,2}")


class NotAnOverride(ValueError):
    """A name or a value that no override of Hydra can hold."""


def list_overrides(config: Mapping[str, object]) -> Iterator[tuple[str, Scalar]]:
    """Yield names and values of a nested configuration in its order: ``trainer.logger``, ``["console"]``.

    A ``+`` or ``++`` in front of a key at any depth comes first: ``{"data": {"+seed": 1}}`` is ``+data.seed``. An empty
    table is a value. Numbers, booleans and null are themselves.

    Raises:
        NotAnOverride: names the key.
    """
    yield from _flatten(config, "", "")


def format_value(value: object) -> str:
    """Return a value in Hydra's grammar, so that the program reads this value and type, or raise NotAnOverride."""
    if isinstance(value, bool) or value is None:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(map(format_value, value))}]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_format_key(key)}:{format_value(inner)}" for key, inner in value.items()) + "}"
    if not isinstance(value, str):
        raise NotAnOverride(f"a value of the type {type(value).__name__}")
    return value if _PLAIN.fullmatch(value) is not None and value.lower() not in _KEYWORDS else _quote(value)


def _flatten(table: Mapping[str, object], path: str, prefix: str) -> Iterator[tuple[str, Scalar]]:
    for key, value in table.items():
        text = str(key)
        own = match[0] if (match := _PREFIX.match(text)) else ""
        name, its_prefix = f"{path}{text.removeprefix(own)}", own or prefix
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{name}.", its_prefix)
            continue
        if not _NAME.fullmatch(name):
            raise NotAnOverride(f"the key {name[:80]!r}")
        try:
            yield f"{its_prefix}{name}", _to_scalar(value)
        except NotAnOverride as error:
            raise NotAnOverride(f"{name}: {error}") from None


def _to_scalar(value: object) -> Scalar:
    """Return a value as launch_run renders it: numbers as they are, as far as JSON has them."""
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return format_value(value)


def _quote(text: str) -> str:
    """Return a text in double quotes; backslashes count only in front of a quote, and at the end."""
    text = re.sub(r'(\\*)"', lambda match: f'{match[1]}{match[1]}\\"', text)
    return '"' + re.sub(r"\\+\Z", lambda match: match[0] * 2, text) + '"'


def _format_key(key: object) -> str:
    text = str(key)
    if not _KEY_IN_TABLE.fullmatch(text) or text.lower() in _KEYWORDS:
        raise NotAnOverride(f"the key {text[:80]!r} inside a list")
    return text
