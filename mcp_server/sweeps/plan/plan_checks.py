"""Plans that mean something else than they say: several values in one text, equal cells, flags left out, one output."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mcp_server.command.configs import is_function, takes_settings, unfold
from mcp_server.command.inputs import find_arguments
from mcp_server.command.outputs import find_in_command, names_a_place
from mcp_server.command.script_options import read_options, read_script
from mcp_server.command.shell import parse
from mcp_server.errors import BadArgument
from mcp_server.record.script import command_text, takes_arguments
from mcp_server.record.spec import RunSpec
from mcp_server.record.sweeps.sweep_ranking import find_forms
from mcp_server.record.sweeps.sweep_spec import Cell
from mcp_server.sweeps.plan.plan import LABELS, find_seeds
from mcp_server.text.equal_settings import Place
from mcp_server.text.formatting import join_some

_OWN_VALUE = "Give each a value of its own, e.g. a seed."
_OVERRIDE = re.compile(r"([+~]{0,2}[A-Za-z_][\w./@-]*)=(.*)", re.DOTALL)
_MODE = re.compile(r"hydra[.]mode=(?:RunMode[.])?MULTIRUN", re.IGNORECASE)


def takes_hydra_settings(launch: Mapping[str, Any]) -> bool:
    """Return whether a launch writes its parameters as ``name=value``. Reads the script where nobody says so."""
    command, style = launch.get("command"), launch.get("param_style")
    if style is not None or not isinstance(command, str | list):
        return style == "k=v"
    return takes_settings(parse(command), launch.get("params") or {}, Path(str(launch.get("cwd") or ".")).expanduser())


def check_multirun(
    command: str | Sequence[str], params: Mapping[str, Any] = MappingProxyType({}), *, is_settings: bool = False
) -> None:
    """Raise BadArgument where Hydra runs several trainings in a cell; with ``is_settings`` for ``lr=1,2`` alone."""
    for simple in parse(command).commands:
        words = [*find_arguments(simple.program_words), *(f"{name}={value}" for name, value in params.items())]
        at = next((n for n, each in enumerate(words) if each in ("-m", "--multirun") or _MODE.fullmatch(each)), None)
        overrides = [match for word in words if (match := _OVERRIDE.fullmatch(word))]
        if at is None:
            for match in overrides:
                check_grid_values("common", match[1], [match[2]], is_settings=is_settings)
            continue
        if words[at] == "-m" and not overrides:
            continue
        grid = {match[1]: values for match in overrides if (values := unfold(match[2]))}
        meant = f"write its values as grid={json.dumps(grid)}" if grid else "write its values as a grid"
        cause = f"{words[at]} in the command runs several trainings in one cell, whose figures could not be told apart."
        raise BadArgument("common", cause, f"Leave {words[at]} and its values out, and {meant}.")


def check_grid_values(where: str, name: str, values: Iterable[Any], *, is_settings: bool) -> None:
    """Raise BadArgument for texts that Hydra takes for several values; with ``is_settings`` also for ``a,b``."""
    for value in values:
        if not isinstance(value, str) or (unfolded := unfold(value)) is None:
            continue
        if not is_settings and not is_function(value):
            continue
        meant = json.dumps({name: unfolded}) if unfolded else "each value by itself"
        raise BadArgument(where, f"{name}: {value[:80]!r} means several values.", f"List them: {meant}.")


def spell_switches(cell: Cell) -> Cell:
    """Return ``cell`` with its parameters that are true, false or null as its program's own parser takes them.

    A flag cannot say false: where the script is read and has ``store_true``, it is left out; with
    ``BooleanOptionalAction`` or an option ``--no-NAME`` it is that; an option with a value gets ``true`` or ``false``.

    Raises:
        BadArgument: how the program takes it is not known; names the three forms.
    """
    launch = cell.launch
    params, command = launch.get("params") or {}, launch.get("command")
    open_names = [name for name, value in params.items() if value is None or isinstance(value, bool)]
    if not open_names or not command or takes_hydra_settings(launch):
        return cell
    cwd = Path(str(launch.get("cwd") or ".")).expanduser()
    options = {} if launch.get("host") else read_options(*read_script(parse(command), cwd)).defined
    spelled: dict[str, Any] = {}
    for name, value in params.items():
        spelled.update(_spell(name, value, options) if name in open_names else {name: value})
    return replace(cell, launch={**launch, "params": spelled})


def _spell(name: str, value: bool | None, options: Mapping[str, str]) -> dict[str, Any]:
    definition = options.get(name, "")
    is_text = "lambda" not in definition and (value or re.search(r"type\s*=\s*(?!bool\b)", definition))
    if value and (".add_argument(" not in definition or re.search(r"\b(?:action|nargs)\s*=", definition)):
        return {name: True}
    if value is None:
        if definition and not re.search(r"required=True|default\s*=\s*(?!None\b)", definition):
            return {name: None}  # what it is without the option
    elif "store_true" in definition and not re.search(r"default\s*=\s*True", definition):
        return {name: False}
    elif f"no-{name}" in options or "BooleanOptionalAction" in definition:
        return {f"no-{name}": True}
    elif is_text:
        return {name: str(value).lower()}
    word = {None: "null", True: "true", False: "false"}[value]
    left_out = "" if value else f", and --{name} left out may mean another value"
    raise BadArgument(
        "grid",
        f"{name}={word}: how the program takes that is not known{left_out}.",
        f'Write {{"{name}": "{word}"}} for `--{name} {word}`, {{"no-{name}": true}} for `--no-{name}`, or a list of '
        f'cells in which one has no {name}: cells=[{{"{name}": true}}, {{}}].',
    )


def check_distinct(cells: Iterable[Cell]) -> None:
    """Raise BadArgument for two cells of a phase that run the same command, however their values are written."""
    planned = [cell for cell in cells if cell.promote is None and cell.trial is None]
    _check_settings(planned)
    seen: dict[tuple[str, str], str] = {}
    for cell in planned:
        if not cell.launch.get("command"):
            continue
        launch = {name: value for name, value in cell.launch.items() if name not in ("command", *LABELS)}
        spec = RunSpec(
            command=cell.launch["command"],
            params=cell.launch.get("params") or {},
            param_style=cell.launch.get("param_style") or RunSpec.param_style,
        )
        text = f"{command_text(spec)} {json.dumps(launch, default=str, sort_keys=True)}"
        first = seen.setdefault((cell.phase, text), cell.name)
        if first != cell.name:
            cause = f"cells {first} and {cell.name} would run the same command: {command_text(spec)[:200]}"
            raise BadArgument("grid", cause, _OWN_VALUE)


def _check_settings(cells: Sequence[Cell]) -> None:
    """Refuse two cells of one setting with one seed: a table would count them as two results of it."""
    names = list(dict.fromkeys(name for cell in cells for name in cell.params))
    places = [Place(str(cell.launch.get("cwd") or "")) for cell in cells]
    values = {name: [cell.params.get(name) for cell in cells] for name in names}
    forms = [find_forms(name, own, places) for name, own in values.items()]
    seen: dict[tuple[object, ...], Cell] = {}
    for number, cell in enumerate(cells):
        first = seen.setdefault(
            (cell.phase, cell.variant, *(own[number] for own in forms), *find_seeds(cell).items()), cell
        )
        if first is cell:
            continue
        written = [
            f"{name} is {first.params[name]!r} and {value!r}"
            for name, value in cell.params.items()
            if repr(first.params.get(name)) != repr(value)
        ]
        same = "would run the same command" + (f" ({', '.join(written)})" if written else "")
        raise BadArgument("grid", f"cells {first.name} and {cell.name} {same}.", _OWN_VALUE)


_OF_A_RUN = "{run_id}"
_MOST_NAMED = 3  # directories
_RUN_NAME = re.compile(r"""["']--(run[_-]name)["']""")
_WRITES = re.compile(
    r"SummaryWriter\(|torch\.save\(|EventFileWriter\(|save_pretrained\(|\.save_weights\(|np\.save|joblib\.dump|pickle\.dump\("
    r"|default_root_dir|save_model\(|makedirs\(|\.mkdir\("
)
# Not the time: cells that start in one second would have one directory.
_OWN_PLACE = re.compile(r"RUNWARD_RUN_ID|mkdtemp|TemporaryDirectory|uuid|getpid\(")


def name_runs(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """Return the cells, those of a program with the option ``--run_name`` with a name of their own for each run."""
    read = _read_scripts()
    return tuple(_name_run(cell, read) if len(cells) > 1 else cell for cell in cells)


def _read_scripts() -> Callable[[Cell], str]:
    """Return what reads the script of a cell. Cells of one variant differ in parameters alone, and share theirs."""
    texts: dict[tuple[str, str], str] = {}

    def read(cell: Cell) -> str:
        key = cell.phase, cell.variant
        if key not in texts:
            cwd = Path(str(cell.launch.get("cwd") or ".")).expanduser()
            texts[key] = "\n".join(read_script(parse(cell.launch["command"]), cwd))
        return texts[key]

    return read


def _name_run(cell: Cell, read: Callable[[Cell], str]) -> Cell:
    launch = cell.launch
    if not _is_open(launch) or launch.get("param_style") == "k=v":
        return cell
    command, params = parse(launch["command"]), launch.get("params") or {}
    if not takes_arguments(command):
        return cell
    if (option := _RUN_NAME.search(read(cell))) is None:
        return cell
    given = {name.replace("-", "_") for name in (*params, *command.split_options()[0])}
    if "run_name" in given:
        return cell
    return replace(cell, launch={**launch, "params": {**params, option[1]: "{run_id}-{attempt}"}})


def find_shared_outputs(cells: Sequence[Cell]) -> list[str]:
    """Return a warning for each directory that more than one cell names as an output, or as its TensorBoard directory.

    A cell whose command or parameters have ``{run_id}`` in them keeps its files apart, below whatever directory.
    """
    names: dict[str, list[str]] = {}
    for cell in cells:
        for directory in dict.fromkeys(_list_outputs(cell.launch)):
            names.setdefault(directory, []).append(cell.name)
    named = [
        f"{len(sharing)} cells ({sharing[0]}, …) write to {directory}: put {_OF_A_RUN} into that path, else their "
        "files may mix."
        for directory, sharing in names.items()
        if len(sharing) > 1
    ]
    return [*named[:_MOST_NAMED], *_find_unnamed(cells)]


def _find_unnamed(cells: Sequence[Cell]) -> Iterator[str]:
    read, found = _read_scripts(), dict[tuple[str, str], list[str]]()
    for cell in cells:
        if _is_open(cell.launch) and not list(_list_outputs(cell.launch)):
            text = read(cell)
            if (sign := _WRITES.search(text)) and not _OWN_PLACE.search(text):
                place = join_some(_list_places(cell.launch), _MOST_NAMED)
                found.setdefault((sign[0].strip("(."), place), []).append(cell.name)
    for (written, place), sharing in found.items():
        if len(sharing) > 1:
            fixed = "name no directory: if two have one (a fixed path, a name by the second)"
            named = f"all have {place}: if they write there" if place else fixed
            yield (
                f"{len(sharing)} cells ({sharing[0]}, …) run a script that writes files ({written}), and {named}, "
                "their files mix. Pass its option for "
                f"outputs with {_OF_A_RUN}, or let it read RUNWARD_RUN_ID."
            )
            return


def _list_places(launch: Mapping[str, Any]) -> list[str]:
    """Return what options of one word, such as ``--dir out/a``, name: where a program writes, or reads."""
    options = {**parse(launch["command"]).split_options()[0], **(launch.get("params") or {})}
    return [f"--{name} {value}" for name, value in options.items() if name.isalpha() and names_a_place(name)]


def _is_open(launch: Mapping[str, Any]) -> bool:
    command, params = launch.get("command"), launch.get("params") or {}
    is_command = isinstance(command, str | list) and bool(command) and not launch.get("host")
    return is_command and _OF_A_RUN not in json.dumps([command, params, launch.get("env")], default=str)


def _list_outputs(launch: Mapping[str, Any]) -> Iterator[str]:
    command, params, cwd = launch.get("command"), launch.get("params") or {}, launch.get("cwd") or ""
    if isinstance(command, str | list) and _OF_A_RUN not in json.dumps([command, params], default=str):
        yield from find_in_command(command, cwd, params)
        if (tensorboard := launch.get("tensorboard")) and "{" not in tensorboard:
            yield tensorboard
