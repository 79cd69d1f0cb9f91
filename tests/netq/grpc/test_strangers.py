"""Clients of gRPC that do not speak netq: their stream ends, and netq's clients are served meanwhile."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from netq.grpc._grpc import grpc
from netq.grpc.channel_options import LIMIT as LARGEST
from netq.grpc.channel_options import METHOD
from netq.protocol.wire import Frame, FrameKind, Greeting
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.log import LogRecorder

pytestmark = pytest.mark.slow

INI = Greeting(uuid.UUID(int=99), bytes(16), 2**40, 2**20, 10_000).frame().whole()


@contextmanager
def kept_open(packets: list[bytes]) -> Iterator[Iterator[bytes]]:
    """An iterator of these packets for grpc, which does not end until the block does."""
    over = threading.Event()

    def sending() -> Iterator[bytes]:
        yield from packets
        over.wait(LIMIT)

    try:
        yield sending()
    finally:
        over.set()


@pytest.mark.parametrize(
    ("packets", "complaint"),
    [
        pytest.param([], "no greeting within 0.3 s", marks=pytest.mark.slow),
        pytest.param([INI[:50]], "no greeting within 0.3 s", marks=pytest.mark.slow),
        pytest.param([b""] * 3, "no greeting within 0.3 s", marks=pytest.mark.slow),
        ([b"hello, is this the weather service?"], "no frame of netq, it begins with"),
        ([bytes(LARGEST)], "no frame of netq, it begins with"),
        ([Frame(FrameKind.PING).whole()], "PING in state OPENING"),
        ([Frame(FrameKind.MSG, length=2**31, number=1, value=2**62).whole()], "MSG in state OPENING"),
        ([INI + INI], "INI in state GREETED"),
    ],
    ids=["nothing", "half a greeting", "empty", "text", "zeros", "ping", "bomb", "two greetings"],
)
def test_stream_without_netq_is_logged_in_one_line(
    communicators: Communicators, log: LogRecorder, packets: list[bytes], complaint: str
) -> None:
    server = communicators.server(handshake_timeout=0.3 if complaint.endswith("within 0.3 s") else LIMIT)
    with grpc.insecure_channel("{}:{}".format(*server.netloc)) as channel:
        with kept_open(packets) as sending:
            answers = channel.stream_stream(METHOD)(sending, timeout=LIMIT)
            line = log.wait(complaint)
            assert line.startswith("127.0.0.1:")
            heard = b"".join(answers)  # to the end of the stream, which is in order
        assert answers.code() is grpc.StatusCode.OK
        assert complaint.encode() in heard, "it is told why"
    introduce(server, communicators.client(server.netloc))
    assert len(log.having(line.split()[0])) == 1


def test_packet_beyond_the_limit_is_refused(communicators: Communicators, log: LogRecorder) -> None:
    server = communicators.server()
    with grpc.insecure_channel("{}:{}".format(*server.netloc)) as channel:
        answers = channel.stream_stream(METHOD)(iter([bytes(LARGEST + 1)]), timeout=LIMIT)
        with pytest.raises(grpc.RpcError):
            list(answers)
    assert "larger than any of netq" in log.wait("the connection was closed") or log.having("the peer hung up")
    introduce(server, communicators.client(server.netloc))


def test_other_methods_are_refused(communicators: Communicators) -> None:
    server = communicators.server()
    with grpc.insecure_channel("{}:{}".format(*server.netloc)) as channel:
        answers = channel.stream_stream("/netq.Queue/Other")(iter([]), timeout=LIMIT)
        with pytest.raises(grpc.RpcError):
            list(answers)
        assert answers.code() is grpc.StatusCode.UNIMPLEMENTED


def test_close_does_not_wait_for_unknown_clients(communicators: Communicators, log: LogRecorder) -> None:
    server = communicators.server()
    with grpc.insecure_channel("{}:{}".format(*server.netloc)) as channel, kept_open([INI[:10]]) as sending:
        answers = channel.stream_stream(METHOD)(sending, timeout=LIMIT)
        next(iter(answers.initial_metadata()), None)  # it is there
        introduce(server, client := communicators.client(server.netloc))
        client.close(LIMIT)
        start = time.monotonic()
        assert server.close(LIMIT) == 0
        assert time.monotonic() - start < 5.0
        assert log.wait("the server is closing")
        assert b"the server is closing" in b"".join(answers)
