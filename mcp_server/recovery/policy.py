"""Recovery policies: parses what a user writes into one normal form. Pure.

A user writes `"none"`, `"default"`, or a table by failure kind:

    {"oom_gpu": [{"do": "retry"}, {"do": "retry", "change": {"num_envs": "halve"}}], "nccl_error": "retry"}

`"any"` stands for every kind. `"rules"` is a list instead, of which the first match wins; kinds come after it, `"any"`
after them. `"extends": "default"` appends the rules of the default policy; otherwise nothing is tried where no rule
matches. `"max_retries"` and `"max_same_kind"` (3 each) are the ceilings. `"on_stall"`, `"on_divergence"` and
`"on_first_step_timeout"` are `"stop"` or `"report"`; by default, a rule for stall or divergence means stop. An attempt
that is stopped without a first step fails as `timeout`. `imbalance` is a kind too, of GPUs that lag behind the run's
others: a rule for it, or `"on_imbalance": "stop"`, stops the attempt. The normal form has `"stop_on"` instead of these.

A step without `times` is taken once, the last of a list as often as the ceilings allow. Waits are in seconds, each
`backoff` times longer than the one before. The change of a parameter is `"halve"`, `{"halve": {"min": 64}}`,
`"next_port"`, or its new value. `"$NAME"` is an environment variable. `"@batch"` and `"@port"` stand for the parameter
that determines the batch size or has the taken port. `"@gpu"` can be `"other"`.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from mcp_server.diagnosis.failure.kinds import KINDS
from mcp_server.text.regex import compile_lazily

# The supervisor detects these while the command runs. An attempt without a first step in time fails as `timeout`.
OBSERVED = ("stall", "divergence", "first_step_timeout", "imbalance")
# A policy's word for an attempt that it stopped because a GPU lagged behind the run's others: its failure is `other`.
IMBALANCE = "imbalance"
POLICY_KINDS = (*KINDS, IMBALANCE)
MAX_ATTEMPTS = 100  # of a run, under any policy
HALVE, NEXT_PORT, OTHER = "halve", "next_port", "other"
BATCH, PORT, GPU = "@batch", "@port", "@gpu"
# Words and sums that mean an operation, and that a program would get as they stand.
_NOT_A_VALUE = compile_lazily(
    r"(?:halv(?:e|ed|es|ing)|half|twice|(?:reduc|decreas|increas|doubl)(?:e|ed|es|ing)|shrink)(?:[\s_]+(?:it|by|of|to).*)?"
    r"|smaller|less|fewer|bigger|larger|(?:an)?other(?:[\s_-]+gpu)?|next(?:[\s_-]*(?:port|gpu|free))?"
    r"|(?:free|new)[\s_-]*port|[*/x]\s*=?\s*\d*\.?\d+|[+-]?\s*\d*\.?\d+\s*(?:%|x)|1/\d+",
    re.IGNORECASE,
)
_HALF_IS_A_VALUE = compile_lazily(r"dtype|precision|float|amp", re.IGNORECASE)  # of 16 bits

CEILINGS = {"max_retries": (3, 0), "max_same_kind": (3, 1)}  # default, least
KEYS = (
    "any",
    "rules",
    "extends",
    *CEILINGS,
    "on_stall",
    "on_divergence",
    "on_first_step_timeout",
    "on_imbalance",
    "stop_on",
)
WHEN_KEYS = {"kind": str, "exit_code": int, "pattern": str, "retryable": bool}
STEP_KEYS = ("do", "times", "change", "wait_s", "backoff")
_LONGEST_WAIT_S = 86_400.0
_LIKENESS = 0.7  # of an unknown key and one that is known


def normalize_policy(value: object) -> dict[str, Any]:
    """Return the normal form of a policy, which JSON can hold. ValueError names the key, and what is allowed."""
    if value is None or value == "none":
        return _copy(NONE)
    if value == "default":
        return _copy(DEFAULT)
    if not isinstance(value, Mapping):
        raise ValueError(f'recovery is "none", "default" or a table by failure kind, not {value!r}.')  # noqa: TRY004
    _check_keys(value, (*POLICY_KINDS, *KEYS), "recovery")
    rules = [_rule(rule, f"recovery.rules[{n}]") for n, rule in enumerate(_list(value.get("rules", []), "rules"))]
    kinds = [*(key for key in value if key in POLICY_KINDS), *(["any"] if "any" in value else [])]
    rules += [{"when": {"kind": kind}, "steps": _steps(value[kind], f"recovery.{kind}")} for kind in kinds]
    base = _base(value.get("extends"))
    return {
        "rules": rules + base["rules"],
        **{
            key: _number(value.get(key, base[key]), least, MAX_ATTEMPTS, f"recovery.{key}", whole=True)
            for key, (_, least) in CEILINGS.items()
        },
        "stop_on": [kind for kind in OBSERVED if _stops(kind, value, rules, base)],
    }


def _base(name: object) -> dict[str, Any]:
    if name not in (None, "none", "default"):
        raise ValueError(f'recovery.extends is "default" or "none", not {name!r}.')
    return _copy(DEFAULT if name == "default" else NONE)


def _stops(kind: str, value: Mapping[str, Any], rules: Iterable[Mapping[str, Any]], base: Mapping[str, Any]) -> bool:
    """Return whether a stall or a divergence stops the attempt: by its own key, else where a rule matches it."""
    if (word := value.get(f"on_{kind}")) is not None:
        if word not in ("stop", "report"):
            raise ValueError(f'recovery.on_{kind} is "stop" or "report", not {word!r}.')
        return bool(word == "stop")
    if "stop_on" in value:
        stop_on = _list(value["stop_on"], "stop_on")
        if not all(entry in OBSERVED for entry in stop_on):
            raise ValueError(f"recovery.stop_on holds {', '.join(OBSERVED)}, not {stop_on!r}.")
        return kind in stop_on
    return kind in base["stop_on"] or any(rule["when"].get("kind") == kind for rule in rules)


def _rule(rule: object, where: str) -> dict[str, Any]:
    rule = _table(rule, where)
    _check_keys(rule, ("when", "steps", *STEP_KEYS), where)
    when = dict(_table(rule.get("when", {}), f"{where}.when"))
    _check_keys(when, tuple(WHEN_KEYS), f"{where}.when")
    for key, kind in WHEN_KEYS.items():
        if key in when and (not isinstance(when[key], kind) or (kind is int and isinstance(when[key], bool))):
            raise ValueError(f"{where}.when.{key} is of type {kind.__name__}, not {when[key]!r}.")
    if (kind_name := when.get("kind", "any")) not in (*POLICY_KINDS, "any"):
        raise ValueError(f"{where}.when.kind is unknown: {kind_name!r}. Allowed: {', '.join((*POLICY_KINDS, 'any'))}.")
    try:
        re.compile(when.get("pattern", ""))
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{where}.when.pattern is not a regular expression: {error}.") from None
    steps = rule["steps"] if "steps" in rule else {key: rule[key] for key in STEP_KEYS if key in rule}
    return {"when": when, "steps": _steps(steps, where)}


def _steps(value: object, where: str) -> list[dict[str, Any]]:
    entries = value if isinstance(value, (list, tuple)) else [value]
    if not entries:
        raise ValueError(f"{where} is empty: write at least one step.")
    return [_step(entry, where, last=n == len(entries)) for n, entry in enumerate(entries, 1)]


def _step(value: object, where: str, *, last: bool) -> dict[str, Any]:
    step = {"do": value} if isinstance(value, str) else _table(value, where)
    _check_keys(step, STEP_KEYS, where)
    if (do := step.get("do", "retry" if "change" in step else None)) not in ("retry", "stop"):
        raise ValueError(f'{where}.do is "retry" or "stop", not {do!r}.')
    times = step.get("times", MAX_ATTEMPTS if last else 1)
    change = _table(step.get("change", {}), f"{where}.change")
    return {
        "do": do,
        "times": _number(times, 1, MAX_ATTEMPTS, f"{where}.times", whole=True),
        "change": {_name(name, where): _change(name, how, where) for name, how in change.items()},
        "wait_s": _number(step.get("wait_s", 1.0), 0, _LONGEST_WAIT_S, f"{where}.wait_s"),
        "backoff": _number(step.get("backoff", 2.0), 1, 100, f"{where}.backoff"),
    }


def _name(name: object, where: str) -> str:
    if not isinstance(name, str) or name in ("", "$") or (name.startswith("@") and name not in (BATCH, PORT, GPU)):
        raise ValueError(f"{where}.change names a parameter, $VARIABLE, {BATCH}, {PORT} or {GPU}, not {name!r}.")
    return name


def _change(name: str, how: object, where: str) -> object:
    allowed = {BATCH: (HALVE,), PORT: (NEXT_PORT,), GPU: (OTHER,)}.get(name)
    if isinstance(how, Mapping):
        _check_keys(how, (HALVE,), f"{where}.change.{name}")
        least = _table(how.get(HALVE), f"{where}.change.{name}.halve")
        _check_keys(least, ("min",), f"{where}.change.{name}.halve")
        how = {HALVE: {"min": _number(least.get("min", 1), 0, math.inf, f"{where}.change.{name}.halve.min")}}
    elif not (how is None or isinstance(how, (str, int, float))) or (isinstance(how, float) and not math.isfinite(how)):
        raise ValueError(f"{where}.change.{name} is a word, a number or {{'halve': {{'min': 1}}}}, not {how!r}.")
    if allowed and (HALVE if isinstance(how, dict) else how) not in allowed:
        raise ValueError(f"{where}.change.{name} can only be {allowed[0]!r}, not {how!r}.")
    if allowed is None and _is_operation(name, how):
        raise ValueError(
            f"{where}.change.{name}: {how!r} is neither a value nor an operator. Operators are 'halve', "
            f"{{'halve': {{'min': 64}}}} and 'next_port', and 'other' for {GPU}."
        )
    if name.startswith("$") and (isinstance(how, dict) or how == HALVE):
        raise ValueError(f"{where}.change.{name} is an environment variable, which cannot be halved.")
    return how


def _is_operation(name: str, how: object) -> bool:
    """Return whether a text means an operation that the language does not have: ``half``, ``/2``, ``50%``."""
    if not isinstance(how, str) or how in (HALVE, NEXT_PORT):
        return False
    is_precision = how.lower() == "half" and _HALF_IS_A_VALUE.search(name) is not None
    return _NOT_A_VALUE.fullmatch(how.strip()) is not None and not is_precision


# --- checks


def _check_keys(table: Mapping[Any, Any], allowed: Iterable[str], where: str) -> None:
    for key in table:
        if key not in allowed:
            near = difflib.get_close_matches(str(key), allowed, 1, _LIKENESS)
            hint = f": near is {near[0]!r}" if near else ""
            raise ValueError(f"{where} has an unknown key {key!r}{hint}. Allowed: {', '.join(allowed)}.")


def _table(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} is a table, not {value!r}.")  # noqa: TRY004  one error for all
    return value


def _list(value: object, key: str) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"recovery.{key} is a list, not {value!r}.")  # noqa: TRY004
    return list(value)


def _number(value: object, least: float, most: float, where: str, *, whole: bool = False) -> Any:
    fits = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not fits or not least <= value <= most:  # type: ignore[operator]
        kind = "a whole number" if whole else "a number"
        raise ValueError(f"{where} is {kind} from {least:g} to {most:g}, not {value!r}.")
    return value


def _copy(policy: Mapping[str, Any]) -> dict[str, Any]:
    return dict(json.loads(json.dumps(policy)))


# --- the named policies


def _default(kinds: str, *steps: dict[str, Any], **when: object) -> list[dict[str, Any]]:
    normal_steps = _steps(list(steps or ({"do": "stop"},)), "default")
    return [{"when": {"kind": kind, **when}, "steps": _copy({"s": normal_steps})["s"]} for kind in kinds.split()]


def _retry(times: int = MAX_ATTEMPTS, wait_s: float = 1.0, **change: object) -> dict[str, Any]:
    return {
        "do": "retry",
        "times": times,
        "wait_s": wait_s,
        "change": {f"@{name}": how for name, how in change.items()},
    }


NONE: dict[str, Any] = {"rules": [], "max_retries": 3, "max_same_kind": 3, "stop_on": []}
DEFAULT: dict[str, Any] = {
    **NONE,
    "stop_on": ["stall", "divergence"],  # a download or a compilation may take longer than the first step's limit
    "rules": [
        *_default("oom_gpu", _retry(1), _retry(batch=HALVE), retryable=True),
        *_default("oom_host", _retry(1, batch=HALVE), retryable=True),
        *_default("cuda_error", _retry(1), _retry(1, gpu=OTHER), retryable=True),
        *_default("nccl_error ray_error stall killed", _retry(), retryable=True),
        *_default("segfault other", _retry(1), retryable=True),
        *_default("network_error", _retry(wait_s=30.0), retryable=True),
        *_default("port_conflict", _retry(port=NEXT_PORT), retryable=True),
        *_default(" ".join(KINDS)),
    ],
}


def describe_policy(policy: Mapping[str, Any]) -> str:
    """Return the normal form of a policy as text: ``oom_gpu: retry 2 times, num_envs halve; at most 3 retries``."""
    kinds: dict[str, list[str]] = {}
    rules = list(_list_effective(policy["rules"]))
    guarded = [rule["when"]["kind"] for rule in rules if is_guard(rule["when"])]
    obeyed = {rule["when"]["kind"] for rule in rules if is_stop(rule) and rule["when"].get("kind") in guarded}
    for rule in rules:
        when = rule["when"]
        if when.get("kind") in obeyed and set(when) <= {"kind", "retryable"}:
            if is_stop(rule):
                continue
            when = {"kind": when["kind"]}
        steps = ", then ".join(_describe_step(step) for step in rule["steps"])
        kinds.setdefault(steps, []).append(_describe_when(when))
    clauses = [f"{' '.join(dict.fromkeys(whens))}: {steps}" for steps, whens in kinds.items()]
    obeys = ["of these kinds what the diagnosis calls not retryable: stop"] if obeyed else []
    stops = [f"stops on {' and '.join(policy['stop_on'])}"] if policy["stop_on"] else []
    return "; ".join([*clauses, *obeys, *stops, describe_ceilings(policy, " retries")])


def _list_effective(rules: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the rules that no earlier one without a condition keeps from being reached."""
    decided: set[str] = set()
    for rule in rules:
        kind = rule["when"].get("kind", "any")
        if decided.isdisjoint({kind, "any"}):
            yield rule
        if set(rule["when"]) <= {"kind"}:
            decided.add(kind)


def is_guard(when: Mapping[str, Any]) -> bool:
    """Return whether a rule is for a kind whose failures the diagnosis calls worth a retry."""
    return set(when) == {"kind", "retryable"} and bool(when["retryable"])


def is_stop(rule: Mapping[str, Any]) -> bool:
    """Return whether a rule retries nothing."""
    return bool(rule["steps"][0]["do"] == "stop")


def describe_ceilings(policy: Mapping[str, Any], noun: str = "") -> str:
    """Return how many retries there may be; the last failure of ``max_same_kind`` is followed by none."""
    most, of_one_kind = policy["max_retries"], policy["max_same_kind"] - 1
    return f"at most {most}{noun}" + (f", and {of_one_kind} of one kind in a row" if of_one_kind < most else "")


def _describe_when(when: Mapping[str, Any]) -> str:
    kind = str(when.get("kind", "any"))
    more = [name if value is True else f"{name} {value}" for name, value in when.items() if name != "kind"]
    return f"{kind} ({', '.join(more)})" if more else kind


def _describe_step(step: Mapping[str, Any]) -> str:
    if step["do"] == "stop":
        return "stop"
    times = "" if step["times"] >= MAX_ATTEMPTS else f" {step['times']} time{'s' * (step['times'] > 1)}"
    changes = [f"{name} {_describe_change(how)}" for name, how in step["change"].items()]
    wait = [f"after {step['wait_s']:g} s"] if step["wait_s"] != 1 else []
    return f"retry{times}" + (f" ({', '.join([*changes, *wait])})" if changes or wait else "")


def _describe_change(how: object) -> str:
    if isinstance(how, Mapping):
        return f"halve down to {how[HALVE]['min']:g}"
    return str(how).replace("_", " ")


LANGUAGE = (
    'Write "none", "default", or a table with a step or a list of steps for each kind, or for "any": "retry", "stop", '
    'or {"do": "retry", "times": 1, "wait_s": 1, "backoff": 2, "change": {"num_envs": "halve"}}. In "change": a '
    'parameter to "halve", {"halve": {"min": 64}}, "next_port" or its value; "$NAME" to "next_port" or its value; '
    '"@batch" to "halve"; "@port" to "next_port"; "@gpu" to "other". "rules": [{"when": {"kind": …, "exit_code": 42, '
    '"pattern": "regex", "retryable": true}, "do": "retry"}]. "max_retries" and "max_same_kind" are numbers; '
    '"on_stall", "on_divergence", "on_imbalance" and "on_first_step_timeout" are "stop" or "report". '
    f"Kinds: {' '.join(POLICY_KINDS)}. "
    f'"extends": "default" adds the default: {describe_policy(DEFAULT)}. guide://recovery explains all.'
)
"""How to write a policy, for the refusal of one."""
