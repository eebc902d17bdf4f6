"""A recovery policy in one line, as it is applied after its defaults were filled in; and the whole language. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp_server.recovery.policy import DEFAULT, HALVE, MAX_ATTEMPTS, POLICY_KINDS


def describe_policy(policy: Mapping[str, Any]) -> str:
    """Return the normal form of a policy as text: ``oom_gpu: retry 2 times, num_envs halve; at most 3 retries``."""
    kinds: dict[str, list[str]] = {}
    for rule in policy["rules"]:
        steps = ", then ".join(_describe_step(step) for step in rule["steps"])
        kinds.setdefault(steps, []).append(_describe_when(rule["when"]))
    clauses = [f"{' '.join(dict.fromkeys(whens))}: {steps}" for steps, whens in kinds.items()]
    stops = [f"stops on {' and '.join(policy['stop_on'])}"] if policy["stop_on"] else []
    return "; ".join([*clauses, *stops, describe_ceilings(policy, " retries")])


def describe_ceilings(policy: Mapping[str, Any], noun: str = "") -> str:
    """Return how many retries there may be; the last failure of ``max_same_kind`` is followed by none."""
    most, of_one_kind = policy["max_retries"], policy["max_same_kind"] - 1
    return f"at most {most}{noun}" + (f", {of_one_kind} of one kind in a row" if of_one_kind < most else "")


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
