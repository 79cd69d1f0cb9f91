"""What it costs to wake another process: `python -m benchmarks.wakeups`, some ten seconds.

Two processes on two cores wake each other in turn; prints the median round trip (two wakeups) of

- an eventfd, with epoll on it and on a socket, whose end is noticed: what netq's ring socket does;
- a packet of a Unix socket, with poll: what links of Protocol.SHM do;
- a futex, called with ctypes, which Python has no function for: nothing else can be waited for meanwhile.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import select
import socket
import statistics
import time
from collections.abc import Callable

from netq.bench.output import markdown
from netq.bench.resources import pin
from netq.shm import bell

ROUNDS, TRIPS = 5, 5000
_FUTEX = {"x86_64": 202, "aarch64": 98}  # numbers of the system call
_WAIT, _WAKE = 0, 1
_Call = Callable[[], object]
_Side = tuple[_Call, _Call]  # wakes the other process; waits until it is woken


def eventfds() -> tuple[_Side, _Side]:
    bells = [bell.make() for _ in range(2)]
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def side(number: int) -> _Side:
        epoll = select.epoll()
        epoll.register(bells[number], bell.EDGES)
        epoll.register(ends[number], 0)
        epoll.poll(0)  # a new bell counts as rung
        return lambda: bell.ring(bells[1 - number]), epoll.poll

    return side(0), side(1)


def packets() -> tuple[_Side, _Side]:
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def side(end: socket.socket) -> _Side:
        end.setblocking(False)
        poll = select.poll()
        poll.register(end, select.POLLIN)
        return lambda: end.send(b"\2"), lambda: (poll.poll(), end.recv(512))

    return side(ends[0]), side(ends[1])


def futexes() -> tuple[_Side, _Side]:
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    words = [ctypes.c_uint32.from_buffer(memory, 64 * number) for number in range(2)]
    call, futex = ctypes.CDLL(None).syscall, _FUTEX[platform.machine()]

    def wait(word: ctypes.c_uint32) -> None:
        while not word.value:
            call(futex, ctypes.byref(word), _WAIT, 0, None)
        word.value = 0

    def wake(word: ctypes.c_uint32) -> None:
        word.value = 1
        call(futex, ctypes.byref(word), _WAKE, 1)

    def side(number: int) -> _Side:
        return lambda: wake(words[1 - number]), lambda: wait(words[number])

    return side(0), side(1)


KINDS = {"eventfd and epoll": eventfds, "packet of a Unix socket and poll": packets, "futex by ctypes": futexes}


def round_trip(make: Callable[[], tuple[_Side, _Side]], trips: int) -> float:
    """Return the median of so many round trips, in µs. Forks."""
    (wake, wait), (wake_back, wait_there) = make()
    child = os.fork()
    if not child:
        pin(1)
        for _ in range(trips):
            wait_there()
            wake_back()
        os._exit(0)
    cores = os.sched_getaffinity(0)
    pin(0)
    times = []
    for _ in range(trips):
        began = time.perf_counter_ns()
        wake()
        wait()
        times.append(time.perf_counter_ns() - began)
    os.waitpid(child, 0)
    os.sched_setaffinity(0, cores)
    return statistics.median(times) / 1000


def main() -> None:
    kinds = {name: make for name, make in KINDS.items() if make is not futexes or platform.machine() in _FUTEX}
    found: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(ROUNDS):
        for name, make in kinds.items():
            found[name].append(round_trip(make, TRIPS))
    rows = [[name, f"{statistics.median(values):.1f}", f"{min(values):.1f}"] for name, values in found.items()]
    print("\n".join(markdown([["two wakeups", "median, µs", "least, µs"], *rows])))


if __name__ == "__main__":
    main()
