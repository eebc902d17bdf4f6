"""Cells from the YAML of a Hydra program: ``hydra:CONFIG.yaml``, and ``verl:CONFIG.yaml`` with VERL's own checks.

Several files that are not whole each are one configuration of VERL.
Each value of the file becomes an override, ``key=value``. The program itself comes from the sweep's ``command``.

A user's configuration checked by VERL's own: sections, keys, the GPUs it counts on.
"""

import difflib
import glob
import math
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from mcp_server.command.inputs import find_named_data
from mcp_server.errors import BadArgument
from mcp_server.hosts.path_checks import is_missing, suggest_names
from mcp_server.record.script import format_arguments, slug
from mcp_server.runs.launch.params_file import NotOfVerl, use_verl_names
from mcp_server.sweeps.sources.cell import GpuCount, Scalar, SourceCell, SourceQuery
from mcp_server.system.files import read_regular_file
from mcp_server.system.python_modules import Installation, find_installation

_STYLE = "k=v"
_MOST_FILES, _MOST_NAMES = 200, 3
_MISSING = "???"  # Hydra's word for a value that must be given
SECTIONS = ("data", "actor_rollout_ref", "algorithm", "trainer")  # of PPO, GRPO and their like
# Configs of the package that its programs start from: what they define needs no list of defaults.
PRIMARY = frozenset({"ppo_trainer", "ppo_megatron_trainer", "ppo_torchtitan_trainer", "ppo_veomni_trainer"})
_PACKAGED = "trainer/config/_generated_ppo*_trainer.yaml"  # VERL's release writes each primary config out in full
_MOST_BYTES = 1_000_000
_MOST_NOTES = 8


def read_hydra_source(query: SourceQuery) -> list[SourceCell]:
    """Return a cell for each config that the source means. A pattern means all files that it meets.

    Raises:
        BadArgument: a config is missing, cannot be an override list, lacks a section of VERL, or names data that is
            not here.
    """
    cwd = Path(query.cwd).expanduser() if query.cwd is not None else None
    files = list(dict.fromkeys(file for word in query.words for file in _find_files(word, cwd)))
    if not files:
        cause = f"names no config: {query.kind}:{query.rest[:80]}."
        raise BadArgument("source", cause, "Write the path of a YAML file.")
    groups = [[file] for file in files]
    is_verl_list = query.kind == "verl" and len(files) > 1 and not any(map(glob.has_magic, query.words))
    if is_verl_list and any(_is_part(file) for file in files):
        groups = [files]  # parts of one configuration, as agent.yaml and train.yaml
    cells: list[SourceCell] = []
    for group in groups:
        name = slug(group[-1].stem)
        while any(name == cell.name for cell in cells):
            name = f"{name}-2"
        cells.append(_build_cell(name, group, cwd, query))
    return cells


def list_places(rest: str, cwd: Path | None) -> Iterator[Path]:
    """Yield every path that may be read for the source ``rest``, what is behind its colon, whether it is there or not.

    A pattern gives itself, and then the files that it meets.
    """
    for word in SourceQuery("hydra", rest, None, {}, None, {}, None).words:
        if not glob.has_magic(word):
            yield from list_candidates(word, cwd)
            continue
        yield (cwd or Path("/")) / Path(word).expanduser()
        yield from ((cwd or Path("/")) / path for path in _meet(word, cwd))


def _meet(word: str, cwd: Path | None) -> list[str]:
    return sorted(glob.glob(str(Path(word).expanduser()), root_dir=cwd))  # noqa: PTH207 - has root_dir, absolute too


def _find_files(word: str, cwd: Path | None) -> Iterator[Path]:
    if not glob.has_magic(word):
        yield find_config(word, cwd)
        return
    paths = _meet(word, cwd)
    if len(paths) > _MOST_FILES:
        raise BadArgument("source", f"{word[:80]} meets {len(paths)} files, more than {_MOST_FILES}.")
    yield from (find_config(each, cwd) for each in paths if each.endswith((".yaml", ".yml")))


def _build_cell(name: str, files: Sequence[Path], cwd: Path | None, query: SourceQuery) -> SourceCell:
    config: dict[str, Any] = {}
    notes: list[str] = []
    for each in files:
        part = read_config(each)
        notes += _read_defaults(part, each, query.kind)
        notes += [f"{each.name} replaces {key}." for key in _join(config, part, "")]
    file = ", ".join(map(str, files))
    settings, renamed = _list_settings(config, file, query.kind)
    notes += renamed
    if query.kind == "verl":
        _check_sections(settings, file)
    params = _apply_overrides(settings, query.overrides)
    if missing := [key for key, value in params.items() if value == f'"{_MISSING}"']:
        notes.append(f"{', '.join(missing)} must be given, in params or in the grid: the file says {_MISSING}.")
        params = {key: value for key, value in params.items() if key not in missing}
    _check_data(params, file, cwd)
    if query.kind == "verl":
        notes += [*_check_keys(params, query, cwd), *check_gpu_count(params, query.gpus)]
    return SourceCell(name, {"param_style": _STYLE}, params, tuple(notes))


def _join(config: dict[str, Any], part: Mapping[str, Any], prefix: str) -> Iterator[str]:
    """Put the values of ``part`` into ``config``; yield the names of those that had another value."""
    for key, value in part.items():
        present = config.get(key)
        if isinstance(present, dict) and isinstance(value, dict):
            yield from _join(present, value, f"{prefix}{key}.")
            continue
        if key in config and present != value:
            yield f"{prefix}{key}"
        config[key] = value


def _read_defaults(config: dict[str, Any], file: Path, kind: str) -> Iterator[str]:
    entries = config.pop("defaults", None)
    names = [entry for entry in entries or [] if entry != "_self_"]
    if not names:
        return
    if kind == "verl" and all(name in PRIMARY for name in names):
        yield f"{file.name} builds on {', '.join(names)}: the command must start from it, as VERL's own programs do."
        return
    words = f"--config-dir={file.parent} --config-name={file.stem}"
    cause = f"{file} has a list of defaults, which only Hydra itself can compose: {str(names[0])[:80]}."
    raise BadArgument("source", cause, f"Leave source out, and write {words} behind the program in command.")


def _list_settings(config: Mapping[str, object], file: str, kind: str) -> tuple[dict[str, Scalar], list[str]]:
    try:
        settings = dict(list_overrides(config))
        return use_verl_names(settings) if kind == "verl" else (settings, [])
    except NotAnOverride as error:
        raise BadArgument("source", f"{file}: {error} cannot be written as an override of Hydra.") from None
    except NotOfVerl as error:
        raise BadArgument("source", f"{file}: {error}.") from None


def _is_part(file: Path) -> bool:
    config = read_config(file)
    config.pop("defaults", None)
    return bool(_missing_sections(_list_settings(config, str(file), "verl")[0]))


def _missing_sections(settings: Mapping[str, Scalar]) -> list[str]:
    names = {name.lstrip("+~"): value for name, value in settings.items()}
    present = {section for section, dot, _ in (name.partition(".") for name in names) if dot or names[section] == "{}"}
    return [name for name in SECTIONS if name not in present]


def _check_sections(settings: Mapping[str, Scalar], file: str) -> None:
    if missing := _missing_sections(settings):
        cause = f"{file} has no section {', '.join(missing)}, and VERL's {', '.join(SECTIONS)} are expected."
        raise BadArgument("source", cause, "For another Hydra program write hydra:CONFIG.")


def _apply_overrides(settings: Mapping[str, Scalar], overrides: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the settings with the overrides in the places of those they replace; ``+`` in front does not count."""
    replaced = {name.lstrip("+~"): name for name in overrides}
    params: dict[str, Scalar] = {}
    for key, value in settings.items():
        name = replaced.get(key.lstrip("+~"))
        params[key if name is None or name[0] not in "+~" else name] = value if name is None else overrides[name]
    known = {key.lstrip("+~") for key in settings}
    return params | {name: value for name, value in overrides.items() if name.lstrip("+~") not in known}


def _check_data(params: Mapping[str, Scalar], file: str, cwd: Path | None) -> None:
    missing: list[str] = []
    remedy = ""
    for name, value in params.items():
        for named in find_named_data(format_arguments({name: value}, _STYLE), evaluates=False):
            path = Path(named.path).expanduser()
            if not named.is_certain or (cwd is None and not path.is_absolute()):
                continue
            path = (cwd or Path("/")) / path
            if is_missing(path) and not (named.may_be_output and path.parent.is_dir()):
                missing.append(f"{name}: there is no {named.kind} {named.path}")
                remedy = remedy or suggest_names(path)
    if missing:
        more = f"; and {len(missing) - _MOST_NAMES} more" if len(missing) > _MOST_NAMES else ""
        raise BadArgument("source", f"{file}: {'; '.join(missing[:_MOST_NAMES])}{more}.", remedy)


def _check_keys(params: Mapping[str, Scalar], query: SourceQuery, cwd: Path | None) -> list[str]:
    path = query.environ.get("PATH")
    python = query.python or shutil.which("python", path=path) or shutil.which("python3", path=path)
    if python is None:
        return ["The keys were not compared with VERL's: PATH has no python."]
    keys = find_packaged_keys(python, query.environ, cwd or Path("/"))
    if isinstance(keys, str):
        return [f"The keys were not compared with VERL's: {keys}."]
    return find_unknown_keys(list(params), keys)


def find_packaged_keys(python: str, environ: Mapping[str, str], cwd: Path) -> frozenset[str] | str:
    """Return all keys, sections among them, of the configs that VERL is installed with, or why they are not known.

    Nothing of VERL is executed.
    """
    try:
        installation = find_installation(python, environ, cwd)
    except OSError as error:
        return f"{python} cannot be read ({error.strerror})"
    if not isinstance(installation, Installation):
        return f"{installation.text}".rstrip(".")
    directories = [*installation.directories, *_list_sources(installation, environ, cwd)]
    files = [file for directory in directories for file in sorted((directory / "verl").glob(_PACKAGED))]
    if not files:
        return f"{python} has no verl with a config written out in full"
    keys: set[str] = set()
    for file in files:
        try:
            config = yaml.safe_load(read_regular_file(file, max_bytes=_MOST_BYTES))
        except (OSError, yaml.YAMLError) as error:
            return f"{file} cannot be read ({type(error).__name__})"
        keys.update(_list_keys(config if isinstance(config, dict) else {}, ""))
    return frozenset(keys)


def find_unknown_keys(names: Sequence[str], keys: frozenset[str]) -> list[str]:
    """Return a sentence for each override that Hydra would refuse, because VERL has no such key."""
    unknown = [name for name in names if name[0] not in "+~" and name not in keys and not name.startswith("hydra.")]
    notes = []
    for name in unknown[:_MOST_NOTES]:
        near = difflib.get_close_matches(name, keys, 1, 0.8)
        hint = f"did you mean {near[0]}?" if near else f"a new key is written +{name}."
        notes.append(f"VERL has no key {name}, so Hydra refuses it: {hint}")
    if len(unknown) > _MOST_NOTES:
        notes.append(f"{len(unknown) - _MOST_NOTES} more keys are unknown to VERL.")
    return notes


def check_gpu_count(params: Mapping[str, Scalar], gpus: GpuCount) -> list[str]:
    """Return a sentence where the config counts on other GPUs than a cell has."""
    per_node, nodes = params.get("trainer.n_gpus_per_node"), params.get("trainer.nnodes", 1)
    if (
        not isinstance(gpus, int)
        or not isinstance(per_node, int)
        or not isinstance(nodes, int)
        or per_node * nodes == gpus
    ):
        return []
    return [f"trainer.n_gpus_per_node times trainer.nnodes is {per_node * nodes}, and a cell has gpus={gpus}."]


def _list_sources(installation: Installation, environ: Mapping[str, str], cwd: Path) -> Iterator[Path]:
    """Yield directories that can hold a package from its sources: editable, on PYTHONPATH, in the project."""
    if (place := installation.editable.get("verl")) is not None:
        yield place.parent
    yield from (cwd / entry for entry in environ.get("PYTHONPATH", "").split(":") if entry)
    yield cwd


def _list_keys(table: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key, value in table.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _list_keys(value, f"{prefix}{key}.")


# --- a nested configuration as overrides of a Hydra program: flat names, and values in Hydra's grammar

_MOST_CONFIG_BYTES, _MOST_VALUES = 400_000, 10_000
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
        data = read_regular_file(file, max_bytes=_MOST_CONFIG_BYTES + 1)
        if len(data) > _MOST_CONFIG_BYTES:
            raise BadArgument("source", f"{file} has more than {_MOST_CONFIG_BYTES:,} bytes.")
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
