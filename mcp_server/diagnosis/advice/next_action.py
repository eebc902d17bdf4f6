"""Proposes the next step after a failure: an action, and advice that names the setting to change. Pure.

The kind has a default. First come figures of the message, then the blocks of `*.rows`, each an action together with its
sentence, then the remedy that the message names itself, then the blocks for any error of that sort.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain

from mcp_server.diagnosis.advice import FILES, GENERAL, INSIDE, LAST, SPECIAL, WRAPPED
from mcp_server.diagnosis.advice.blocks import Advice, NextStep, Scene, compose, read_advice, read_block
from mcp_server.diagnosis.advice.host import check_host
from mcp_server.diagnosis.advice.message_figures import explain_divisor, explain_timeout, read_figures
from mcp_server.diagnosis.advice.message_values import (
    compare_keys,
    explain_empty_setting,
    explain_none,
    explain_record,
    explain_service,
    explain_shapes,
)
from mcp_server.diagnosis.advice.names import (
    explain_other_python,
    find_argument,
    find_remedy,
    name_today,
    name_unknown,
    suggest_choice,
    suggest_metric,
    suggest_name,
    suggest_option,
    suggest_setting,
)
from mcp_server.diagnosis.advice.shown import is_set_already
from mcp_server.diagnosis.failure.statements import name_fault
from mcp_server.text.rows import read_blocks, read_patterns

_RX = read_patterns("diagnosis/advice/patterns", "next_action")


_LINE_CHARS, _MESSAGE_CHARS, _NEAR_CHARS = 500, 3_000, 8_000
_STOPPED = "Somebody or a limit stopped the run: ask before starting it again."

_Proposer = Callable[[Scene], "NextStep | None"]


@cache
def read_files(names: tuple[str, ...] = FILES) -> tuple[Advice, ...]:
    """Return the blocks of these files, in their order."""
    return tuple(chain.from_iterable(map(read_advice, names)))


def _propose_from(names: tuple[str, ...]) -> Iterator[_Proposer]:
    for advice in read_files(names):
        yield advice.propose


def _order_proposers(*, is_error: bool) -> Iterator[_Proposer]:
    yield from (check_host, read_figures, explain_timeout, suggest_option, explain_other_python)
    if is_error:
        yield from (explain_none, explain_empty_setting, explain_divisor, suggest_metric)
        yield from _propose_from(WRAPPED)
        yield from (compare_keys, name_today)
    yield from _propose_from(SPECIAL)
    if is_error:
        yield from (suggest_choice, suggest_name, find_argument, suggest_setting, explain_shapes)
    yield explain_service
    yield from _propose_from(GENERAL)
    if is_error:
        yield name_unknown


def _order_last(*, is_inside: bool) -> Iterator[_Proposer]:
    yield from (find_remedy, explain_record)
    yield from _propose_from(INSIDE if is_inside else LAST)  # what is wrong inside a library is not corrected there


def propose_next_step(scene: Scene, *, retryable: bool | None = None) -> NextStep:
    """Return the next step after ``scene``. ``retryable``: of a kill; a block that contradicts it is left out."""
    line, message = scene.line[:_LINE_CHARS], (scene.message or scene.line)[:_MESSAGE_CHARS]
    line, message = _RX.answer.sub(r"\1: \2", line), _RX.answer.sub(r"\1: \2", message)
    scene = scene._replace(line=line, message=message, near=f"{scene.near[:_NEAR_CHARS]}\n{message}")
    defaults = _read_defaults("kinds")
    fault = name_fault(line) if scene.kind == "cuda_error" else ""
    default = defaults.get(f"{scene.kind} {fault}") or defaults[scene.kind]
    for propose in _order_proposers(is_error=default.action == "stop"):
        step = propose(scene)
        if step and retryable in (None, step.retryable) and not is_set_already(step.advice, scene.log):
            return step
    if default.action == "stop" or scene.kind == "other":
        for propose in _order_last(is_inside=bool(scene.inside)):
            if (step := propose(scene)) and not is_set_already(step.advice, scene.log):
                return step
    if retryable is False and default.action != "stop":
        return NextStep(False, "stop", _STOPPED)
    return _compose_default(default, scene)


def propose_for_case(case: str) -> NextStep:
    """Return the step of a block of `cases.rows`, which needs no line."""
    return _compose_default(_read_defaults("cases")[case], Scene("", ""))


def _compose_default(default: Advice, scene: Scene) -> NextStep:
    step = compose(default.say, [], scene, default.action, then=default.then)
    assert step is not None  # noqa: S101 - a test composes each
    return step


@cache
def _read_defaults(name: str) -> dict[str, Advice]:
    return {block[0][1]: read_block(block) for block in read_blocks(f"diagnosis/advice/{name}")}
