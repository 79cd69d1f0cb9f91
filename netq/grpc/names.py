"""The addresses of a host by the system's own resolver, so that /etc/hosts, mDNS and the like count as they do
elsewhere: grpc would ask the name servers by itself.

Called in the engine; it never waits there: a name is looked up in a thread.
"""

from __future__ import annotations

import asyncio
import socket
import threading

from netq.dial import look_up
from netq.grpc.engine import Engine


async def addresses(engine: Engine, host: str, port: int) -> list[str]:
    """Return grpc's targets, one for each address. Raises OSError with a sentence."""
    try:
        return _targets(host, port, numeric=True)
    except socket.gaierror:  # a name: asking for it may take seconds
        answer: asyncio.Future[list[str]] = engine.loop.create_future()
        try:
            threading.Thread(
                target=_resolve, args=(engine, answer, host, port), name="netq-resolve", daemon=True
            ).start()
        except RuntimeError as error:  # the system has no thread left, or the interpreter is ending
            raise OSError(f"the name cannot be resolved: {error}") from error
        return await answer


def _resolve(engine: Engine, answer: asyncio.Future[list[str]], host: str, port: int) -> None:
    try:
        found = _targets(host, port, numeric=False)
    except OSError as error:
        engine.call(_tell, answer, [], OSError(f"the name cannot be resolved: {error.strerror}"))
    else:
        engine.call(_tell, answer, found, None)


def _tell(answer: asyncio.Future[list[str]], found: list[str], error: OSError | None) -> None:
    if answer.done():
        return  # nobody wants to know any more
    if error is None:
        answer.set_result(found)
    else:
        answer.set_exception(error)


def _targets(host: str, port: int, *, numeric: bool) -> list[str]:
    return [_target(family, str(address[0]), port) for family, address in look_up(host, port, numeric=numeric)]


def _target(family: int, address: str, port: int) -> str:
    if family == socket.AF_INET6:
        return f"ipv6:[{address.replace('%', '%25')}]:{port}"
    return f"ipv4:{address}:{port}"
