"""Finds the named numbers of a line: `loss: 0.3`, `| fps | 812 |`, `'grad_norm': 'nan'`, `Epoch [3/10]`. Pure."""

from __future__ import annotations

import functools
from typing import NamedTuple

from mcp_server.record.scalar_files import COUNT_WORDS, EPOCH_NAMES, STEP_NAMES
from mcp_server.text.regex import compile_lazily, find_all
from mcp_server.text.rows import read_blocks, read_patterns

_RX = read_patterns("diagnosis/progress/patterns", "named_values")

# What the name of a number measures. Bits, so that a whole line has the union of its names.
LOSS = 1
REWARD = 2
QUALITY = 4  # accuracy and similar scores
SPEED = 8
VITAL = 16  # worth watching, but also found in printed settings, e.g. the learning rate
STEP = 32  # counts steps, iterations, updates, frames
EPOCH = 64  # counts epochs, episodes, rounds
HELD_OUT = 128  # a loss or score on held-out data
COUNTS = STEP | EPOCH

_MAX_NAMES = 4_096  # names that contain a number must not fill the memory
_MAX_NAME_CHARS = 96


_MOST_FALL = 5.0  # of the last value to the mean of an epoch
_SCOPED = ("{", "[val", "[eval", "[test", "[dev")  # {"loss": 1.75, "eval": {"loss": 1.95}}; [valid] loss=1.95
_find_values = find_all(_RX.named_value, "name", "at", "value", "power", "of", "mean")
MAX_COUNT = 10**15  # larger numbers are not counts
POWERS = {"": 1, "k": 1_000, "K": 1_000, "M": 1_000_000, "G": 1_000_000_000}


class ValueName(NamedTuple):
    """A name in lower case, the bits of what it measures, and its headline metric, if any.

    ``speaks``: it stood in a sentence, `loss is`, whose verb is no part of it.
    """

    text: str
    bits: int
    headline: str | None
    speaks: bool = False


NamedValue = tuple[ValueName, float, str]  # name, number, and the total of `3/10`, if any


def _words(text: str) -> str:
    """Return a pattern of any of the words, each on its own: `a` in `a`, `x/a`, `a_x`, `a.x`, `a 1`."""
    return rf"(?:^|[ _./-])(?:{'|'.join(text.split())})(?:$|[ _./@-])"


_HELD_OUT_WORDS = compile_lazily(_words("val vali valid validation eval evaluation test dev holdout") + "|验证|测试")
_BITS = {"loss": LOSS, "reward": REWARD, "vital": VITAL, "speed": SPEED, "quality": QUALITY}
_BLOCKS = [dict(block) for block in read_blocks("diagnosis/progress/metrics")]
# First match wins.
_MEASURES = [
    (_BITS[one["of"]], compile_lazily(f"{one['line']}|{_words(one['words'])}")) for one in _BLOCKS if "of" in one
]
_HEADLINE_PATTERNS = [(one["shown"], compile_lazily(one["line"])) for one in _BLOCKS if "shown" in one]
# What a run's status shows, in this order.
HEADLINES = (
    *("loss", "reward", "val_loss", "grad_norm", "fps", "tokens_s", "samples_s", "steps_s", "throughput"),
    *("accuracy", "error", "loss_d", "loss_g"),
)
_SORTS = {one["sort"]: frozenset(one["words"].split()) for one in _BLOCKS if "sort" in one}
_NOT_SO_FAR, _VERBS = _SORTS["plan"], _SORTS["verb"]
_STEPS, _EPOCHS = _SORTS["step"].union(STEP_NAMES, COUNT_WORDS), _SORTS["epoch"].union(EPOCH_NAMES) - _NOT_SO_FAR
_SCOPES = _SORTS["scope"] | {""}
_UPDATES = frozenset({"num", "number", "of", "total", "gradient", "updates"})  # updates are made, never planned


_name_cache: dict[str, ValueName | None] = {}


def classify_name(raw: str) -> ValueName | None:
    """Return the class of a printed name, or None when it is neither a count nor a metric."""
    if len(raw) > _MAX_NAME_CHARS:
        return None
    if len(_name_cache) >= _MAX_NAMES:
        _name_cache.clear()
    text = raw.lower().rpartition(". ")[2].strip(" .:_-")  # "41.5 s. Mean Reward: 3.1"
    name = _name_cache[raw] = _count_name(text) or _measure_name(text)
    return name


def names_count(name: str) -> bool:
    """Return whether a number of this name counts steps, epochs or the like."""
    measure = classify_name(name)
    return measure is not None and measure.bits & COUNTS != 0


def measures_loss(name: str) -> bool:
    """Return whether a metric of this name is a loss, of training or held out, whatever its words: `denoise_mse`."""
    return next((bit for bit, pattern in _MEASURES if pattern.search(name.lower())), 0) == LOSS


def _count_name(text: str) -> ValueName | None:
    words = text.replace("-", " ").split()
    scope, _, last = words[-1].rpartition("/") if words else ("", "", "")
    if scope not in _SCOPES:
        return None
    joined = "_".join((*words[:-1], last))
    is_so_far = _NOT_SO_FAR.isdisjoint(words)
    if joined in _STEPS or (last in _STEPS and is_so_far) or (last == "updates" and _UPDATES.issuperset(words)):
        return ValueName(text, STEP, None)
    return ValueName(text, EPOCH, None) if joined in _EPOCHS or (last in _EPOCHS and is_so_far) else None


def _measure_name(text: str) -> ValueName | None:
    words = text.split()
    if _ends_in_count(words) or (words and words[-1] in _SORTS["window"]):
        return None  # "validation loss at iteration 100"
    if words[-2:-1] == ["per"] and not words[-1].startswith("s"):  # "reward per episode", but "steps per second"
        words = words[:-2]
        text = " ".join(words)
    bits = 0 if _RX.setting.search(text) else next((bit for bit, pattern in _MEASURES if pattern.search(text)), 0)
    if not bits:
        return None
    is_held_out = _HELD_OUT_WORDS.search(text) is not None
    plain = _HELD_OUT_WORDS.sub(" ", text).strip(" _./-:") if is_held_out else _RX.count_before.sub("", text)
    spoken = len(words)  # "loss is 0.3", "recall@20 is now 0.16"
    while spoken > 1 and words[spoken - 1] in _VERBS:
        spoken -= 1
    plain, text = (" ".join(each.split()[: spoken - len(words) or None]) for each in (plain, text))
    speaks = not _VERBS.isdisjoint(words)
    headline = next((headline for headline, pattern in _HEADLINE_PATTERNS if pattern.fullmatch(plain)), None)
    if is_held_out:
        return ValueName(text, HELD_OUT, "val_loss" if headline == "loss" else None, speaks)
    return ValueName(text.removeprefix("finished with "), bits, headline, speaks)  # Optuna's value


def _ends_in_count(words: list[str]) -> bool:
    return bool(words) and (words[-1] in _STEPS or words[-1] in _EPOCHS) and words[-2:-1] != ["per"]


def name_own_measure(text: str) -> ValueName | None:
    """Return the name of a number of any name, in lower case, that is neither a setting nor part of a sentence."""
    words = text.split()
    is_none = _ends_in_count(words) or _RX.setting.search(text) is not None or not _VERBS.isdisjoint(words[-1:])
    return classify_name(text) or (None if is_none else ValueName(text, QUALITY, None))


def as_held_out(values: list[NamedValue], data: str = "val") -> list[NamedValue]:
    """Return the figures of a line by their names of held-out ``data``, without its counts."""
    return [
        (name if name.bits & HELD_OUT else classify_name(f"{data} {name.text}") or name, value, of)
        for name, value, of in values
        if not name.bits & COUNTS
    ]


def is_remark(line: str, name: ValueName) -> bool:
    """Return whether ``line`` speaks of a NaN or infinite ``name`` in words, and does not report it as a metric."""
    if _speaks_of_skipping(line):
        return True
    return name.speaks and not _counts_something(line)


@functools.lru_cache(maxsize=1)  # a line may hold hundreds of values
def _speaks_of_skipping(line: str) -> bool:
    return _RX.skips.search(line) is not None


@functools.lru_cache(maxsize=1)
def _counts_something(line: str) -> bool:
    return _RX.counted.search(line) is not None


def parse_number(text: str) -> float:
    """Return the value of a number as printed: `4,096`, `1.2e-05`, `-inf`."""
    return float(text.replace(",", "")) if "," in text else float(text)


def parse_integer(text: str) -> int:
    """Return the integer that ``text`` (digits, commas) spells, at most ``MAX_COUNT``."""
    return min(int(text.replace(",", "")), MAX_COUNT)


def _is_mean(value: float, mean: float) -> bool:
    """Whether the number in brackets is the mean of values such as the one before it, rather than their deviation."""
    return mean == value or (value * mean > 0 and 1 / _MOST_FALL < mean / value < _MOST_FALL)


def _find_scaled_place(line: str) -> list[NamedValue]:
    """Return the place of `1.2M/2.00M frames`."""
    place = _RX.scaled.search(line)
    unit = classify_name(place["name"]) if place is not None else None
    if place is None or unit is None or not unit.bits & COUNTS:
        return []
    n, total = float(place["n"]) * POWERS[place["nth"]], float(place["of"]) * POWERS[place["ofs"]]
    return [(unit, n, str(round(total)))] if n <= total else []


def _find_speeds(line: str) -> list[str]:
    return _RX.speed.findall(line) if "fps" in line.lower() or "/s" in line else []


def replace_leaders(line: str) -> str:
    """Return the line with a colon in place of dots that lead from a name to its number: `bit-exact ..... 22 of 24`."""
    return _RX.leader.sub(": ", line) if " ..." in line else line


def find_named_values(line: str) -> list[NamedValue]:
    """Return the named numbers of ``line`` that are counts or metrics, in order."""
    values, line = [], replace_leaders(line)
    if any(sign in line for sign in _SCOPED) and (scope := _RX.scope.search(line)) is not None:
        inner = find_named_values(scope["inner"])
        outer = find_named_values(line[: scope.start()] + line[scope.end() :])
        return outer + as_held_out(inner, scope["data"].lower())
    found = _find_values(line.partition("arameters: {")[0])  # "Trial 3 finished with value: 0.5 and parameters: {"
    has_meters = sum(mean != "" for *_, mean in found) > 1 if "(" in line else False
    if "{" in line and (losses := _RX.losses.search(line)) is not None:
        found = [(f"{raw} loss", *rest) for raw, *rest in _find_values(losses["inner"])]
    elif not found and "," in line:
        found = [(one["name"], "", one["value"], "", "", "") for one in _RX.value_first.finditer(line)]
    for raw, at, value, power, of, mean in found:
        place = _RX.place.fullmatch(raw) if at else None  # `cost after iteration 100: 0.87`
        figure = place[1] if place is not None else raw
        name = _name_cache[figure] if figure in _name_cache else classify_name(figure)
        if name is not None and at:  # `train loss 39 0.384`
            if name.bits & COUNTS:
                values.append((name, float(at), ""))
                continue
            count = classify_name(place[2]) if place is not None else ValueName("step", STEP, None)
            if count is not None and (place is not None or name.bits & LOSS or name.headline == "val_loss"):
                values.append((count, float(at), ""))
        if name is not None and not (name.bits & COUNTS and value in _find_speeds(line)):  # `1.2M frames  3072 fps`
            number = parse_number(value)
            if mean and not name.bits & REWARD and (has_meters or _is_mean(number, float(mean))):
                number = float(mean)
            values.append((name, number * POWERS[power] if power else number, of))
    return values + _find_scaled_place(line) if "k/" in line or "M/" in line else values
