"""Messages arrive equal, in order and exactly once, at the peers that they were put to."""

from __future__ import annotations

import ctypes
import pickle
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from netq.core import Communicator
from netq.errors import BufferMismatch, NotAllowed, SerializationError, Unreadable
from netq.options import SerializationOptions
from netq.testing.fixtures import LIMIT, Communicators, Make, introduce
from netq.utils.stream import BufferSerializer, BytesSerializer, PickleSerializer, Stream

_MANY = 10_000
_LARGE = 5 * 1024**2  # bytes: several chunks of the size below, the last of another size
_CHUNK = 2 * 1024**2


def check_echo(make: Make) -> None:
    """A message goes to the server and comes back."""
    with Communicators(make) as communicators:
        server = communicators.server()
        client = communicators.client(server.netloc)
        sent = {"text": "grüß dich", "numbers": [1, 2.5, None], "bytes": b"\0\xff"}
        client.put(sent).result(LIMIT)
        peer, data = server.get(timeout=LIMIT)
        assert (peer, data) == (client.id, sent), f"the server got {data!r} from {peer}"
        server.put(data, peer).result(LIMIT)
        assert client.get(timeout=LIMIT) == (server.id, sent)


def check_client_first(make: Make) -> None:
    """A client can start and put before its server starts."""
    with Communicators(make) as communicators:
        netloc = communicators.unused_address()
        client = communicators.client(netloc)
        future = client.put("early")
        server = communicators.server(netloc)
        assert server.get(timeout=LIMIT).data == "early"
        future.result(LIMIT)


def check_order(make: Make) -> None:
    """10,000 messages of 1 KiB come back in order, each once."""
    with Communicators(make) as communicators, ThreadPoolExecutor() as threads:
        server, client = communicators.pair()
        echo = threads.submit(_echo, server, _MANY)
        payload = bytes(1024)
        futures = [client.put((number, payload)) for number in range(_MANY)]
        got = [client.get(timeout=LIMIT).data for _ in range(_MANY)]
        assert [number for number, _ in got] == list(range(_MANY)), "out of order, lost or doubled"
        assert all(data == payload for _, data in got)
        echo.result(LIMIT)
        for future in futures:
            future.result(LIMIT)
        _assert_nothing_more(client)


def check_large_message(make: Make) -> None:
    """A large buffer is sent out of band; it arrives equal, as a writable view that is aligned to 64 bytes."""
    with Communicators(make) as communicators:
        server, client = communicators.pair(transport_size=_CHUNK)
        data = bytearray(range(256)) * (_LARGE // 256)
        future = client.put(pickle.PickleBuffer(data))
        got = memoryview(server.get(timeout=LIMIT).data)
        future.result(LIMIT)
        assert got.tobytes() == data, "other bytes came than were put"
        assert not got.readonly, "the buffer cannot be written to"
        got[0] ^= 0xFF
        assert got[0] != data[0], "the two ends share memory"


def check_empty_message(make: Make) -> None:
    """A message can be empty."""
    with Communicators(make) as communicators:
        server, client = _bytes_pair(communicators)
        client.put(b"").result(LIMIT)
        client.put(b"x").result(LIMIT)
        assert [server.get(timeout=LIMIT).data for _ in range(2)] == [b"", b"x"]


def check_bytes_serializer(make: Make) -> None:
    """Bytes, and all objects with a contiguous buffer, arrive as bytes."""
    with Communicators(make) as communicators:
        server, client = _bytes_pair(communicators)
        for data in (b"bytes", bytearray(b"bytearray"), memoryview(b"a view").cast("B"), bytes(300_000)):
            server.put(data, client.id)
            got = client.get(timeout=LIMIT).data
            assert type(got) is bytes
            assert got == bytes(data)


def check_own_serializer(make: Make) -> None:
    """A `dump` can return bytes, and a `load` can read the Stream as a file; put raises for another type."""
    own = SerializationOptions(load=lambda stream: (stream.readline(), stream.read()), dump=lambda text: text)
    with Communicators(make) as communicators:
        server = communicators.server(serialization=own)
        client = communicators.client(server.netloc, serialization=own)
        client.put(b"line\nand the rest")
        assert server.get(timeout=LIMIT).data == (b"line\n", b"and the rest")
        error = _put_error(client, "a str")
        assert "check_own_serializer.<locals>.<lambda> returned a str" in str(error)
        client.put(bytearray(b"x"))
        assert server.get(timeout=LIMIT).data == (b"x", b"")


def check_get_merge(make: Make) -> None:
    """With get_merge a message arrives as one buffer, else as several. A pickled buffer is aligned in both cases."""
    for merge in (True, False):
        counts: list[int] = []
        with Communicators(make) as communicators:

            def load(stream: Stream, counts: list[int] = counts) -> Any:
                counts.append(len(stream.buffers))
                return PickleSerializer().load(stream)

            server = communicators.server(get_merge=merge, serialization=SerializationOptions(load=load))
            client = communicators.client(server.netloc, transport_size=64 * 1024)
            data = bytes(range(256)) * 4096
            client.put(("odd", pickle.PickleBuffer(bytearray(data))))
            _, got = server.get(timeout=LIMIT).data
            assert got == data
            assert ctypes.addressof(ctypes.c_char.from_buffer(got)) % 64 == 0
            assert (counts[0] == 1) is merge, f"{counts[0]} buffers"
            del got


def check_get_into(make: Make) -> None:
    """`into` gets the buffers of a message, in order; if they do not fit, the error has the message."""
    with Communicators(make) as communicators:
        server, client = communicators.pair()
        for size in (100, 2 * 1024**2):
            sent = [bytes([number]) * (size + number) for number in range(3)]
            into = [bytearray(len(each)) for each in sent]
            client.put(("some", [pickle.PickleBuffer(each) for each in sent]))
            text, views = server.get(timeout=LIMIT, into=into).data
            assert text == "some"
            assert [bytes(each) for each in into] == sent, "the buffers have not what was put"
            into[0][0] = 0xFF
            assert memoryview(views[0])[0] == 0xFF, "the data is no view of the buffer"
            client.put(pickle.PickleBuffer(bytearray(sent[2])))
            error = _mismatch(server, bytearray(size))
            assert (error.peer, bytes(error.message.data)) == (client.id, sent[2])


def check_get_into_without_pickle(make: Make) -> None:
    """The bytes of a message go to the start of one buffer; a serialiser without `load_into` is refused in time."""
    with Communicators(make) as communicators:
        raw = SerializationOptions(load=BufferSerializer().load, dump=BufferSerializer().dump)
        server = communicators.server(serialization=raw)
        plain = SerializationOptions(load=BytesSerializer().load, dump=BytesSerializer().dump)
        client = communicators.client(server.netloc, serialization=plain)
        into = bytearray(2 * 1024**2)
        for size in (5, len(into)):
            client.put(b"x" * size)
            got = server.get(timeout=LIMIT, into=into).data
            assert got == b"x" * size == bytes(into[:size])
            server.put(got, client.id).result(LIMIT)
        try:
            client.get(timeout=LIMIT, into=into)
        except TypeError:
            assert client.get(timeout=LIMIT).data == b"xxxxx"
        else:
            raise AssertionError("expected TypeError")


def check_lanes(make: Make) -> None:
    """Each lane keeps its order."""
    with Communicators(make) as communicators:
        server, client = communicators.pair(transport_size=1000)
        sent = [(lane, number) for number in range(20) for lane in range(16)]
        for lane, number in sent:
            client.put((lane, number, bytes(500 * (16 - lane))), lane=lane)
        got = [server.get(timeout=LIMIT) for _ in sent]
        for lane in range(16):
            numbers = [message.data[1] for message in got if message.lane == lane]
            assert numbers == list(range(20)), f"lane {lane}: {numbers}"
        assert all(message.lane == message.data[0] for message in got)


def check_messages_without_order(make: Make) -> None:
    """With `lane=None` each message takes a lane from 8 to 15, and all arrive once; also those to several clients."""
    with Communicators(make) as communicators:
        server, client = communicators.pair(transport_size=1000)
        other = communicators.client(server.netloc)
        introduce(server, client, other)
        for number in range(100):
            client.put((number, bytes(100 * (number % 7))), lane=None)
            server.put((number, bytes(100 * (number % 5))), lane=None)
        for receiver in (server, client, other):
            got = [receiver.get(timeout=LIMIT) for _ in range(100)]
            assert sorted(message.data[0] for message in got) == list(range(100))
            assert {message.lane for message in got} <= set(range(8, 16))


def check_broadcast(make: Make) -> None:
    """A put without peers reaches every client; it is serialised once and has a future for each client."""
    dumped: list[Any] = []

    def dump(data: Any) -> Stream:
        dumped.append(data)
        return PickleSerializer().dump(data)

    with Communicators(make) as communicators:
        server = communicators.server(serialization=SerializationOptions(dump=dump))
        clients = [communicators.client(server.netloc) for _ in range(3)]
        introduce(server, *clients)
        future = server.put("to all")
        assert [client.get(timeout=LIMIT).data for client in clients] == ["to all"] * 3
        future.result(LIMIT)
        assert dumped == ["to all"], f"serialised {len(dumped)} times"
        assert {part.peer for part in future.futures} == {client.id for client in clients}
        assert all(part.done() for part in future.futures)


def check_put_to_some(make: Make) -> None:
    """A put with peers reaches these peers and no others."""
    with Communicators(make) as communicators:
        server = communicators.server()
        one, two, other = clients = [communicators.client(server.netloc) for _ in range(3)]
        introduce(server, *clients)
        future = server.put("to two", one.id, two.id)
        assert [part.peer for part in future.futures] == [one.id, two.id]
        future.result(LIMIT)
        server.put("to all")
        assert [one.get(timeout=LIMIT).data, two.get(timeout=LIMIT).data] == ["to two"] * 2
        assert other.get(timeout=LIMIT).data == "to all"


def check_put_without_clients(make: Make) -> None:
    """A put of a server without clients is done at once."""
    with Communicators(make) as communicators:
        communicators.server().put("to no client").result(LIMIT)


def check_unreadable(make: Make) -> None:
    """A message that cannot be loaded raises Unreadable with its peer; the next get returns the next message."""
    with Communicators(make) as communicators:
        server = communicators.server()
        client = communicators.client(server.netloc, serialization=SerializationOptions(dump=BytesSerializer().dump))
        client.put(b"no pickle at all, for any reader")
        client.put(bytes(PickleSerializer().dump("good")))
        assert _get_error(server).peer == client.id
        assert server.get(timeout=LIMIT).data == "good"


def check_not_allowed(make: Make) -> None:
    """A message that names a global that `allow` refuses raises Unreadable, and is not loaded."""
    with Communicators(make) as communicators:
        allowed = PickleSerializer(allow=PickleSerializer.allow_by_name("uuid.UUID"))
        server = communicators.server(serialization=SerializationOptions(load=allowed.load))
        client = communicators.client(server.netloc)
        client.put(Communicators)
        client.put(uuid.UUID(int=7))
        error = _get_error(server)
        assert isinstance(error, NotAllowed)
        assert error.peer == client.id
        assert server.get(timeout=LIMIT).data == uuid.UUID(int=7)


def check_load_fails(make: Make) -> None:
    """Every error of the user's `load` is raised by get as Unreadable, with its peer."""

    def load(stream: Stream) -> Any:
        if bytes(stream) == b"bad":
            raise KeyError("a bug")
        return bytes(stream)

    with Communicators(make) as communicators:
        server = communicators.server(serialization=SerializationOptions(load=load))
        client = communicators.client(server.netloc, serialization=SerializationOptions(dump=BytesSerializer().dump))
        client.put(b"bad")
        client.put(b"good")
        error = _get_error(server)
        assert error.peer == client.id
        assert isinstance(error.__cause__, KeyError)
        assert server.get(timeout=LIMIT).data == b"good"


def _echo(communicator: Communicator, count: int) -> None:
    for _ in range(count):
        peer, data = communicator.get(timeout=LIMIT)
        communicator.put(data, peer)


def _bytes_pair(communicators: Communicators) -> tuple[Communicator, Communicator]:
    plain = SerializationOptions(load=BytesSerializer().load, dump=BytesSerializer().dump)
    server = communicators.server(serialization=plain)
    client = communicators.client(server.netloc, serialization=plain)
    client.put(b"hello")
    assert server.get(timeout=LIMIT).data == b"hello"
    return server, client


def _put_error(communicator: Communicator, data: object) -> SerializationError:
    try:
        communicator.put(data)
    except SerializationError as error:
        return error
    raise AssertionError("expected SerializationError")


def _get_error(communicator: Communicator) -> Unreadable:
    try:
        message = communicator.get(timeout=LIMIT)
    except Unreadable as error:
        return error
    raise AssertionError(f"expected Unreadable, got {message}")


def _mismatch(communicator: Communicator, into: bytearray) -> BufferMismatch:
    try:
        message = communicator.get(timeout=LIMIT, into=into)
    except BufferMismatch as error:
        return error
    raise AssertionError(f"expected BufferMismatch, got {message}")


def _assert_nothing_more(communicator: Communicator) -> None:
    try:
        message = communicator.get(timeout=0)
    except TimeoutError:
        return
    raise AssertionError(f"one message too many: {message}")


CHECKS = (
    check_echo,
    check_client_first,
    check_order,
    check_large_message,
    check_empty_message,
    check_bytes_serializer,
    check_own_serializer,
    check_get_merge,
    check_get_into,
    check_get_into_without_pickle,
    check_lanes,
    check_messages_without_order,
    check_broadcast,
    check_put_to_some,
    check_put_without_clients,
    check_unreadable,
    check_not_allowed,
    check_load_fails,
)
