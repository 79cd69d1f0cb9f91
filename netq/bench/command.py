"""The command `netq bench`: serves, or runs a workload and prints its figures. Turns errors into an exit status.

status  when
0       done; of a server: SIGTERM, with --until-eof the end of its stdin, of `iops … server` the end of its client
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
from netq.bench import cli, load, output, plan, report, spawn, sweep, workloads
from netq.bench.client import Client
from netq.bench.protocol import BenchError
from netq.bench.resources import Facts, facts, free_memory, pinned
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
    except (_NoMemory, output.NotWritten, netq.InvalidOption, netq.SecurityError, ImportError) as error:
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
        serve(server, arrivals, largest, once=options.work == "iops")
        server.close(timeout=0 if options.until_eof else spawn.SESSION_TIMEOUT)  # at the end of stdin no client is left
    return 0


def _announce(options: argparse.Namespace, netloc: netq.NetworkLocation) -> None:
    host, port = netloc
    through = "through the broker " if options.protocol is Protocol.MQTT else ""
    line = f"serving {options.protocol.value} {through}at {format_netloc(*netloc)}; Ctrl-C or SIGTERM ends it"
    sys.stdout.write((json.dumps({"host": host, "port": port}) if options.json else line) + "\n")
    sys.stdout.flush()


@contextlib.contextmanager
def _until_sigterm() -> Iterator[None]:
    """Raise _Terminated in a with statement when SIGTERM comes."""

    @netq.outside_steps
    def end(number: int, frame: object) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, netq.outside_steps(end))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end_with_stdin(arrivals: Arrivals) -> None:
    spawn.wait_for_eof()
    arrivals.put(None)


def _measure(options: argparse.Namespace) -> int:
    _check_memory(options)
    output.check(options)
    core, server_core = spawn.both_cores(options)
    with (
        pinned(core),
        spawn.server(options, server_core) as server,
        _Warnings(prints=False) as warnings,
        netq.new(options.protocol, netq.Purpose.CLIENT, spawn.client_options(options, server)) as queue,
    ):
        client = _find(queue, options, warnings)
        warnings.prints = True  # from now on, a lost link changes the figures
        try:
            with _reported(options, client.facts) as figures:
                _run(client, options, figures)
        except KeyboardInterrupt:
            warnings.prints = False  # what is on its way is not delivered, as the user wants
            raise
        except netq.Closed as error:
            raise BenchError(f"the server at {format_netloc(*server.netloc)}: {error.why}") from error
    return 0


@contextlib.contextmanager
def _reported(options: argparse.Namespace, server: Facts) -> Iterator[workloads.Figures]:
    """Yield figures that a with statement fills, and print them at its end.

    After an error, too, if there are any: then they are the first sizes of a sweep.
    """
    figures: workloads.Figures = {}
    try:
        yield figures
    finally:
        if figures:
            result = {
                "work": options.work,
                "arguments": report.arguments(options),
                "platform": {"client": facts(), "server": server},
                "figures": figures,
            }
            print(report.as_json(result) if options.json else report.as_table(result))


def _check_memory(options: argparse.Namespace) -> None:
    """Raise _NoMemory if the messages that this machine holds at once need more memory than it has.

    A sweep leaves out the sizes that are too large, but not its smallest.
    """
    copies, free, option = cli.copies(options), free_memory(), cli.size_option(options)
    while free is not None and (size := cli.largest(options)) * copies > free:
        why = (
            f"messages of {plan.format_size(size)} need {plan.about(size * copies)} of this machine's memory, of which "
            f"{plan.about(free)} are free"
        )
        if options.work != "sweep" or len(options.sizes) == 1:
            raise _NoMemory(f"{option}: {why}; choose a smaller {option}")
        options.left_out[options.sizes.pop()] = why


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


def _run(client: Client, options: argparse.Namespace, figures: workloads.Figures) -> None:
    if options.work == "sweep":
        _sweep(client, options, figures)
    elif options.work == "iops":
        figures |= workloads.iops(client, options.plan, options.mode)
    elif options.work == "throughput":
        figures |= workloads.throughput(client, options.plan, options.direction)
    elif options.work == "latency":
        figures |= workloads.latency(client, options.size, options.count)
    elif options.rates is not None:
        figures |= load.curve(client, options.size, options.seconds, options.rates)
        load.write(options.csv, options.plot, figures)
    elif options.rate is not None:
        figures |= load.at_rate(client, options.size, options.seconds, options.rate)
    else:
        figures |= load.highest_rate(client, options.size, options.seconds, options.limit)


def _sweep(client: Client, options: argparse.Namespace, figures: workloads.Figures) -> None:
    """Measure all sizes. If that ends early, the figures and the files have the sizes that were measured."""
    found = sweep.Found(options.left_out)
    try:
        sweep.sweep(client, options.sizes, options.seconds, found)
    finally:
        if found.rows:
            figures |= found.figures()
            sweep.write(options.csv, options.plot, found.rows)


def _fail(why: str, status: int) -> int:
    _say(f"error: {' '.join(why.split())}")
    return status


def _say(text: str) -> None:
    sys.stderr.write(f"netq bench: {printable(text, _LONGEST)}\n")  # in one piece: other processes write to stderr too
