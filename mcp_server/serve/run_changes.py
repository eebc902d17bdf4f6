"""Changes of runs for clients that listen (``subscriptions/listen``): one joins the list or changes, or its log grows.

Nothing is watched while nobody listens. The first look of a watch announces everything: something may have changed
since the client has read it, also where the client has an earlier server in mind, which has died.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path

import anyio
from mcp.server.subscriptions import InMemorySubscriptionBus, ResourcesListChanged, ResourceUpdated, ServerEvent

from mcp_server.errors import RunwardError
from mcp_server.threads import run_in_thread
from mcp_server.tools.support.context import ServerContext

_WATCHED_RUNS = 50  # the newest; of older ones that still live nothing is listed
_PAUSE_S = 1.0  # after a change: a run that prints much changes many times a second
_LOOK_S = 30.0  # the death of a supervisor changes no file


class RunChanges(InMemorySubscriptionBus):
    """The bus of a server, which looks at the runs as long as somebody listens."""

    def __init__(self, server: ServerContext) -> None:
        super().__init__()
        self._server = server
        self._watch: asyncio.Task[None] | None = None

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        """Register a listener; the first one starts the watch."""
        unsubscribe = super().subscribe(listener)
        if self._watch is None or self._watch.done():
            self._watch = asyncio.get_running_loop().create_task(self._announce())

        def leave() -> None:
            unsubscribe()
            if not self._listeners and self._watch is not None:
                self._watch.cancel()

        return leave

    async def _announce(self) -> None:
        server = self._server
        known: tuple[list[str], Mapping[str, object]] = [], {}
        with server.file_watch.subscribe([server.home.runs, server.home.sweeps]) as subscription:
            while True:
                with contextlib.suppress(RunwardError, OSError):
                    listed, states, directories = await run_in_thread(self._look)
                    subscription.extend(directories)
                    for uri in [uri for uri, state in states.items() if known[1].get(uri) != state]:
                        await self.publish(ResourceUpdated(uri=uri))
                    if listed != known[0]:
                        await self.publish(ResourcesListChanged())
                    known = listed, states
                await anyio.sleep(_PAUSE_S)
                with anyio.move_on_after(_LOOK_S):
                    await subscription.next_change()

    def _look(self) -> tuple[list[str], dict[str, object], list[Path]]:
        """Return what a list says of runs, the state of each resource, and the directories of live ones."""
        store = self._server.store
        runs, states, directories = store.list_runs(most=_WATCHED_RUNS), dict[str, object](), []
        for run in runs:
            states[f"run://{run.run_id}"] = run.state, run.last_seq, dict(run.progress)
            if not run.ended:
                states[f"run://{run.run_id}/log"] = store.output_at_s(run)
                directories.append(store.directory_of(run.run_id))
        for sweep in store.sweeps.list_sweeps() if self._server.home.sweeps.is_dir() else ():
            states[f"sweep://{sweep.run_id}"] = sweep.state, sweep.last_seq
            directories += [] if sweep.ended else [store.directory_of(sweep.run_id)]
        return [f"{run.run_id} {run.state}" for run in runs], states, directories
