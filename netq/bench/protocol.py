"""What the two sides of a bench say to each other, between the messages that they measure.

Tuples of numbers and strings, the first of which says what it is; payload is bytes or a buffer, and never a tuple. No
pickled class is among them, and none is loaded.

| from | tuple | |
|---|---|---|
| server | "hello", VERSION, facts | first of all, when a session begins; so also when the server was started anew |
| client | "transfer", direction, pairs, seed, delay | a Plan's messages: "up" to the server, "down", "both" at once |
| client | "echo", size | the server puts back what comes until "end" |
| server | "ready" | what is needed is there, and the server's meter has begun |
| server | "refused", why | instead of "ready"; or to what was not expected, and then nothing more is heard |
| client | "go" | a transfer begins |
| client | "end" | no more echoes |
| server | "done", messages, bytes, cpu, resident, extra | what came to the server, and its Usage |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from netq.bench.plan import LARGEST, MOST_SIZES, Plan, about, format_size
from netq.bench.usage import Facts, Usage, facts, free_memory
from netq.options import SerializationOptions
from netq.text import printable
from netq.utils.stream import PickleSerializer

VERSION = 2
DIRECTIONS = ("up", "down", "both")
HEAD = 64 * 1024  # bytes that a message may have in addition to its payload
MOST_DELAY = 10.0  # seconds: a sender that pauses knows that late, at most, that its peer is gone
_SMALLER = "ask for smaller messages (--size; of iops --max-size)"
_LONGEST = 250  # characters of what a peer says, when it is shown


class BenchError(Exception):
    """The bench cannot go on. The text is one line for the user."""


class Unexpected(BenchError):
    """The peer said what was not due."""

    def __init__(self, data: Any) -> None:
        named = type(data) is tuple and len(data) > 0 and type(data[0]) is str
        said = f'"{printable(data[0][:_LONGEST])}"' if named else f"a {type(data).__name__}"
        super().__init__(f"the peer sent {said}, which was not due: was it started anew?")


class Counted(NamedTuple):
    """What has come."""

    messages: int
    nbytes: int


class Done(NamedTuple):
    """What the server says at the end."""

    counted: Counted
    usage: Usage


def serialization() -> SerializationOptions:
    """Return options by which nothing is loaded but numbers, strings, buffers and tuples of them."""
    serializer = PickleSerializer(allow=lambda name: False)
    return SerializationOptions(serializer.load, serializer.dump)


def hear(get: Callable[[], Any], kind: str) -> tuple[Any, ...]:
    """Return what comes after `kind` in the tuple that is due. Raises BenchError if something else comes."""
    return heard(get().data, kind)


def heard(data: Any, kind: str) -> tuple[Any, ...]:
    """Return what `hear` does, of what has come already."""
    if type(data) is tuple and data[:1] == (kind,):
        return data[1:]
    match data:
        case ("refused", str(why)):
            raise BenchError(f"the server refuses: {printable(why[:_LONGEST])}")
    raise Unexpected(data)


def read_hello(said: tuple[Any, ...]) -> Facts:
    """Return what a server runs on, from what follows "hello"."""
    if said[:1] != (VERSION,):
        raise BenchError(f"the server is of another version of this bench; this is {VERSION}: give both the same netq")
    if len(said) != 2 or type(said[1]) is not dict or said[1].keys() != facts().keys():
        raise Unexpected(("hello", *said))
    return {key: _plain(value) for key, value in said[1].items()}


def read_transfer(said: tuple[Any, ...], largest: int) -> tuple[str, Plan, float]:
    """Return the direction, the plan and the delay that follow "transfer".

    Raises BenchError if they are none, or ask too much.
    """
    match said:
        case (str(direction), tuple(pairs), int(seed), float(delay)) if _is_transfer(direction, pairs, delay):
            plan = _plan(pairs, seed)
        case _:
            raise Unexpected(("transfer", *said))
    check_size(plan.largest, largest)
    return direction, plan, delay


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


def read_done(said: tuple[Any, ...]) -> Done:
    """Return what follows "done"."""
    match said:
        case (int(count), int(nbytes), int(cpu), int() | None as resident, int() | None as extra):
            return Done(Counted(count, nbytes), Usage(cpu, resident, extra))
    raise Unexpected(("done", *said))


def _is_transfer(direction: str, pairs: tuple[Any, ...], delay: float) -> bool:
    return direction in DIRECTIONS and len(pairs) <= MOST_SIZES and 0 <= delay <= MOST_DELAY


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


def _plain(value: Any) -> str:
    """What may be shown of it."""
    return printable(value[:_LONGEST]) if type(value) is str else "?"
