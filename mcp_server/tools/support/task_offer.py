"""Whether a call may be answered by a task: the Tasks extension offers, and a tool that would block accepts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from mcp_server.record.state import Run
from mcp_server.store.wait_files import WaitFiles, WaitRecord
from mcp_server.threads import run_in_thread

_offered: ContextVar[TaskOffer | None] = ContextVar("task_offer", default=None)


@dataclass(eq=False)
class TaskOffer:
    """A task that may answer the present call. Once accepted it has a ``record``, which a power cut does not end."""

    files: WaitFiles
    owner: str | None
    record: WaitRecord | None = None
    runs: Sequence[Run] = ()

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Offer the task to the tool that is called in the block."""
        token = _offered.set(self)
        try:
            yield
        finally:
            _offered.reset(token)

    @staticmethod
    def current() -> TaskOffer | None:
        """Return the offer to the present call, or None where its client did not declare tasks."""
        return _offered.get()

    async def accept(self, facts: Mapping[str, Any], runs: Sequence[Run]) -> bool:
        """Keep the wait with these ``facts``. False where it cannot be kept, so that the call must block."""
        with contextlib.suppress(OSError):
            self.record = await run_in_thread(self.files.create, self.owner, facts)
        self.runs = runs
        return self.record is not None
