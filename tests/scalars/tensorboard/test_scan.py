"""What is read of an event file is what TensorBoard's own classes read, byte by byte of damage, chunk by chunk."""

import contextlib
import math
import os
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from google.protobuf.message import DecodeError
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.util import tensor_util

from mcp_server.scalars.tensorboard import collector, scan
from mcp_server.scalars.tensorboard.records import find_header, find_wrong_payloads, mask_crc
from mcp_server.scalars.tensorboard.scan import ScanResult
from tests.benchmarks.event_files import record

Point = tuple[int, float, float]
VERSION = Event(wall_time=1.0, file_version="brain.Event:2")


def point(tag: str, value: float, step: int = 0, wall: float = 2.0) -> Event:
    return Event(wall_time=wall, step=step, summary=Summary(value=[Summary.Value(tag=tag, simple_value=value)]))


def tensor(tag: str, value: Any, step: int = 0, *, plugin: str | None = None, wall: float = 2.0) -> Event:
    event = Event(wall_time=wall, step=step)
    item = event.summary.value.add(tag=tag, tensor=tensor_util.make_tensor_proto(value))
    if plugin is not None:
        item.metadata.plugin_data.plugin_name = plugin
    return event


def file_of(*events: Event | bytes) -> bytes:
    """An event file; bytes are written unchanged."""
    return b"".join(event if isinstance(event, bytes) else record(event.SerializeToString()) for event in events)


@contextlib.contextmanager
def opened(path: Path, data: bytes) -> Iterator[int]:
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., ScanResult]:
    def scanned(
        data: bytes, start: int = 0, plugins: dict[str, str] | None = None, *, final: bool = False
    ) -> ScanResult:
        with opened(tmp_path / "events.out.tfevents.1", data) as fd:
            return scan.scan(fd, start, len(data), plugins, final=final)

    return scanned


def listed(scanned: ScanResult) -> dict[str, list[Point]]:
    return {
        tag: list(zip(part.steps.tolist(), part.walls.tolist(), part.values.tolist(), strict=True))
        for tag, part in scanned.points.items()
    }


def values(scanned: ScanResult, tag: str) -> list[float]:
    return [float(value) for value in scanned.points[tag].values]


# --- what is a scalar


def test_every_form_of_a_scalar_reads_as_tensorboard_reads_it(tmp_path: Path, read: Callable[..., ScanResult]) -> None:
    forms = [
        np.float32(0.1),
        np.float64(0.1),
        np.int32(-7),
        np.int64(-(2**40)),
        np.float16(0.3),
        np.bool_(True),
        np.uint8(9),
    ]
    events = [VERSION, point("simple", 0.1, 3), point("negative", 1.0, -5), point("läuft/η 損失 😀", 2.0)]
    for index, form in enumerate(forms):
        events += [tensor(f"form/{index}", form, plugin="scalars"), tensor(f"form/{index}", form, 1)]
        content = tensor(f"content/{index}", form, plugin="scalars")
        held = content.summary.value[0].tensor
        for name in ("float_val", "double_val", "int_val", "int64_val", "half_val", "bool_val"):
            held.ClearField(name)
        held.tensor_content = np.asarray(form).tobytes()
        events.append(content)
    events += [tensor("one/element", [1.5], plugin="scalars")]
    data = file_of(*events)
    assert listed(read(data)) == by_tensorboard(tmp_path, data)
    assert len(read(data).points) == 3 + 2 * len(forms) + 1


def test_bfloat16_and_unsigned_tensors_are_scalars(read: Callable[..., ScanResult]) -> None:
    brain, wide = Event(), Event()
    item = brain.summary.value.add(tag="b")
    item.metadata.plugin_data.plugin_name = "scalars"
    item.tensor.dtype, item.tensor.half_val[:] = 14, [0x3FC0]
    item = wide.summary.value.add(tag="u")
    item.metadata.plugin_data.plugin_name = "scalars"
    item.tensor.dtype, item.tensor.uint64_val[:] = 23, [2**63]
    scanned = read(file_of(brain, wide))
    assert (values(scanned, "b"), values(scanned, "u")) == ([1.5], [2.0**63])


def test_other_tensors_and_media_are_not_scalars(read: Callable[..., ScanResult]) -> None:
    media = Event(
        summary=Summary(value=[Summary.Value(tag="h", histo={"min": 1}), Summary.Value(tag="i", image={"width": 1})])
    )
    scanned = read(
        file_of(
            VERSION,
            tensor("unnamed", 1.0),
            tensor("text", 1.0, plugin="text"),
            tensor("vector", [1.0, 2.0], plugin="scalars"),
            tensor("words", "hello", plugin="scalars"),
            media,
        )
    )
    assert dict(scanned.points) == {}
    assert (scanned.plugins["text"], scanned.damage, scanned.waiting) == ("text", (), False)


def test_metadata_counts_from_the_event_on_that_carries_it(read: Callable[..., ScanResult]) -> None:
    data = file_of(tensor("t", 1.0, 1), tensor("t", 2.0, 2, plugin="scalars"), tensor("t", 3.0, 3))
    assert values(read(data), "t") == [2.0, 3.0]
    later = len(file_of(tensor("t", 1.0, 1), tensor("t", 2.0, 2, plugin="scalars")))
    assert dict(read(data, later).points) == {}
    assert values(read(data, later, {"t": "scalars"}), "t") == [3.0]


def test_nan_inf_and_constant_zero_steps_are_kept(read: Callable[..., ScanResult]) -> None:
    scanned = read(file_of(point("x", math.nan), point("x", math.inf), point("x", -math.inf)))
    assert math.isnan(values(scanned, "x")[0])
    assert values(scanned, "x")[1:] == [math.inf, -math.inf]
    assert scanned.points["x"].steps.tolist() == [0, 0, 0]


def test_a_tag_twice_in_one_event_keeps_its_order(read: Callable[..., ScanResult]) -> None:
    many = Event(
        step=1, summary=Summary(value=[Summary.Value(tag=tag, simple_value=n) for n, tag in enumerate("abab")])
    )
    scanned = read(file_of(*[many] * 100))
    assert values(scanned, "a") == [0.0, 2.0] * 100
    assert values(scanned, "b") == [1.0, 3.0] * 100


def test_the_node_name_of_tensorflow_1_replaces_a_missing_tag(read: Callable[..., ScanResult]) -> None:
    old = Event(summary=Summary(value=[Summary.Value(node_name="loss", simple_value=1.0)]))
    assert values(read(file_of(old)), "loss") == [1.0]


def test_session_starts_have_their_position(read: Callable[..., ScanResult]) -> None:
    start = Event(step=2, wall_time=9.0, session_log=SessionLog(status=SessionLog.START))
    stop = Event(step=5, session_log=SessionLog(status=SessionLog.STOP))
    scanned = read(file_of(VERSION, point("a", 1), point("a", 2), start, point("a", 3), point("b", 4), stop, start))
    assert scanned.starts == ((2, 9.0), (2, 9.0))
    assert scanned.start_positions == {"a": (2, 3), "b": (0, 1)}


# --- damage


def test_empty_and_header_only_files_hold_nothing(read: Callable[..., ScanResult]) -> None:
    assert (read(b"").consumed, read(b"").waiting) == (0, False)
    scanned = read(file_of(VERSION))
    assert (dict(scanned.points), scanned.consumed, scanned.waiting) == ({}, len(file_of(VERSION)), False)


@pytest.mark.slow
def test_a_truncated_file_waits_before_the_cut_and_reports_it_when_final(read: Callable[..., ScanResult]) -> None:
    events = [VERSION, point("a", 1.0, 1), point("a", 2.0, 2), tensor("t", 3.0, plugin="scalars")]
    ends = [len(file_of(*events[:count])) for count in range(len(events) + 1)]
    data = file_of(*events)
    for cut in range(len(data) + 1):
        whole = max(end for end in ends if end <= cut)
        scanned, last = read(data[:cut]), read(data[:cut], final=True)
        assert (scanned.consumed, scanned.waiting, scanned.damage) == (whole, cut != whole, ())
        assert (last.consumed, last.waiting) == (cut, False)
        assert len(last.damage) == (cut != whole)
        assert listed(scanned) == listed(last)
        rest = read(data, scanned.consumed, dict(scanned.plugins))
        assert {**listed(scanned), **listed(rest)}.keys() == {"a", "t"}
        assert sum(map(len, listed(scanned).values())) + sum(map(len, listed(rest).values())) == 3


@pytest.mark.slow
def test_no_flipped_bit_yields_a_wrong_value(read: Callable[..., ScanResult], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "_TAIL_BYTES", 0)
    data = file_of(VERSION, *(point("a", float(n), n) for n in range(4)))
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        scanned = read(bytes(flipped), final=True)
        assert scanned.damage
        assert set(listed(scanned).get("a", [])) < {(n, 2.0, float(n)) for n in range(4)} or bit < 8 * len(
            file_of(VERSION)
        )
        assert sum(map(len, listed(scanned).values())) >= 3 - (bit >= 8 * len(file_of(VERSION)))


def test_damage_near_the_end_is_waited_for_and_earlier_damage_reported(
    read: Callable[..., ScanResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = [point("a", float(n), n) for n in range(100)]
    before = file_of(VERSION, *good[:50])
    bad = bytearray(file_of(good[50]))
    bad[20] ^= 1
    data = before + bytes(bad) + file_of(*good[51:])
    scanned = read(data)
    assert (scanned.consumed, scanned.waiting, scanned.damage) == (len(before), True, ())
    assert values(scanned, "a") == [float(n) for n in range(50)]
    monkeypatch.setattr(scan, "_TAIL_BYTES", 100)
    scanned = read(data)
    assert (scanned.consumed, scanned.waiting) == (len(data), False)
    assert scanned.damage == (f"offset {len(before)}: the checksum of the payload is wrong",)
    assert values(scanned, "a") == [float(n) for n in range(100) if n != 50]


def test_a_corrupt_length_loses_one_record(read: Callable[..., ScanResult]) -> None:
    before = file_of(VERSION, *(point("a", float(n), n) for n in range(50)))
    bad = bytearray(file_of(point("a", 50.0)))
    bad[1] ^= 0x80
    data = before + bytes(bad) + file_of(point("a", 51.0))
    scanned = read(data, final=True)
    assert scanned.damage == (f"offset {len(before)}: the checksum of the length is wrong",)
    assert values(scanned, "a")[-2:] == [49.0, 51.0]


def test_a_zero_filled_tail_waits_and_is_read_once_filled(
    read: Callable[..., ScanResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "_TAIL_BYTES", 1000)
    data = file_of(VERSION, *(point("a", float(n), n) for n in range(200)))
    for kept in (0, 100, 101, 102, 103, 5000):
        zeroed = data[:kept] + bytes(len(data) - kept)
        scanned = read(zeroed)
        assert scanned.waiting
        assert scanned.damage == ()
        rest = read(data, scanned.consumed)
        assert [*listed(scanned).get("a", []), *listed(rest)["a"]] == listed(read(data))["a"]
        assert len(read(zeroed, final=True).damage) >= 1


def test_an_unparsable_event_with_a_right_checksum_is_reported_and_skipped(read: Callable[..., ScanResult]) -> None:
    broken = record(point("a", 1.0).SerializeToString()[:-2])
    latin = record(point("a", 1.0).SerializeToString().replace(b"\x0a\x01a", b"\x0a\x01\xe4"))
    scanned = read(file_of(point("a", 0.0), broken, latin, point("a", 2.0)))
    assert values(scanned, "a") == [0.0, 2.0]
    first = len(file_of(point("a", 0.0)))
    assert scanned.damage == (
        f"offset {first}: a field that is cut off in a record whose checksum is right",
        f"offset {first + len(broken)}: text that is not UTF-8 in a record whose checksum is right",
    )
    assert len(read(latin * 100).damage) == 21, "20 places and how many more"


def test_the_four_neutral_bytes_and_halving_find_each_wrong_payload() -> None:
    records = [record(os.urandom(length)) for length in (1, 60, 61, 4000, 5, 7)]
    data = np.frombuffer(b"".join(records), np.uint8).copy()
    ends = np.cumsum([len(item) for item in records])
    starts, lengths = ends - [len(item) for item in records], np.array([len(item) - 16 for item in records])
    for at in (int(starts[3]) + 900, int(starts[5]) + 12, int(ends[0]) - 1):
        data[at] ^= 4
    assert find_wrong_payloads(data, starts, lengths) == [0, 3, 5]
    assert mask_crc(google_crc32c.value(b"")) == 0xA282EAD8
    assert find_header(np.frombuffer(bytes(200) + record(b"x"), np.uint8)) == 200


# --- large events


def test_a_large_event_gives_its_scalars_and_skips_its_image(read: Callable[..., ScanResult]) -> None:
    image = Event(step=4, summary=Summary(value=[Summary.Value(tag="i", image={"encoded_image_string": bytes(10**6)})]))
    wide = Event(step=5, wall_time=3.0)
    for n in range(5000):
        wide.summary.value.add(tag=f"layer/{n:04d}", simple_value=n)
    wide.summary.value.add(tag="i", image={"encoded_image_string": bytes(10**5)})
    data = file_of(VERSION, point("a", 1.0), image, wide, point("a", 2.0))
    scanned = read(data)
    assert values(scanned, "a") == [1.0, 2.0]
    assert [listed(scanned)[f"layer/{n:04d}"] for n in (0, 4999)] == [[(5, 3.0, 0.0)], [(5, 3.0, 4999.0)]]
    assert (len(scanned.points), scanned.consumed) == (5001, len(data))
    at = data.index(b"layer/2500")
    damaged = data[:at] + b"LAYER" + data[at + 5 :]
    assert read(damaged, final=True).damage == (
        f"offset {len(file_of(VERSION, point('a', 1.0), image))}: the checksum of the payload is wrong",
    )
    assert list(read(damaged, final=True).points) == ["a"]
    assert read(damaged).waiting


def test_a_large_event_that_does_not_parse_is_reported_and_skipped(read: Callable[..., ScanResult]) -> None:
    broken = record(b"\x2a" + varint(10**6) + bytes(10**5))
    scanned = read(file_of(point("a", 1.0), broken, point("a", 2.0)))
    assert values(scanned, "a") == [1.0, 2.0]
    offset = len(file_of(point("a", 1.0)))
    assert scanned.damage == (f"offset {offset}: a field that is cut off in a record whose checksum is right",)


def read_whole(path: Path) -> ScanResult:
    fd = os.open(path, os.O_RDONLY)
    try:
        return scan.scan(fd, 0, path.stat().st_size)
    finally:
        os.close(fd)


# --- against a reference on the protobuf classes


def by_tensorboard(tmp_path: Path, data: bytes) -> dict[str, list[Point]]:
    """What TensorBoard's scalar plugin shows."""
    directory = tmp_path / "reference"
    directory.mkdir(exist_ok=True)
    (directory / "events.out.tfevents.1").write_bytes(data)
    scanned = EventAccumulator(str(directory), size_guidance={"tensors": 0}, purge_orphaned_data=False)
    scanned.Reload()
    return {
        tag: [(e.step, e.wall_time, tensor_util.make_ndarray(e.tensor_proto).item()) for e in scanned.Tensors(tag)]
        for tag in scanned.Tags()["tensors"]
        if scanned.SummaryMetadata(tag).plugin_data.plugin_name == "scalars"
    }


@dataclass
class Reference:
    """A record reader with nothing in common with the fast one but the rules."""

    data: bytes
    final: bool
    points: dict[str, list[Point]] = field(default_factory=dict)
    plugins: dict[str, str] = field(default_factory=dict)
    starts: list[Point] = field(default_factory=list)
    damage: list[int] = field(default_factory=list)
    consumed: int = 0
    waiting: bool = False

    def run(self, tail: int) -> "Reference":
        at, size, wrong_before = 0, len(self.data), None
        while at < size:
            length = self.length(at)
            heals = not self.final and size - at <= tail
            cut = size - at < 12 or (length is not None and at + length + 16 > size)
            later = next((p for p in range(at + 1, size - 11) if self.length(p)), None) if length is None else None
            payload = b"" if cut or length is None else self.data[at + 12 : at + 12 + length]
            wrong = not cut and length is not None and self.data[at + 12 + length :][:4] != crc(payload)
            if heals and (wrong or length is None):
                return self.hold(at)
            if not self.final and (cut or (length is None and later is None)):
                return self.hold(self.damage.pop() if wrong_before == at else at)
            wrong_before = at + length + 16 if wrong and length is not None else None
            if cut or wrong or length is None:
                self.damage.append(at)
            else:
                self.event(payload, at)
            if length is None or cut:
                at = size if cut or later is None else later
            else:
                at += length + 16
        self.consumed = at
        return self

    def hold(self, at: int) -> "Reference":
        self.waiting, self.consumed = True, at
        return self

    def length(self, at: int) -> int | None:
        header = self.data[at : at + 12]
        return struct.unpack("<Q", header[:8])[0] if len(header) == 12 and crc(header[:8]) == header[8:] else None

    def event(self, payload: bytes, at: int) -> None:
        try:
            event = Event.FromString(payload)
        except DecodeError:
            self.damage.append(at)
            return
        if event.session_log.status == SessionLog.START:
            self.starts.append((event.step, event.wall_time, float(sum(map(len, self.points.values())))))
        for value in event.summary.value:
            kind, tag = value.WhichOneof("value"), value.tag or value.node_name
            if kind == "simple_value":
                self.plugins.setdefault(tag, "scalars")
            elif value.HasField("metadata"):
                self.plugins.setdefault(tag, value.metadata.plugin_data.plugin_name)
            number = value.simple_value if kind == "simple_value" else None
            if kind == "tensor" and self.plugins.get(tag) == "scalars" and value.tensor.ByteSize() <= 128:
                with contextlib.suppress(ValueError, TypeError):
                    array = tensor_util.make_ndarray(value.tensor)
                    number = float(array.item()) if array.size == 1 and array.dtype.kind in "fiub" else None
            if number is not None:
                self.points.setdefault(tag, []).append((event.step, event.wall_time, number))


def crc(data: bytes) -> bytes:
    return struct.pack("<I", mask_crc(google_crc32c.value(data)))


class Writer:
    """Random events of every kind, with fields in any order and some unknown ones."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.tags = [chance.choice(["", "t", "a/b c", "η", "x" * 40, "long" * 30]) + str(n) for n in range(8)]
        self.habit = chance.random() < 0.6  # one way of writing, as real writers have
        self.numbers: dict[int, bytes] = {}

    def stream(self, events: int) -> bytes:
        return b"".join(self.one() for _ in range(events))

    def one(self) -> bytes:
        c = self.chance
        kind = c.random()
        if kind < 0.02:
            return record(
                Event(wall_time=1.0, step=c.randrange(50), session_log=SessionLog(status=1)).SerializeToString()
            )
        if kind < 0.03:
            return record(b"" if c.random() < 0.2 else point("t", 1.0).SerializeToString()[: -c.randrange(1, 9)])
        count = 1 if self.habit or c.random() < 0.7 else c.randrange(4)
        fields = [b"\x09" + struct.pack("<d", c.random() * 2e9)]
        step = c.choice([0, 1, c.randrange(200), c.randrange(2**40), -c.randrange(1, 9)])
        if step or c.random() < 0.2:
            fields.append(b"\x10" + varint(step))
        fields.append(b"\x2a" + sized(b"".join(b"\x0a" + sized(self.value()) for _ in range(count))))
        return record(self.mixed(fields))

    def value(self) -> bytes:
        c = self.chance
        tag = c.choice(self.tags)
        fields = [b"\x0a" + sized(tag.encode())]
        if c.random() < 0.1:
            fields.append(
                b"\x4a" + sized(b"\x0a" + sized(b"\x0a" + sized(c.choice([b"scalars", b"scalars", b"text"]))))
            )
        kind = c.random()
        if kind < 0.4:
            fields.append(b"\x15" + struct.pack("<f", c.choice([c.gauss(0, 1), 0.0, math.inf])))
        elif kind < 0.9:
            fields.append(b"\x42" + sized(self.tensor()))
        elif kind < 0.97:
            fields.append(c.choice([b"\x22", b"\x2a"]) + sized(b"\x08\x01"))
        return self.mixed(fields)

    def tensor(self) -> bytes:
        c = self.chance
        shape = c.choice([[], [], [], [1], [2]])
        form = c.choice([np.float32, np.float64, np.int32, np.int64, np.bool_, np.float16])
        made = tensor_util.make_tensor_proto(np.full(shape, c.randrange(-9, 9)).astype(form))
        if c.random() < 0.3:
            content = tensor_util.make_ndarray(made).tobytes()
            made.ClearField("float_val")
            made.ClearField("double_val")
            made.ClearField("int64_val")
            made.tensor_content = content
        return bytes(made.SerializeToString())

    def mixed(self, fields: list[bytes]) -> bytes:
        if not self.habit:
            if self.chance.random() < 0.2:
                unknown = [
                    b"\xf8\x07\x05",
                    b"\xfd\x07abcd",
                    b"\xf9\x07abcdefgh",
                    b"\xfa\x07\x02hi",
                    b"\xfb\x07\x08\x01\xfc\x07",
                ]
                fields = [*fields, self.chance.choice(unknown)]
            self.chance.shuffle(fields)
        return b"".join(fields)


def sized(data: bytes) -> bytes:
    return varint(len(data)) + data


def varint(number: int) -> bytes:
    number &= 2**64 - 1
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*data, number])


@pytest.mark.parametrize("seed", range(30))
def test_random_streams_read_as_the_protobuf_classes_read_them(
    seed: int, read: Callable[..., ScanResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    tail = chance.choice([0, 300, 2**20])
    monkeypatch.setattr(scan, "_TAIL_BYTES", tail)
    monkeypatch.setattr(scan, "_CHUNK_BYTES", chance.choice([1500, 2001, 5000, 2**16, 2**22]))
    monkeypatch.setattr(collector, "_FEW", chance.choice([1, 4, 64]))
    data = bytearray(Writer(chance).stream(chance.choice([5, 50, 400])))
    if seed % 3:
        for _ in range(chance.randrange(4)):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        if chance.random() < 0.3:
            begin = chance.randrange(len(data))
            data[begin : begin + 100] = bytes(len(data[begin : begin + 100]))
        if chance.random() < 0.5:
            data = data[: chance.randrange(len(data))]
    final = chance.random() < 0.5
    expected = Reference(bytes(data), final).run(tail)
    scanned = read(bytes(data), final=final)
    assert listed(scanned) == expected.points
    assert (scanned.consumed, scanned.waiting) == (expected.consumed, expected.waiting)
    assert [int(text.split()[1][:-1]) for text in scanned.damage[:20]] == sorted(expected.damage)[:20]
    assert scanned.starts == tuple((step, wall) for step, wall, _ in expected.starts)
    totals = [sum(counts[n] for counts in scanned.start_positions.values()) for n in range(len(scanned.starts))]
    assert totals == [total for _, _, total in expected.starts]
    assert {tag: scanned.plugins.get(tag) for tag in expected.plugins} == expected.plugins


@pytest.mark.parametrize("seed", range(10))
def test_a_stream_read_in_parts_is_the_stream_read_at_once(
    seed: int, read: Callable[..., ScanResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    data = Writer(chance).stream(200)
    monkeypatch.setattr(scan, "_CHUNK_BYTES", 1500)
    monkeypatch.setattr(scan, "_LARGE_BYTES", chance.choice([60, 120, 2**16]))
    monkeypatch.setattr(collector, "_FEW", 2)
    joined: dict[str, list[Point]] = {}
    plugins: dict[str, str] = {}
    at = 0
    for size in [*sorted(chance.sample(range(len(data)), 5)), len(data)]:
        part = read(data[:size], at, plugins)
        at, plugins = part.consumed, dict(part.plugins)
        for tag, points in listed(part).items():
            joined.setdefault(tag, []).extend(points)
    assert at == len(data)
    assert joined == Reference(data, final=True).run(0).points
