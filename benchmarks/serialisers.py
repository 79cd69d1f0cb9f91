"""Serialisers compared, and types of bytes: `python -m benchmarks.serialisers [SECONDS [MIB]]`, 0.5 and 128 by default.

Prints a table for each kind of message: its bytes, the time of `dump` and `load`, and the round trips a second over TCP
to a process that loads each message and dumps it again, SECONDS for each figure. A time is the least of five means.
Protobuf dumps messages that are already made, with arrays as bytes, which is all it can send; the others dump dicts, or
instances of a class.

The last table says how fast an object of MIB goes to another process, whose `get` returns it with the type that it had:
the median of five rounds, each with all types. The clock stops when a small answer is back. pyzmq sends and loads the
same objects with `send_pyobj` and `recv_pyobj`.
"""

from __future__ import annotations

import array
import pickle
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np
import zmq
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import netq
from benchmarks.child import LIMIT, local, serving
from netq.bench.output import markdown
from netq.options import SerializationOptions
from netq.utils.msgpack import MsgpackSerializer
from netq.utils.protobuf import ProtobufSerializer
from netq.utils.stream import PickleSerializer, Stream

MIB = 1024**2
_ROUNDS = 5


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
    """Return the kinds of messages that serialisers are compared with."""
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


def values(size: int) -> dict[str, Any]:
    """Return objects of `size` bytes, by the title of their type."""
    import torch  # takes seconds; most of the processes that import this module do without

    numbers = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    content, tenth = numbers.tobytes(), size // 10
    return {
        "array of numpy": numbers,
        "bytes": content,
        "bytearray": bytearray(content),
        "pickle.PickleBuffer": pickle.PickleBuffer(content),
        "array.array": array.array("B", content),
        "dict of ten bytes": {str(part): content[part * tenth : (part + 1) * tenth] for part in range(10)},
        "dict of ten arrays": {str(part): numbers[part * tenth : (part + 1) * tenth] for part in range(10)},
        "tensor of torch": torch.from_numpy(numbers),
    }


def main(seconds: float = 0.5, mib: float = 128) -> None:
    """Print the tables."""
    for case in cases():
        rows = [[case.title, "bytes", "dump, µs", "load, µs", "round trips/s, TCP"]]
        for title, (serialiser, value) in serialisers(case).items():
            content = bytes(serialiser.dump(value))
            stream = Stream([Stream([content]).contiguous()])  # aligned and writable, as a message that has arrived
            times = [best(lambda: serialiser.dump(value), seconds), best(lambda: serialiser.load(stream), seconds)]  # noqa: B023
            rate = round_trips(case.title, title, serialiser, value, seconds)
            rows.append([title, f"{len(content):,}", *(f"{1e6 * each:,.1f}" for each in times), f"{rate:,.0f}"])
        print("\n".join(markdown(rows)), end="\n\n", flush=True)
    print("\n".join(types(round(mib))))


def best(call: Callable[[], Any], seconds: float) -> float:
    """Return the seconds of a call: the least of several means, which together take `seconds`."""
    clock = time.perf_counter
    begin = clock()
    call()
    count = max(1, int(seconds / _ROUNDS / max(clock() - begin, 1e-7)))
    means = []
    for _ in range(_ROUNDS):
        begin = clock()
        for _ in range(count):
            call()
        means.append((clock() - begin) / count)
    return min(means)


def round_trips(case: str, title: str, serialiser: Any, value: Any, seconds: float) -> float:
    """Return the round trips a second with an echo in another process, one after the other."""
    with serving(echo, case, title) as port, netq.new("tcp", "client", local(port, _with(serialiser))) as queue:
        for _ in range(3):
            queue.put(value)
            queue.get(timeout=LIMIT)
        begin, count = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            queue.put(value)
            queue.get(timeout=LIMIT)
            count += 1
        return count / (time.perf_counter() - begin)


def types(mib: int) -> list[str]:
    """Return the table of types of bytes."""
    sent = values(mib * MIB)
    with serving(take) as port, netq.new("tcp", "client", local(port, _with(PickleSerializer()))) as queue:
        ours = _rounds(queue.put, lambda: queue.get(timeout=LIMIT), sent)
    with serving(take_from_zmq) as port, zmq.Context() as context, context.socket(zmq.REQ) as socket:
        socket.connect(f"tcp://127.0.0.1:{port}")
        theirs = _rounds(lambda value: socket.send_pyobj(value, protocol=5), socket.recv, sent)
    rows = [[f"{mib} MiB", "netq, GB/s", "× array", "put, ms", "pyzmq, GB/s"]]
    for title, (whole, put) in ours.items():
        peer = f"{mib * MIB / theirs[title][0] / 1e9:.2f}" if title in theirs else "cannot"
        ratio = ours["array of numpy"][0] / whole
        rows.append([title, f"{mib * MIB / whole / 1e9:.2f}", f"{ratio:.2f}", f"{1000 * put:.1f}", peer])
    return markdown(rows)


def _rounds(
    put: Callable[[Any], object], answer: Callable[[], object], sent: dict[str, Any]
) -> dict[str, tuple[float, float]]:
    """Return the median seconds until the answer, and of the call that sends, for each type that can be sent."""
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(1 + _ROUNDS):
        for title, value in sent.items():
            begin = time.perf_counter()
            try:
                put(value)
            except TypeError:  # pickle.PickleBuffer needs a protocol that send_pyobj does not take
                continue
            middle = time.perf_counter()
            answer()
            found.setdefault(title, []).append((time.perf_counter() - begin, middle - begin))
    medians = {
        title: [statistics.median(each) for each in zip(*times[1:], strict=True)] for title, times in found.items()
    }
    return {title: (whole, put) for title, (whole, put) in medians.items()}


def echo(case: str, title: str) -> None:
    """Send each message of one client back, until it closes."""
    (chosen,) = [each for each in cases() if each.title == case]
    _serve(serialisers(chosen)[title][0], lambda data: data)


def take() -> None:
    """Answer each message of one client, until it closes."""
    _serve(PickleSerializer(), lambda data: None)


def _serve(serialiser: Any, answer: Callable[[Any], Any]) -> None:
    with netq.new("tcp", "server", local(0, _with(serialiser))) as queue:
        print(queue.netloc.port, flush=True)
        peer, data = queue.get()
        try:
            while True:
                queue.put(answer(data), peer)
                del data
                data = queue.get(peer).data
        except netq.Closed:
            pass


def take_from_zmq() -> None:
    """Answer each message, until the process is killed."""
    with zmq.Context() as context, context.socket(zmq.REP) as socket:
        print(socket.bind_to_random_port("tcp://127.0.0.1"), flush=True)
        while True:
            pickle.loads(socket.recv())
            socket.send(b"")


def _with(serialiser: Any) -> SerializationOptions:
    return SerializationOptions(load=serialiser.load, dump=serialiser.dump)


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
