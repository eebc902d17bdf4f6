"""Tracks the training step and the metrics in printed output. Pure: a state machine over lines and times.

A first step means that the optimizer has stepped: no evaluation before, no download, no printed setting. The most
reliable source sets ``step``: a framework's own line, a training progress bar, the line of a custom loop. Step, total,
speed and metrics are those of the present round: seeds, stages, the jobs of a multirun come one after the other.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple, Protocol

from mcp_server.diagnosis.progress.counted_lines import KEY, CountedLines
from mcp_server.diagnosis.progress.counter_lead import CounterLead
from mcp_server.diagnosis.progress.custom_loops import NO_DIGITS, CustomLoopReader, is_held_out
from mcp_server.diagnosis.progress.formats import STEP_FORMATS, CounterRank, StepFormat, may_show_progress
from mcp_server.diagnosis.progress.laps import TrainingLaps
from mcp_server.diagnosis.progress.named_values import (
    COUNTS,
    HEADLINES,
    HELD_OUT,
    LOSS,
    MAX_COUNT,
    QUALITY,
    REWARD,
    STEP,
    NamedValue,
    as_held_out,
    find_named_values,
    is_remark,
    parse_integer,
)
from mcp_server.diagnosis.progress.planned_totals import PlannedTotals
from mcp_server.diagnosis.progress.progress_bars import ProgressBar, find_bar
from mcp_server.diagnosis.progress.rounds import NamedEpoch
from mcp_server.diagnosis.progress.step_counters import StepReading, parse_count, seconds_per_step
from mcp_server.diagnosis.progress.tables import ColumnTables, DrawnTable, TrialTables, is_row
from mcp_server.text.regex import compile_pattern, first_group
from mcp_server.text.rows import read_patterns

_RX = read_patterns("diagnosis/progress/patterns", "tracker")


_MAX_HEADLINES, _MAX_HEADING_CHARS = 4, 300
_EVALUATED_LINES = 30  # below its heading
_MAX_TEMPLATES, _MAX_TEMPLATE_CHARS = 512, 512
_OWN = LOSS | REWARD | QUALITY | HELD_OUT  # measures, shown by their own names where no other is
_MAIN = {"loss", "reward", "val_loss", "accuracy", "error", "loss_d", "loss_g"}  # beside one, own names are not shown
_USER_KEY = "user"  # of the counter of the user's own pattern


class LineMatch(Protocol):
    """A match of the user's pattern, by whatever library."""

    @property
    def string(self) -> str:
        """The line."""

    def __getitem__(self, group: int) -> str | None: ...


class MetricLine(NamedTuple):
    """Step and metrics of one line. Metric names are as printed, in lower case.

    ``step`` is in the framework's unit, and None unless the line belongs to the leading counter. Names of metrics of
    held-out data say so. ``skipped``: steps so far without an update, in the unit of ``step``. ``round``: the training
    of several in one run, from 1. ``at``: the step of the metrics: the line's own, else the one before it, at the end
    of an epoch the epoch's last.
    """

    step: int | None
    metrics: Mapping[str, float]
    line: str
    skipped: int | None = None
    round: int = 1
    at: int | None = None


_CUSTOM = (CounterRank.STEP, CounterRank.UNLABELLED)  # counters of loops that no format knows


def _names_held_out(values: list[NamedValue]) -> bool:
    return not values or any(name.bits & HELD_OUT for name, _, _ in values)


class ProgressTracker:
    """Reads lines in order. ``step`` never decreases within a round while the same counter leads.

    ``first_step_pattern``, of the user: only a line that matches it is the first step; its first group, if a number, is
    the step, unless the output counts steps of a known total in another unit. ``search`` limits how long that takes.
    ``command``: the run's, for totals that its output does not print.
    """

    def __init__(
        self,
        first_step_pattern: str | None = None,
        search: Callable[[str], LineMatch | None] | None = None,
        command: str = "",
    ) -> None:
        self.first_step_seen = False
        self.first_step_line = ""
        self.metrics: dict[str, float] = {}
        user_pattern = compile_pattern(first_step_pattern) if first_step_pattern else None
        self._user_group = first_group(user_pattern) if user_pattern else None
        self._search_user: Callable[[str], LineMatch | None] | None = (
            (search or user_pattern.search) if user_pattern else None
        )
        self._lead = CounterLead()
        self.planned = PlannedTotals(command)
        self.is_between_jobs = False
        self._jobs, self._job = 0, ""
        self._job_of: tuple[int, int] | None = None  # the number before the figures of the last such line, of how many
        self._is_summary = False  # the lines below its heading are
        self._has_validation = False
        self._evaluated_lines = 0  # that are left below the heading of an evaluation
        self._laps = TrainingLaps()
        self._line_is_bar = False
        self._named_epoch: NamedEpoch | None = None
        self._skipped_steps = 0
        self._custom_loop = CustomLoopReader()
        self._last_format: StepFormat | None = None
        self._last_bar: str | None = None  # its title, where the last line was one
        self._trial_tables, self._tables, self._lines = TrialTables(), ColumnTables(), CountedLines()
        self._row: tuple[StepReading | None, list[NamedValue]] | None = None  # of columns: this line
        self._unmatched_templates: set[str] = set()  # lines without their digits that no format matches
        self._lines_before: deque[str] = deque(maxlen=2)
        self._line_above = ""
        self._drawn_table: DrawnTable | None = None
        self.table_step: int | None = None  # of the last drawn table that ended
        self.is_row_of_names = False  # the last line: a row of a drawn table whose numbers are of one step

    @property
    def step(self) -> int | None:
        """The step of the present round, or None before the first."""
        return self._lead.step

    @property
    def total_steps(self) -> int | None:
        """The steps of the present round, as printed, as the command gives them, or the product of both."""
        leader, epochs = self._lead.leader, self.planned.total("epochs")
        if leader is not None and leader.rank in _CUSTOM and leader.is_in_one_epoch(self._named_epoch):
            return None
        if self._lead.total_steps is None and leader is not None and leader.counter.epoch_ends and epochs:
            _, per, end = leader.counter.epoch_ends
            return epochs * per if end <= epochs * per else None
        return self._lead.total_steps

    @property
    def round(self) -> int:
        """The training of several in one run, from 1."""
        return self._lead.round

    @property
    def advances(self) -> int:
        """How many lines showed progress."""
        return self._lead.advances

    @property
    def place(self) -> str:
        """Where training is, in words: `step 8 of 12`, `round 2, step 8`, or empty before the first step."""
        if self.step is None:
            return ""
        words = f"step {self.step}" + (f" of {self.total_steps}" if self.total_steps else "")
        return words if self.round == 1 else f"round {self.round}, {words}"

    @property
    def count_of_row(self) -> tuple[str, int] | None:
        """The name and the number that count in the last line, if that was a row of columns."""
        return self._tables.count

    @property
    def step_s(self) -> float | None:
        """Seconds per step: observed, or as printed by the framework when all lines arrived at once."""
        return self._lead.speed.step_s

    @property
    def recent_steps(self) -> Collection[int]:
        """The last steps that were printed."""
        return self._lead.recent_steps

    def read_lines(self, lines: Iterable[str], at_s: float = 0.0) -> list[MetricLine]:
        """Read ``lines``, which arrived at ``at_s`` (monotonic seconds), and return those with a step or metrics."""
        metric_lines: list[MetricLine] = []
        for line in lines:
            match = self._search_user(line) if self._search_user is not None else None
            if match is not None:
                self._note_first_step(line)
            advances = self.advances
            row = self._tables.read_line(line)
            for former, earlier in self._tables.earlier:
                self._row = earlier
                metric_lines += filter(None, [self._read_other_line(former, "", at_s)])
            self._row = row
            in_table = self._note_row(line, at_s) or self._row is not None or self._trial_tables.is_open
            # Where no usual figure is shown, one of any name may be the one.
            is_bare = self.first_step_seen and ":" in line and _MAIN.isdisjoint(self.metrics)
            is_candidate = match is not None or in_table or is_bare or may_show_progress(line)
            if is_candidate and line[:2] == "  " and _RX.warns.search(self._line_above):
                is_candidate = False  # Python prints the source line below a warning
            self._line_is_bar = False
            metric_line = self._read_line(line, at_s) if is_candidate else None
            self._line_above = line
            if match is None and (counted := self._read_counted(line, at_s)):
                *earlier_lines, metric_line = counted
                metric_lines += earlier_lines
            if match is not None:
                metric_line = self._read_user_match(match, metric_line, at_s, advanced=self.advances > advances)
            if metric_line is not None:
                metric_lines.append(metric_line)
                if metric_line.step is not None or any(name.startswith("eval") for name in metric_line.metrics):
                    self._lines_before.clear()  # the work that they announced is done
            elif not self._line_is_bar:
                self._read_heading(line)
        return metric_lines

    def _read_heading(self, line: str) -> None:
        """Take a line without a metric: it may announce the lines below it."""
        if "%|" in line:
            return
        self._lines_before.append(line)
        if not self.first_step_seen or self.is_between_jobs:
            self.planned.read_line(line)
        if len(line) > _MAX_HEADING_CHARS:
            return
        if (match := _RX.job.match(line)) is not None and match[0] != self._job:
            self._jobs, self._job, self.is_between_jobs = self._jobs + 1, match[0], self.first_step_seen
        elif _RX.settings.match(line):
            self.is_between_jobs = True
        elif (part := _RX.part.fullmatch(line)) is not None and 0 < int(part[1]) <= int(part[2]):
            if not any(name.bits & STEP for name, _, _ in find_named_values(line)):
                self._custom_loop.name_epoch(int(part[1]), int(part[2]), is_heading=True)
        elif self._is_done and _RX.summary.match(line) and self._drawn_table is None:
            self._is_summary = True
        elif (heading := _RX.evaluation_heading.match(line)) is not None:
            self._evaluated_lines = 0 if heading["train"] else _EVALUATED_LINES

    @property
    def _is_done(self) -> bool:
        leader = self._lead.leader
        return leader is not None and (leader.is_complete or (self.step or 0) + 1 >= (self.total_steps or MAX_COUNT))

    def _note_row(self, line: str, at_s: float) -> bool:
        """Return whether ``line`` is a row of a table of names. One that is none ends the table above it."""
        self.is_row_of_names = self._row is None and is_row(line)
        if self.is_row_of_names:
            self._drawn_table = self._drawn_table or DrawnTable()
            return True
        if (table := self._drawn_table) is not None:
            if table.has_metrics:
                self._custom_loop.close_table()
            if (reading := table.close()) is not None:
                self._apply_reading(reading, [], table.count_row, at_s)
            self.table_step = self.step_between if table.step is None else table.step
            self._drawn_table = None
        return False

    @property
    def step_between(self) -> int | None:
        """The step of a line that names none: its heading's, the present one, or an epoch's last at its end."""
        leader, heading = self._lead.leader, self._custom_loop.heading
        if leader is None or heading is None or heading.key != leader.key:
            return None if leader is None else leader.step_between
        is_whole = heading.per is not None and heading.per == leader.counter.total  # not the length of an epoch
        inner = heading.n if is_whole else leader.step_between
        return heading.step if heading.step is not None else heading.epoch if heading.n is None else inner

    @property
    def is_below_heading(self) -> bool:
        """Whether a heading with a count stands above the last line, as `[step=10/300]`."""
        return self._custom_loop.heading is not None

    def _read_line(self, line: str, at_s: float) -> MetricLine | None:
        """Try all readers. The first match wins, and the reader of the last line is tried first."""
        if (job := _RX.job_of.match(line)) is not None:
            before, self._job_of = self._job_of, (int(job[1]), int(job[2]))
            is_next = before is not None and self._job_of == (before[0] + 1, before[1])
            self._jobs += is_next and self._lead.leader is not None and self._lead.leader.moves > 1
        if (metric_line := self._read_like_last_line(line, at_s)) is not None:
            return metric_line
        template = line.translate(NO_DIGITS)
        if template not in self._unmatched_templates:
            for step_format in STEP_FORMATS:
                if step_format.needle in line and (match := step_format.pattern.search(line)):
                    return self._read_format(step_format, match, line, at_s)
            if (bar := find_bar(line)) is not None:
                return self._read_bar(bar, line, at_s)
            if len(self._unmatched_templates) >= _MAX_TEMPLATES:
                self._unmatched_templates.clear()
            if len(template) <= _MAX_TEMPLATE_CHARS:
                self._unmatched_templates.add(template)
        return self._read_other_line(line, template, at_s)

    def _read_other_line(self, line: str, template: str, at_s: float) -> MetricLine | None:
        table = self._drawn_table
        reading, values = self._row or self._custom_loop.read_line(
            line, template, self._lines_before[-1] if self._lines_before else "", is_row=table is not None
        )
        if table is not None:
            values = table.read_row(line, values, is_counted=reading is not None)
        if reading is None and all(name.bits & COUNTS for name, _, _ in values):
            return None
        if reading is None and self._row is not None and not self.first_step_seen:
            return self._apply_reading(None, values, line, at_s, at=0)
        if self._evaluated_lines and (
            reading is None or self._row or (reading.epoch is None and (reading.step or 0) <= (self.step or 0))
        ):
            self._evaluated_lines -= 1
            return self._apply_reading(None, as_held_out(values), line, at_s)
        is_position = reading is not None and reading.key == "position"
        if reading is not None and is_position and self._laps.is_unnamed(reading, self._custom_loop.headings):
            reading, values = None, as_held_out(values, "test")
        if self._is_summary and self._lead.leader is not None and self._lead.leader.key != (reading and reading.key):
            values, reading = [one for one in values if one[0].bits & HELD_OUT], None
        return self._apply_reading(reading, values, line, at_s)

    def _read_counted(self, line: str, at_s: float) -> list[MetricLine]:
        """Read a line that nothing else counts by its shape, behind those that have proved to be of it now."""
        leader = self._lead.leader
        if self._tables.is_row or not (leader is None or leader.rank <= CounterRank.LOSS or leader.key.startswith(KEY)):
            return []
        if leader is not None and leader.total is not None and _RX.part.fullmatch(line):
            return []
        if (row := self._lines.read_line(line, at_s)) is None:
            return []
        rows = [*self._lines.earlier, (line, row)]
        return [self._apply_reading(one, values, each, at_s, None if one else 0) for each, (one, values) in rows]

    def _read_like_last_line(self, line: str, at_s: float) -> MetricLine | None:
        last_format = self._last_format
        if (trial := self._trial_tables.read_line(line)) is not None:
            return self._apply_reading(*trial, line, at_s)
        if last_format is not None and last_format.needle in line and (match := last_format.pattern.search(line)):
            return self._read_format(last_format, match, line, at_s)
        may_be_bar = self._last_bar is not None or "]{" in line
        if not may_be_bar or "━" in line or (bar := find_bar(line)) is None:
            return None
        # HF Trainer's metrics behind a bar belong to it. Any other line, or another bar, may be a framework's.
        is_known = bar.behind[0] == "{" if bar.behind else bar.title.key == self._last_bar
        return self._read_bar(bar, line, at_s) if is_known else None

    def _read_user_match(
        self, match: LineMatch, built_in: MetricLine | None, at_s: float, *, advanced: bool
    ) -> MetricLine:
        """Read a line that matches the user's pattern. ``built_in``: what readers found; ``advanced``: progress too."""
        line = match.string
        text = (match[self._user_group] or "").replace(",", "") if self._user_group else ""
        if text.isdecimal():
            step = parse_integer(text)
            reading = StepReading(CounterRank.USER, _USER_KEY, step, self._lead.find_total(step, except_key=_USER_KEY))
        elif advanced and built_in is not None:
            return built_in
        else:
            reading = StepReading(CounterRank.LOSS, _USER_KEY, mark=self.advances + 1)
        counter = self._lead.move_counter(reading, self._epoch_named_elsewhere(reading, line), at_s, self._jobs)
        metrics = {name.text: value for name, value, _ in find_named_values(line) if not name.bits & COUNTS}
        printed = counter.counter.step if counter is self._lead.leader else built_in and built_in.step
        return MetricLine(printed, metrics, line, round=self.round, at=printed if printed is not None else self.step)

    def _read_format(self, step_format: StepFormat, match: re.Match[str], line: str, at_s: float) -> MetricLine | None:
        if step_format.rank is CounterRank.NONE and any("rror" in before for before in self._lines_before):
            return None  # scripts print that training is over even after an error
        text = line.partition(step_format.needle)[2] if step_format.always else line
        values = find_named_values(text)
        groups = match.groupdict()
        reading = self._read_groups(step_format, groups)
        may_evaluate = "val" in line or "Val" in line or "est" in line  # thrice as fast as the patterns
        if may_evaluate and _RX.evaluation.search(line) and is_held_out(line) and not _names_held_out(values):
            return self._apply_reading(None, as_held_out(values), line, at_s, at=reading and reading.step)
        if reading is None and not self.first_step_seen:
            return self._apply_reading(None, values, line, at_s, at=0)
        if self._is_summary and reading is not None and (reading.step or 0) <= (self.step or 0) and reading.step:
            return None  # LightGBM prints the best iteration again
        headings = 0 if groups.get("epoch") else self._custom_loop.headings
        if reading is not None and self._laps.is_unnamed(reading, headings):
            return self._apply_reading(None, as_held_out(values, "test"), line, at_s)
        if reading is not None:
            self._last_format, self._last_bar = step_format, None
            if step_format.always and reading.step is None and reading.epoch is None:
                reading = reading._replace(rank=CounterRank.EPOCH, mark=self.advances + 1)
            elif reading.step is None and reading.n is None and reading.epoch is None:
                mark = next((value for name, value, _ in values if name.text == "epoch"), None)
                reading = reading._replace(rank=CounterRank.EPOCH, mark=mark)
        return self._apply_reading(reading, values, line, at_s)

    def _read_groups(self, step_format: StepFormat, groups: dict[str, str | None]) -> StepReading | None:
        """Return the step that the groups of a format hold, or None for a position before the first step."""
        counts = {name: parse_count(text) for name, text in groups.items() if text and name not in {"s", "ms", "rate"}}
        numbers = {name: count for name, count in counts.items() if count is not None}
        if not step_format.zero and numbers.get("n", numbers.get("step")) == 0:
            return None
        epoch, epochs = numbers.get("epoch"), numbers.get("epochs")
        if "last" in numbers:
            epochs = numbers["last"] + 1 if numbers["last"] > 0 else None
        named = self._custom_loop.epoch
        if named is not None and ((epoch is None and "per" in numbers) or (epochs is None and epoch == named[0])):
            epoch, epochs = named
        skipped = numbers.get("skipped")
        if skipped is not None:
            self._skipped_steps = skipped = skipped + self._skipped_steps if step_format.adds else skipped
        return StepReading(
            step_format.rank,
            step_format.name,
            numbers.get("step"),
            numbers.get("total"),
            epoch,
            epochs,
            numbers.get("n"),
            numbers.get("per"),
            step_format.base,
            skipped=skipped,
            step_s=seconds_per_step(groups),
        )

    def _read_bar(self, bar: ProgressBar, line: str, at_s: float) -> MetricLine | None:
        self._last_format, self._last_bar, self._line_is_bar = None, bar.title.key, True
        before, is_trained = self._lines_before, self.first_step_seen
        row = self._laps.read_bar(bar, line, before, is_trained=is_trained, is_alone=self.step is None)
        if row is None:
            return None
        reading, values, line = row
        is_open = reading is not None and bar.title.epoch is None and "poch" in bar.rest
        if is_open and (epoch := _RX.epoch_behind.search(bar.rest)) is not None:
            self._custom_loop.name_epoch(parse_integer(epoch[1]), parse_integer(epoch[2]) if epoch[2] else None)
        return self._apply_reading(reading, values, line, at_s)

    def _apply_reading(
        self, reading: StepReading | None, values: list[NamedValue], line: str, at_s: float, at: int | None = None
    ) -> MetricLine:
        metrics = self._take_metrics(values, line, is_counted=reading is not None)
        if reading is None:
            at = self._find_step(None, line) if at is None else at
            return MetricLine(None, metrics, line, round=self.round, at=at)
        if self._search_user is None:
            self._note_first_step(line)
        if (young := self._laps.take_young()) is not None:  # this line shows that the bar was one of training
            self._read_bar(*young, at_s)
        if not reading.has_position:
            return MetricLine(None, metrics, line, round=self.round, at=self._find_step(None, line))
        former_round = self.round
        reading = self.planned.complete(reading)
        jobs = self._jobs + self._tables.restarts
        counter = self._lead.move_counter(reading, self._epoch_named_elsewhere(reading, line), at_s, jobs)
        self.is_between_jobs, self._evaluated_lines = False, 0
        if any(name.bits & (LOSS | REWARD) for name, _, _ in values):
            self._lead.note_losses()
        if self.round > former_round:
            self.metrics = {}
            self._take_metrics(values, line, is_counted=True)
            self._is_summary = False
        leads = counter is self._lead.leader
        step = counter.counter.step if leads or reading.skipped is not None else None
        at = counter.counter.at if leads and counter.counter.at is not None else self._find_step(reading, line)
        if self._drawn_table is not None and reading.rank is not CounterRank.SECONDARY:
            self._drawn_table.step = at
        return MetricLine(step, metrics, line, reading.skipped, self.round, at)

    def _find_step(self, reading: StepReading | None, line: str) -> int | None:
        """Return the step of the metrics of ``line``, which does not move the leading counter."""
        own = None if reading is None or reading.rank is CounterRank.SECONDARY else reading.step
        if self.step is None and _RX.epoch_zero.search(line) is not None:
            return 0
        may_name_one = own is None and ("tep" in line or "iter" in line or "num_up" in line)
        if may_name_one and (match := _RX.own_step.search(line)):
            is_length = match[0].startswith(("Steps", "steps")) and "poch" in line  # `Epoch: 1, Steps: 266`
            epoch = reading.epoch if reading is not None and is_length else 1  # the line is of its end
            own = None if epoch is None else epoch * parse_integer(match[1])
        # A smaller one counts within a step, or through an evaluation.
        return own if own is not None and own >= (self.step or 0) else self.step_between

    def _take_metrics(self, values: list[NamedValue], line: str, *, is_counted: bool) -> dict[str, float]:
        metrics = {}
        losses = [name.text for name, _, _ in values if name.bits & LOSS]
        own_loss = losses[0] if len(losses) == 1 and "loss" not in self.metrics else None  # `denoise_mse`
        has_main = not _MAIN.isdisjoint(self.metrics) or any(name.headline in _MAIN for name, _, _ in values)
        for name, value, _ in values:
            # A number that is neither NaN nor infinite minus itself is 0.
            if name.bits & COUNTS or (value - value != 0 and is_remark(line, name)):
                continue
            metrics[name.text] = value
            # HF Trainer ends with means over the whole run; they count only when nothing else was printed.
            # "Error: 5 files failed" is none.
            is_last = "train_runtime" in line and name.headline in self.metrics
            if name.headline == "val_loss":
                is_test = "test" in name.text or ("test" in line.lower() and "val" not in line.lower())
                is_last = is_test and self._has_validation  # of the best model, after training
                self._has_validation = self._has_validation or not is_test
            is_own = (is_counted and name.text == own_loss) or (not has_main and (is_counted or self.first_step_seen))
            shown = name.headline or (name.text if is_own and name.bits & _OWN else None)
            if shown and not is_last and (is_counted or shown != "error"):
                self._keep_headline(shown, value)
        return metrics

    def _epoch_named_elsewhere(self, reading: StepReading, line: str) -> NamedEpoch | None:
        """Return the epoch that the output named last, by a heading or with a loss, on other lines than this one."""
        headings, named = self._custom_loop.headings, self._named_epoch
        is_custom = reading.rank in _CUSTOM
        if reading.step is not None and reading.epoch is not None and is_custom:
            return NamedEpoch(reading.epoch, None, 0, self._custom_loop.length)  # where the step restarts with it
        if self._custom_loop.epoch is not None and (named is None or named.headings != headings):
            self._named_epoch = NamedEpoch(*self._custom_loop.epoch, headings, self._custom_loop.length)
        elif (
            reading.rank is CounterRank.EPOCH and reading.epoch is not None and "'epoch'" not in line
        ):  # HF Trainer counts on
            self._named_epoch = NamedEpoch(reading.epoch, reading.epochs, headings)
        return None if reading.rank is CounterRank.EPOCH else self._named_epoch

    def _keep_headline(self, headline: str, value: float) -> None:
        if headline in _MAIN and _MAIN.isdisjoint(self.metrics):
            self.metrics = {name: number for name, number in self.metrics.items() if name in HEADLINES}
        self.metrics[headline] = value
        if len(self.metrics) > _MAX_HEADLINES:
            names = dict.fromkeys([*(name for name in HEADLINES if name in self.metrics), *self.metrics])
            self.metrics = {name: self.metrics[name] for name in list(names)[:_MAX_HEADLINES]}

    def _note_first_step(self, line: str) -> None:
        if not self.first_step_seen:
            self.first_step_seen, self.first_step_line = True, line
