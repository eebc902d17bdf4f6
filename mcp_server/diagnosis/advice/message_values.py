"""Proofs in the values of a message: shapes, keys of a checkpoint, a wrong record, a server's address. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mcp_server.diagnosis.advice.blocks import NextStep, Scene, choose, compose, correct
from mcp_server.diagnosis.failure.kinds import OF_PROGRAM
from mcp_server.text.regex import compile_lazily
from mcp_server.text.rows import read_blocks, read_patterns

_RX = read_patterns("diagnosis/advice/patterns", "message_values")

# --- shapes

_SHAPE = r"(?:torch\.Size\()?[\[(]+([\d, ]*|None(?:, \d+)+,?)[\])]+"
_BLOCKS = [dict(block) for block in read_blocks("diagnosis/advice/shapes")]
_SAVED, _OPERANDS = (
    [compile_lazily(one["line"].replace("{shape}", _SHAPE)) for one in _BLOCKS if one["sort"] == sort]
    for sort in ("saved", "operands")
)
_EXPECTED = compile_lazily(rf"(?:[Ww]eight expects shape|Requested shape:) {_SHAPE}")


def explain_shapes(scene: Scene) -> NextStep | None:
    """Return which dimension of the shapes in ``scene`` differs and what it usually is, or None."""
    if scene.kind not in OF_PROGRAM:
        return None
    text = scene.message or scene.line
    if _RX.known.search(text):
        return None
    return _compare_saved(scene, text) or _compare_operands(scene, text)


def _read(shape: str) -> list[int]:
    return [-1 if part.strip() == "None" else int(part) for part in shape.split(",") if part.strip()]


def _differing(one: Sequence[int], other: Sequence[int]) -> list[int]:
    if len(one) != len(other):
        return []
    return [n for n, (a, b) in enumerate(zip(one, other)) if a != b and -1 not in (a, b)]


def _compare_saved(scene: Scene, text: str) -> NextStep | None:
    match = next(filter(None, (pattern.search(text) for pattern in _SAVED)), None)
    if match is None:
        return None
    of_key = match.re.groupindex.get("key")
    shapes = [group for n, group in enumerate(match.groups(), 1) if n != of_key and group is not None]
    if expected := _EXPECTED.search(text):
        shapes.append(expected[1])
    if not shapes[1:]:
        return None
    saved, here = _read(shapes[0]), _read(shapes[1])
    named = _RX.named_weight.search(text)
    key = match.groupdict().get("key") or (named[1] if named else "")
    places = _differing(saved, here)
    if not places:
        return None
    at = places[0]
    what = _name_dimension(key, places)
    advice = (
        "{0} has {1} in the checkpoint, {2} here (dimension {3}): {4} differs; set it as in the checkpoint's "
        "configuration."
    )
    short = "The checkpoint has {1}, this model {2} (dimension {3}): {4} differs; set it as it was saved{, at}."
    parts = [key or "A weight", str(saved[at]), str(here[at]), str(at), what]
    return compose(advice, parts, scene) or compose(short, parts, scene)


def _name_dimension(key: str, places: Sequence[int]) -> str:
    """Return what the dimension ``places`` of the weight ``key`` usually is."""
    by_name = choose("weight", key)
    if by_name and not (len(places) > 1 and "vocabulary" in by_name):
        return by_name
    if _RX.actor.search(key) and len(places) == 1:
        return "the observation size" if places[0] == 1 or _RX.first_layer.search(key) else "the action or hidden size"
    return "the hidden size (another model size)" if len(places) > 1 else "the input or hidden size"


def _compare_operands(scene: Scene, text: str) -> NextStep | None:
    match = next(filter(None, (pattern.search(text) for pattern in _OPERANDS)), None)
    if match is None or match[1] is None or match[2] is None:
        return None
    one, other = _read(match[1]), _read(match[2])
    if len(one) != len(other):
        advice = (
            "Shapes ({0}) and ({1}) have another number of dimensions{ at}: squeeze or unsqueeze the one that is wrong."
        )
        return compose(advice, [match[1], match[2]], scene) if one and other else None
    places = _differing(one, other)
    if not places:
        return None
    at = places[0]
    usual = (
        "the channels (grey, RGB or RGBA)"
        if len(one) in (3, 4) and {one[at], other[at]} <= {1, 3, 4}
        else "the batch (the last one is smaller: drop_last=True)"
        if at == 0 and len(one) > 1
        else "the length, feature, action or class size"
        if at == len(one) - 1
        else "the length (pad or truncate)"
    )
    say = "Dimension {0} is {1} and {2}{ at}: usually {3}; make both equal{ there}"
    return correct(say, [str(at), str(one[at]), str(other[at]), usual], scene)


# --- keys of checkpoints

_STATE_KEY = compile_lazily(r"[\w.-]{3,200}")
_MOST_KEYS = 40


def compare_keys(scene: Scene) -> NextStep | None:
    """Return the prefixes without which the keys that ``scene`` lists become equal, or None."""
    missing, unexpected = _read_keys(scene.message)
    here, saved = _find_prefixes(missing, unexpected)
    if saved and not here:
        say = "Each key of the checkpoint begins with {0}: remove that prefix before load_state_dict{ at}"
        return correct(say, [saved], scene)
    if here and not saved:
        say = "The checkpoint's keys lack the prefix {0} of this model: load them into {1}, or add it{, at}"
        return correct(say, [here, f"model.{here.rstrip('.')}"], scene)
    say = "The checkpoint's keys begin with {0}, this model's with {1}: replace that prefix before load_state_dict{ at}"
    return correct(say, [saved, here], scene) if here else None


def _read_keys(text: str) -> tuple[list[str], list[str]]:
    found: dict[str, list[str]] = {"missing": [], "unexpected": []}
    for match in _RX.lists.finditer(text):
        keys = _RX.quoted_key.findall(match[2]) or [key for key in _STATE_KEY.findall(match[2]) if "." in key]
        found[match[1].lower()] += keys[:_MOST_KEYS]
    return found["missing"], found["unexpected"]


def _find_prefixes(missing: Sequence[str], unexpected: Sequence[str]) -> tuple[str, str]:
    """Return how the keys of either list begin where the rest is the same, if that holds for all. Else nothing."""
    found = set()
    for key in missing:
        rest, other = max(
            ((_common_end(key, one), one) for one in unexpected), key=lambda pair: len(pair[0]), default=("", "")
        )
        is_whole = rest in (key, other)
        found.add((key.removesuffix(rest), other.removesuffix(rest)) if is_whole or "." in rest else ("", ""))
    return found.pop() if len(found) == 1 else ("", "")


def _common_end(one: str, other: str) -> str:
    """Return the parts, between dots, with which both keys end."""
    parts = list(zip(reversed(one.split(".")), reversed(other.split("."))))
    same = next((n for n, (a, b) in enumerate(parts) if a != b), len(parts))
    return ".".join(one.split(".")[-same:]) if same else ""


# --- records of the data


def explain_record(scene: Scene) -> NextStep | None:
    """Return the step where the log shows that the same code had worked for earlier records, or None."""
    if not scene.record or scene.inside or scene.kind not in OF_PROGRAM:
        return None
    if key := _RX.missing_key.search(scene.line):
        if re.search(r"\[[^\W\d][\w.]*\]", scene.source):  # by a value: the table or the record is wrong
            say = "`{source}`{ at} finds no {0}, after records that worked: correct the record, or add it to the table."
        elif scene.record == "data":
            say = "One record has no {0}, as earlier ones had it: filter such records from the data, or skip them{ at}."
        else:
            say = (
                "{0} is missing only now, after steps that worked: one sample or a rare branch lacks it{ at}; filter "
                "that, or guard it (.get)."
            )
        return compose(say, [key[1].strip()], scene)
    if scene.record == "data":
        said = choose("record", scene.line)
        say = "One record {0}, after many that worked: print its index{ at}, then drop or skip such records."
        return compose(say, [said], scene) if said else None
    return None


# --- a server of this host, or of this run

_SERVICE_KINDS = frozenset({"network_error", "python_error", "other"})
_REFUSED = (
    "Nothing answers at {0}: its server did not start or ended, as its own output says; retry later, when it answers."
)
_ANSWERED = "The server at {0} answers {1}: the cause is in that server's own output; retry later, when it works."


def explain_service(scene: Scene) -> NextStep | None:
    """Return which server of the user's own failed: of this host, or of a private address that the log has."""
    text = scene.message or scene.line
    answered = _RX.answered.search(text)
    if scene.kind not in _SERVICE_KINDS or (answered is None and scene.kind != "network_error") or text[:5] == "ssh: ":
        return None
    for match in _RX.address.finditer(text):
        host, port = list(filter(None, match.groups()))[:2]
        address = f"{host}:{port}"
        is_known = bool(_RX.private.match(host)) and scene.log.count(address) > text.count(address)
        if is_known or _RX.this_host.match(host):
            return _blame(scene, address, answered)
    # A client logs the address that its error leaves out, or the log names one server only.
    requests = _RX.request.findall(scene.near) if answered else list({*_RX.url.findall(scene.log)})
    host = requests[-1].rpartition(":")[0] if requests and (answered or len(requests) == 1) else ""
    return _blame(scene, requests[-1], answered) if _RX.private.match(host) or _RX.this_host.match(host) else None


def _blame(scene: Scene, address: str, answered: re.Match[str] | None) -> NextStep | None:
    if answered is None:
        return compose(_REFUSED, [address], scene, "retry_later")
    return compose(_ANSWERED, [address, next(filter(None, answered.groups()))], scene, "retry_later")
