"""The control messages between the two sides of a bench.

A control message is a tuple of numbers and strings; the first item is its kind. A measured message is bytes or a
buffer, never a tuple. The serializer refuses every class, so no message runs code.

| from | tuple | |
|---|---|---|
| server | "hello", VERSION, facts | first message of a session, also after a restart of the server |
| client | "transfer", direction, pairs, seed | messages of a Plan: "up" to the server, "down", "both" at once |
| client | "echo", size | the server puts each message back until "end" |
| server | "ready" | memory is allocated, and the server's meter runs |
| server | "refused", why | in place of "ready"; or after a wrong message, and then the server ignores the client |
| client | "go" | a transfer begins |
| client | "end" | no more echoes |
| server | "done", messages, bytes, cpu, resident, extra | what arrived at the server, and its Usage |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from netq.bench.plan import LARGEST, MOST_SIZES, Plan, about, format_size
from netq.bench.resources import Facts, Usage, facts, free_memory
from netq.options import SerializationOptions
from netq.text import printable
from netq.utils.stream import PickleSerializer

VERSION = 3  # of this protocol; both sides need the same
DIRECTIONS = ("up", "down", "both")
HEAD = 64 * 1024  # bytes that a message may have in addition to its payload
_SMALLER = "ask for smaller messages (--size; of iops and sweep --max-size)"
_LONGEST = 250  # characters of a peer's text in an error
_MOST = 2**62  # bytes, nanoseconds or messages that a peer may report


class BenchError(Exception):
    """The bench cannot go on. The text is one line for the user."""


class RefusedByServer(BenchError):
    """The server does not do what was asked, and ignores this client from now on."""


class Unexpected(BenchError):
    """The peer sent a message that the protocol does not allow now."""

    def __init__(self, data: Any) -> None:
        named = type(data) is tuple and len(data) > 0 and type(data[0]) is str
        what = f'"{printable(data[0][:_LONGEST])}"' if named else f"a {type(data).__name__}"
        super().__init__(f"the peer sent {what}, which was not due: was it started anew?")


class Counted(NamedTuple):
    """Messages that have arrived, and their bytes."""

    messages: int
    nbytes: int


class Done(NamedTuple):
    """The server's last message about a transfer or echoes."""

    counted: Counted
    usage: Usage


def serialization() -> SerializationOptions:
    """Return options that load numbers, strings, buffers, and containers of these; no classes."""
    serializer = PickleSerializer(allow=lambda name: False)
    return SerializationOptions(serializer.load, serializer.dump)


def expect(get: Callable[[], Any], kind: str) -> tuple[Any, ...]:
    """Get a control message of this kind; return its fields. Raises BenchError if it is another."""
    return fields(get().data, kind)


def fields(data: Any, kind: str) -> tuple[Any, ...]:
    """Return the fields of a control message of this kind. Raises BenchError if it is another."""
    if type(data) is tuple and data[:1] == (kind,):
        return data[1:]
    match data:
        case ("refused", str(why)):
            raise RefusedByServer(f"the server refuses: {printable(why[:_LONGEST])}")
    raise Unexpected(data)


def read_hello(given: tuple[Any, ...]) -> Facts:
    """Return the facts in the fields of "hello"."""
    if given[:1] != (VERSION,):
        raise BenchError(f"the server is of another version of this bench; this is {VERSION}: give both the same netq")
    if len(given) != 2 or type(given[1]) is not dict or given[1].keys() != facts().keys():
        raise Unexpected(("hello", *given))
    return {key: _shown(value) for key, value in given[1].items()}


def read_transfer(given: tuple[Any, ...], largest: int) -> tuple[str, Plan]:
    """Return direction and plan, the fields of "transfer". Raises BenchError if they are wrong or too large."""
    match given:
        case (str(direction), tuple(pairs), int(seed)) if direction in DIRECTIONS and len(pairs) <= MOST_SIZES:
            plan = _plan(pairs, seed)
        case _:
            raise Unexpected(("transfer", *given))
    check_size(plan.largest, largest)
    return direction, plan


def check_size(size: int, largest: int) -> None:
    """Raise BenchError if messages of `size` bytes are too large for a server that takes `largest`."""
    if size > largest:
        raise BenchError(
            f"messages of {format_size(size)}; it takes {format_size(largest)} at most: start it with a larger "
            f"--max-message (as iops: --max-size), or {_SMALLER}"
        )


def check_memory(size: int, copies: int) -> None:
    """Raise BenchError if this machine cannot hold so many messages of `size` bytes at once."""
    free = free_memory()
    if free is not None and size * copies > free:
        raise BenchError(
            f"messages of {format_size(size)} need {about(size * copies)} of its machine's memory, of which "
            f"{about(free)} are free: {_SMALLER}"
        )


def read_done(given: tuple[Any, ...]) -> Done:
    """Return the fields of "done"."""
    match given:
        case (int(count), int(nbytes), int(cpu), int() | None as resident, int() | None as extra) if all(
            0 <= (number or 0) <= _MOST for number in given
        ):
            return Done(Counted(count, nbytes), Usage(cpu, resident, extra))
    raise Unexpected(("done", *given))


def _plan(pairs: tuple[Any, ...], seed: int) -> Plan:
    for pair in pairs:
        match pair:
            case (int(size), int()) if size <= LARGEST:
                continue
        raise Unexpected(("transfer", pair))
    try:
        return Plan(pairs, seed)
    except ValueError as error:
        raise BenchError(str(error)) from None


def _shown(value: Any) -> str:
    """Return what of a peer's value may be shown."""
    return printable(value[:_LONGEST]) if type(value) is str else "?"
