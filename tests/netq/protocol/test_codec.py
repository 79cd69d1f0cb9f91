"""The compiled codec behaves as netq/protocol/codec.py does, and leaks no memory."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import struct
import subprocess
import sys
import sysconfig
import uuid
from collections import deque
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from netq.options import ConnectionOptions
from netq.protocol import codec
from netq.protocol.memory import Memory
from netq.protocol.session import Session
from netq.protocol.wire import OVERHEAD
from netq.utils.stream import Stream
from tests.netq.codecs import PYTHON

PEER = uuid.UUID(int=1)
HEADER = struct.Struct("<BBHIQQ")
compiled_is_missing = codec.take.__module__ != "netq.protocol._codec"
needs_compiled = pytest.mark.skipif(
    compiled_is_missing, reason="the compiled codec is not in use: NETQ_PURE is set, or it is not built"
)


def compiled() -> ModuleType:
    """Return netq/protocol/codec.py, with the compiled replacements."""
    return codec


@pytest.mark.skipif(bool(os.environ.get("NETQ_PURE")), reason="NETQ_PURE is set")
def test_codec_is_compiled_where_a_compiler_exists() -> None:
    header = Path(sysconfig.get_path("include"), "Python.h")
    if shutil.which("cc") is None or not header.exists():
        pytest.skip("there is no C compiler, or no Python.h")
    assert not compiled_is_missing, "make setup compiles netq/protocol/_codec.c"


def test_netq_pure_selects_python() -> None:
    show = "from netq.protocol import codec; print(codec.take.__module__, codec.Outgoing.__base__.__name__)"
    environment = {**os.environ, "NETQ_PURE": "1"}
    printed = subprocess.check_output([sys.executable, "-c", show], text=True, env=environment)
    assert printed.split() == ["netq.protocol.codec", "object"]


def frame(kind: int, flags: int, lane: int, number: int, value: int, body: bytes, length: int | None = None) -> bytes:
    return HEADER.pack(kind, flags, lane, len(body) if length is None else length, number, value) + body


NUMBERS = st.sampled_from([0, 1, 2, 3, 4, 5, 6, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1])
ODD_FRAMES = st.builds(
    frame,
    kind=st.integers(0, 8),
    flags=st.sampled_from([0, 0, 0, 1, 255]),
    lane=st.sampled_from([0, 1, 15, 16, 65535]),
    number=NUMBERS,
    value=NUMBERS,
    body=st.binary(max_size=80),
    length=st.sampled_from([None, None, 0, 1, 4096, 4097, 2**32 - 1]),
)
MESSAGES = st.builds(lambda lane, body: ("message", lane, body), st.sampled_from([0, 0, 0, 1]), st.binary(max_size=60))
ACKS = st.builds(lambda lane, number, limit: frame(3, 0, lane, number, limit, b""), st.integers(0, 2), NUMBERS, NUMBERS)


def wire(pieces: list[Any]) -> bytes:
    """Return the pieces, with the right numbers for messages."""
    numbers = [1] * 2
    data = b""
    for piece in pieces:
        if isinstance(piece, tuple):
            _, lane, body = piece
            data += frame(2, 0, lane, numbers[lane], len(body), body)
            numbers[lane] += 1
        else:
            data += piece
    return data


def conversation(module: ModuleType, sent: int) -> tuple[Session, list[Any]]:
    """Return a session that has sent some messages on lane 0, and these."""
    session = Session(b"token", ConnectionOptions(window=1000), Memory())
    session.peer = PEER
    for lane in (0, 1):
        session._receiver(lane)
    sender = session.senders[0] = session._sender(0)
    sender.limit = 10**6
    messages = [module.Outgoing(bytes(size)) for size in range(sent)]
    module.batch(sender, [], 4096, 10**6, deque(messages))
    return session, messages


def seen(session: Session, messages: list[Any]) -> list[object]:
    """All that `take` may change."""
    receivers = session.receivers.values()
    return [
        [(peer, data, receiver.lane, mark) for peer, data, receiver, mark in session.arrived],
        [(r.held, r.start, r.limit, r.partial) for r in receivers],
        list(session.owed),
        (session.messages_in, session.bytes_in, session.messages_out, session.bytes_out),
        [(len(s.sent), s.limit, s.number, s.next) for s in session.senders.values()],
        [(len(message.data), message.held) for message in messages],
    ]


@pytest.mark.slow
@needs_compiled
@settings(max_examples=300)
@given(
    pieces=st.lists(MESSAGES | MESSAGES | ACKS | ODD_FRAMES, max_size=12),
    sent=st.integers(0, 5),
    cut=st.integers(0, 60),
    low=st.integers(0, 3),
)
@example(pieces=[frame(2, 0, 0, 1, 0, b"")], sent=0, cut=0, low=0)
@example(pieces=[("message", 0, bytes(1000)), ("message", 0, b"beyond")], sent=0, cut=0, low=0)
@example(pieces=[frame(2, 0, 0, 1, 9, b"a part")], sent=0, cut=0, low=0)
@example(pieces=[("message", 1, b""), ("message", 0, b""), ("message", 1, b"")], sent=0, cut=0, low=0)
def test_both_codecs_take_alike(pieces: list[Any], sent: int, cut: int, low: int) -> None:
    data = bytes(low) + wire(pieces)
    high = max(low, len(data) - cut)
    results = []
    for module in (PYTHON, compiled()):
        session, messages = conversation(module, sent)
        stop = module.take(session, memoryview(bytearray(data)), low, high)
        results.append([stop, *seen(session, messages)])
    assert results[0] == results[1]


@pytest.mark.slow
@needs_compiled
@settings(max_examples=200)
@given(
    sizes=st.lists(st.integers(0, 60), max_size=10),
    lanes=st.lists(st.sampled_from([0, 0, 0, 0, 1]), min_size=10, max_size=10),
    withdrawn=st.sets(st.integers(0, 9), max_size=2),
    watched=st.sets(st.integers(0, 9)),
    streams=st.sets(st.integers(0, 9)),
    small=st.integers(0, 70),
    limit=st.integers(-5, 600),
    window=st.sampled_from([0, 1, 300, 1000, 10**6, 2**63 - 1, 2**64 - 1]),
    number=st.integers(0, 12),
)
def test_both_codecs_send_and_settle_alike(
    sizes: list[int],
    lanes: list[int],
    withdrawn: set[int],
    watched: set[int],
    streams: set[int],
    small: int,
    limit: int,
    window: int,
    number: int,
) -> None:
    results = []
    for module in (PYTHON, compiled()):
        session = Session(b"token", ConnectionOptions(), Memory())
        sender = session._sender(0)
        sender.limit = window
        messages = []
        for n, size in enumerate(sizes):
            body = bytes([n]) * size
            halves = Stream([body[: size // 2], body[size // 2 :]])
            messages.append(module.Outgoing(halves if n in streams else body, lanes[n]))
            messages[-1].watched = n in watched
            if n in withdrawn:
                messages[-1].withdraw()
        source, out = deque(messages), list[Any]()
        size = module.batch(sender, out, small, limit, source)
        joined = b"".join(out)
        left = [(m.number, m.start, m.stop, m.left, m.size, m.lane, m.withdrawn) for m in messages]
        for message in messages[1:2]:
            message.withdraw()
        settled = module.settle(sender.sent, number)
        rest = [(len(m.data), m.held) for m in messages]
        results.append([size, joined, left, settled, rest, len(source), len(sender.sent), sender.next, sender.number])
    assert results[0] == results[1]


@needs_compiled
def test_acked_is_called_for_watched_message_only() -> None:
    for module in (PYTHON, compiled()):
        told: list[object] = []

        class Message(module.Outgoing):  # type: ignore[name-defined, misc]
            def acked(self) -> None:
                told.append(self)  # noqa: B023

        plain, watched = Message(b"a"), Message(b"b")
        watched.watched = True
        sent = deque([plain, watched])
        assert module.settle(sent, 0) == (2, 2)
        assert (told, plain.held, plain.data, not sent) == ([watched], True, b"", True)


@needs_compiled
def test_error_in_acked_is_raised_and_message_stays() -> None:
    for module in (PYTHON, compiled()):

        class Message(module.Outgoing):  # type: ignore[name-defined, misc]
            def acked(self) -> None:
                raise ZeroDivisionError

        sent = deque([Message(b"a")])
        sent[0].watched = True
        with pytest.raises(ZeroDivisionError):
            module.settle(sent, 1)
        assert len(sent) == 1


@needs_compiled
def test_outgoing_has_the_same_attributes() -> None:
    both = [{n for n in dir(m.Outgoing(b"")) if not n.startswith("__")} for m in (PYTHON, compiled())]
    assert both[0] == both[1]
    assert compiled().Outgoing(b"", 2**40).lane == 2**40
    for module in (PYTHON, compiled()):
        message = module.Outgoing(Stream([b"ab", b"c"]), lane=3, audience=(PEER,))
        assert (message.size, message.lane, message.audience) == (3, 3, (PEER,))
        assert (message.number, message.start, message.stop) == (0, 0, 3 + OVERHEAD)
        states = (message.withdrawn, message.left, message.waits, message.held, message.watched)
        assert states == (False, False, False, False, False)
        assert message.fail(ValueError()) is True
        assert message.data == b""


SENDER = SimpleNamespace(next=1, _position=0, limit=10**6, lane=0, sent=deque())


def compiled_message(*, empty: bool = False) -> Any:
    """Return a message of the compiled codec, or something that is not one where there is none."""
    if compiled_is_missing:
        return None
    kind = compiled().Outgoing
    return kind.__new__(kind) if empty else kind(b"a")


@needs_compiled
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("Outgoing", ()),
        ("Outgoing", (7,)),
        ("Outgoing", (b"", "lane")),
        ("Outgoing", (b"", 0, (), 1)),
        ("batch", (SimpleNamespace(), [], 1, 1, deque())),
        ("batch", (SimpleNamespace(next=1, _position=0, limit=9, lane=0, sent=deque()), [], 1, 1, deque([7]))),
        ("batch", (SimpleNamespace(next=-1, _position=0, limit=9, lane=0, sent=deque()), [], 1, 1, deque())),
        ("batch", (SENDER, [], 4096, 10**6, deque([compiled_message(), 7]))),
        ("batch", (SENDER, [], 4096, 10**6, deque([compiled_message(empty=True)]))),
        ("settle", (deque([7]), 1)),
        ("settle", (7, 1)),
        ("take", (SimpleNamespace(), bytes(24), 0, 24)),
        ("take", (conversation(PYTHON, 0)[0], b"short", 0, 24)),
        ("take", (conversation(PYTHON, 0)[0], "text", 0, 24)),
    ],
)
def test_bad_arguments_raise_instead_of_crashing(name: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises((TypeError, AttributeError, ValueError, OverflowError)):
        getattr(compiled(), name)(*arguments)


def errors_of(module: ModuleType, data: memoryview) -> None:
    """Let each function fail, at each place where it holds something."""
    message = module.Outgoing(b"a")
    sender = {"next": 1, "_position": 0, "limit": 10**6, "lane": 0, "sent": deque(), "number": 1}
    receiver = {"parts": [], "claimed": 0, "held": 0, "start": 0, "limit": 10**6, "cancelled": 0}
    session = {"peer": PEER, "small": 100, "arrived": deque(), "owed": {}, "receivers": {}, "senders": {}}
    session["receivers"] = {0: SimpleNamespace(**receiver)}
    for name in sender:
        with contextlib.suppress(AttributeError):
            fields = {key: value for key, value in sender.items() if key != name}
            module.batch(
                SimpleNamespace(**fields), [], 4096, 10**6, deque([module.Outgoing(b"a"), module.Outgoing(b"")])
            )
    for name in session:
        with pytest.raises((AttributeError, KeyError)):
            module.take(SimpleNamespace(**{key: value for key, value in session.items() if key != name}), data, 24, 200)
    for name in receiver:
        fields = {key: value for key, value in receiver.items() if key != name}
        with pytest.raises(AttributeError):
            module.take(SimpleNamespace(**session | {"receivers": {0: SimpleNamespace(**fields)}}), data, 24, 200)
    for queue in (deque([7]), deque([message, 7])):
        with pytest.raises((TypeError, AttributeError)):
            module.settle(queue, 1)
    for arguments in ((), (7,), (b"", "lane")):
        with pytest.raises((TypeError, AttributeError)):
            module.Outgoing(*arguments)


class Cycle(codec.Outgoing):
    me: Cycle


class Kept(Stream):
    owner: codec.Outgoing


@needs_compiled
@pytest.mark.usefixtures("own_garbage")
def test_codec_leaks_no_references() -> None:
    data = memoryview(wire([frame(3, 0, 0, 3, 10**6, b"")] + [("message", n % 2, bytes(20)) for n in range(10)]))

    def once() -> None:
        module = compiled()
        session, messages = conversation(module, 5)
        messages[1].watched = True
        cycle, stream = Cycle(Stream([b"12"])), Kept([b"1", b"2"])
        cycle.me = cycle
        stream.owner = module.Outgoing(stream)
        module.batch(session.senders[0], [], 4096, 10**6, deque([stream.owner]))
        session.senders[0].sent.pop()
        module.take(session, data, 0, len(data))
        assert [message.held for message in messages] == [True, True, True, False, False]
        errors_of(module, data)

    def held() -> list[int]:
        return [sys.getrefcount(lasting) for lasting in (PEER, data, codec.Outgoing, b"", (), None, 0, 1)]

    blocks, counts = list[int](), list[list[int]]()
    for _ in range(6):
        for _ in range(50):
            once()
        gc.collect()
        blocks.append(sys.getallocatedblocks())
        counts.append(held())
    assert blocks[-1] - blocks[2] < 100, blocks
    assert all(abs(now - then) < 50 for now, then in zip(counts[-1], counts[2], strict=True)), counts
