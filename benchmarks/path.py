"""Count the Python functions that one message crosses from `put` to `get`, and the calls of a round trip.

    python -m benchmarks.path [tcp|shm|mqtt|grpc] [--size BYTES] [--show]

An echo runs in a thread of this process. After a warm-up, `sys.setprofile` records each Python function of netq that a
thread enters, on both sides and in both loops: from `put` to `get`, and in a round trip. What a loop's thread does to
stay asleep meanwhile (Loop._rest) is not counted. Calls of other Python code, such as asyncio's, are counted
separately; calls of functions in C are not counted. The profiler is slow, so code that
depends on time may take other branches than usual. The median of several trips is printed.
"""

from __future__ import annotations

import argparse
import collections
import statistics
import sys
import threading
from pathlib import Path
from types import FrameType

import netq
from netq.io.loop import Loop
from netq.protocol import codec

WARM, ROUNDS = 300, 101
HERE = Path(netq.__file__).parent


class Profile:
    """The calls of netq's functions, in all threads, in order."""

    def __init__(self) -> None:
        self.on = False
        self.calls: list[tuple[str, str, int]] = []  # file, function, and its first line
        self.others: list[str] = []  # files of functions that are not netq's

    def note(self, frame: FrameType, event: str, _: object) -> None:
        """Record a call. A function for sys.setprofile."""
        code = frame.f_code
        if not self.on or event != "call" or code.co_filename == __file__ or _rests(frame):
            return
        if code.co_filename.startswith(str(HERE)):
            file = str(Path(code.co_filename).relative_to(HERE))
            self.calls.append((file, code.co_qualname, code.co_firstlineno))
        else:
            self.others.append(code.co_filename)

    def take(self) -> tuple[int, int]:
        """Return the number of calls since the last time, netq's and others', and clear them."""
        calls, self.calls = self.calls, []
        others, self.others = self.others, []
        return len(calls), len(others)


def _rests(frame: FrameType | None) -> bool:
    """Whether this is a call of a loop's thread that sleeps, and looks each millisecond."""
    while frame is not None:
        if frame.f_code is Loop._rest.__code__:
            return True
        frame = frame.f_back
    return False


def measure(protocol: str, port: int, size: int) -> tuple[list[list[tuple[str, str, int]]], list[tuple[int, int]]]:
    """Return the calls of each one-way trip, and the number of calls of each round trip: netq's and others'."""
    profile, data = Profile(), bytes(size)
    threading.setprofile(profile.note)
    sys.setprofile(profile.note)
    ways: list[list[tuple[str, str, int]]] = []
    trips: list[tuple[int, int]] = []
    options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", port))
    try:
        with netq.new(protocol, "server", options) as server:
            client = netq.new(protocol, "client", netq.CommunicatorOptions(netloc=server.netloc))

            def echo() -> None:
                while (message := server.get()).data is not None:
                    if profile.on:
                        ways.append(list(profile.calls))
                    server.put(message.data, message.peer)

            with client:
                thread = threading.Thread(target=echo)
                thread.start()
                for number in range(WARM + ROUNDS):
                    profile.on = number >= WARM
                    client.put(data)
                    client.get()
                    profile.on = False
                    trips.append(profile.take())
                client.put(None)
                thread.join()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return ways, trips[WARM:]


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.path", description=__doc__.splitlines()[0])
    parser.add_argument("protocol", nargs="?", default="tcp", choices=["tcp", "shm", "mqtt", "grpc"])
    parser.add_argument("--port", type=int, default=0, help="of the broker, for mqtt")
    parser.add_argument("--size", type=int, default=64, help="bytes of the message")
    parser.add_argument("--show", action="store_true", help="print the functions of one way, in order")
    arguments = parser.parse_args()
    ways, trips = measure(arguments.protocol, arguments.port, arguments.size)
    way = sorted(ways, key=lambda calls: len(set(calls)))[len(ways) // 2]
    functions = collections.Counter(way)
    kind = "compiled" if codec.take.__module__ == "netq.protocol._codec" else "Python"
    print(f"{arguments.protocol}, a message of {arguments.size} bytes, {kind} codec, median of {len(ways)}:")
    print(
        f"put to get: {len(functions)} functions in {len({file for file, _, _ in functions})} files, {len(way)} calls"
    )
    own, others = (statistics.median(counts) / 2 for counts in zip(*trips, strict=True))
    print(f"round trip: {own:g} calls a side, and {others:g} of other Python code")
    if arguments.show:
        for (file, name, line), count in functions.items():
            print(f"  {file}:{line} {name}" + (f"  x {count}" if count > 1 else ""))


if __name__ == "__main__":
    main()
