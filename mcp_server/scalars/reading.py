"""Reads scalars wherever they are, and remembers how far: a second read costs only what was added."""

import os
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from mcp_server.scalars.formats.appended_file import SourceReader
from mcp_server.scalars.formats.detect import ScalarSource, build_reader
from mcp_server.scalars.locate import MetricLocation
from mcp_server.scalars.reading_process import LARGE_BYTES, ReadingProcess
from mcp_server.scalars.series import RunScalars, ScalarsUnreadable
from mcp_server.scalars.tensorboard.cache import Cache
from mcp_server.scalars.tensorboard.reader import EventRun
from mcp_server.threads import CallAbandoned

_MOST_READERS = 4096  # that are remembered
_KEPT_BYTES = 128 * 2**20  # of their points


@dataclass(eq=False)
class _Known:
    reader: SourceReader | EventRun
    lock: threading.Lock = field(default_factory=threading.Lock)


class ScalarReader:
    """Reads locations, and keeps the points of those read most recently. May be shared by threads, and live for weeks.

    Event files are read again through the directory ``cache``, by other processes too. ``process`` reads what is large.
    """

    def __init__(self, cache: Path | None = None, process: ReadingProcess | None = None) -> None:
        self._cache = None if cache is None else Cache(cache)
        self._process = process
        self._lock = threading.Lock()  # guards the table; each reader has its own lock
        self._readers: OrderedDict[object, _Known] = OrderedDict()

    def read(self, location: MetricLocation) -> RunScalars:
        """Return the series at a location as they are now.

        Raises:
            ScalarsUnreadable: the source is missing, damaged, locked, or needs a package that is not installed.
        """
        key: object = location
        if not isinstance(location, ScalarSource):
            path, attempts = (location, None) if isinstance(location, Path) else (location.path, location.attempts)
            key = os.path.realpath(path), attempts and tuple(sorted(attempts.items()))
        with self._lock:
            known = self._readers.get(key)
        known = known or _Known(self._build(location))  # built without the lock: a source may not answer
        with self._lock:
            known = self._readers.setdefault(key, known)
            self._readers.move_to_end(key)
        try:
            with known.lock:
                if self._process is None or known.reader.count_unread() <= LARGE_BYTES:
                    scalars = known.reader.read()
                else:
                    known.reader, scalars = known.reader.read_apart(self._process)
        except (ScalarsUnreadable, CallAbandoned):
            with self._lock:
                self._readers.pop(key, None)
            raise
        with self._lock:
            size = sum(one.reader.nbytes for one in self._readers.values())
            while len(self._readers) > 1 and (size > _KEPT_BYTES or len(self._readers) > _MOST_READERS):
                size -= self._readers.popitem(last=False)[1].reader.nbytes
        return scalars

    def _build(self, location: MetricLocation) -> SourceReader | EventRun:
        if isinstance(location, ScalarSource):
            return build_reader(location)
        path, attempts = (location, None) if isinstance(location, Path) else (location.path, location.attempts)
        return EventRun(path, attempts, self._cache)
