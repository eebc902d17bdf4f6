"""Proposes the next step after a failure: an action, and advice that names the setting to change. Pure.

The kind has a default. A line, with the text near it, often says more: which framework ran, and so which of its
settings helps. One row holds the action together with its sentence, so that they never contradict each other. First
come figures of the message, then the rows of ``steps/``, then the remedy that the message names itself, then what is
true of an error of that sort.
"""

from __future__ import annotations

from mcp_server.diagnosis.failure.kinds import KINDS
from mcp_server.diagnosis.failure.steps import (
    beside,
    checkpoints,
    cluster,
    data,
    environment,
    estimators,
    language,
    libraries,
    machine,
    memory,
    outside,
    packages,
    program,
    ray,
    serving,
    simulators,
    tensors,
    trainers,
)
from mcp_server.diagnosis.failure.steps.already import leave_out_settings
from mcp_server.diagnosis.failure.steps.choices import suggest_choice, suggest_metric
from mcp_server.diagnosis.failure.steps.collectives import explain_timeout
from mcp_server.diagnosis.failure.steps.divisors import explain_divisor
from mcp_server.diagnosis.failure.steps.figures import read_figures
from mcp_server.diagnosis.failure.steps.inside import explain_inside
from mcp_server.diagnosis.failure.steps.installed import explain_other_python, leave_out_installed
from mcp_server.diagnosis.failure.steps.launchers import word_for_launcher
from mcp_server.diagnosis.failure.steps.operands import explain_empty_setting, explain_none
from mcp_server.diagnosis.failure.steps.records import explain_record
from mcp_server.diagnosis.failure.steps.remedies import (
    find_remedy,
    suggest_install,
    suggest_name,
    suggest_option,
    suggest_setting,
)
from mcp_server.diagnosis.failure.steps.renames import name_today
from mcp_server.diagnosis.failure.steps.row import ADVICE_CHARS, NextStep, Scene
from mcp_server.diagnosis.failure.steps.shapes import explain_shapes, explain_width
from mcp_server.diagnosis.failure.steps.state_dict import compare_keys
from mcp_server.diagnosis.failure.steps.unknown_names import name_unknown
from mcp_server.text.regex import compile_lazily

__all__ = ["ADVICE_CHARS", "ALL_ROWS", "ALL_STEPS", "NextStep", "Scene", "propose_next_step"]

_LINE_CHARS, _MESSAGE_CHARS, _NEAR_CHARS = 500, 3_000, 8_000
# What a server like OpenAI's answers, out of the dictionary in which its client prints it.
_ANSWER = compile_lazily(r"(Error: Error code: \d{3}) - \{.{0,200}?'message': ['\"](.{1,900}?)['\"], '.{0,900}\}\s*$")
_STOPPED = "Somebody or a limit stopped the run: ask before starting it again."
_TOPIC_ROWS = (*beside.ROWS, *outside.ROWS, *cluster.ROWS, *ray.ROWS, *simulators.ROWS, *serving.ROWS)
_LIBRARY_ROWS = (*trainers.ROWS, *tensors.ROWS, *estimators.ROWS, *libraries.ROWS)
_SPECIAL_ROWS = (*_TOPIC_ROWS, *checkpoints.ROWS, *packages.ROWS, *data.ROWS, *_LIBRARY_ROWS)
_ROWS = (*machine.ROWS, *memory.ROWS, *environment.ROWS, *program.ROWS)
_LAST_ROWS = (*language.ROWS, *program.GENERAL_ROWS)
ALL_ROWS = (*_SPECIAL_ROWS, *_ROWS, *_LAST_ROWS)
ALL_STEPS = tuple(NextStep(row.action != "stop", row.action, row.advice) for row in ALL_ROWS)
# First match wins: what a message proves, rows of one topic, what it lists, rows of any.
_PROVED = (read_figures, explain_width, explain_timeout, suggest_option, explain_other_python, suggest_install)
_SPECIAL, _GENERAL = (tuple(row.propose for row in rows) for rows in (_SPECIAL_ROWS, _ROWS))
_PROPOSERS = (*_PROVED, *_SPECIAL, *_GENERAL)
_LISTED = (suggest_choice, suggest_name, suggest_setting)
_PROPOSERS_OF_ERRORS = (
    *_PROVED,
    explain_none,
    explain_empty_setting,
    explain_divisor,
    suggest_metric,
    compare_keys,
    name_today,
    *_SPECIAL,
    *_LISTED,
    explain_shapes,
    *_GENERAL,
    name_unknown,
)


def propose_next_step(scene: Scene, *, retryable: bool | None = None) -> NextStep:
    """Return the next step after the failure of ``scene``.

    ``retryable``: what else is known about a kill; a row that contradicts it is left out.
    """
    line, message = scene.line[:_LINE_CHARS], (scene.message or scene.line)[:_MESSAGE_CHARS]
    line, message = _ANSWER.sub(r"\1: \2", line), _ANSWER.sub(r"\1: \2", message)
    scene = scene._replace(line=line, message=message, near=f"{scene.near[:_NEAR_CHARS]}\n{message}")
    default = KINDS[scene.kind]
    for propose in _PROPOSERS_OF_ERRORS if default.action == "stop" else _PROPOSERS:
        step = _fit_to_log(propose(scene), scene)
        if step and (retryable is None or step.retryable == retryable):
            return step
    if default.action == "stop" or scene.kind == "other":
        for propose in (find_remedy, explain_record, explain_inside, *(row.propose for row in _LAST_ROWS)):
            if step := _fit_to_log(propose(scene), scene):
                return step
    if retryable is False and default.retryable:
        return NextStep(False, "stop", _STOPPED)
    return _fit_to_log(NextStep(*default), scene) or NextStep(*default)


def _fit_to_log(step: NextStep | None, scene: Scene) -> NextStep | None:
    if step is None:
        return None
    step = leave_out_installed(word_for_launcher(step, scene.log), scene.log)
    return leave_out_settings(step, scene.log)
