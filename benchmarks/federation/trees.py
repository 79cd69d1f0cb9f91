"""Trees of relays: python -m benchmarks.federation.trees. Writes docs/reference/benchmarks-trees.md.

How far is the model of a tree of eight clients from that of a flat federation, by strategy? What does a round of 1,000
clients cost the server, and a relay, with a model of 1 MB? What does the list of clients in a sum cost? And who counts
when a relay is killed in the middle of a round? Linux only.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import resource
import statistics
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import fl
import netq
from benchmarks import page
from benchmarks.broker import free_port
from benchmarks.federation import crowd, work
from benchmarks.federation.processes import LIMIT, Processes
from fl import membership
from fl.envelope import Job
from fl.messages import MESSAGES, Reply
from fl.subtotal import Subtotal
from netq.bench.output import markdown
from netq.bench.resources import Meter
from netq.utils.stream import Stream

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "benchmarks-trees.md"
TOP = """\
# Trees of relays

Written by `python -m benchmarks.federation.trees --repeat {repeat}`, which writes it again: do not edit.

Machine: {machine}, Python {python}.

## The model of a tree

Eight clients send updates of 10,000 numbers in float32 that depend on the model, for five rounds: flat, behind two
relays, and behind four relays behind two. The largest difference of a number from that of the flat federation, divided
by the largest number of the model. Updates are added as they arrive, so a flat federation that is run again differs,
too: "again" is that, and what rounding alone does. Optimizers divide by the size of a step, and make the rounding of
small steps larger.

"""
COSTS = """\

## What a round costs

A model of 1 MB that each client adds 1 to, {clients:,} clients in each round, without relays and behind some. All
clients are in one process, or in one for each relay ([many clients](benchmarks-many.md)); all processes share two
cores, so the seconds of a round are those of all work together, and not those of machines of their own. Processor time
is that of a round; memory is the peak beyond what the process had before. Seconds: the median of all rounds but the
first, with the fastest and the slowest.

"""
LISTS = """\

## The list of clients

A sum has the id and the number of examples of each client whose update is in it, so that none counts twice: the bytes
of that list, and the seconds to write and to read it, medians of 5.

"""
KILL = """\

## A relay that is killed

Two relays, each a process, with four clients, which go on to the other relay when theirs has no connection for
{seconds:g} s. The first relay is killed (SIGKILL) while its clients train in round 2. Who counted:

"""
ROUNDS = 5
STRATEGIES: dict[str, Callable[[], fl.Strategy]] = {
    **{kind.__name__: kind for kind in (fl.FedAvg, fl.FedProx, fl.FedAvgM, fl.FedAdagrad, fl.FedAdam, fl.FedYogi)},
    "QFedAvg": lambda: fl.QFedAvg(q=1.0),
    "FedNova": fl.FedNova,
    "Scaffold": fl.Scaffold,
}
Shape = Sequence[Any]  # a number is a client, a list a relay
FLAT: Shape = range(8)
TREES: dict[str, Shape] = {"again": FLAT, "two levels": [range(4), range(4, 8)]}
TREES["three levels"] = [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
CLIENTS = 1000
RELAYS = (0, 1, 4)
_MOVE = 1.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Answer the questions, and write the page."""
    parser = argparse.ArgumentParser("python -m benchmarks.federation.trees", description="trees of relays")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each row of costs (default: 1)")
    repeat = parser.parse_args(arguments).repeat
    top = TOP.format(repeat=repeat, machine=page.machine(), python=platform.python_version())
    lines = [*top.splitlines(), *_differences()]
    lines += [*COSTS.format(clients=CLIENTS).splitlines(), *_costs(repeat)]
    lines += [*LISTS.splitlines(), *_lists()]
    lines += [*KILL.format(seconds=_MOVE).splitlines(), *_kill(), ""]
    text = "\n".join(lines)
    print(text)
    PAGE.write_text(text, encoding="utf-8")


# The model of a tree


def _differences() -> list[str]:
    rows = [["", *TREES]]
    for name, strategy in STRATEGIES.items():
        flat = _model_of(FLAT, strategy)
        found = [_distance(_model_of(shape, strategy), flat) for shape in TREES.values()]
        rows.append([name, *(f"{each:.1e}" for each in found)])
        print(rows[-1], file=sys.stderr, flush=True)
    return markdown(rows)


def _distance(model: Mapping[str, Any], flat: Mapping[str, Any]) -> float:
    return max(float(np.abs(model[name] - flat[name]).max() / np.abs(flat[name]).max()) for name in flat)


def _model_of(shape: Shape, strategy: Callable[[], fl.Strategy]) -> Mapping[str, Any]:
    random = np.random.default_rng(0)
    model = {"w": random.normal(size=(100, 100)).astype(np.float32), "running_mean": np.ones(100, np.float32)}
    threads: list[threading.Thread] = []
    with fl.Server(model, _at(0), strategy=strategy(), min_clients=len(shape), relays=True) as server:
        _grow(shape, server, strategy, threads)
        for _ in server.rounds(ROUNDS):
            pass
    for thread in threads:
        thread.join()
    return dict(server.model)


def _grow(shape: Shape, server: Any, strategy: Callable[[], fl.Strategy], threads: list[threading.Thread]) -> None:
    """Start what is below a server in threads."""
    for each in shape:
        run: Callable[[], object]
        if isinstance(each, int):
            run = partial(fl.Client(_trains(each)).run, _at(server.netloc.port))
        else:
            below = _Below(partial(_grow, each, strategy=strategy, threads=threads))
            relay: dict[str, Any] = {
                "strategy": strategy(),
                "min_clients": len(each),
                "relays": True,
                "callbacks": [below],
            }
            run = fl.Relay(_at(server.netloc.port), _at(0), **relay).run
        threads.append(threading.Thread(target=run))
        threads[-1].start()


class _Below(fl.Callback):
    """Starts what is below a relay when it listens."""

    def __init__(self, begin: Callable[[Any], None]) -> None:
        self._begin = begin

    def listens(self, server: Any) -> None:
        self._begin(server)


def _trains(number: int) -> Callable[[Any, Mapping[str, Any]], fl.Update]:
    def train(model: Any, config: Mapping[str, Any]) -> fl.Update:
        random = np.random.default_rng([number, config["round"]])
        start = model["w"].copy()
        for tensor in model.values():
            tensor += 0.1 * random.normal(size=tensor.shape).astype(np.float32) - 0.01 * tensor
        extra = {"w": 0.1 * (model["w"] - start), "running_mean": np.zeros(100, np.float32)}
        extra = {name: extra[name] for name in config.get("control", {})}
        return fl.Update(model, 10 + number, {"loss": 0.5 + number, "steps": 1 + number}, extra)

    return train


def _at(port: int, **fields: Any) -> netq.CommunicatorOptions:
    quick = netq.ConnectionOptions(retry_min=0.05, retry_max=0.2, max_sessions_per_address=2 * CLIENTS)
    return netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", port), connection=quick, **fields)


# What a round costs


def _costs(repeat: int) -> list[str]:
    rows = [["", "s/round", "server, CPU s", "server, MB", "all relays, CPU s", "each relay, MB"]]
    for relays in RELAYS:
        runs = [_cost(relays) for _ in range(repeat)]
        seconds, cpu = ([value for run in runs for value in run[key]] for key in ("seconds", "cpu"))
        row = ["no relay" if not relays else f"{relays} relay{'s'[: relays > 1]}", _spread(seconds)]
        row += [f"{statistics.median(cpu):.2f}", f"{max(run['extra'] for run in runs) / 1e6:.0f}"]
        if relays:
            used = statistics.median(sum(each["cpu"] for each in run["relays"]) for run in runs)
            row += [f"{used:.2f}", f"{max(each['extra'] for run in runs for each in run['relays']) / 1e6:.0f}"]
        else:
            row += ["", ""]
        rows.append(row)
        print(rows[-1], file=sys.stderr, flush=True)
    return markdown(rows)


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _cost(relays: int) -> dict[str, Any]:
    with Processes({"FEDERATION_MB": "1"}, every=LIMIT) as processes:
        port, module = free_port(), "benchmarks.federation.trees"
        server = processes.python(module, "server", str(port), str(relays or CLIENTS))
        processes.until_listens(port)
        files = [processes.folder / f"relay{number}.json" for number in range(relays)]
        started = []
        for file in files:
            own = free_port()
            share = str(CLIENTS // relays)
            started.append(processes.python(module, "relay", str(port), str(own), share, str(file)))
            processes.until_listens(own)
            processes.python(module, "clients", str(own), share)
        if not relays:
            processes.python(module, "clients", str(port), str(CLIENTS))
        processes.wait(server)
        for each in started:
            each.wait(LIMIT)
        return {**processes.figures(), "relays": [json.loads(file.read_text()) for file in files]}


def _server(port: int, clients: int) -> None:
    meter = Meter()
    with fl.Server(work.model(), _at(port), min_clients=clients, relays=True) as server:
        clock, ends = work.Clock(), list[float]()
        for report in server.rounds(work.ROUNDS):
            assert len(report.clients) == CLIENTS, f"{len(report.clients)} of {CLIENTS} clients"
            clock.round_ends()
            ends.append(time.process_time())
        figures = clock.figures(float(server.model["layer0"][0]))
        assert figures["value"] == work.ROUNDS, figures
        cpu = [after - before for before, after in itertools.pairwise(ends)]
        work.report({**figures, "cpu": cpu, "extra": meter.read().extra})


class _Ends(fl.Callback):
    """Notes the processor time at the end of each round of a relay."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def round_ends(self, report: fl.RoundReport, model: Any) -> None:
        self.ends.append(time.process_time())


def _relay(parent: int, port: int, clients: int, file: Path) -> None:
    meter, ends = Meter(), _Ends()
    fl.Relay(_at(parent), _at(port), min_clients=clients, callbacks=[ends]).run()
    cpu = statistics.median(after - before for before, after in itertools.pairwise(ends.ends))
    file.write_text(json.dumps({"cpu": cpu, "extra": meter.read().extra}))


# The list of clients


def _lists() -> list[str]:
    rows = [["clients of a relay", "bytes", "bytes a client", "write, s", "read, s"]]
    for count in (1000, 10_000, 100_000):
        clients = {uuid.uuid4(): 10 + number % 90 for number in range(count)}
        reply, written, read = Reply(Job(1, 1, "train"), Subtotal({}, clients)), list[float](), list[float]()
        for _ in range(5):
            begin = time.perf_counter()
            message = MESSAGES.dump(reply)
            written.append(time.perf_counter() - begin)
            arrived = Stream([bytearray(bytes(message))])
            begin = time.perf_counter()
            MESSAGES.load(arrived)
            read.append(time.perf_counter() - begin)
        size, (write, load) = message.nbytes, map(statistics.median, (written, read))
        rows.append([f"{count:,}", f"{size:,}", f"{size / count:.0f}", f"{write:.3f}", f"{load:.3f}"])
    return markdown(rows)


# A relay that is killed


def _kill() -> list[str]:
    rows, ports = (
        [["round", "behind the first relay", "behind the second", "seconds", "failures"]],
        [free_port(), free_port()],
    )
    with Processes({}, every=LIMIT) as processes:
        options: dict[str, Any] = {"min_clients": 1, "wait": 2, "relays": True, "patience": fl.Patience(grace=_MOVE)}
        with fl.Server({"w": np.zeros(4)}, _at(0), **options) as server:
            threads: list[threading.Thread] = []

            def begin() -> None:
                file = processes.folder / "unused"
                arguments = [(str(server.netloc.port), str(port), "4", str(file)) for port in ports]
                relays = [processes.python("benchmarks.federation.trees", "relay", *each) for each in arguments]
                for port in ports:
                    processes.until_listens(port)
                for number in range(8):
                    client = fl.Client(_kills(relays[0]) if number < 4 else _adds)
                    here, other = ports if number < 4 else reversed(ports)
                    thread = threading.Thread(target=_move_on, args=(client, number, here, other))
                    threads.append(thread)
                    thread.start()

            threading.Thread(target=begin).start()
            begun = time.perf_counter()
            for report in server.rounds(1000):
                counted = [each.int for each in report.clients]
                first, second = sum(each < 4 for each in counted), sum(each >= 4 for each in counted)
                failures = ", ".join(each.why.name for each in report.failures.values()) or "none"
                if report.clients:
                    row = [str(report.number), f"{first} of 4", f"{second} of 4", f"{report.seconds:.2f}", failures]
                    rows.append([*row[:3], f"{time.perf_counter() - begun:.1f}", row[4]])
                assert len(set(counted)) == len(counted)
                if len(counted) == 8 and report.number > 2:
                    break
        for thread in threads:
            thread.join()
    rows[0][3] = "ended after, s"
    return markdown(rows[:4] + [["…", "", "", "", ""]] * (len(rows) > 5) + rows[max(4, len(rows) - 1) :])


def _move_on(client: fl.Client, number: int, here: int, other: int) -> None:
    membership._MOVE = _MOVE
    client.run(_at(here, id=uuid.UUID(int=number)), fallback=[("127.0.0.1", other)])


def _adds(model: Any, config: Mapping[str, Any]) -> fl.Update:
    return fl.Update({"w": model["w"] + 1}, 1)


def _kills(relay: Any) -> Callable[[Any, Mapping[str, Any]], fl.Update]:
    def train(model: Any, config: Mapping[str, Any]) -> fl.Update:
        if config["round"] == 2:
            relay.kill()
            relay.wait()
        return _adds(model, config)

    return train


def _side(role: str, *arguments: str) -> None:
    """Run one process of a row."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if role == "server":
        _server(int(arguments[0]), int(arguments[1]))
    elif role == "relay":
        _relay(int(arguments[0]), int(arguments[1]), int(arguments[2]), Path(arguments[3]))
    else:
        crowd.run(int(arguments[0]), int(arguments[1]))


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in ("server", "relay", "clients"):
        _side(*sys.argv[1:])
    else:
        main()
