"""Count the Python functions that one message crosses from `put` to `get`, and one update from client to aggregate.

    python -m benchmarks.path [tcp|shm|mqtt|grpc] [--size BYTES] [--show]
    python -m benchmarks.path fl [--size BYTES] [--show]
    python -m benchmarks.path edge [--size BYTES] [--show]

An echo runs in a thread of this process. After a warm-up, `sys.setprofile` records each Python function of netq that a
thread enters, on both sides and in both loops: from `put` to `get`, and in a round trip. What a loop's thread does to
stay asleep meanwhile (Loop._rest) is not counted. Calls of other Python code, such as asyncio's, are counted
separately; calls of functions in C are not counted. The profiler is slow, so code that
depends on time may take other branches than usual. The median of several trips is printed.

With `fl`, a server and a client of the package fl run rounds in this process. Counted are fl's functions: the client's
from the return of `train` until its reply is put, and the server's from then until the update counts, and its memory is
free for another. Those that only read, write, check or compute values, in VALUES, are counted apart.

With `edge`, an agent takes part in such rounds. Counted are the functions of edge in the agent's process from one
aggregate to the next: a task comes, the child process that stays does it, and its update is put.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import statistics
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import numpy as np

import edge
import fl
import netq
from fl.conversation import Conversation
from fl.server.members import Members
from netq.io.loop import Loop
from netq.protocol import codec

WARM, ROUNDS = 300, 101
FL_WARM, FL_ROUNDS = 10, 31
VALUES = (
    "aggregation/",
    "checks.py",
    "compression/",
    "envelope.py",
    "strategies/",
    "tensors/",
    "messages.py",
    "metrics.py",
    "trainer.py",
    "server/aggregation.py",
)
INLINE = ("<lambda>", "<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")  # parts of the function that they stand in
Call = tuple[str, str, int]  # file, function, and its first line


class Profile:
    """The calls of a package's functions, in all threads, in order."""

    def __init__(self, package: ModuleType) -> None:
        self.on = False
        self.calls: list[Call] = []
        self.others: list[str] = []  # files of functions that are not the package's
        self.skipped: int | None = None  # a thread that is not recorded
        self._folder = f"{Path(str(package.__file__)).parent}/"
        # Where the client's part of an update's way ends, and that of the server.
        self._ends: tuple[CodeType, ...] = ()
        if package is fl:
            self._ends = (Conversation.reply.__code__, Members.settle.__code__)

    def note(self, frame: FrameType, event: str, _: object) -> None:
        """Record a call. A function for sys.setprofile."""
        code = frame.f_code
        if not self.on or code.co_filename == __file__ or threading.get_ident() == self.skipped:
            return
        if event == "return" and code in self._ends:
            if code is self._ends[0]:
                self.skipped = threading.get_ident()
            else:
                self.on = False
        if event != "call" or _rests(frame):
            return
        if code.co_filename.startswith(self._folder):
            file = code.co_filename.removeprefix(self._folder)
            self.calls.append((file, code.co_qualname, code.co_firstlineno))
        else:
            self.others.append(code.co_filename)

    def take(self) -> tuple[int, int]:
        """Return the number of calls since the last time, the package's and others', and clear them."""
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


@contextlib.contextmanager
def recorded(profile: Profile) -> Iterator[None]:
    """Let a profile note the calls of this thread, and of those that begin."""
    threading.setprofile(profile.note)
    sys.setprofile(profile.note)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def measure(protocol: str, port: int, size: int) -> tuple[list[list[Call]], list[tuple[int, int]]]:
    """Return the calls of each one-way trip, and the number of calls of each round trip: netq's and others'."""
    profile, data = Profile(netq), bytes(size)
    ways: list[list[Call]] = []
    trips: list[tuple[int, int]] = []
    options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", port))
    with recorded(profile), netq.new(protocol, "server", options) as server:
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
    return ways, trips[WARM:]


def measure_rounds(
    profile: Profile, size: int, take_part: Callable[[netq.NetworkLocation], object]
) -> list[list[Call]]:
    """Return what the profile has recorded of each round after the warm-up, until its aggregate."""
    ways: list[list[Call]] = []

    class Ends(fl.FedAvg):
        def finish(self, model: Any, *, number: int) -> Any:
            if profile.calls:
                ways.append(list(profile.calls))
                profile.take()
            return super().finish(model, number=number)

    options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 0))
    model = {"w": np.zeros(size // 4, np.float32)}
    with recorded(profile), fl.Server(model, options, strategy=Ends(), min_clients=1) as server:
        thread = threading.Thread(target=take_part, args=[server.netloc])
        thread.start()
        for _ in server.rounds(FL_WARM + FL_ROUNDS):
            pass
    thread.join()
    return ways


def measure_fl(size: int) -> list[list[Call]]:
    """Return the calls of fl of each update's way, from the client's `train` to the server's aggregate."""
    profile = Profile(fl)

    def train(model: dict[str, Any], config: Mapping[str, Any]) -> fl.Update:
        update = fl.Update(model, 1)
        profile.skipped, profile.on = None, config["round"] > FL_WARM
        return update

    def take_part(netloc: netq.NetworkLocation) -> None:
        fl.Client(train).run(netq.CommunicatorOptions(netloc=netloc))

    return measure_rounds(profile, size, take_part)


def trained(model: dict[str, Any], config: object) -> fl.Update:
    """Train, in the child process of an agent."""
    return fl.Update(model, 1)


def measure_edge(size: int) -> list[list[Call]]:
    """Return the calls of edge of each task's way in an agent."""
    profile = Profile(edge)

    profile.on = True

    def take_part(netloc: netq.NetworkLocation) -> None:
        edge.run(edge.Config(netloc, train="benchmarks.path:trained", training=edge.Limits(keep=True)))

    return measure_rounds(profile, size, take_part)[FL_WARM:]


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.path", description=__doc__.splitlines()[0])
    parser.add_argument("protocol", nargs="?", default="tcp", choices=["tcp", "shm", "mqtt", "grpc", "fl", "edge"])
    parser.add_argument("--port", type=int, default=0, help="of the broker, for mqtt")
    parser.add_argument("--size", type=int, default=64, help="bytes of the message, or of the model")
    parser.add_argument("--show", action="store_true", help="print the functions of one way, in order")
    arguments = parser.parse_args()
    trips: list[tuple[int, int]] = []
    if arguments.protocol == "fl":
        ways, kind, between = measure_fl(arguments.size), "an update", "train to the aggregate"
    elif arguments.protocol == "edge":
        ways, kind, between = measure_edge(arguments.size), "a task", "one aggregate to the next"
    else:
        ways, trips = measure(arguments.protocol, arguments.port, arguments.size)
        compiled = "compiled" if codec.take.__module__ == "netq.protocol._codec" else "Python"
        kind, between = f"{compiled} codec, a message", "put to get"
    way = sorted(ways, key=lambda calls: len(set(calls)))[len(ways) // 2]
    functions = collections.Counter(way)
    files = {file for file, _, _ in functions}
    print(f"{arguments.protocol}, {kind} of {arguments.size} bytes, median of {len(ways)}:")
    print(f"{between}: {len(functions)} functions in {len(files)} files, {len(way)} calls")
    if arguments.protocol == "fl":
        moving = {call for call in functions if not call[0].startswith(VALUES) and not call[1].endswith(INLINE)}
        files = {file for file, _, _ in moving}
        print(f"of these move the update, or note what has come of it: {len(moving)} functions in {len(files)} files")
        functions = collections.Counter({call: count for call, count in functions.items() if call in moving})
    if trips:
        own, others = (statistics.median(counts) / 2 for counts in zip(*trips, strict=True))
        print(f"round trip: {own:g} calls a side, and {others:g} of other Python code")
    if arguments.show:
        for (file, name, line), count in functions.items():
            print(f"  {file}:{line} {name}" + (f"  x {count}" if count > 1 else ""))


if __name__ == "__main__":
    main()
