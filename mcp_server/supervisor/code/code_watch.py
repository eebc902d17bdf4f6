"""Notices that the code of a run changed between its launch and its start, or between two attempts.

A run executes the code that is there when it starts. Whoever edits the next idea while a run waits is told that it ran.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from mcp_server.command.configs import find_config_files
from mcp_server.record.code import code_state
from mcp_server.record.run_directory import RunDir
from mcp_server.record.script import AttemptInputs, attempt_arguments
from mcp_server.record.spec import RunSpec
from mcp_server.system.files import name_below
from mcp_server.system.time_bounds import call_aside
from mcp_server.text.formatting import join_some

if TYPE_CHECKING:
    from mcp_server.record.events import EventLog

T = TypeVar("T")

_PATIENCE_S = 2.0  # a file system that is silent neither holds up a start nor stops the watch over a run
_MOST_NAMED = 5


class CodeWatch:
    """The code of one run: ``look`` when its launch begins to wait, then ``begin`` and ``report`` around each start."""

    def __init__(self, rundir: RunDir, spec: RunSpec, environ: Mapping[str, str], *, recovers: bool) -> None:
        self._spec, self._environ, self._recovers = spec, {**environ, **spec.env}, recovers
        self._former = None if spec.code else code_state.load_code_state(rundir.path)
        self._since, self._found = "launch", ("", code_state.CodeChange())

    def look(self) -> None:
        """Take the state of a run that begins to wait, unless its launch has."""
        if self._former is None and not self._spec.code:  # code that was sent, or kept, is edited by nobody
            self._former = _within_patience(self._read)
            self._add_digests()

    def begin(self, number: int, inputs: AttemptInputs) -> None:
        """Find what changed before attempt ``number``, which is about to start. Unknown files are no change."""
        former = self._former
        change = _within_patience(lambda: self._find(former, inputs)) if former is not None else None
        self._found = self._since, change or code_state.CodeChange()
        if self._recovers and not self._spec.code:
            self._former, self._since = _within_patience(self._read), f"attempt {number}"

    def report(self, events: EventLog, number: int) -> None:
        """Report the change, now that the attempt has started, and read beside it what the next one needs to know."""
        since, change = self._found
        if change:
            period = f"between {since} and {'start' if since == 'launch' else f'attempt {number}'}"
            if since == "launch" and self._spec.sweep:  # which may have got this cell by a later launch
                period = "since the sweep's first launch"
            names = [name_below(path, self._spec.cwd) for path in change.changed]
            names += [
                f"perhaps {name_below(path, self._spec.cwd)} (only its time is known to differ)"
                for path in change.perhaps
            ]
            text = f"Code changed {period}: {join_some(names, _MOST_NAMED)}."
            events.append("code_changed", text, attempt=number, **code_state.to_facts(change))
        if self._recovers:
            self._add_digests()

    def _add_digests(self) -> None:
        """Begin to read the files of the state that was taken last: a thread does."""
        state = self._former

        def read() -> None:
            with_digests = code_state.add_digests(state) if state is not None else None
            if self._former is state:
                self._former = with_digests

        threading.Thread(target=read, daemon=True, name="code").start()

    def _find(self, former: code_state.CodeState, inputs: AttemptInputs) -> code_state.CodeChange:
        return code_state.find_change(former, {os.path.abspath(path) for path in self._list_named(inputs)})  # noqa: PTH100

    def _list_named(self, inputs: AttemptInputs) -> list[Path]:
        command, arguments = inputs.fill_words(self._spec.command), attempt_arguments(self._spec, inputs)
        return find_config_files(command, self._spec.cwd or "/", self._environ, arguments)

    def _read(self) -> code_state.CodeState:
        named = self._list_named(AttemptInputs(self._spec.params))
        return code_state.read_code_state([self._spec.cwd] if self._spec.cwd else [], named)


def _within_patience(act: Callable[[], T]) -> T | None:
    """Return the result of ``act``, None where it takes too long or fails."""
    with contextlib.suppress(Exception):  # a run is not in danger for what could not be read
        return next(iter(call_aside(_PATIENCE_S, act)), None)
    return None
