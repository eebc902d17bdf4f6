"""What comes after a failed attempt: the policy's answer, with the port and the GPUs that only the world knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mcp_server.gpus.placement import VISIBLE_DEVICES
from mcp_server.recovery import decision as recovery
from mcp_server.supervisor.attempt import Attempt
from mcp_server.supervisor.control import Desk
from mcp_server.supervisor.gpu_allocation import Allotment
from mcp_server.system import ports

if TYPE_CHECKING:
    from mcp_server.diagnosis.failure.diagnose import Failure


@dataclass(frozen=True)
class Next:
    """The next attempt: all its parameters, the variables that it has other than the first, and the pause before it."""

    params: dict[str, object]
    changed: dict[str, str]
    wait_s: float


class Retries:
    """Remembers the failed attempts of a run, and asks its policy."""

    def __init__(self, desk: Desk, allotment: Allotment) -> None:
        self._desk, self._allotment = desk, allotment
        self._history: list[recovery.Try] = []

    def decide(
        self,
        attempt: Attempt,
        failure: Failure | None,
        params: Mapping[str, object],
        env: Mapping[str, str],
        changed: Mapping[str, str],
    ) -> tuple[Next | None, str]:
        """Return what comes after ``attempt``, None for nothing, and one sentence why.

        ``env``: the variables it had; ``changed``: those of them that a retry has set.
        """
        ending, observer = attempt.ending, attempt.observer
        self._history.append(
            recovery.Try(
                number=attempt.number,
                kind=failure.kind if failure else "other",
                line=failure.line if failure else "",
                retryable=bool(failure and failure.retryable),
                exit_code=ending.exit_code,
                signal=ending.signal,
                step=observer.step,
                checkpoint=observer.checkpoint,
                params=dict(params),
            )
        )
        asked = self._desk.asked.state if self._desk.asked else None
        policy = self._desk.spec["recovery"]
        decision = recovery.decide(policy, self._history, params, env, asked=asked, observer_error=failure is None)
        if isinstance(decision, recovery.GiveUp):
            return None, decision.text
        if attempt.living():
            return None, "Processes of the failed attempt could not be stopped: a retry would meet them."
        self._history[-1] = replace(self._history[-1], applied=decision.applied)
        return self._apply(decision, params, env, changed)

    def _apply(
        self,
        retry: recovery.Retry,
        params: Mapping[str, object],
        env: Mapping[str, str],
        changed: Mapping[str, str],
    ) -> tuple[Next | None, str]:
        new_params, new_changed = dict(retry.params), {**changed, **retry.env}
        for name in retry.next_port:
            port = ports.find_next_port(ports.current_port(name, params, env))
            if name in new_params:
                new_params[name] = port
            else:
                new_changed[name] = str(port)
        if retry.other_gpu:
            others = self._allotment.exchange(env.get(VISIBLE_DEVICES))
            if others is None:
                return None, "No other GPU is free, or no driver tells, or the run had them all."
            if not self._allotment.asked:  # otherwise they are in every attempt's environment anyway
                new_changed[VISIBLE_DEVICES] = others
        return Next(new_params, new_changed, retry.wait_s), retry.text
