"""The command: makes both sides' communicators, runs the work, prints its figures, and turns errors into a status.

status  when
0       done; of a server: its stdin has ended, with --until-eof
1       the server is not there, refuses, or was lost; an address is taken: one line on stderr says which
2       the command line, a file or a library is wrong: one line on stderr says how
130     Ctrl-C
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Self

import netq
from netq.bench import load, local, report, works
from netq.bench.arguments import PASSWORD, parse
from netq.bench.client import Client
from netq.bench.progress import Progress, progress
from netq.bench.protocol import HEAD, BenchError, serialization
from netq.bench.service import Arrivals, open_server, serve
from netq.bench.usage import cores, facts, pinned
from netq.options import NetworkLocation, Protocol

_NAME = "python -m netq bench"
_GONE = 10.0  # seconds: a session without a link is not waited for longer
_LINGER = 0.2  # seconds in which Ctrl-C lets what is due arrive
_IOPS = ("mode", "min_size", "max_size", "step_size", "step_expo", "reps", "seed")
_OTHERS = ("size", "count", "direction", "rate", "seconds", "limit")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; return the exit status."""
    said = parse(arguments)
    try:
        return _serve(said) if said.work == "server" else _measure(said)
    except KeyboardInterrupt:
        return 130
    except local.ServerFailed as error:  # it has said why
        return error.status
    except (netq.InvalidOption, netq.SecurityError, ImportError) as error:
        return _fail(error, 2)
    except (BenchError, netq.NetqError, MemoryError) as error:
        return _fail(error, 1)


def _serve(said: argparse.Namespace) -> int:
    arrivals = Arrivals()
    security = None if said.key is None else netq.SecurityOptions(said.key, said.certificate)
    options = _options(said, said.netloc or NetworkLocation(), security, said.max_message)
    with pinned(said.core), open_server(options, said.protocol, arrivals) as server:
        host, port = server.netloc
        where = f"{said.protocol.value} at {host}:{port}"
        print(json.dumps({"host": host, "port": port}) if said.json else f"serving {where}; Ctrl-C ends it", flush=True)
        if said.until_eof:
            threading.Thread(target=_end_with_stdin, args=(arrivals,), daemon=True).start()
        serve(server, arrivals, said.max_message)
        server.close(timeout=0)  # whoever started this is gone, and wants nothing of it any more
    return 0


def _end_with_stdin(arrivals: Arrivals) -> None:
    local.wait_for_eof()
    arrivals.put(None)


def _measure(said: argparse.Namespace) -> int:
    core, its_core = _cores(said)
    largest = said.plan.largest if said.plan else said.size
    security = None if said.tls is None else netq.SecurityOptions(certificate=said.tls)
    with pinned(core), _server(said, its_core, largest) as netloc:
        options = _options(said, netloc, security, largest)
        with _Trouble() as trouble, netq.new(said.protocol, netq.Purpose.CLIENT, options) as queue:
            client = _find(queue, said.timeout, trouble)
            with progress() as shown:
                figures = _work(client, said, shown)
    print(_report(said, client, figures))
    return 0


@contextlib.contextmanager
def _server(said: argparse.Namespace, core: int | None, largest: int) -> Iterator[NetworkLocation]:
    """Yield where the server is; start it, if it is to be this machine's."""
    if not said.spawn:
        yield said.netloc
        return
    netloc = said.netloc or NetworkLocation(port=0)
    given: dict[str, Any] = {
        "protocol": said.protocol.value,
        "netloc": netloc.host if netloc.host.startswith("/") else f"{netloc.host}:{netloc.port}",
        "key": said.key,
        "certificate": said.certificate,
        "core": core,
        "max-message": largest,
    }
    if said.protocol is Protocol.MQTT:
        given |= {"tls": said.tls, "prefix": said.prefix, "user": said.user}
    arguments = [f"--{name}={value}" for name, value in given.items() if value is not None]
    with local.own_server(arguments, {} if said.password is None else {PASSWORD: said.password}) as where:
        yield where


def _cores(said: argparse.Namespace) -> tuple[int | None, int | None]:
    """Return the core of each side: where both are here, and there are two."""
    own = cores()
    return (own[0], own[1]) if said.spawn and not said.no_pin and len(own) > 1 else (None, None)


def _options(
    said: argparse.Namespace, netloc: NetworkLocation, security: netq.SecurityOptions | None, largest: int
) -> netq.CommunicatorOptions:
    if said.protocol is Protocol.MQTT and said.tls is not None:
        security = netq.SecurityOptions(certificate=said.tls)
    return netq.CommunicatorOptions(
        netloc=netloc,
        connection=netq.ConnectionOptions(message_size=largest + HEAD, session_timeout=_GONE, linger=_LINGER),
        serialization=serialization(),
        security=security,
        mqtt=netq.MqttOptions(prefix=said.prefix, user=said.user, password=said.password),
    )


def _find(queue: netq.Communicator, timeout: float, trouble: _Trouble) -> Client:
    try:
        client = Client(queue, timeout)
    except TimeoutError:
        where = "{}:{}".format(*queue.netloc)
        why = f" ({trouble.last})" if trouble.last else ""
        raise BenchError(f"no bench server at {where} has answered within {timeout:g} s{why}") from None
    trouble.is_told = True
    return client


class _Trouble(logging.Handler):
    """What netq warns of, within a with statement. Told from when the server is found: then it is in the figures."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""
        self.is_told = False

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it, and tell it."""
        self.last = record.getMessage()
        if self.is_told:
            print(f"{_NAME}: {self.last}", file=sys.stderr)

    def __enter__(self) -> Self:
        logging.getLogger("netq").addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        logging.getLogger("netq").removeHandler(self)


def _work(client: Client, said: argparse.Namespace, shown: Progress) -> works.Figures:
    if said.work == "iops":
        return works.iops(client, said.plan, said.mode, shown)
    if said.work == "throughput":
        return works.throughput(client, said.plan, said.direction, shown)
    if said.work == "latency":
        return works.latency(client, said.size, said.count, shown)
    asked = load.Load(said.size, said.rate, said.seconds, said.limit / 1e3)
    return (load.highest_rate if said.rate is None else load.at_rate)(client, asked, shown)


def _report(said: argparse.Namespace, client: Client, figures: works.Figures) -> str:
    given = {name: getattr(said, name) for name in _IOPS + _OTHERS if hasattr(said, name)}
    netloc = None if said.netloc is None else "{}:{}".format(*said.netloc)
    where = {"protocol": said.protocol.value, "netloc": netloc, "tls": None if said.tls is None else str(said.tls)}
    whole = {
        "work": said.work,
        "arguments": given | where,
        "platform": {"client": facts(), "server": client.facts},
        "figures": figures,
    }
    return report.as_json(whole) if said.json else report.as_table(whole)


def _fail(error: Exception, status: int) -> int:
    text = " ".join(str(error).split()) or type(error).__name__
    print(f"{_NAME}: error: {text}", file=sys.stderr)
    return status
