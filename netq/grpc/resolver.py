"""Resolves host names with the system's resolver, so that /etc/hosts and mDNS work as for other transports.

grpc's own resolver asks the name servers directly. Called in the event loop; a name is looked up in a thread.
"""

from __future__ import annotations

import asyncio
import socket
from functools import partial

from netq.grpc.event_loop import EventLoop
from netq.io.connect import Address, look_up, look_up_in_thread


async def addresses(event_loop: EventLoop, host: str, port: int) -> list[str]:
    """Return grpc's targets, one for each address. Raises OSError with a sentence."""
    try:
        found = look_up(host, port, numeric=True)
    except socket.gaierror:  # a name, whose lookup may take seconds
        resolved: asyncio.Future[list[Address]] = event_loop.loop.create_future()
        set_result = partial(event_loop.call, _set_result, resolved)
        look_up_in_thread(host, port, set_result, set_result)
        found = await resolved
    return [_target(family, str(address[0]), port) for family, address in found]


def _set_result(resolved: asyncio.Future[list[Address]], found: list[Address] | OSError) -> None:
    if resolved.done():
        return  # the attempt was cancelled
    if isinstance(found, OSError):
        resolved.set_exception(found)
    else:
        resolved.set_result(found)


def _target(family: int, address: str, port: int) -> str:
    if family == socket.AF_INET6:
        return f"ipv6:[{address.replace('%', '%25')}]:{port}"
    return f"ipv4:{address}:{port}"
