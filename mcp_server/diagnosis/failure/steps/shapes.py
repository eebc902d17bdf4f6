"""Says which dimension of two shapes differs, and what such a dimension usually is. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mcp_server.diagnosis.failure.steps.row import NextStep, Scene, fill_in
from mcp_server.text.regex import compile_lazily

_SHAPE = r"(?:torch\.Size\()?[\[(]+([\d, ]*|None(?:, \d+)+,?)[\])]+"
# The shape in the checkpoint, the shape of this model, and the name of the weight, in either order.
_SAVED = (
    compile_lazily(
        rf"size mismatch for (?P<key>[\w.]+): copying a param with shape {_SHAPE} from checkpoint, "
        rf"the shape in current "
        rf"model is {_SHAPE}"
    ),
    compile_lazily(rf"mismatch for loaded \({_SHAPE}\)? and expected \({_SHAPE}\)? tensor for key (?P<key>[\w.]+)"),
    compile_lazily(rf"(?P<key>[\w.]+): found shape {_SHAPE} in the checkpoint and {_SHAPE} in the model"),
    compile_lazily(rf"[Rr]eceived saved weight with shape {_SHAPE}"),
    compile_lazily(rf"stored shape:? {_SHAPE}"),
)
_EXPECTED = compile_lazily(rf"(?:[Ww]eight expects shape|Requested shape:) {_SHAPE}")
_KEY = compile_lazily(r"(?:for weight|for parameter|parameter) ['\"]?([\w./]+)")
# What a weight's name says about the dimension that differs.
_BY_NAME = (
    (
        r"word_embed|embed_tokens|tok_embed|wte|lm_head|vocab|output_layer",
        "the vocabulary (its padding or added tokens)",
    ),
    (r"running_mean|running_var|obs_norm|obs_rms|normali[sz]er", "the observation size"),
    (r"log_std|action_net|\bmu\b|\bstd\b|action_head", "the action size"),
    (r"classifier|\bscore\b|num_classes|cls_head", "the number of classes"),
    (r"pos_embed|position_embed|wpe", "the image size or length"),
    (r"lora_|adapter", "the adapter's rank"),
    (r"patch_embed|conv1\b|stem", "the input's channels"),
)
_ACTOR = compile_lazily(r"actor|critic|policy|q_net|value_net|mlp_extractor")
_FIRST_LAYER = compile_lazily(r"\.0\.(?:weight|kernel)|(?:fc1|layer_?1|Dense_0)[./]")
# Two shapes that an operation got.
_OPERANDS = (
    compile_lazily(rf"(?:incompatible shapes|[Ss]hapes)\b[^(\[\n]{{0,40}}{_SHAPE}[, ]+(?:vs\.?|and|with|,)? ?{_SHAPE}"),
    compile_lazily(rf"(?:broadcast|reshape)\w* input array from shape {_SHAPE} into shape {_SHAPE}"),
    compile_lazily(rf"shapes? {_SHAPE} doesn't match (?:the )?(?:broadcast )?shape {_SHAPE}"),
    compile_lazily(rf"Target sizes: {_SHAPE}\.\s+Tensor sizes: {_SHAPE}"),
    compile_lazily(rf"[Tt]arget size \({_SHAPE}\)? must be the same as input size \({_SHAPE}"),
    compile_lazily(rf"\w+\.shape={_SHAPE}, \w+\.shape={_SHAPE}"),
    compile_lazily(rf"expected shape=?:? ?{_SHAPE},? (?:but )?(?:found|got)(?: array with)? shape=?:? ?{_SHAPE}"),
    compile_lazily(rf"same shape, got {_SHAPE} and {_SHAPE}"),
    compile_lazily(rf"Unexpected observation shape {_SHAPE} for .{{0,60}}please use {_SHAPE}"),
    compile_lazily(rf"logits shape {_SHAPE} and labels shape {_SHAPE}"),
    compile_lazily(rf"operands could not be broadcast together with shapes {_SHAPE} {_SHAPE}"),
)
_AXIS = compile_lazily(r"expected axis (-?\d+) of input shape to have value (\d+)[^\n]{0,60}?shape \(([\w, ]+)\)")
_FEATURES = compile_lazily(r"X has (\d+) features, but (\w+) is expecting (\d+) features")
_PADDED = compile_lazily(r"padded vocab \(size: (\d+)\)")
_TENSOR_PARALLEL = compile_lazily(r"tensor[-_]model[-_]parallel[-_]size:?[ .=]{0,60}(\d+)")
_DIVISORS = (128, 64, 32, 16, 8, 4, 2, 1)
_KINDS = frozenset({"python_error", "data_error", "config_error"})


# Rows of program.py know more of these.
_KNOWN = compile_lazily(
    r"size mismatch for \S*(?:embed_tokens|lm_head|wte|word_embeddings|classifier|score|fc|head)\S*: copying"
)


def explain_shapes(scene: Scene) -> NextStep | None:
    """Return which dimension of the shapes in ``scene`` differs and what it usually is, or None."""
    if scene.kind not in _KINDS:
        return None
    text = scene.message or scene.line
    if _KNOWN.search(text):
        return None
    return _compare_saved(scene, text) or _compare_operands(scene, text)


def _read(shape: str) -> list[int]:
    """Return the sizes of ``shape``; -1 for a None."""
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
    named = _KEY.search(text)
    key = _name_of(match) or (named[1] if named else "")
    places = _differing(saved, here)
    if not places:
        return None
    at = places[0]
    if (step := _align_vocabulary(scene, saved[at], here[at])) is not None:
        return step
    what = _name_dimension(key, places)
    advice = (
        "{0} has {1} in the checkpoint, {2} here (dimension {3}): {4} differs; set it as in the checkpoint's "
        "configuration."
    )
    short = "The checkpoint has {1}, this model {2} (dimension {3}): {4} differs; set it as it was saved, {at}."
    parts = [key or "A weight", str(saved[at]), str(here[at]), str(at), what]
    return _step(fill_in(advice, parts, scene.at) or fill_in(short, parts, scene.at))


def _name_of(match: re.Match[str]) -> str:
    return match.groupdict().get("key") or ""


def _name_dimension(key: str, places: Sequence[int]) -> str:
    """Return what the dimension ``places`` of the weight ``key`` usually is."""
    by_name = next((what for pattern, what in _BY_NAME if re.search(pattern, key)), "")
    if by_name and not (len(places) > 1 and "vocabulary" in by_name):
        return by_name
    if _ACTOR.search(key) and len(places) == 1:
        return "the observation size" if places[0] == 1 or _FIRST_LAYER.search(key) else "the action or hidden size"
    return "the hidden size (another model size)" if len(places) > 1 else "the input or hidden size"


def _align_vocabulary(scene: Scene, saved: int, here: int) -> NextStep | None:
    """Return the setting of Megatron with which the vocabulary is padded to ``saved``, or None."""
    padded, parallel = _PADDED.search(scene.log), _TENSOR_PARALLEL.search(scene.log)
    if padded is None or parallel is None:
        return None
    size, ranks = int(padded[1]), int(parallel[1])
    divisor = next((one for one in _DIVISORS if ranks and -(-size // (one * ranks)) * one * ranks == saved), None)
    if divisor is None:
        return None
    return _step(
        f"The checkpoint pads the vocabulary to {saved}, this run to {here}: --make-vocab-size-divisible-by {divisor} "
        f"(x {ranks} tensor parallel) gives {saved}."
    )


def explain_width(scene: Scene) -> NextStep | None:
    """Return which width a layer or an estimator takes and which it got, or None."""
    text = scene.message or scene.line
    if axis := _AXIS.search(text):
        got = axis[3].split(",")[int(axis[1])].strip() if abs(int(axis[1])) <= axis[3].count(",") + 1 else axis[3]
        advice = (
            "The layer takes {0} features and gets {1}: give the data {0} columns, or build the model for {1}, {at}, "
            "then "
            "launch_run again."
        )
        return _step(fill_in(advice, [axis[2], got], scene.at))
    if columns := _FEATURES.search(text):
        advice = (
            "{1} was fitted on {2} features and gets {0}: use the same columns as in fit {at}, then launch_run again."
        )
        return _step(fill_in(advice, list(columns.groups()), scene.at))
    return None


def _compare_operands(scene: Scene, text: str) -> NextStep | None:
    match = next(filter(None, (pattern.search(text) for pattern in _OPERANDS)), None)
    if match is None or match[1] is None or match[2] is None:
        return None
    one, other = _read(match[1]), _read(match[2])
    if len(one) != len(other):
        advice = (
            "Shapes ({0}) and ({1}) have another number of dimensions {at}: squeeze or unsqueeze the one that is wrong."
        )
        return _step(fill_in(advice, [match[1], match[2]], scene.at)) if one and other else None
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
    advice = "Dimension {0} is {1} and {2} {at}: usually {3}; make both equal there, then launch_run again."
    return _step(fill_in(advice, [str(at), str(one[at]), str(other[at]), usual], scene.at))


def _step(text: str) -> NextStep | None:
    return NextStep(False, "stop", text) if text else None
