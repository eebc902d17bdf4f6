"""Limits reports of a trouble that comes and goes: each would wake an agent. Pure. Times are arguments."""

from __future__ import annotations

import math
from dataclasses import dataclass

_FREE_REPORTS, _EVERY_S = 3, 600.0


@dataclass
class ReportLimit:
    """Lets the first three reports of one trouble through, and then one in ten minutes."""

    reports: int = 0
    quiet_until_s: float = -math.inf

    def note_report(self, at_s: float) -> None:
        """Note a report at ``at_s``. The next one is due at ``quiet_until_s``."""
        self.reports += 1
        if self.reports >= _FREE_REPORTS:
            self.quiet_until_s = at_s + _EVERY_S

    @property
    def remark(self) -> str:
        """A sentence for the newest report, where the next ones are limited, else empty."""
        if self.reports < _FREE_REPORTS:
            return ""
        return f"This comes and goes; from now on it is reported once in {_EVERY_S:.0f} s."
