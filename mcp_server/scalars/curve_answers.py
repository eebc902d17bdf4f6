"""Result models of read_tb, importable without the code that reads scalars."""

from mcp_server.answer import Answer

Number = float | str  # JSON has no NaN: "nan", "inf", "-inf"


class TagFigures(Answer):
    """Summary of one scalar.

    ``slope``: units per ``slope_steps`` steps over the last tenth, or 10 points.
    ``restarts``: steps at which a restart continued.
    ``points``: [step, value].
    """

    last: Number | None = None
    last_step: int | None = None
    trend: str | None = None
    slope: Number | None = None
    slope_steps: int | None = None
    min: Number | None = None
    min_step: int | None = None
    max: Number | None = None
    max_step: int | None = None
    mean: Number | None = None
    first: Number | None = None
    first_step: int | None = None
    ema: Number | None = None
    count: int
    nan: int = 0
    first_nan_step: int | None = None
    inf: int = 0
    first_inf_step: int | None = None
    plateau: int | None = None
    shape: str
    age_s: float | None = None
    steps_per_s: Number | None = None
    restarts: list[int] | None = None
    writers: int | None = None
    points: list[tuple[int, Number]] | None = None


class ScalarReport(Answer):
    """Scalars of a run, of several runs side by side, or the runs below a directory.

    ``tags``: one line per tag, in the form of ``columns``. ``values``: the same in full. ``step``: the last step, where
    a line names no other. ``age_s``: seconds since the newest point. ``answers``: to questions among the tags, and runs
    at one step. ``picture``: path of the PNG.
    """

    source: str
    run_id: str | None = None
    step: int | None = None
    age_s: float | None = None
    columns: str | None = None
    tags: list[str] | None = None
    answers: list[str] | None = None
    values: dict[str, TagFigures] | None = None
    runs: list[str] | None = None
    total: int | None = None
    notes: list[str] | None = None
    picture: str | None = None
    next_step: str | None = None
