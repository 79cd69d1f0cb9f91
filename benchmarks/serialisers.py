"""Serialisers compared: `python -m benchmarks.serialisers [SECONDS]`, 0.5 for each figure by default.

Prints a table for each kind of message: its bytes, the time of `dump` and `load`, and the round trips a second over TCP
to a process that loads each message and dumps it again. A time is the least of five means. Protobuf dumps messages that
are already made, with arrays as bytes, which is all it can send; the others dump dicts, or instances of a class.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import netq
from benchmarks.table import align
from netq.utils.msgpack import MsgpackSerializer
from netq.utils.protobuf import ProtobufSerializer
from netq.utils.stream import PickleSerializer, Stream

MIB = 1024**2
_REPEATS = 5
_LIMIT = 30.0  # seconds; a round trip takes less than one


class Record(msgspec.Struct):
    """A small message."""

    round: int
    loss: float
    client: str
    ok: bool
    tags: list[str]


class Case(NamedTuple):
    """A kind of message: plain, as an instance of a class, and of protobuf; and the class for msgspec."""

    title: str
    plain: Any
    typed: Any
    type: Any
    proto: Any


def cases() -> list[Case]:
    record, records, model = _proto_classes()
    plain: dict[str, Any] = {"round": 3, "loss": 0.5, "client": "board-7", "ok": True, "tags": ["arm", "camera"]}
    thousand = [plain | {"round": number} for number in range(1000)]
    arrays = {f"layer{number}": np.full(MIB // 4, number, np.float32) for number in range(10)}
    named = [{"name": name, "shape": array.shape, "data": array.tobytes()} for name, array in arrays.items()]
    typed = [Record(**each) for each in thousand]
    return [
        Case("a small dict", plain, Record(**plain), Record, record(**plain)),
        Case("a list of 1,000 records", thousand, typed, list[Record], records(records=thousand)),
        Case("a dict of 10 arrays of 1 MiB", arrays, arrays, dict[str, np.ndarray], model(arrays=named)),
    ]


def _proto_classes() -> list[Any]:
    """Return the classes of three messages, as protoc would make them."""
    file = descriptor_pb2.FileDescriptorProto(name="benchmark.proto", package="benchmark", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    repeated = kinds.LABEL_REPEATED
    _add(file, "Record", ("round", kinds.TYPE_INT64), ("loss", kinds.TYPE_DOUBLE), ("client", kinds.TYPE_STRING),
         ("ok", kinds.TYPE_BOOL), ("tags", kinds.TYPE_STRING, repeated))  # fmt: skip
    _add(file, "Records", ("records", kinds.TYPE_MESSAGE, repeated, ".benchmark.Record"))
    _add(file, "Array", ("name", kinds.TYPE_STRING), ("shape", kinds.TYPE_INT64, repeated), ("data", kinds.TYPE_BYTES))
    _add(file, "Model", ("arrays", kinds.TYPE_MESSAGE, repeated, ".benchmark.Array"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return [
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"benchmark.{name}"))
        for name in ("Record", "Records", "Model")
    ]


def _add(file: Any, name: str, *fields: Any) -> None:
    message = file.message_type.add(name=name)
    for number, (field, kind, *more) in enumerate(fields, 1):
        label = more[0] if more else 1  # LABEL_OPTIONAL
        message.field.add(name=field, number=number, type=kind, label=label, type_name=more[1] if more[1:] else None)


def serialisers(case: Case) -> dict[str, tuple[Any, Any]]:
    """Return, by title, a serialiser and what it dumps."""
    allowed = PickleSerializer.allow_by_name("numpy")
    return {
        "pickle": (PickleSerializer(), case.plain),
        "pickle with `allow`": (PickleSerializer(allowed), case.plain),
        "msgpack": (MsgpackSerializer(), case.plain),
        "msgpack with a type": (MsgpackSerializer(case.type), case.typed),
        "protobuf": (ProtobufSerializer(type(case.proto)), case.proto),
    }


def main(seconds: float = 0.5) -> None:
    for case in cases():
        rows = [[case.title, "bytes", "dump, µs", "load, µs", "round trips/s, TCP"], ["---"] * 5]
        for title, (serialiser, value) in serialisers(case).items():
            content = bytes(serialiser.dump(value))
            stream = Stream([Stream([content]).contiguous()])  # aligned and writable, as a message that has arrived
            times = [best(lambda: serialiser.dump(value), seconds), best(lambda: serialiser.load(stream), seconds)]  # noqa: B023
            rate = round_trips(case.title, title, serialiser, value, seconds)
            rows.append([title, f"{len(content):,}", *(f"{1e6 * each:,.1f}" for each in times), f"{rate:,.0f}"])
        print("\n".join(align(rows)), end="\n\n", flush=True)


def best(call: Callable[[], Any], seconds: float) -> float:
    """Return the seconds of a call: the least of several means, which together take `seconds`."""
    clock = time.perf_counter
    begin = clock()
    call()
    count = max(1, int(seconds / _REPEATS / max(clock() - begin, 1e-7)))
    means = []
    for _ in range(_REPEATS):
        begin = clock()
        for _ in range(count):
            call()
        means.append((clock() - begin) / count)
    return min(means)


def round_trips(case: str, title: str, serialiser: Any, value: Any, seconds: float) -> float:
    """Return the round trips a second with an echo in another process, one after the other."""
    with _echo(case, title) as port, netq.new("tcp", "client", _options(serialiser, port)) as queue:
        for _ in range(3):
            queue.put(value)
            queue.get(timeout=_LIMIT)
        begin, count = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            queue.put(value)
            queue.get(timeout=_LIMIT)
            count += 1
        return count / (time.perf_counter() - begin)


@contextmanager
def _echo(case: str, title: str) -> Iterator[int]:
    command = [sys.executable, "-m", "benchmarks.serialisers", case, title]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())


def echo(case: str, title: str) -> None:
    """Send each message of one client back, until it closes."""
    (chosen,) = [each for each in cases() if each.title == case]
    serialiser, _ = serialisers(chosen)[title]
    with netq.new("tcp", "server", _options(serialiser, 0)) as queue:
        print(queue.netloc.port, flush=True)
        peer, data = queue.get()
        try:
            while True:
                queue.put(data, peer)
                data = queue.get(peer).data
        except netq.Closed:
            pass


def _options(serialiser: Any, port: int) -> netq.CommunicatorOptions:
    return netq.CommunicatorOptions(
        netloc=netq.NetworkLocation("127.0.0.1", port),
        serialization=netq.SerializationOptions(load=serialiser.load, dump=serialiser.dump),
    )


if __name__ == "__main__":
    if len(sys.argv) > 2:
        echo(*sys.argv[1:])
    else:
        main(*map(float, sys.argv[1:]))
