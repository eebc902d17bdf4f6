"""The step after a failed attempt: the recovery policy's decision, with the port and the GPUs that it asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mcp_server.recovery.changes import move_ray
from mcp_server.recovery.policy import IMBALANCE, NONE
from mcp_server.recovery.retry_decision import FailedAttempt, GiveUp, Retry, agree, decide
from mcp_server.supervisor.attempt import Attempt, NextAttempt
from mcp_server.supervisor.control import ControlInputs
from mcp_server.system import ports

if TYPE_CHECKING:
    from mcp_server.diagnosis.failure.diagnose import Diagnosis
    from mcp_server.supervisor.gpus.gpu_allocation import GpuAllocation


@dataclass(frozen=True)
class Outcome:
    """The step after an attempt: the next one, or None for the end of the run, and one sentence with the reason.

    ``failure``: why the attempt failed, with advice that agrees with the decision.
    """

    planned: NextAttempt | None
    why: str
    failure: Diagnosis | None


class Retries:
    """Collects the failed attempts of a run, and asks its recovery policy what follows."""

    def __init__(self, control: ControlInputs, get_allocation: Callable[[], GpuAllocation]) -> None:
        self._control, self._get_allocation = control, get_allocation
        self._history: list[FailedAttempt] = []

    def decide(
        self,
        attempt: Attempt,
        failure: Diagnosis | None,
        params: Mapping[str, object],
        env: Mapping[str, str],
        changed: Mapping[str, str],
    ) -> Outcome:
        """Return what follows ``attempt``.

        ``params`` and ``env`` are those of ``attempt``; ``changed`` are the variables in ``env`` that retries changed.
        """
        ending, observer = attempt.ending, attempt.observer
        kind = failure.kind if failure else "other"
        self._history.append(
            FailedAttempt(
                number=attempt.number,
                kind=IMBALANCE if kind == "other" and observer.stopped_for == IMBALANCE else kind,
                line=failure.line if failure and not failure.is_silent else "",
                retryable=failure is not None and failure.retryable is not False,
                exit_code=ending.exit_code,
                signal=ending.signal,
                step=observer.step,
                round=observer.round,
                checkpoint=observer.checkpoint,
                params=dict(params),
            )
        )
        request = self._control.stop_request
        decision = decide(
            self._control.spec.recovery or NONE,
            self._history,
            params,
            env,
            stop_state=request.state if request else None,
            is_undiagnosed=failure is None,
        )
        if isinstance(decision, Retry) and attempt.living():
            decision = GiveUp("Processes of the failed attempt could not be stopped: a retry would meet them.")
        if isinstance(decision, Retry):
            self._history[-1] = replace(self._history[-1], applied=decision.applied)
            planned = self._apply(decision, params, env, changed)
            if planned is not None:
                return Outcome(planned, decision.text, agree(failure, decision) if failure else None)
            decision = GiveUp("No other GPU is free, or no driver answers, or the run has used all of them.")
        return Outcome(None, decision.text, agree(failure, decision) if failure else None)

    def _apply(
        self, retry: Retry, params: Mapping[str, object], env: Mapping[str, str], changed: Mapping[str, str]
    ) -> NextAttempt | None:
        """Find the free ports and the other GPUs that ``retry`` needs; None where no other GPU is free."""
        new_params, new_changed = dict(retry.params), {**changed, **retry.env}
        for name in retry.next_port:
            former = ports.current_port(name, params, env)
            port = ports.find_next_port(former)
            if name in new_params:
                new_params[name] = port
            else:
                new_changed[name] = str(port)
            if "ray" in name.lower():
                new_changed |= move_ray({**env, **new_changed}, former, port)
        if retry.other_gpu:
            variables = self._get_allocation().exchange(env)
            if variables is None:
                return None
            new_changed |= variables
        return NextAttempt(new_params, new_changed, retry.wait_s)
