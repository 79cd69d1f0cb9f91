"""The command: serves, or runs the work and prints its figures; turns errors into a status.

status  when
0       done; of a server: SIGTERM, with --until-eof the end of its stdin, as iops also the end of its last client
1       the server is not there, refuses, or was lost; an address is taken: one line on stderr says which
2       the command line, a file or a library is wrong, or memory is missing here: one line on stderr says how
130     Ctrl-C
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import threading
from collections.abc import Iterator, Sequence

import netq
from netq.bench import checks, load, local, report, sides, words, works
from netq.bench.arguments import parse
from netq.bench.client import Client
from netq.bench.crowd import Crowd
from netq.bench.progress import Progress, progress
from netq.bench.protocol import BenchError
from netq.bench.service import Arrivals, open_server, serve
from netq.bench.usage import facts, pinned
from netq.options import NetworkLocation


class _Terminated(BaseException):
    """SIGTERM has come; as KeyboardInterrupt, nothing catches it on its way."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; return the exit status."""
    said = parse(arguments)
    try:
        return _serve(said) if said.purpose == "server" else _measure(said)
    except KeyboardInterrupt:
        return 130
    except _Terminated:
        words.say("SIGTERM: the server has ended")
        return 0
    except local.ServerFailed as error:  # it has said why
        return error.status
    except MemoryError:
        option = checks.size_option(said)
        return _fail(said, f"{option}: no memory for such messages on this machine; choose a smaller {option}", 2)
    except (checks.BadInput, netq.InvalidOption, netq.SecurityError, ImportError) as error:
        return _fail(said, str(error), 2)
    except (BenchError, netq.NetqError) as error:
        return _fail(said, str(error), 1)


def _serve(said: argparse.Namespace) -> int:
    arrivals, largest = Arrivals(), checks.largest(said)
    is_told = not said.until_eof  # else the process that started this one tells of the same troubles
    with (
        words.Trouble(_translation(said), is_told=is_told),
        _until_sigterm(),
        pinned(said.core),
        open_server(sides.server_options(said), said.protocol, arrivals) as server,
    ):
        _announce(said, server.netloc)
        if said.until_eof:
            threading.Thread(target=_end_with_stdin, args=(arrivals,), daemon=True).start()
        serve(server, arrivals, largest, said.clients)
        server.close(timeout=0 if said.until_eof else sides.GONE)  # at the end of stdin its clients are gone
    return 0


def _announce(said: argparse.Namespace, netloc: NetworkLocation) -> None:
    host, port = netloc
    where = f"through the broker at {words.place(netloc)}" if sides.is_mqtt(said) else f"at {words.place(netloc)}"
    bound = "" if said.clients is None else f", --clients {said.clients}"
    line = f"serving {said.protocol.value} {where}{bound}; Ctrl-C or SIGTERM ends it"
    sys.stdout.write((json.dumps({"host": host, "port": port}) if said.json else line) + "\n")
    sys.stdout.flush()


@contextlib.contextmanager
def _until_sigterm() -> Iterator[None]:
    """Let SIGTERM end what is within a with statement as Ctrl-C does, by an exception."""

    def end(number: int, frame: object) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end_with_stdin(arrivals: Arrivals) -> None:
    local.wait_for_eof()
    arrivals.put(None)


def _measure(said: argparse.Namespace) -> int:
    checks.check_memory(said)
    core, its_core = sides.both_cores(said)
    with pinned(core), sides.server(said, its_core) as server, contextlib.ExitStack() as stack:
        threads: list[threading.Thread] = []
        stack.callback(_join, threads)  # when all communicators are closed
        trouble = stack.enter_context(words.Trouble(words.of_client(server.netloc), is_told=False))
        queues = [
            stack.enter_context(netq.new(said.protocol, netq.Purpose.CLIENT, sides.client_options(said, server)))
            for _ in range(said.clients)
        ]
        clients = [_find(queue, said, trouble) for queue in queues]
        trouble.is_told = True  # from now on it is in the figures
        with progress() as shown:
            figures = _work(clients, threads, said, shown)
    whole = {
        "work": said.work,
        "arguments": report.arguments(said),
        "platform": {"client": facts(), "server": clients[0].facts},
        "figures": figures,
    }
    print(report.as_json(whole) if said.json else report.as_table(whole))
    return 0


def _find(queue: netq.Communicator, said: argparse.Namespace, trouble: words.Trouble) -> Client:
    """Wait for the server's hello."""
    try:
        return Client(queue, said.timeout)
    except TimeoutError:
        where = words.place(queue.netloc)
        who = f"the broker {where}, --prefix {said.prefix}," if sides.is_mqtt(said) else where
        why = trouble.last.removeprefix(f"{where}: ").removesuffix("; trying again until it answers")
        known = f" ({why})" if why else ""
        raise BenchError(f"no bench server at {who} has answered within {said.timeout:g} s{known}") from None


def _join(threads: Sequence[threading.Thread]) -> None:
    """Wait for threads: one that has a message when the interpreter ends could crash it."""
    for thread in threads:
        thread.join()


def _work(
    clients: Sequence[Client], threads: list[threading.Thread], said: argparse.Namespace, shown: Progress
) -> works.Figures:
    if said.work == "iops":
        return works.iops(Crowd(clients, threads), said.plan, said.mode, said.delay, shown)
    [client] = clients
    if said.work == "throughput":
        return works.throughput(client, said.plan, said.direction, shown)
    if said.work == "latency":
        return works.latency(client, said.size, said.count, shown)
    asked = load.Load(said.size, said.rate, said.seconds, None if said.limit is None else said.limit / 1e3)
    return (load.highest_rate if said.rate is None else load.at_rate)(client, asked, shown)


def _fail(said: argparse.Namespace, why: str, status: int) -> int:
    words.say(f"error: {_translation(said)(why)}")
    return status


def _translation(said: argparse.Namespace) -> words.Translate:
    if said.purpose == "server":
        return words.of_server(said.netloc, mqtt=sides.is_mqtt(said))
    return words.of_client(said.netloc)
