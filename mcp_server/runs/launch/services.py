"""The runs that a run needs, at its launch; and those that need a run, before it is stopped. Use a thread."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from mcp_server.errors import BadArgument
from mcp_server.record.service import find_service_port, parse_need
from mcp_server.record.state import Run
from mcp_server.store.run_index import RunQuery
from mcp_server.store.run_store import RunStore

_MOST_NEEDS = 16
_MOST_NAMED = 10
# What a service that is a Ray head has of its environment, and its drivers and workers need.
_RAY_VARIABLES = ("RAY_ADDRESS", "RAY_PORT", "RAY_NAMESPACE", "RLINF_NAMESPACE")


@dataclass(frozen=True)
class ServicesFound:
    """The needs of a launch by run ids, and the variables by which the run finds the Ray of one of them."""

    needs: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)


def find_services(texts: Sequence[str], mirror: str, store: RunStore) -> ServicesFound:
    """Return the runs that ``texts`` mean: ids or names. ``mirror`` is that of the host of the launch.

    Raises:
        BadArgument: a text is not a need; its run has ended, or is of another host.
        RunNotFound: a need names no run, or several.
    """
    if len(texts) > _MOST_NEEDS:
        raise BadArgument("needs", f"names {len(texts)} runs; at most {_MOST_NEEDS} are taken.")
    needs: list[str] = []
    env: dict[str, str] = {}
    for text in texts:
        try:
            need = parse_need(text)
        except ValueError as error:
            raise BadArgument("needs", str(error), "PORT is where it listens, PATH what it answers by HTTP.") from error
        if need.host:
            needs.append(str(need))
            continue
        run = store.find(need.run)
        if run.ended:
            raise BadArgument("needs", f"{run.run_id} has ended: {run.state}.", "Launch it again, then this run.")
        if run.spec.mirror != mirror:
            cause = f"{run.run_id} is on {run.spec.host or 'this host'}, and this run would not be."
            port = need.port or find_service_port(run) or run.spec.env.get("RAY_PORT", "PORT")
            remedy = (
                f'Across hosts name where it answers: needs=["ADDRESS:{port}{need.path}"] (ADDRESS: of its host, as '
                "reachable from there). kill_run on a list of both ids stops both."
            )
            raise BadArgument("needs", cause, remedy)
        needs.append(str(replace(need, run=run.run_id)))
        if "RAY_PORT" in run.spec.env:
            env |= {name: run.spec.env[name] for name in _RAY_VARIABLES if name in run.spec.env}
    return ServicesFound(list(dict.fromkeys(needs)), env)


def list_dependents(runs: Sequence[Run], store: RunStore) -> list[str]:
    """Return the ids of the living runs, without ``runs`` themselves, that stop when one of ``runs`` does."""
    own = {run.run_id for run in runs}
    return sorted(
        run.run_id
        for run in store.list_runs(RunQuery("live"))
        if run.run_id not in own and not own.isdisjoint(_list_needed(run.spec.needs))
    )


def describe_dependents(run_ids: Sequence[str]) -> str:
    """Return what a question adds about the runs that stop as well, empty where there are none."""
    more = f" and {len(run_ids) - _MOST_NAMED} more" if len(run_ids) > _MOST_NAMED else ""
    return f"; these need it and stop with it: {', '.join(run_ids[:_MOST_NAMED])}{more}" if run_ids else ""


def _list_needed(texts: Iterable[str]) -> Iterable[str]:
    for text in texts:
        with contextlib.suppress(ValueError):
            yield parse_need(text).run
