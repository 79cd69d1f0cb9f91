"""netq exchange: runs an exchange (netq/exchange) until SIGINT or SIGTERM. Its file, and the objects that it describes.

[server]      host, port       address to listen at; with "mqtt", the broker's. Default: 127.0.0.1, 51966
              protocol         transport; default "tcp"
[exchange]    jobs, job_memory, tries, calls, names, answers, keep, grace: see netq.exchange.Exchange
[allow.NAME]  any field of netq.exchange.Permission; a table for each permission. Without any, clients may do anything
[security], [seal], [mqtt], [connection]: as in the file of an edge device (docs/reference/edge.md)
"""

from __future__ import annotations

import argparse
import logging
import signal
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from netq.cli.terminal import fail, log_to_stderr, stop
from netq.errors import InvalidOption, NetqError, SecurityError
from netq.exchange import Exchange, Permission
from netq.options import NetworkLocation, Protocol
from netq.text import format_netloc
from netq.toml_file import CONNECTION, File, in_file_terms

log = logging.getLogger("netq")

_CLOSE = 10.0  # seconds for what is on its way
_KEYS: dict[str, tuple[str, ...] | None] = {
    "server": ("host", "port", "protocol", "proxy"),
    "exchange": ("jobs", "job_memory", "tries", "calls", "names", "answers", "keep", "grace"),
    "allow": None,
    **CONNECTION,
}
_PERMISSION = tuple(option.name for option in fields(Permission))


def main(arguments: Sequence[str]) -> int:
    """Run an exchange; return 0, 1 if it cannot run here, or 2 for a wrong file."""
    options = _parser().parse_args(arguments)
    log_to_stderr(logging.INFO, in_file_terms)
    signal.signal(signal.SIGTERM, stop)
    try:
        exchange = _exchange(None if options.config is None else Path(options.config))
    except InvalidOption as error:
        return fail("netq exchange", error, 2)
    except (NetqError, ImportError) as error:
        return fail("netq exchange", error, 1)
    try:
        log.info("an exchange waits for clients at %s", format_netloc(*exchange.netloc))
        exchange.wait()
    except KeyboardInterrupt:
        return 130
    finally:
        exchange.close(_CLOSE)
    return 0


def _parser() -> argparse.ArgumentParser:
    description = "Run an exchange: topics, work queues and services for many clients, until SIGINT or SIGTERM."
    epilog = "example: netq exchange exchange.toml"
    parser = argparse.ArgumentParser("netq exchange", description=description, epilog=epilog)
    help = "its file: docs/how-to/exchange.md; default: 127.0.0.1:51966, and clients may do anything"
    parser.add_argument("config", metavar="CONFIG.toml", nargs="?", help=help)
    return parser


def _exchange(path: Path | None) -> Exchange:
    """Return the exchange of a file. Raises InvalidOption, which names the file, and what Exchange raises."""
    file = File(path, "the exchange's TOML file")
    file.check_names(_KEYS)
    protocol = file.choice("server", "protocol", Protocol.TCP)
    netloc = NetworkLocation()
    if "host" in file.table("server"):
        netloc = netloc._replace(host=file.text("server", "host", 'an address, as in "0.0.0.0"'))
    if "port" in file.table("server"):
        netloc = netloc._replace(port=file.whole("server", "port", "a whole number from 0 to 65535", 0, 65535))
    options = file.communicator(netloc, protocol)
    permissions = None
    if "allow" in file.tables:
        permissions = [_permission(file, name, table) for name, table in file.table("allow").items()]
        if not permissions:
            raise file.wrong("allow: no permission; expected a table for each, as in [allow.boards]")

    def exchange(**values: Any) -> Exchange:
        return Exchange(options, protocol, permissions=permissions, **values)

    try:
        return file.options("exchange", exchange, file.table("exchange"))
    except SecurityError as error:
        raise file.wrong(in_file_terms(error)) from error


def _permission(file: File, name: str, table: object) -> Permission:
    if not isinstance(table, Mapping):
        raise file.wrong(f"allow.{name}: {table!r}; expected a table: begin it with a line [allow.{name}]")
    for key in table:
        if key not in _PERMISSION:
            raise file.wrong(f"allow.{name}.{key}: no such key; expected one of {', '.join(_PERMISSION)}")
    if "clients" not in table:
        raise file.wrong(f'allow.{name}.clients: missing; expected a list of ids, or ["*"]')
    return file.options(f"allow.{name}", Permission, table)
