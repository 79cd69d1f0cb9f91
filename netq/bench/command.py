"""The command `netq bench`: serves, or runs a workload and prints its figures. Turns errors into an exit status.

status  when
0       done; of a server: SIGTERM, with --until-eof the end of its stdin, of `iops … server` the end of its last client
1       the server is not there, refuses, or was lost; an address is taken: one line on stderr says which
2       the command line, a file or a library is wrong, or memory is missing here: one line on stderr says how
130     Ctrl-C
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Self

import netq
from netq.bench import cli, curve, files, load, plan, report, spawn, workloads
from netq.bench.client import Client, ClientGroup
from netq.bench.progress import Progress, progress
from netq.bench.protocol import BenchError
from netq.bench.resources import facts, free_memory, pinned
from netq.bench.service import Arrivals, open_server, serve
from netq.options import Protocol
from netq.text import format_netloc, printable

_LONGEST = 20_000  # characters of a line on stderr
_SOON = 1.0  # seconds in which a server that is there answers


class _Terminated(BaseException):
    """SIGTERM has come. Like KeyboardInterrupt it is no Exception, so that no handler of errors catches it."""


class _NoMemory(Exception):
    """This machine cannot hold the messages."""


class _Warnings(logging.Handler):
    """Takes the warnings that netq logs within a with statement: keeps the last, prints each if `prints` is set."""

    def __init__(self, *, prints: bool) -> None:
        super().__init__(logging.WARNING)
        self.last = ""
        self.prints = prints

    def emit(self, record: logging.LogRecord) -> None:
        self.last = " ".join(record.getMessage().split())
        if self.prints:
            _say(self.last)

    def __enter__(self) -> Self:
        logging.getLogger("netq").addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        logging.getLogger("netq").removeHandler(self)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    options = cli.parse(arguments)
    try:
        return _serve(options) if options.purpose == "server" else _measure(options)
    except KeyboardInterrupt:
        return 130
    except _Terminated:
        _say("SIGTERM: the server has ended")
        return 0
    except spawn.ServerFailed as error:  # it has printed why
        return error.status
    except MemoryError:
        option = cli.size_option(options)
        return _fail(f"{option}: no memory for such messages on this machine; choose a smaller {option}", 2)
    except (_NoMemory, files.NotWritten, netq.InvalidOption, netq.SecurityError, ImportError) as error:
        return _fail(str(error), 2)
    except (BenchError, netq.NetqError) as error:
        return _fail(str(error), 1)


def _serve(options: argparse.Namespace) -> int:
    arrivals, largest = Arrivals(), cli.largest(options)
    with (
        # With --until-eof, the process that started this one reports the same warnings.
        _Warnings(prints=not options.until_eof),
        _until_sigterm(),
        pinned(options.core),
        open_server(spawn.server_options(options), options.protocol, arrivals) as server,
    ):
        _announce(options, server.netloc)
        if options.until_eof:
            threading.Thread(target=_end_with_stdin, args=(arrivals,), daemon=True).start()
        serve(server, arrivals, largest, options.clients)
        server.close(timeout=0 if options.until_eof else spawn.SESSION_TIMEOUT)  # at the end of stdin no client is left
    return 0


def _announce(options: argparse.Namespace, netloc: netq.NetworkLocation) -> None:
    host, port = netloc
    through = "through the broker " if options.protocol is Protocol.MQTT else ""
    bound = "" if options.clients is None else f", --clients {options.clients}"
    address = format_netloc(*netloc)
    line = f"serving {options.protocol.value} {through}at {address}{bound}; Ctrl-C or SIGTERM ends it"
    sys.stdout.write((json.dumps({"host": host, "port": port}) if options.json else line) + "\n")
    sys.stdout.flush()


@contextlib.contextmanager
def _until_sigterm() -> Iterator[None]:
    """Raise _Terminated in a with statement when SIGTERM comes."""

    def end(number: int, frame: object) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end_with_stdin(arrivals: Arrivals) -> None:
    spawn.wait_for_eof()
    arrivals.put(None)


def _measure(options: argparse.Namespace) -> int:
    _check_memory(options)
    files.check(options)
    core, server_core = spawn.both_cores(options)
    with pinned(core), spawn.server(options, server_core) as server, contextlib.ExitStack() as stack:
        threads: list[threading.Thread] = []
        stack.callback(_join, threads)  # after all communicators are closed
        warnings = stack.enter_context(_Warnings(prints=False))
        queues = [
            stack.enter_context(netq.new(options.protocol, netq.Purpose.CLIENT, spawn.client_options(options, server)))
            for _ in range(options.clients)
        ]
        clients = [_find(queue, options, warnings) for queue in queues]
        warnings.prints = True  # from now on, a lost link changes the figures
        try:
            with progress() as shown:
                figures = _run(clients, threads, options, shown)
        except netq.Closed as error:
            raise BenchError(f"the server at {format_netloc(*server.netloc)}: {error.why}") from error
    result = {
        "work": options.work,
        "arguments": report.arguments(options),
        "platform": {"client": facts(), "server": clients[0].facts},
        "figures": figures,
    }
    print(report.as_json(result) if options.json else report.as_table(result))
    if "curve" in figures:
        curve.write(figures, options.csv, options.plot)
    return 0


def _check_memory(options: argparse.Namespace) -> None:
    """Raise _NoMemory if the messages that this machine holds at once need more memory than it has."""
    size, copies, free, option = cli.largest(options), cli.copies(options), free_memory(), cli.size_option(options)
    if free is not None and size * copies > free:
        raise _NoMemory(
            f"{option}: messages of {plan.format_size(size)} need {plan.about(size * copies)} of this machine's "
            f"memory, of which {plan.about(free)} are free; choose a smaller {option}"
        )


def _find(queue: netq.Communicator, options: argparse.Namespace, warnings: _Warnings) -> Client:
    """Wait for the server's hello. If it does not come soon, say so; then wait until --timeout is over."""
    soon = min(_SOON, options.timeout)
    with contextlib.suppress(TimeoutError):
        return Client(queue, soon)
    if options.timeout > soon:
        _say(f"{_missing(queue, options, warnings)}; waiting up to {options.timeout:g} s")
    with contextlib.suppress(TimeoutError):
        return Client(queue, options.timeout - soon)
    raise BenchError(f"{_missing(queue, options, warnings)}; no answer within {options.timeout:g} s (--timeout)")


def _missing(queue: netq.Communicator, options: argparse.Namespace, warnings: _Warnings) -> str:
    """Return why there is no hello: nothing can be reached, or what was reached is no bench server."""
    where = format_netloc(*queue.netloc)
    if options.protocol is Protocol.MQTT:
        where = f"the broker {where}, --prefix {options.prefix}"
    if any(each.connected for each in queue.statistics().values()):
        return f"connected, but no bench server at {where}; start one there: netq bench server"
    why = warnings.last.removeprefix(f"{where}: ").removesuffix("; trying again until it answers")
    return f"cannot connect to {where}" + (f" ({why})" if why else "")


def _join(threads: Sequence[threading.Thread]) -> None:
    """Wait for threads: one that holds a message when the interpreter ends could crash it."""
    for thread in threads:
        thread.join()


def _run(
    clients: Sequence[Client], threads: list[threading.Thread], options: argparse.Namespace, shown: Progress
) -> workloads.Figures:
    if options.work == "iops":
        return workloads.iops(ClientGroup(clients, threads), options.plan, options.mode, options.delay, shown)
    [client] = clients
    if options.work == "throughput":
        return workloads.throughput(client, options.plan, options.direction, shown)
    if options.work == "latency":
        return workloads.latency(client, options.size, options.count, shown)
    limit = None if options.limit is None else options.limit / 1e3
    asked = load.Load(options.size, options.rate, options.seconds, limit)
    if options.rates is not None:
        return curve.measure(client, asked, options.rates, shown)
    return (load.highest_rate if options.rate is None else load.at_rate)(client, asked, shown)


def _fail(why: str, status: int) -> int:
    _say(f"error: {' '.join(why.split())}")
    return status


def _say(text: str) -> None:
    sys.stderr.write(f"netq bench: {printable(text, _LONGEST)}\n")  # in one piece: other processes write to stderr too
