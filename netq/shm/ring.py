"""A ring of bytes between one writer and one reader, over any writable memory that both see. Pure.

Four numbers of 64 bits, each on a cache line of its own and written by one side only, then the bytes:

    offset  written by  what
         0  writer      head: bytes written since the beginning
        64  writer      wanted: wake me when tail has come this far; 0: I do not sleep
       128  reader      tail: bytes read since the beginning
       192  reader      asleep: the number of my present sleep; 0: I do not sleep
       256              the bytes; byte k of the stream lies at k modulo their number

A side that is to sleep says so, and looks once more whether it must; a side that has moved its number looks whether
the other sleeps, and has it woken, once for each sleep (`bell`). So neither sleeps through anything, and nobody is
woken who is awake. Between its steps each side calls `fence`: all that it loaded and stored before must be seen by the
other side before what follows. In one thread that is so by itself; netq/shm/fence.py has the one for two processes.

    memory = bytearray(HEADER + 4096)
    writer, reader = Writer(memory), Reader(memory)
    writer.write([b"any ", b"bytes"])           # 9: as much as there is room for
    reader.ready()                              # 9
    into = bytearray(100)
    reader.read_into(memoryview(into))          # 9, and into begins with b"any bytes"

What the other side writes is not believed: RingError, if its number cannot be. Neither Writer nor Reader may be used
by two threads at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

HEADER = 256  # bytes before those of the stream
_HEAD, _WANTED, _TAIL, _ASLEEP = 0, 8, 16, 24  # in words of 8 bytes


class RingError(Exception):
    """The other side has written what it must not."""


def _no_fence() -> None:
    pass


class Writer:
    """The writing end."""

    def __init__(self, memory: Buffer, fence: Callable[[], object] = _no_fence) -> None:
        self._words, self._bytes = _parts(memory)
        self.size = len(self._bytes)
        self._head = self._tail = 0
        self._rung = 0  # the sleep from which the reader was woken last
        self._shown = False  # something, since it was last looked whether the reader sleeps
        self._fence = fence

    def room(self) -> int:
        """Return how many bytes can be written now."""
        tail = self._words[_TAIL]
        if not self._tail <= tail <= self._head:
            raise RingError(f"the reader says {tail}, expected {self._tail} to {self._head}")
        self._tail = tail
        self._fence()  # what it has read, before we write there
        return self.size - (self._head - tail)

    def write(self, buffers: Iterable[Buffer]) -> int:
        """Copy from the start of `buffers` as much as there is room for, and show it to the reader; return how much."""
        start = position = self._head
        room = self.room()
        for buffer in buffers:
            taken = len(buffer)
            if taken > room:
                taken, buffer = room, memoryview(buffer)[:room]
            self._copy(position, buffer, taken)
            position += taken
            room -= taken
        self._fence()  # the bytes, before the number that shows them
        self._words[_HEAD] = self._head = position
        self._shown = True
        return position - start

    def put(self, data: bytes) -> bool:
        """Write all of `data` in one piece; return False, and write nothing, if that cannot be."""
        n, start = len(data), self._head % self.size
        if start + n > self.size or n > self.room():
            return False
        self._bytes[start : start + n] = data
        self._fence()  # the bytes, before the number that shows them
        self._head += n
        self._words[_HEAD] = self._head
        self._shown = True
        return True

    def bell(self) -> bool:
        """Return whether the reader sleeps, and knows nothing of what was written: then wake it."""
        if not self._shown:
            return False
        self._shown = False
        self._fence()  # our number, before its
        asleep = self._words[_ASLEEP]
        if not asleep or asleep == self._rung:
            return False
        self._rung = asleep
        return True

    def sleep(self) -> bool:
        """Wish to be woken when half of the ring is free; return False if it is already."""
        wanted = self._head - self.size // 2
        self._words[_WANTED] = max(wanted, 0)
        self._fence()  # our wish, before its number
        if self.room() >= self.size - self.size // 2:
            self._words[_WANTED] = 0
            return False
        return True

    def release(self) -> None:
        """Let go of the memory; nothing else may be called any more."""
        self._words.release()
        self._bytes.release()

    def _copy(self, position: int, source: Buffer, n: int) -> None:
        start = position % self.size
        if start + n <= self.size:
            self._bytes[start : start + n] = source
        else:
            first = self.size - start
            self._bytes[start:] = source[:first]
            self._bytes[: n - first] = source[first:]


class Reader:
    """The reading end."""

    def __init__(self, memory: Buffer, fence: Callable[[], object] = _no_fence) -> None:
        self._words, self._bytes = _parts(memory)
        self.size = len(self._bytes)
        self._head = self._tail = 0
        self._rung = 0  # what the writer wanted when it was woken last
        self._freed = False  # something, since it was last looked whether the writer sleeps
        self._sleeps = 0
        self._fence = fence

    def ready(self) -> int:
        """Return how many bytes can be read now."""
        head = self._words[_HEAD]
        if not self._head <= head <= self._tail + self.size:
            raise RingError(f"the writer says {head}, expected {self._head} to {self._tail + self.size}")
        if head != self._head:
            self._head = head
            self._fence()  # its number, before the bytes
        return head - self._tail

    def waits(self) -> bool:
        """Whether there is something to read. In any thread, at any time."""
        try:
            return self._words[_HEAD] != self._tail
        except ValueError:  # released
            return False

    def look(self, least: int) -> memoryview:
        """Return the first of the bytes that `ready` has counted, `least` or more, still in the ring; or a copy of
        `least`, if they lie in two pieces."""
        start = self._tail % self.size
        piece = self._bytes[start : start + self._head - self._tail]
        if least <= len(piece):
            return piece
        return memoryview(bytes(piece) + self._bytes[: least - len(piece)])

    def read_into(self, buffer: memoryview) -> int:
        """Fill `buffer` as far as the bytes go that `ready` has counted, and free their room; return how many."""
        n = min(len(buffer), self._head - self._tail)
        start = self._tail % self.size
        first = min(n, self.size - start)
        buffer[:first] = self._bytes[start : start + first]
        if first < n:
            buffer[first:n] = self._bytes[: n - first]
        self.skip(n)
        return n

    def skip(self, n: int) -> None:
        """Free the room of `n` bytes that `ready` has counted."""
        self._tail += n
        self._fence()  # what we have read, before the number that frees its room
        self._words[_TAIL] = self._tail
        self._freed = True

    def bell(self) -> bool:
        """Return whether the writer sleeps, has the room that it wants, and was not told: then wake it."""
        if not self._freed:
            return False
        self._freed = False
        self._fence()  # our number, before its
        wanted = self._words[_WANTED]
        if not wanted or wanted == self._rung or self._tail < wanted:
            return False
        self._rung = wanted
        return True

    def sleep(self) -> bool:
        """Wish to be woken when something comes; return False if something is there already."""
        self._sleeps += 1
        self._words[_ASLEEP] = self._sleeps
        self._fence()  # our wish, before its number
        if self.ready():
            self._words[_ASLEEP] = 0
            return False
        return True

    def wake(self) -> None:
        """Wish to be woken no more."""
        self._words[_ASLEEP] = 0

    def release(self) -> None:
        """Let go of the memory; nothing else may be called any more."""
        self._words.release()
        self._bytes.release()


def _parts(memory: Buffer) -> tuple[memoryview, memoryview]:
    if len(memory) <= HEADER:
        raise ValueError(f"a ring in {len(memory)} bytes; it has {HEADER} before those of the stream")
    with memoryview(memory) as whole, whole[:HEADER] as header:
        return header.cast("Q"), whole[HEADER:]
