"""A lock-free ring of bytes between one writer and one reader, in any writable memory that both share. Pure.

Four numbers of 64 bits, then the bytes. Each number is on a cache line of its own and is written by one side only:

    offset  written by  what
         0  writer      head: bytes written since the beginning
        64  writer      wanted: the writer sleeps until tail has this value; 0: the writer is awake
       128  reader      tail: bytes read since the beginning
       192  reader      asleep: the number of the reader's present sleep; 0: the reader is awake
       256              the bytes; byte k of the stream lies at k modulo their number

No wakeup is lost, and a side that is awake is never woken. A side that wants to sleep stores its flag first, and then
checks the other side's number again. A side that advances its number does so first, and then checks the other side's
flag. Whatever the order of these four steps, one of the two checks sees the other side's store. `claim_wakeup` returns
True once for each sleep.

The order of the steps is kept by `fence`: the other side sees all loads and stores before a fence before those after
it. Within one thread no fence is needed; netq/shm/fence.py has one for two processes.

    memory = bytearray(HEADER + 4096)
    writer, reader = Writer(memory), Reader(memory)
    writer.write([b"any ", b"bytes"])           # 9: as many bytes as there is room for
    reader.available()                          # 9
    into = bytearray(100)
    reader.read_into(memoryview(into))          # 9, and into begins with b"any bytes"

The numbers of the other side are checked: an impossible one raises RingError. Neither Writer nor Reader may be used by
two threads at a time. A ring that waits, with the calls of a socket: netq/shm/ring_socket.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from netq.errors import ProtocolError

Buffer: TypeAlias = bytes | bytearray | memoryview

HEADER = 256  # bytes before those of the stream
_HEAD, _WANTED, _TAIL, _ASLEEP = 0, 8, 16, 24  # in words of 8 bytes


class RingError(ProtocolError):
    """The other side has written an impossible number into the shared memory: it is broken, or hostile."""


def _no_fence() -> None:
    pass


class Writer:
    """The writing end."""

    def __init__(self, memory: Buffer, fence: Callable[[], object] = _no_fence) -> None:
        self._words, self._bytes = _parts(memory)
        self.size = len(self._bytes)
        self._head = self._tail = 0
        self._woken = 0  # number of the sleep from which the reader was woken last
        self._advanced = False  # head has moved since the reader's flag was checked last
        self._fence = fence

    def free(self) -> int:
        """Return how many bytes can be written now. Raises RingError."""
        # The memory is the peer's as well, and a hostile or broken peer may write anything there. The number is read
        # once, checked against our own copies, and used from the copy: a second read could return another number.
        tail = self._words[_TAIL]
        if not self._tail <= tail <= self._head:
            raise RingError(f"the reader says {tail}, expected {self._tail} to {self._head}")
        self._tail = tail
        self._fence()  # its reads come before our writes to the same place
        return self.size - (self._head - tail)

    def has_room(self) -> bool:
        """Return whether half of the ring is free. May be called in any thread, at any time."""
        try:
            return self._head - self._words[_TAIL] <= self.size // 2
        except ValueError:  # released
            return False

    def write(self, buffers: Iterable[Buffer]) -> int:
        """Copy as much of `buffers` as there is room for, and publish it to the reader; return the count of bytes."""
        start = position = self._head
        room = self.free()
        for buffer in buffers:
            taken = len(buffer)
            if taken > room:
                taken, buffer = room, memoryview(buffer)[:room]
            self._copy(position, buffer, taken)
            position += taken
            room -= taken
        self._fence()  # the bytes come before the number that publishes them
        self._words[_HEAD] = self._head = position
        self._advanced = True
        return position - start

    def claim_wakeup(self) -> bool:
        """Return True if the caller must wake the reader: it sleeps, and was not woken since it fell asleep."""
        if not self._advanced:
            return False
        self._advanced = False
        # The reader stores its flag, then checks head; this side has stored head, and now checks the flag. One of the
        # two sees the other. `_woken` keeps a second wakeup from the same sleep away: it would cost a system call.
        self._fence()  # our number comes before its flag
        asleep = self._words[_ASLEEP]
        if not asleep or asleep == self._woken:
            return False
        self._woken = asleep
        return True

    def sleep(self) -> bool:
        """Ask to be woken when half of the ring is free; return False if it is free already."""
        # Half of the ring, not one byte: otherwise both sides would wake each other for every few bytes.
        wanted = self._head - self.size // 2
        self._words[_WANTED] = max(wanted, 0)
        self._fence()  # our flag comes before its number
        if self.free() >= self.size - self.size // 2:
            self._words[_WANTED] = 0
            return False
        return True

    def release(self) -> None:
        """Release the memory. No other method may be called after that."""
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
        self._woken = 0  # the writer's `wanted` when it was woken last
        self._advanced = False  # tail has moved since the writer's flag was checked last
        self._sleeps = 0  # number of the latest sleep
        self._fence = fence

    def available(self) -> int:
        """Return how many bytes can be read now. Raises RingError."""
        head = self._words[_HEAD]  # read once: see Writer.free
        if not self._head <= head <= self._tail + self.size:
            raise RingError(f"the writer says {head}, expected {self._head} to {self._tail + self.size}")
        if head != self._head:
            self._head = head
            self._fence()  # its number comes before the bytes
        return head - self._tail

    def has_data(self) -> bool:
        """Return whether there is something to read. May be called in any thread, at any time."""
        try:
            return self._words[_HEAD] != self._tail
        except ValueError:  # released
            return False

    def read_into(self, buffer: memoryview) -> int:
        """Move bytes that `available` counted into `buffer`, and free their room; return the count of bytes."""
        n = min(len(buffer), self._head - self._tail)
        start = self._tail % self.size
        first = min(n, self.size - start)
        buffer[:first] = self._bytes[start : start + first]
        if first < n:
            buffer[first:n] = self._bytes[: n - first]
        self.skip(n)
        return n

    def skip(self, n: int) -> None:
        """Free the room of `n` bytes that `available` counted."""
        self._tail += n
        self._fence()  # our reads come before the number that frees the room
        self._words[_TAIL] = self._tail
        self._advanced = True

    def claim_wakeup(self) -> bool:
        """Return True if the caller must wake the writer: it sleeps, has the room that it wants, and was not woken."""
        if not self._advanced:
            return False
        self._advanced = False
        self._fence()  # our number comes before its flag
        # `wanted` is a position of the stream, so it also numbers the sleep: two sleeps with the same position want the
        # same room, and one wake-up serves both.
        wanted = self._words[_WANTED]
        if not wanted or wanted == self._woken or self._tail < wanted:
            return False
        self._woken = wanted
        return True

    def sleep(self) -> bool:
        """Ask to be woken when bytes arrive; return False if there are bytes already."""
        # Each sleep has a number of its own. With a mere flag the writer could not tell a sleep from the one for which
        # it has sent a wake-up that is not received yet, and would send another one for each write.
        self._sleeps += 1
        self._words[_ASLEEP] = self._sleeps
        self._fence()  # our flag comes before its number
        if self.available():
            self._words[_ASLEEP] = 0
            return False
        return True

    def wake(self) -> None:
        """End the sleep: the writer need not wake this side."""
        self._words[_ASLEEP] = 0

    def leave(self) -> None:
        """Have the writer claim a wakeup after its next write, whatever is in the ring: this side reads no more."""
        self._sleeps += 1
        self._words[_ASLEEP] = self._sleeps

    def release(self) -> None:
        """Release the memory. No other method may be called after that."""
        self._words.release()
        self._bytes.release()


def _parts(memory: Buffer) -> tuple[memoryview, memoryview]:
    if len(memory) <= HEADER:
        raise ValueError(f"a ring in {len(memory)} bytes; it has {HEADER} before those of the stream")
    with memoryview(memory) as whole, whole[:HEADER] as header:
        return header.cast("Q"), whole[HEADER:]
