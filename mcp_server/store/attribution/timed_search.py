"""Searching many lines with one pattern of a user, within a limit of time for all of them together.

``re`` cannot be interrupted and holds every thread of the process meanwhile. The ``regex`` package checks a time limit
while it matches, and lets other threads run. Only processor time counts, but for a single line that takes all of it: a
busy machine makes no search shorter.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mcp_server.errors import PatternError
from mcp_server.text.regex import compile_user_pattern

if TYPE_CHECKING:
    import regex

SEARCH_S = 10.0  # for one search of a log


class TimedSearch:
    """Searches lines until its time is over. ``is_over`` says so, and nothing is found from then on.

    Raises:
        PatternError: the pattern is not a regular expression, or is refused.
    """

    def __init__(self, pattern: str, limit_s: float = SEARCH_S) -> None:
        import regex  # noqa: PLC0415 - 45 ms of a server's start

        compile_user_pattern(pattern)
        try:
            self._regex: regex.Pattern[str] = regex.compile(pattern, regex.VERSION0)
        except regex.error as error:
            raise PatternError(pattern, str(error)) from None
        self._left_s = limit_s
        self.is_over = False

    def find(self, text: str) -> int | None:
        """Return where the pattern is first found in ``text``, or None if it is not, or the time is over."""
        match = self.search(text)
        return match.start() if match else None

    def search(self, text: str) -> regex.Match[str] | None:
        """Return the first match in ``text``, or None if there is none, or the time is over."""
        begun_s = time.thread_time()
        try:
            if self._left_s > 0:
                return self._regex.search(text, timeout=self._left_s)
        except TimeoutError:
            self._left_s = 0.0
        finally:
            self._left_s -= time.thread_time() - begun_s
        self.is_over = True
        return None
