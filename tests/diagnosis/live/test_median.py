"""The median that needs no ``statistics``."""

from __future__ import annotations

import random
import statistics
import subprocess
import sys

from mcp_server.diagnosis.progress.step_counters import median


def test_it_is_that_of_the_standard_library() -> None:
    chance = random.Random(3)
    for size in range(1, 40):
        values = [chance.uniform(-5, 5) for _ in range(size)]
        assert median(values) == statistics.median(values)


def test_reading_output_loads_no_statistics() -> None:
    code = "import sys, mcp_server.diagnosis.live.output_monitor; sys.exit('statistics' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
