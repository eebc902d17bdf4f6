"""A recovery policy in one line, as it is applied after its defaults were filled in. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp_server.recovery.policy import HALVE, MAX_ATTEMPTS


def describe_policy(policy: Mapping[str, Any]) -> str:
    """Return the normal form of a policy as text: ``oom_gpu: retry 2 times, num_envs halve; at most 3 retries``."""
    kinds: dict[str, list[str]] = {}
    for rule in policy["rules"]:
        steps = ", then ".join(_describe_step(step) for step in rule["steps"])
        kinds.setdefault(steps, []).append(_describe_when(rule["when"]))
    clauses = [f"{' '.join(dict.fromkeys(whens))}: {steps}" for steps, whens in kinds.items()]
    stops = [f"stops on {' and '.join(policy['stop_on'])}"] if policy["stop_on"] else []
    ceilings = f"at most {policy['max_retries']} retries, {policy['max_same_kind']} of one kind"
    return "; ".join([*clauses, *stops, ceilings])


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
