"""Event files made record by record, and the series that are read from them."""

import struct
from collections.abc import Iterable
from pathlib import Path

import google_crc32c
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_DOUBLE

from mcp_server.scalars.series import RunScalars, Series

Point = tuple[int, float, float]  # step, wall, value

FIRST = "events.out.tfevents.1700000000.host.1.0"

SECOND = "events.out.tfevents.1700001000.host.2.0"

THIRD = "events.out.tfevents.1700002000.host.3.0"


def record(payload: bytes) -> bytes:
    def mask_crc(data: bytes) -> bytes:
        crc = google_crc32c.value(data)
        return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(payload))
    return length + mask_crc(length) + payload + mask_crc(payload)


def header(version: int = 2) -> bytes:
    """TensorBoard lets falling steps replace points where the version is 1, START events where it is 2."""
    return record(Event(file_version=f"brain.Event:{version}").SerializeToString())


def scalar_record(step: int, wall: float, value: float, tag: str = "loss") -> bytes:
    summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
    return record(Event(step=step, wall_time=wall, summary=summary).SerializeToString())


def points(steps: Iterable[int], wall: float = 0.0, plus: float = 0.0, tag: str = "loss") -> bytes:
    """A point each second from ``wall`` on, with the value ``step + plus``."""
    return b"".join(scalar_record(step, wall + n, step + plus, tag) for n, step in enumerate(steps))


def start(step: int, wall: float) -> bytes:
    return record(Event(step=step, wall_time=wall, session_log=SessionLog(status=SessionLog.START)).SerializeToString())


def tensor(step: int, wall: float, value: float, plugin: str = "") -> bytes:
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=plugin)) if plugin else None
    one = Summary.Value(tag="loss", tensor=TensorProto(dtype=DT_DOUBLE, double_val=[value]), metadata=metadata)
    return record(Event(step=step, wall_time=wall, summary=Summary(value=[one])).SerializeToString())


def write(path: Path, *parts: bytes | bytearray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(parts))
    return path


def append(path: Path, *parts: bytes) -> None:
    with path.open("ab") as file:
        file.writelines(parts)


def points_of(series: Series) -> list[Point]:
    return list(zip(series.steps.tolist(), series.walls.tolist(), series.values.tolist(), strict=True))


def steps_of(run: RunScalars, tag: str = "loss") -> list[int]:
    return [int(step) for step in run.series[tag].steps]


def values_of(run: RunScalars, tag: str = "loss") -> list[float]:
    return [float(value) for value in run.series[tag].values]


def everything(run: RunScalars) -> dict[str, object]:
    return {
        tag: (one.steps.tobytes(), one.walls.tobytes(), one.values.tobytes(), one.restarts, one.writers)
        for tag, one in run.series.items()
    }
