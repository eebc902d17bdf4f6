"""Next steps after errors that only one record of the data, or one rare branch, can have caused. Pure."""

from __future__ import annotations

from mcp_server.diagnosis.failure.steps.row import NextStep, Scene, fill_in
from mcp_server.text.regex import compile_lazily

_KEY = compile_lazily(r"KeyError: ['\"]?([^'\"\n]{1,60})")
# What a record without a value, or with an empty one, raises, and what to say of it.
_WRONG_RECORD = (
    (compile_lazily(r"'NoneType' object|NoneType has no"), "gave None"),
    (compile_lazily(r"IndexError|index out of range|out of bounds"), "is shorter than the others"),
    (compile_lazily(r"unpack"), "has another number of values"),
    (compile_lazily(r"^(?:ValueError|TypeError|AttributeError|ZeroDivisionError)\b"), "is not like the others"),
)
_KINDS = frozenset({"python_error", "data_error", "config_error"})
_LACKS = "One record has no {0}, as earlier ones had it: filter such records from the data, or skip them {at}."
_RARE = (
    "{0} is missing only now, after steps that worked: one sample or a rare branch lacks it {at}; filter that, or "
    "guard "
    "it (.get)."
)
_OTHER = "One record {0}, after many that worked: print its index {at}, then drop or skip such records."


def explain_record(scene: Scene) -> NextStep | None:
    """Return the step where the log shows that the same code had worked for earlier records, or None."""
    if not scene.record or scene.inside or scene.kind not in _KINDS:
        return None
    if key := _KEY.search(scene.line):
        return _step(_LACKS if scene.record == "data" else _RARE, key[1].strip(), scene)
    if scene.record == "data":
        said = next((words for pattern, words in _WRONG_RECORD if pattern.search(scene.line)), "")
        return _step(_OTHER, said, scene) if said else None
    return None


def _step(advice: str, part: str, scene: Scene) -> NextStep | None:
    text = fill_in(advice, [part], scene.at)
    return NextStep(False, "stop", text) if text else None
