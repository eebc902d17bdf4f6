"""Series made of plain lists, and their summaries."""

import numpy as np

from mcp_server.scalars.series import Series
from mcp_server.scalars.summary import SeriesSummary, summarise_series

BEGUN_S = 1_700_000_000.0


def series(values: object, steps: object = None, walls: object = None, **more: object) -> Series:
    """Points one second and one step apart by default."""
    array = np.asarray(values, np.float64)
    return Series(
        np.arange(array.size) if steps is None else np.asarray(steps, np.int64),
        np.asarray(BEGUN_S + np.arange(array.size) if walls is None else walls, np.float64),
        array,
        **more,  # type: ignore[arg-type]
    )


def figures(values: object, steps: object = None, **more: object) -> SeriesSummary:
    return summarise_series(series(values, steps, **more), now_s=BEGUN_S + 1_000_000)


def noise(count: int, seed: int = 0) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.random.default_rng(seed).normal(size=count)
