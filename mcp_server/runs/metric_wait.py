"""A metric that a wait is for: what tells that it came true, from one wait of a caller to the next."""

from __future__ import annotations

import contextlib
import copy
import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from mcp_server.errors import BadArgument
from mcp_server.record.state import Run
from mcp_server.scalars.condition import (
    Condition,
    describe_match,
    describe_value,
    first_match,
    parse_condition,
    resolve_tag,
)
from mcp_server.scalars.run_scalars import NoScalars, Scalars, label_locations

if TYPE_CHECKING:
    from mcp_server.scalars.locate import MetricLocation
    from mcp_server.scalars.series import Series

_MOST_WATCHERS = 1000


class Awaited:
    """A condition on the scalars of several runs, for one wait; the caller's next wait goes on where this one ended.

    Raises:
        BadArgument: ``until`` states no condition.
    """

    def __init__(
        self,
        scalars: Scalars,
        until: str,
        kept: dict[tuple[str, str, str], Watcher],
        caller: str | None,
        run_ids: Sequence[str],
    ) -> None:
        condition = parse_condition(until)
        self._kept, self._caller = kept, caller
        self._watchers = {}
        for run_id in run_ids:
            known = kept.get((caller, run_id, condition.text)) if caller is not None else None
            # A copy, as one wait cannot take another's news.
            self._watchers[run_id] = Watcher(scalars, condition) if known is None else known.begin()

    async def met(self, runs: Sequence[Run]) -> str | None:
        """Return what has come true of the first of ``runs`` for which it has, None if of none."""
        for run in runs:
            if (said := await self._watchers[run.run_id].met(run)) is not None:
                return f"{run.run_id}: {said}" if len(runs) > 1 else said
        return None

    def remember(self) -> None:
        """Note how far the caller has been told."""
        for run_id, watcher in self._watchers.items():
            if self._caller is not None:
                while len(self._kept) >= _MOST_WATCHERS:
                    del self._kept[next(iter(self._kept))]
                self._kept[self._caller, run_id, watcher.condition.text] = watcher

    def note(self) -> str | None:
        """Say that no run has told the tag so far, and which are near: it may be misspelt."""
        known = [watcher.known for watcher in self._watchers.values()]
        if not all(tags is not None for tags in known):
            return None
        wanted = next(iter(self._watchers.values())).condition.tag
        tags = list(dict.fromkeys(tag for of_run in known for tag in of_run or ()))
        near = (difflib.get_close_matches(wanted, tags, n=3, cutoff=0.3) or tags[:3]) if tags else []
        told = f" Told are {', '.join(tag[:60] for tag in near)}." if near else " No scalars at all are told."
        return f"No {wanted[:60]!r} so far.{told}"


class Watcher:
    """Tells when a condition is met by a run: by a point told since the last look, so that none is missed.

    The first look takes the newest point, of a NaN or infinity any. Where there are no such scalars, the
    numbers that the run prints are looked at. The tag once chosen stays, in its location, whatever other tags and
    directories come. A copy goes on from where the original was.
    """

    def __init__(self, scalars: Scalars, condition: Condition) -> None:
        self.condition = condition
        self.known: Sequence[str] | None = None  # the tags among which that of the condition was not, at the last look
        self._scalars = scalars
        self._tag: str | None = None
        self._at: tuple[MetricLocation, str] | None = None  # where it lies, and its name there
        self._seen = -1
        self._restarts: tuple[int, ...] = ()
        self.begins = True

    def begin(self) -> Watcher:
        """Return one for another wait, which has to hear of the newest point again, and of all told in between."""
        watcher = copy.copy(self)
        watcher.begins = True
        return watcher

    async def met(self, run: Run) -> str | None:
        """Return e.g. ``Train/mean_reward = 20.4 at step 900`` when the condition is met, None when not yet.

        Raises:
            BadArgument: the condition's tag could be several; lists them.
        """
        return await anyio.to_thread.run_sync(self.look, run)

    def look(self, run: Run) -> str | None:
        """Do what :meth:`met` does, in a thread."""
        self.known = None
        series = self._series(run)
        if self._tag is not None:
            return None if series is None else self._in(self._tag, series)
        self._seen = 0  # whatever comes now is told since
        printed = _printed(run)
        self.known = None if resolve_tag(self.condition, list(printed)) else [*(self.known or ()), *printed]
        return describe_match(self.condition, printed)

    def _series(self, run: Run) -> Series | None:
        """Return the series that the condition is about, as far as there is one."""
        # Not asked for changes first: another look may have taken them, and reading nothing new is cheap.
        locations = self._scalars.locations_of(run)
        if (
            self._at is not None
            and self._at[0] in locations
            and (series := self._tags(run, [self._at[0]]).get(self._at))
        ):
            return series
        found = self._tags(run, locations)
        names = dict(zip(locations, label_locations(locations), strict=True)) if locations else {}
        tags = {f"{names[location]}/{tag}" if names[location] else tag: (location, tag) for location, tag in found}
        try:
            tag = resolve_tag(self.condition, list(tags))
        except BadArgument:
            if self._tag is None:
                raise
            return None  # the one that was chosen will come back
        if tag is None:
            self.known = list(tags)
            return None
        if self._at is not None and tags[tag] != self._at:
            self._seen, self._restarts = 0, ()
        self._tag, self._at = tag, tags[tag]
        return found[self._at]

    def _tags(self, run: Run, locations: Sequence[MetricLocation]) -> dict[tuple[MetricLocation, str], Series]:
        found = {}
        for location in locations:
            with contextlib.suppress(NoScalars):  # not yet, or just now taken away
                found.update(
                    {(location, tag): one for tag, one in self._scalars.read([location], run.run_id).series.items()}
                )
        return found

    def _in(self, tag: str, series: Series) -> str | None:
        count = len(series.values)
        if not count:
            return None
        after = self._seen
        if after < 0:
            after = 0 if self.condition.includes_past else count - 1
        elif series.restarts != self._restarts or count < after:
            again = series.restarts[len(self._restarts) :] or series.restarts or (int(series.steps[0]),)
            told_again = series.steps >= min(again)
            after = int(told_again.argmax()) if told_again.any() else count
        if self.begins:
            after, self.begins = min(after, count - 1), False
        self._seen, self._restarts = count, series.restarts
        index = first_match(self.condition, series, after)
        return None if index is None else describe_value(tag, float(series.values[index]), int(series.steps[index]))


def _printed(run: Run) -> dict[str, tuple[int | None, float]]:
    """Return the newest numbers that a run printed, as its supervisor read them."""
    metrics: Mapping[str, Any] = run.progress.get("metrics") or {}
    step = run.progress.get("step")
    told = {}
    for name, value in metrics.items():
        with contextlib.suppress(TypeError, ValueError):
            told[name] = (step if isinstance(step, int) else None, float(value))
    return told
