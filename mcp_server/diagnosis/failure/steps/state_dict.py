"""Compares the keys that a checkpoint has with those that a model wants, as PyTorch lists them. Pure."""

from __future__ import annotations

from mcp_server.diagnosis.failure.steps.row import NextStep, Scene, fill_in
from mcp_server.text.regex import compile_lazily

_LISTS = compile_lazily(
    r"(?i)\b(missing|unexpected) key(?:\(s\)|s)? in (?:source )?(?:state_dict|checkpoint)\w*: ?([^\n]{1,2000})"
)
_KEY = compile_lazily(r"[\w.-]{3,200}")
_QUOTED_KEY = compile_lazily(r"['\"]([\w.-]{1,200})['\"]")
# What wraps a model puts its own name into each key.
_WRAPPERS = {
    "_orig_mod.": "torch.compile",
    "_fsdp_wrapped_module.": "FSDP",
    "_checkpoint_wrapped_module.": "activation checkpointing",
    "_forward_module.": "Fabric",
}
_ADAPTER = compile_lazily(r"\blora_[AB]\b|\bbase_model\.model\.|\badapter\b")
_COMPUTED = compile_lazily(
    r"position_ids|inv_freq|num_batches_tracked|\.attn\.(?:masked_)?bias$|attn_mask|relative_position_index"
)
_MOST_KEYS = 40


def compare_keys(scene: Scene) -> NextStep | None:
    """Return how the keys that ``scene`` lists become equal: by a prefix, or by what wraps the model. Or None."""
    missing, unexpected = _read_keys(scene.message)
    if not missing and not unexpected:
        return None
    advice, parts = _explain(missing, unexpected, is_size_wrong="size mismatch" in scene.message)
    text = fill_in(advice, parts, scene.at) if advice else ""
    return NextStep(False, "stop", text) if text else None


def _explain(missing: list[str], unexpected: list[str], *, is_size_wrong: bool) -> tuple[str, list[str]]:
    """Return the advice and what it quotes, or nothing."""
    for name, tool in _WRAPPERS.items():
        if any(name in key for key in unexpected):
            return (
                "The keys hold {0}, of a model wrapped by {1}: save the inner model's state, or replace {0} by nothing "
                "before loading {at}.",
                [name, tool],
            )
        if any(name in key for key in missing):
            return "This model is wrapped by {0}, the checkpoint is not: load it before the wrapping {at}.", [tool]
    if prefix := _find_prefix(long=unexpected, short=missing):
        return (
            "Each key of the checkpoint begins with {0}: remove that prefix before load_state_dict {at}, then "
            "launch_run again.",
            [prefix],
        )
    if prefix := _find_prefix(long=missing, short=unexpected):
        return (
            "The checkpoint's keys lack the prefix {0} of this model: load them into {1}, or add it, {at}, then "
            "launch_run again.",
            [prefix, f"model.{prefix.rstrip('.')}"],
        )
    if any(_ADAPTER.search(key) for key in unexpected):
        return (
            "The checkpoint is of a PEFT adapter: load the base model, then PeftModel.from_pretrained(model, path) "
            "{at}.",
            [],
        )
    if any(_ADAPTER.search(key) for key in missing):
        return "The model has adapters, the checkpoint none: load it before get_peft_model {at}.", []
    if not missing and not is_size_wrong and all(_COMPUTED.search(key) for key in unexpected):
        return "Only buffers that this version computes are left over ({0}): pass strict=False {at}.", unexpected[:1]
    return "", []


def _read_keys(text: str) -> tuple[list[str], list[str]]:
    """Return the keys that are missing, and those that are not expected."""
    found: dict[str, list[str]] = {"missing": [], "unexpected": []}
    for match in _LISTS.finditer(text):
        keys = _QUOTED_KEY.findall(match[2]) or [key for key in _KEY.findall(match[2]) if "." in key]
        found[match[1].lower()] += keys[:_MOST_KEYS]
    return found["missing"], found["unexpected"]


def _find_prefix(*, long: list[str], short: list[str]) -> str:
    """Return what a key of ``long`` has before a whole key of ``short``, where all such pairs agree. Or nothing."""
    prefixes = {one[: -len(other)] for one in long for other in short if one.endswith(f".{other}")}
    return prefixes.pop() if len(prefixes) == 1 else ""
