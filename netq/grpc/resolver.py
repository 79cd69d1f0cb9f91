"""The addresses of a host by the system's own resolver, so that /etc/hosts, mDNS and the like count as they do
elsewhere: grpc would ask the name servers by itself.

Called in the engine; it never waits there: a name is looked up in a thread.
"""

from __future__ import annotations

import asyncio
import socket
from functools import partial

from netq.grpc.event_loop import EventLoop
from netq.io.connect import Address, look_up, look_up_in_thread


async def addresses(engine: EventLoop, host: str, port: int) -> list[str]:
    """Return grpc's targets, one for each address. Raises OSError with a sentence."""
    try:
        found = look_up(host, port, numeric=True)
    except socket.gaierror:  # a name: asking for it may take seconds
        answer: asyncio.Future[list[Address]] = engine.loop.create_future()
        tell = partial(engine.call, _tell, answer)
        look_up_in_thread(host, port, tell, tell)
        found = await answer
    return [_target(family, str(address[0]), port) for family, address in found]


def _tell(answer: asyncio.Future[list[Address]], found: list[Address] | OSError) -> None:
    if answer.done():
        return  # nobody wants to know any more
    if isinstance(found, OSError):
        answer.set_exception(found)
    else:
        answer.set_result(found)


def _target(family: int, address: str, port: int) -> str:
    if family == socket.AF_INET6:
        return f"ipv6:[{address.replace('%', '%25')}]:{port}"
    return f"ipv4:{address}:{port}"
