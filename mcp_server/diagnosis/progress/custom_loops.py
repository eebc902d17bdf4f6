"""Step detection for custom training loops: any line with a counter and a loss. Pure."""

from __future__ import annotations

from mcp_server.diagnosis.progress.formats import CounterRank
from mcp_server.diagnosis.progress.named_values import (
    COUNTS,
    EPOCH,
    HELD_OUT,
    LOSS,
    MAX_COUNT,
    QUALITY,
    REWARD,
    SPEED,
    STEP,
    NamedValue,
    as_held_out,
    find_named_values,
    parse_integer,
)
from mcp_server.diagnosis.progress.step_counters import StepReading
from mcp_server.text.rows import read_patterns

_RX = read_patterns("diagnosis/progress/patterns", "custom_loops")

_HEADED_LINES = 8  # a loss at most this many lines below a step count belongs to it
_MAX_HEADER_CHARS, _MAX_LOSSES, _MAX_TEMPLATES = 160, 64, 512
NO_DIGITS = dict.fromkeys(map(ord, "0123456789"))
_STRONG = LOSS | REWARD
_WEAK = QUALITY | SPEED | HELD_OUT


def is_quoted(line: str) -> bool:
    """Whether ``line`` quotes code, settings or a model's layers, and reports nothing."""
    return _RX.quoted.search(line) is not None


def announces_other_work(line: str) -> bool:
    """Whether ``line`` announces work other than training. The bar below then shows that work."""
    return _RX.other_work.search(line) is not None and _RX.warning.search(line) is None


def is_held_out(line: str) -> bool:
    """Whether ``line`` speaks of held-out data, and not of training."""
    return _RX.held_out.search(line) is not None and _RX.training.search(line) is None


def reports_no_training(line: str) -> bool:
    """Whether ``line`` is quoted, of held-out data, or shows or announces other work."""
    is_other = _RX.not_training.search(line) is not None or ("rain" not in line and announces_other_work(line))
    return is_other or is_quoted(line) or is_held_out(line)


class CustomLoopReader:
    """Reads lines that match no format. ``epoch``: of the last heading, with their total; ``headings``: how many.

    ``length``: the steps of an epoch, as `Epoch: 1, Steps: 266` says them. ``heading``: a count above its loss.
    """

    def __init__(self) -> None:
        self.epoch: tuple[int, int | None] | None = None
        self.length: int | None = None
        self.headings = 0
        self._header_template = ""
        self.heading: StepReading | None = None
        self._lines_since_open = 0
        self._evaluated_epoch: int | None = None
        self._held_out_loss: float | None = None  # on the line above
        self._last_losses: dict[str, float] = {}
        self._templates: dict[str, tuple[bool, bool, bool]] = {}

    def read_line(
        self, line: str, template: str, before: str = "", *, is_row: bool = False
    ) -> tuple[StepReading | None, list[NamedValue]]:
        """Return step and named values. ``template``: without digits. ``before``: the last line without a value."""
        values = find_named_values(line)
        bits = 0
        for name, _, _ in values:
            bits |= name.bits
        if not bits & ~COUNTS:
            return self._read_header(line, template, values), values
        is_quoted, of_held_out, is_loaded = self._line_properties(line, template)
        if is_quoted:
            return None, []
        if before and not of_held_out and (before.rstrip().endswith(":") or _RX.averages.match(line)):
            of_held_out = is_held_out(before) and _RX.training.search(line) is None
        held_out, losses = self._held_out_loss, [value for name, value, _ in values if name.headline == "loss"]
        self._held_out_loss = next((value for name, value, _ in values if name.headline == "val_loss"), None)
        if held_out is not None and not bits & COUNTS and any(abs(loss - held_out) < held_out / 1e3 for loss in losses):
            of_held_out = True  # `Val loss: 2.3` and, below it, its parts: `l1: 2.1 kl: 3.0 loss: 2.3`
        if of_held_out and not (bits & HELD_OUT and bits & COUNTS):
            return self._read_evaluated(line), as_held_out(values)
        if is_loaded:
            return None, values
        if not bits & COUNTS:
            # `[3/10] train loss 0.5, val loss 0.6` is of training too.
            is_strong = bits & _STRONG and (not bits & HELD_OUT or (bits & LOSS and _RX.position.search(line)))
            return self._read_uncounted(line, values, is_row=is_row) if is_strong else None, values
        if bits & (_STRONG | _WEAK):
            reading = self._place_in_epoch(read_counted(values, bits), values)
            return _add_named_total(_add_position(reading, line), line), values
        return self._read_header(line, template, values), values

    def _place_in_epoch(self, reading: StepReading | None, values: list[NamedValue]) -> StepReading | None:
        """Read `batch 5 of 200` as a place in the epoch of the last heading: a pass over the data ends there."""
        if reading is not None and reading.rank is CounterRank.EPOCH:
            lengths = [int(value) for name, value, of in values if name.text == "steps" and value > 0 and not of]
            self.length = lengths[0] if lengths else self.length
        if reading is None or "batch" not in reading.key or reading.step is None or reading.total is None:
            return reading
        epoch, epochs = self.epoch or (None, None)
        n, per = reading.step, reading.total
        return StepReading(reading.rank, "position batch", None, None, epoch, epochs, n, per, 1, reading.mark)

    def name_epoch(self, epoch: int, epochs: int | None, *, is_heading: bool = False) -> None:
        """Take the epoch that a line names. A heading names it anew; a bar repeats it in each of its lines."""
        self.headings += is_heading or self.epoch != (epoch, epochs)
        self.epoch = epoch, epochs

    def close_table(self) -> None:
        """Forget the count of a table: it is of no line below."""
        self.heading = None

    def _read_evaluated(self, line: str) -> StepReading | None:
        """Read `eval epoch: 2, loss: 0.4` below the same of epoch 1: training goes on between them."""
        match = _RX.epoch.search(line)
        if match is None or match[2]:
            return None
        before, self._evaluated_epoch = self._evaluated_epoch, parse_integer(match[1])
        is_next = before is not None and self._evaluated_epoch == before + 1
        return StepReading(CounterRank.LOSS, "evaluated epoch", epoch=self._evaluated_epoch) if is_next else None

    def _line_properties(self, line: str, template: str) -> tuple[bool, bool, bool]:
        """Return whether ``line`` is quoted, of held-out data, of a loaded checkpoint (cached per template)."""
        properties = self._templates.get(template)
        if properties is None:
            if len(self._templates) >= _MAX_TEMPLATES:
                self._templates.clear()
            is_loaded = _RX.loaded.search(line) is not None or _RX.not_training.search(line) is not None
            properties = self._templates[template] = (_RX.quoted.search(line) is not None, is_held_out(line), is_loaded)
        return properties

    def _read_uncounted(self, line: str, values: list[NamedValue], *, is_row: bool) -> StepReading | None:
        """Read losses without a counter: `[12/100] loss=0.3`, a line below `Epoch 3/10`, or a value that changes."""
        if match := _RX.position.search(line):
            n, per = (parse_integer(number) for number in match.groups() if number)
            epoch, epochs = self.epoch or (None, None)
            base = None if epoch is None else 1
            return (
                StepReading(CounterRank.STEP, "position", None, None, epoch, epochs, n, per, base)
                if 0 < n <= per
                else None
            )
        if self.heading is not None:
            return self.heading
        if is_row:
            return None
        name, value, _ = next(named_value for named_value in values if named_value[0].bits & _STRONG)
        before = self._last_losses.get(name.text)
        if before is not None or len(self._last_losses) < _MAX_LOSSES:
            self._last_losses[name.text] = value
        if (name.headline is not None or "osses" in line) and (
            _RX.train_loss.search(line) or before not in {None, value}
        ):
            return StepReading(CounterRank.LOSS, f"loss {name.text}", mark=value)
        return None

    def _read_header(self, line: str, template: str, values: list[NamedValue]) -> StepReading | None:
        """Remember a count without a loss: it only begins. An epoch ends where a line says so, or the next begins."""
        self._lines_since_open += 1
        if self.heading is not None and self.heading.step is not None and self._lines_since_open > _HEADED_LINES:
            self.heading = None
        match = _RX.epoch.search(line) if "poch" in line or "POCH" in line else None
        if len(values) > 1 and any(name.bits & STEP and value for name, value, _ in values):
            reading = read_counted(values, COUNTS | LOSS)  # `[step=10/30,epoch=0]`
            is_step = reading is not None and (reading.step or reading.n)
            if is_step and not any(self._line_properties(line, template)):
                self.heading, self._lines_since_open = reading, 0
                return None
        if (
            (match is None and len(values) != 1)
            or len(line) > _MAX_HEADER_CHARS
            or any(self._line_properties(line, template))
        ):
            return None
        if match is None:
            name, value, of = values[0]
            if value > 0 and (not name.text.endswith("s") or "update" in name.text):  # plural names are plans
                rank = CounterRank.STEP if name.bits & STEP else CounterRank.EPOCH
                self.heading = StepReading(
                    rank, f"step {name.text}", int(min(value, MAX_COUNT)), parse_integer(of) if of else None
                )
                self._lines_since_open = 0
            return None
        epoch, epochs = parse_integer(match[1]), parse_integer(match[2]) if match[2] else None
        is_same_header, self._header_template = template == self._header_template, template
        before = self.epoch
        self.name_epoch(epoch, epochs, is_heading=True)
        self.heading = StepReading(CounterRank.EPOCH, "epoch", epoch=epoch, epochs=epochs)
        if _RX.ended.search(line):
            return StepReading(CounterRank.EPOCH, "epoch", epoch=epoch, epochs=epochs)
        if is_same_header and before is not None and epoch == before[0] + 1:
            return StepReading(CounterRank.EPOCH, "epoch", epoch=before[0], epochs=epochs)
        return None


def read_counted(values: list[NamedValue], bits: int) -> StepReading | None:
    """Read a counter with metrics. Step 0 with held-out losses is an evaluation, epoch 0 with them a finished epoch."""
    step = epoch = None
    for named_value in values:
        if named_value[0].bits & STEP and step is None and named_value[1].is_integer():
            step = named_value
        elif named_value[0].bits & EPOCH and epoch is None:
            epoch = named_value
    if step is not None and epoch is not None and step[0].text == "steps" and not step[2]:
        step = None  # `Epoch: 1, Steps: 266` says how long it was
    if step is None:
        return _read_epoch(epoch, values, bits) if epoch is not None else None
    name, value, of = step
    n, total = int(min(value, MAX_COUNT)), parse_integer(of) if of else None
    if n < 0 or (n == 0 and (bits & HELD_OUT or not bits & _STRONG)):
        return None
    is_in_epoch = "global" not in name.text and (total is not None or "batch" in name.text)
    if epoch is None or not is_in_epoch or not epoch[1].is_integer():
        in_epoch = int(min(epoch[1], MAX_COUNT)) if epoch is not None and epoch[1].is_integer() else None
        # "step:2K" (LeRobot) stands for a thousand steps, "1M" for a million: another loss shows that they go on.
        losses = [number for measure, number, _ in values if measure.bits & LOSS] if n and n % 1_000 == 0 else []
        mark = losses[0] if losses else None
        return StepReading(CounterRank.STEP, f"step {name.text}", n, total, in_epoch, mark=mark)
    epochs = parse_integer(epoch[2]) if epoch[2] else None
    base = 1 if "batch" in name.text and total is not None else None
    number = int(min(epoch[1], MAX_COUNT))
    return StepReading(
        CounterRank.STEP, f"position {name.text}", epoch=number, epochs=epochs, n=n, per=total, base=base
    )


def find_values_behind_bar(text: str) -> list[NamedValue]:
    """Return the named values of ``text``, printed behind a bar. Those of an evaluation get names that say so."""
    if _RX.quoted.search(text) or _RX.loaded.search(text) or _RX.not_training.search(text):
        return []
    values = find_named_values(text)
    is_plain = not any(name.bits & HELD_OUT for name, _, _ in values)
    return as_held_out(values) if is_plain and is_held_out(text) else values


def _add_position(reading: StepReading | None, line: str) -> StepReading | None:
    """Add the position in the epoch that stands between bars: `Train | Epoch 2 | 200/1000 | ce 5.1`."""
    if reading is None or reading.step is not None or reading.n is not None or "|" not in line:
        return reading
    match = _RX.between_bars.search(line) if reading.epoch is not None else None
    if match is None or int(match[1]) > int(match[2]):
        return reading
    n, per = parse_integer(match[1]), parse_integer(match[2])
    return reading._replace(rank=CounterRank.STEP, key="position in epoch", n=n, per=per)


def _add_named_total(reading: StepReading | None, line: str) -> StepReading | None:
    """Add a total that the line holds under a name of its own."""
    if reading is None or not ("total_" in line or "max_" in line or "num_" in line):
        return reading
    for match in _RX.total.finditer(line):
        total, is_epochs = parse_integer(match[2]), match["unit"].lower() == "epochs"
        if is_epochs and reading.epochs is None and reading.epoch is not None:
            reading = reading._replace(epochs=total)
        elif not is_epochs and reading.total is None and reading.step is not None and total >= reading.step:
            reading = reading._replace(total=total)
    return reading


def _read_epoch(epoch: NamedValue, values: list[NamedValue], bits: int) -> StepReading | None:
    name, value, of = epoch
    if not value.is_integer():
        return StepReading(CounterRank.EPOCH, "epoch so far", mark=value)
    if value < 0 or (value == 0 and not bits & _STRONG):
        return None
    mark = next((number for measure, number, _ in values if measure.bits & _STRONG), None)
    return StepReading(
        CounterRank.EPOCH,
        f"epoch {name.text}",
        epoch=int(min(value, MAX_COUNT)),
        epochs=parse_integer(of) if of else None,
        mark=mark,
    )
