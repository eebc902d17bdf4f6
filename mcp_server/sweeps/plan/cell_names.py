"""Names of a phase's cells: short, typeable, and one setting's value written alike in all of them. Pure."""

import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from mcp_server.text.regex import compile_lazily

LONGEST_CELL_NAME = 40
_LEGIBLE = 16  # characters of a parameter with its value; names become shorter before values have fewer
_WORDS = compile_lazily(r"[^A-Za-z0-9]+")
Label = Mapping[str, str]  # values by their parameters' names; a name that begins with a blank is not shown


def name_cells(labels: Sequence[Label]) -> list[str]:
    """Return a name for each label, of at most 40 characters; equal ones only where the labels tell no more.

    Paths lose the parts that all of them have. Where that is too long, parameters' names are shortened, then long
    values, in all cells alike.
    """
    known = dict.fromkeys(name for label in labels for name in label)
    values = {name: list(dict.fromkeys(each[name] for each in labels if name in each)) for name in known}
    texts = {name: dict(zip(of, map(clean_name, _tell_apart(of)), strict=True)) for name, of in values.items()}
    shown = [name for name in values if not name.startswith(" ")]
    room = LONGEST_CELL_NAME - len(values) + 1
    for form in _list_forms(shown):
        names = dict(zip(shown, form, strict=True))
        widths = {
            name: max(len(_join(names.get(name, ""), text)) for text in of.values()) for name, of in texts.items()
        }
        most = next(n for n in range(room, 0, -1) if n == 1 or sum(min(n, width) for width in widths.values()) <= room)
        if most >= min(_LEGIBLE, max(widths.values(), default=0)):
            break
    for name, of in texts.items():
        if widths[name] > most:
            taken = max(most - len(_join(names.get(name, ""), "a")) + 1, 1)
            texts[name] = dict(zip(of, _cut(list(of.values()), taken), strict=True))
    parts = ([_join(names.get(name, ""), texts[name][value]) for name, value in each.items()] for each in labels)
    return ["-".join(filter(None, each))[:LONGEST_CELL_NAME].strip("-.") for each in parts]


def clean_name(text: str) -> str:
    """Return a text as a part of a name that a shell and a file system take as one word."""
    return re.sub(r"(?:[^A-Za-z0-9_.=+]|\.{2,})+", "-", text).strip("-.")


def make_unique(name: str, names: Collection[str]) -> str:
    """Return ``name``, with a number behind it where ``names`` has it."""
    name = name or "cell"
    numbered = (f"{name[: LONGEST_CELL_NAME - 5]}-{number}" for number in itertools.count(2))
    return next(each for each in itertools.chain([name], numbered) if each not in names)


def _join(name: str, value: str) -> str:
    """Return a parameter's name with its value: ``lr0.001``, and ``config-fine``, where two words meet."""
    return f"{name}-{value}" if name and value[:1].isalpha() else name + value


def _tell_apart(values: Sequence[str]) -> list[str]:
    """Return paths without the directories and the ending that all of them have; other texts as they are."""
    if not values[1:] or not any("/" in value for value in values):
        return list(values)
    paths = [value.strip("/").split("/") for value in values]
    for _ in range(2):  # their beginnings, then their ends
        parts = zip(*(path[:-1] for path in paths), strict=False)
        common = sum(1 for _ in itertools.takewhile(lambda each: len(set(each)) == 1, parts))
        paths = [path[common:][::-1] for path in paths]
    endings = {re.search(r"(?<=.)\.[A-Za-z]\w*$|$", path[-1])[0] for path in paths}  # type: ignore[index]
    shown = ["/".join(path) for path in paths]
    return [each.removesuffix(*endings) for each in shown] if len(endings) == 1 else shown


def _list_forms(names: Sequence[str]) -> list[list[str]]:
    """Return how parameters' names may be shown: the last part of a dotted one, its last word, its initials."""
    own = [clean_name(name.rpartition(".")[2].lstrip("$")) for name in names]
    words = [[word for word in _WORDS.split(name) if word] or [""] for name in own]
    forms = [own, [each[-1] for each in words], ["".join(word[:1] for word in each) for each in words]]
    return [own, *(form for form in forms[1:] if len(set(form)) == len(form))]


def _cut(values: Sequence[str], most: int) -> Iterable[str]:
    """Return texts of at most ``most`` characters, whole words where one fits: their beginnings, else their ends."""
    ends = ([_cut_one(value, most) for value in values], [_cut_one(value[::-1], most)[::-1] for value in values])
    for cut in ends:
        if len(set(cut)) == len(set(values)):
            return cut
    numbers = itertools.count(1)
    return [value if len(value) <= most else f"{value[: max(most - 4, 0)]}-{next(numbers)}"[-most:] for value in values]


def _cut_one(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    border = max(text.rfind(mark, 1, most + 1) for mark in "-_.=+")
    return text[: border if border > most // 2 else most].strip("-.")
