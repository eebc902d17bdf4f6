"""Blueprints on this host: read from a file, checked against this host, and turned into a launch request."""

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mcp_server.answer import Answer
from mcp_server.blueprints.command import fill_variables, find_unknown_names
from mcp_server.blueprints.headings import BlueprintFault
from mcp_server.blueprints.parser import MAX_CHARS, Blueprint, parse_blueprint
from mcp_server.blueprints.paths import BlueprintPaths, FarPlace, find_unusable_paths, resolve_paths
from mcp_server.command.shell import parse as parse_command
from mcp_server.errors import BadArgument, PatternError, RunwardError
from mcp_server.hosts.path_checks import Roots, find_foreign_command_path
from mcp_server.record.script import LONGEST_NAME, slug, takes_arguments
from mcp_server.record.spec import LaunchRequest
from mcp_server.system.files import read_regular_file
from mcp_server.text.secret_patterns import find_assigned_secrets, mask_assigned_secrets, mask_secrets

_MAX_LABEL_CHARS = 48  # readable in a list of sessions
_MAX_KEYWORD_CHARS = 32
_MAX_NOTES_CHARS = 2_000
_MIN_NAME_LETTERS = 3  # a file's name with fewer says little: the purpose follows it
_FEWEST_LETTERS = 4  # of a purpose or a directory's name: Chinese ones have none
_PROGRAMS = (".py", ".sh", ".ipynb")
_GENERIC_NAME = re.compile(
    r"(?:(?:experiment[_-]?)?blueprint|experiment|exp|plan|readme|draft|new|test)?[\W_]*\d*", re.IGNORECASE
)
_SEEDS = re.compile(r"\$?\{\s*exp_seeds?\s*\}|\$exp_seeds?\b")
CheckOptions = Callable[[LaunchRequest], object]
_PYTHON_WORD = r"(?:(?<=^)|(?<=[;&|(]\s)|(?<=[;&|(])|(?<=\n))(\s*(?:[A-Za-z_]\w*=\S*\s+)*){name}(?=\s|$)"


class BlueprintProblem(Answer):
    """A problem and its line."""

    line: int
    text: str


class BlueprintCheck(Answer):
    """Values of a blueprint, with defaults and variables filled in. Paths are absolute; durations in seconds."""

    ok: bool
    purpose: str
    codebase_dir: str | None = None
    venv_exe: str | None = None
    yaml_path: str | None = None
    launch_command: str | None = None
    result_dir: str | None = None
    time_limit_s: float
    first_step_timeout_s: float
    first_step_pattern: str | None = None
    recovery: str | dict[str, Any] | None = None
    params: dict[str, Any] | None = None
    param_style: str | None = None
    resume_args: list[str] | None = None
    tensorboard: str | None = None
    seeds: list[int] | None = None
    defaults_used: list[str]
    notes: str
    problems: list[BlueprintProblem]


class BlueprintUnreadable(RunwardError):
    """The file of a blueprint cannot be read."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"Blueprint not readable: {path[:200]!r}: {reason}.", "Nothing was done.")
        self.path, self.reason = path, reason


class BlueprintInvalid(RunwardError):
    """A blueprint cannot be run. ``faults`` are the reasons by line."""

    def __init__(self, path: Path, faults: Iterable[BlueprintFault]) -> None:
        self.path, self.faults = path, tuple(faults)
        causes = " ".join(f"Line {fault.line}: {fault.text.rstrip('.')}." for fault in self.faults)
        super().__init__(
            f"{path} cannot be run. {causes}", "Nothing was started.", "Correct it, then call check_blueprint."
        )


def read_blueprint(path: str, cwd: str | None = None) -> tuple[Path, Blueprint]:
    """Return the absolute path of a blueprint and its content; errors as ``read_blueprint_text``."""
    file, text = read_blueprint_text(path, cwd)
    return file, parse_blueprint(text)


def read_blueprint_text(path: str, cwd: str | None = None) -> tuple[Path, str]:
    """Return the absolute path of a blueprint and its text. A relative ``path`` needs ``cwd``.

    Raises:
        BlueprintUnreadable: it is not a regular file of UTF-8 text below 1 MB. A device is not even opened: that may
            have an effect.
    """
    try:
        file = Path(path).expanduser()
        if not file.is_absolute() and cwd is not None:
            file = Path(cwd).expanduser() / file
        if not file.is_absolute():
            raise BlueprintUnreadable(path, "the path must be absolute")
        file = Path(os.path.normpath(file))
        if file.exists() and (not file.is_file() or file.suffix in _PROGRAMS):
            raise BlueprintUnreadable(path, "a program" if file.is_file() else "not a regular file")
        data = read_regular_file(file, max_bytes=MAX_CHARS + 1)
    except (OSError, ValueError, RuntimeError) as error:  # missing, a NUL in the path, no such user
        raise BlueprintUnreadable(path, (getattr(error, "strerror", None) or str(error))[:200]) from error
    if len(data) > MAX_CHARS:
        raise BlueprintUnreadable(path, f"it is longer than {MAX_CHARS:,} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BlueprintUnreadable(path, "it is not UTF-8 text") from error
    if "\0" in text:
        raise BlueprintUnreadable(path, "it is not text")
    return file, text


def check_file(
    path: str,
    cwd: str | None = None,
    roots: Roots | None = None,
    check_options: CheckOptions | None = None,
    given: Collection[str] = (),
) -> BlueprintCheck:
    """Read a blueprint and check its paths on this host.

    Starts and changes nothing.

    ``roots``: which paths belong to other hosts; None if unknown. ``check_options`` refuses options of a launch by
    BadArgument. ``given``: sections that an argument replaces, so that their problems do not count.

    Raises:
        BlueprintUnreadable: as ``read_blueprint``.
    """
    file, blueprint = read_blueprint(path, cwd)
    paths = resolve_paths(file, blueprint, cwd=cwd if "codebase_dir" in given else None)
    option_faults = list(_find_option_faults(paths, blueprint, check_options))
    hidden = {fault.section for fault in option_faults}  # they may hold a key
    faults = [*_find_faults(paths, blueprint), *option_faults, *_find_host_faults(paths, blueprint, roots, given)]
    faults = sorted((fault for fault in faults if fault.section not in given), key=lambda fault: fault.line)
    is_blueprint = bool(blueprint.lines)  # the content of other files is not shown
    notes = blueprint.notes if is_blueprint else ""
    command = mask_assigned_secrets(_fill_command(paths, blueprint) or "")
    values = {**vars(blueprint.options), "launch_command": command}
    shown: dict[str, Any] = {name: value or None for name, value in values.items() if name not in hidden}
    shown |= {name: str(path) if path else None for name, path in vars(paths).items() if name != "place"}
    return BlueprintCheck(
        **shown,
        ok=not any(fault.fatal for fault in faults),
        purpose=blueprint.purpose if is_blueprint else "",
        time_limit_s=blueprint.time_limit_s,
        first_step_timeout_s=blueprint.first_step_timeout_s,
        first_step_pattern=blueprint.first_step_pattern,
        defaults_used=list(blueprint.defaults_used),
        notes=notes if len(notes) <= _MAX_NOTES_CHARS else f"{notes[: _MAX_NOTES_CHARS - 1]}…",
        problems=[BlueprintProblem(line=fault.line, text=fault.text) for fault in faults],
    )


def apply_blueprint(
    request: LaunchRequest,
    file: Path,
    blueprint: Blueprint,
    keyword: str = "",
    environ: Mapping[str, str] | None = None,
    roots: Roots | None = None,
    check_options: CheckOptions | None = None,
    place: FarPlace | None = None,
) -> LaunchRequest:
    """Return ``request`` completed by the blueprint in ``file``.

    Arguments of the request take precedence.

    ``keyword`` begins the name. The blueprint's python comes first in ``PATH``, so that ``python`` means it. With
    ``place``, all its paths are those of that host.

    Raises:
        BlueprintInvalid: it cannot be run as written, or its code, python or configuration is not on this host.
    """
    if request.environment:  # that has a python
        blueprint = replace(blueprint, seeks_venv=False)
    paths = resolve_paths(file, blueprint, place, request.cwd)
    replaced = {
        "launch_command": request.command,
        "codebase_dir": request.cwd,
        "yaml_path": request.command,  # which names its own
        "max_time": request.time_limit_s,
        "first_step": request.first_step_timeout_s,
        **{name: getattr(request, name) for name in ("recovery", "params", "resume_args", "tensorboard")},
    }
    faults = [*_find_faults(paths, blueprint, request), *_find_option_faults(paths, blueprint, check_options, request)]
    fatal = [fault for fault in faults if fault.fatal and not replaced.get(fault.section)]
    excluded = {"codebase_dir"} if request.cwd else set()
    if request.command:
        excluded |= {"launch_command", "yaml_path"}
    host_faults = list(_find_host_faults(paths, blueprint, roots, excluded))
    if fatal or host_faults:
        raise BlueprintInvalid(file, sorted([*fatal, *host_faults], key=lambda fault: fault.line))
    options = _fill_options(request, paths, blueprint)
    time_limit_s = blueprint.time_limit_s if request.time_limit_s is None else request.time_limit_s
    first_step_s = request.first_step_timeout_s
    if first_step_s is None and "first_step_timeout_s" not in blueprint.defaults_used:
        first_step_s = blueprint.first_step_timeout_s  # otherwise this host's default applies
    return replace(
        options,
        command=request.command or _fill_command(paths, blueprint) or "",
        cwd=request.cwd or str(paths.codebase_dir),
        env={**_python_variables(paths, os.environ if environ is None else environ), **request.env},
        name=request.name or make_name(file, blueprint, keyword),
        tags=list(dict.fromkeys([*request.tags, *([keyword] if keyword else []), f"blueprint:{file.stem}"])),
        time_limit_s=time_limit_s,
        first_step_timeout_s=first_step_s,
        first_step_pattern=request.first_step_pattern or blueprint.first_step_pattern,
    )


def make_name(file: Path, blueprint: Blueprint, keyword: str = "") -> str:
    """Return a run's name: keyword and the file's name, followed by the purpose if the file's name says little.

    The purpose's words end before its first number: those of another run, such as a seed, would lie in this one's name.
    """
    words = slug(file.stem) if re.search(r"[A-Za-z0-9]", file.stem) else ""
    if _GENERIC_NAME.fullmatch(words) or _count_letters(words) < _MIN_NAME_LETTERS:
        purpose = blueprint.purpose if mask_secrets(blueprint.purpose) == blueprint.purpose else ""  # names are shown
        labels = map(slug, (re.split(r"\w*\d", purpose)[0], file.parent.name))
        more = next((label for label in labels if _count_letters(label) >= _FEWEST_LETTERS), "experiment")
        words = f"{words}-{more}".strip("-")
    lead = slug(keyword)[:_MAX_KEYWORD_CHARS].strip("-") if keyword else ""
    max_chars = min(_MAX_LABEL_CHARS, LONGEST_NAME - len(lead) - 1)
    if len(words) > max_chars:
        words = words[: max_chars + 1].rpartition("-")[0] or words[:max_chars]
    if words.lower().startswith(lead.lower()):
        return lead + words[len(lead) :]  # in the configured spelling: people search sessions for it
    return f"{lead}-{words}"


def _count_letters(text: str) -> int:
    return sum(map(str.isalpha, text))


def _fill_options(request: LaunchRequest, paths: BlueprintPaths, blueprint: Blueprint) -> LaunchRequest:
    options = blueprint.options
    params = {**{name: _move(value, paths) for name, value in options.params.items()}, **request.params}
    if len(options.seeds) == 1 and not _SEEDS.search(blueprint.launch_command or "") and "seed" not in params:
        params["seed"] = options.seeds[0]
    is_default_style = request.param_style == LaunchRequest.param_style
    return replace(
        request,
        recovery=options.recovery if request.recovery is None else request.recovery,
        params=params,
        param_style=options.param_style or request.param_style if is_default_style else request.param_style,
        resume_args=request.resume_args or [_move(word, paths) for word in options.resume_args],
        tensorboard=request.tensorboard or (str(paths.tensorboard) if paths.tensorboard else None),
    )


def _find_option_faults(
    paths: BlueprintPaths,
    blueprint: Blueprint,
    check_options: CheckOptions | None,
    request: LaunchRequest | None = None,
) -> Iterator[BlueprintFault]:
    """Yield options that launch_run refuses: a parameter's name, a policy, a command without a place for parameters."""
    request = _fill_options(request or LaunchRequest(), paths, blueprint)
    command = request.command or _fill_command(paths, blueprint)
    if check_options is None or not command:
        return
    try:
        check_options(replace(request, command=command))
    except (BadArgument, PatternError) as error:
        name = {"command": "launch_command"}.get(argument := getattr(error, "argument", "recovery"), argument)
        if name == "launch_command" and any(find_assigned_secrets(blueprint.launch_command or "")):
            return  # named already
        cause = " ".join(filter(None, (getattr(error, "reason", None) or str(error), error.remedy)))
        written = "seeds" if name == "params" and name not in blueprint.lines else name  # a seed is a parameter
        yield BlueprintFault(blueprint.lines.get(written, 1), f"[exp_{written}] {cause}", section=name)


def _find_faults(
    paths: BlueprintPaths, blueprint: Blueprint, request: LaunchRequest | None = None
) -> Iterator[BlueprintFault]:
    """Yield the faults of a document, secrets in its command, paths that it names and has not, and several seeds."""
    yield from blueprint.faults
    line, command, seeds = (
        blueprint.lines.get("launch_command", 1),
        blueprint.launch_command or "",
        blueprint.options.seeds,
    )
    for name in find_assigned_secrets(command):  # the command is stored with the run and visible to every user
        text = f"{name} has its value in the command, which is stored: remove it, and name it in secrets."
        yield BlueprintFault(line, text, section="launch_command")
    for name in find_unknown_names(_fill_command(paths, blueprint) or ""):
        if name in ("exp_yaml_path", "exp_venv_exe"):  # bash would put nothing in their place
            text = f"the launch command names {name}, and [{name}] is empty: write the path, or leave it out."
            yield BlueprintFault(line, text, section="launch_command")
    launch_sets_seed = request is not None and ("seed" in request.params or bool(request.command))
    if len(seeds) > 1 and not launch_sets_seed and not _SEEDS.search(command):
        has_place = not command or takes_arguments(parse_command(command))
        place = "" if has_place else "write {params} as a word of its own behind the training program, then "
        text = (
            f"[exp_seeds] has {len(seeds)} seeds, and a run takes one: {place}launch once for each, with "
            f'params={{"seed": {seeds[0]}}}, or name ${{exp_seeds}} in the command.'
        )
        yield BlueprintFault(blueprint.lines.get("seeds", 1), text, section="seeds")


def _fill_command(paths: BlueprintPaths, blueprint: Blueprint) -> str | None:
    if blueprint.launch_command is None:
        return None
    seconds = f"{blueprint.time_limit_s:.0f}"  # an integer, as `timeout` takes it
    values = dict.fromkeys(("exp_max_time", "MaxTime", "max_time", "MAX_TIME"), seconds)
    values |= {"exp_codebase_dir": str(paths.codebase_dir), "exp_result_dir": str(paths.result_dir)}
    values |= {f"exp_{name}": str(path) for name in ("venv_exe", "yaml_path") if (path := getattr(paths, name))}
    command = blueprint.launch_command
    if blueprint.options.seeds:  # several words, which need no quotes
        command = _SEEDS.sub(" ".join(map(str, blueprint.options.seeds)), command)
    command = fill_variables(command, values)
    if paths.place is not None:
        command = paths.place.move_command(command)
    exe = paths.venv_exe
    for name in ("python", "python3"):
        if exe is not None and not _starts(exe, name, paths):
            word = _PYTHON_WORD.replace("{name}", name)
            command = re.sub(word, lambda match: f"{match[1]}{exe}", command)
    return command


def _move(value: Any, paths: BlueprintPaths) -> Any:
    """Return a value, a text with its paths as the host of the run has them."""
    return paths.place.move(value) if paths.place and isinstance(value, str) else value


def _starts(exe: Path, name: str, paths: BlueprintPaths) -> bool:
    """Return whether ``name`` starts ``exe`` where its directory comes first in PATH."""
    if paths.place is not None:
        return exe.name == name
    try:
        return not exe.exists() or (exe.parent / name).samefile(exe)
    except OSError:
        return False


def _python_variables(paths: BlueprintPaths, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which a shell finds the blueprint's python first."""
    exe = paths.venv_exe
    if exe is None:
        return {}
    settings = exe.parent.parent / "pyvenv.cfg"
    variables = {"PATH": f"{exe.parent}:{environ.get('PATH', os.defpath)}"}
    if settings.exists() if paths.place is None else paths.place.look(str(settings)) == "file":
        variables["VIRTUAL_ENV"] = str(exe.parent.parent)
    return variables


def _find_host_faults(
    paths: BlueprintPaths, blueprint: Blueprint, roots: Roots | None, excluded: Collection[str] = ()
) -> Iterator[BlueprintFault]:
    """Yield faults of paths that are missing here or belong to another host: not faults of the document."""
    yield from find_unusable_paths(paths, blueprint, roots, excluded)
    command = _fill_command(paths, blueprint)
    if command and roots is not None and "launch_command" not in excluded:
        foreign = find_foreign_command_path(parse_command(command), roots)
        if foreign is not None:
            text = f"[exp_launch_command]: {f'{foreign.reason} {foreign.remedy}'.rstrip()}"
            yield BlueprintFault(blueprint.lines.get("launch_command", 1), text, fatal=False)
