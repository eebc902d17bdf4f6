"""Says which setting names something that the program or its packages do not have. Pure."""

from __future__ import annotations

from mcp_server.diagnosis.failure.steps.row import NextStep, Scene, fill_in
from mcp_server.text.regex import compile_lazily

# What settings name. Other nouns ("error", "file") are of other failures.
_NOUNS = (
    r"template|data ?set|model(?: type| name)?|optimi[sz]er(?: type)?|(?:lr )?scheduler(?: type)?"
    r"|loss(?: function| type)?|metric|backend|device|dtype|data type|activation(?: function)?"
    r"|arch(?:itecture)?|tokeni[sz]er|processor|strategy|precision|mode|task(?: name| type)?|format"
    r"|algorithm|layer(?: type)?|norm\w*(?: type)?|attention(?: \w+)?|method|criterion|sampler|split"
    r"|option|argument|field|column|callback|plugin|trainer|logger|reward(?: \w+)?|function|policy|agent"
    r"|encoder|decoder|backbone|network|noise schedule|stage|recipe|preset|adapter|quantization(?: \w+)?"
    r"|kernel|interpolation|augmentation|transform|framework|solver|distribution|environment|env"
)
_NAME = r"['\"`<(]{0,2}(?P<name>[\w./:@+-]{2,80}?)['\"`>)]{0,2}"
_STATES = "defined|known|supported|registered|available|implemented|recogni[sz]ed|valid|found|allowed"
_IS_UNKNOWN = (
    rf"(?:does(?: not|n't) exist|(?:is|was) (?:not (?:{_STATES})|unknown|undefined|unsupported|invalid)"
    rf"|not (?:{_STATES}))\b"
)
_BEFORE = compile_lazily(rf"(?i)\b(?P<noun>{_NOUNS})s?[: =]+{_NAME} {_IS_UNKNOWN}")
_AFTER = compile_lazily(
    rf"(?i)\b(?:unknown|undefined|unsupported|unrecogni[sz]ed|unregistered|invalid|no such)(?: \w+)?"
    rf" (?P<noun>{_NOUNS})s?(?: (?:name|type|specified|provided|given|value))*[:,]? {_NAME}(?=[\s.,;:!]|$)"
)
_NO_NAMES = frozenset("is was for in of the type name and or with to a an".split())  # noqa: SIM905 - a list of words
_KINDS = frozenset({"python_error", "config_error"})


def name_unknown(scene: Scene) -> NextStep | None:
    """Return which setting to correct, where the message says that what it names is not known. Or None."""
    if scene.kind not in _KINDS:
        return None
    match = _BEFORE.search(scene.line) or _AFTER.search(scene.line)
    if match is None or match["name"].lower() in {
        "is",
        "was",
        "for",
        "in",
        "of",
        "the",
        "type",
        "name",
        "and",
        "or",
        "with",
        "to",
    }:
        return None
    who = scene.library or "The program"
    advice = "{0} has no {1} {2}: correct that setting, or use a version that has it ({at}), then launch_run again."
    text = fill_in(advice, [who, match["noun"].lower(), match["name"].rstrip(".")], scene.at)
    return NextStep(False, "stop", text) if text else None
