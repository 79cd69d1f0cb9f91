"""SIGPIPE: no send to a peer that has hung up raises it. It would end a program that has set it to its default.

Shared memory is left out: its Unix sockets have packets (SOCK_SEQPACKET), for which Linux raises none.
"""

from __future__ import annotations

import pickle
import signal
from collections.abc import Callable, Iterator

import pytest

from netq import NetworkLocation
from netq.io.poller import Poller
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.proxy import Proxy
from tests.wires import PROXIED_TLS, on

_CUTS = 4
_DATA = pickle.PickleBuffer(bytes(2 * 1024**2))


@pytest.fixture
def raised() -> Iterator[list[int]]:
    """Get a number for each SIGPIPE of this process."""
    found: list[int] = []
    before = signal.signal(signal.SIGPIPE, lambda number, frame: found.append(number))
    yield found
    signal.signal(signal.SIGPIPE, before)


@pytest.mark.slow
@on(*PROXIED_TLS)
def test_cuts_raise_no_sigpipe(
    communicators: Communicators, proxies: Callable[[NetworkLocation], Proxy], raised: list[int]
) -> None:
    server = communicators.server()
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc)
    introduce(server, client)
    for _ in range(_CUTS):
        before = proxy.passed
        futures = [client.put(_DATA), server.put(_DATA, client.id)]
        proxy.wait(before + 100_000, LIMIT)
        proxy.cut()
        assert len(server.get(timeout=LIMIT).data) == len(client.get(timeout=LIMIT).data) == _DATA.raw().nbytes
        for future in futures:
            future.result(LIMIT)
    assert raised == []


def test_wake_up_of_a_loop_that_has_ended_raises_no_sigpipe(raised: list[int]) -> None:
    poller = Poller(lambda: True)
    poller._wakee.close()
    poller.begin_sleep()
    poller.wake()
    poller.close()
    assert raised == []
