"""A process with the id of another client: it gets the id only after the grace, and the other one learns of it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from netq import Closed, NetworkLocation
from netq.core import Communicator
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.log import LogRecorder
from netq.testing.proxy import Proxy
from tests.wires import PROXIED_TLS, SEALED, on

pytestmark = [pytest.mark.slow, on(*[kind for kind in PROXIED_TLS if kind not in SEALED])]  # certificates need no grace

GRACE = 0.5  # seconds
Proxies = Callable[[NetworkLocation], Proxy]


def client_that_is_away(communicators: Communicators, server: Communicator, proxy: Proxy) -> Communicator:
    """Return a client that has lost its link and cannot make another one."""
    client = communicators.client(proxy.netloc)
    introduce(server, client)
    proxy.refusing = True
    proxy.cut()
    while server.statistics()[client.id].connected:
        pass
    return client


def test_client_keeps_its_id_while_it_is_away_for_a_moment(
    communicators: Communicators, proxies: Proxies, log: LogRecorder
) -> None:
    server = communicators.server(takeover_grace=LIMIT)
    proxy = proxies(server.netloc)
    client = client_that_is_away(communicators, server, proxy)
    other = communicators.client(server.netloc, id=client.id, linger=0.0)
    other.put("never")
    log.wait("has lost its link; it has")
    log.wait("the peer refuses: the id")
    proxy.refusing = False
    client.put("mine").result(LIMIT)
    assert server.get(timeout=0) == (client.id, "mine")
    assert communicators.abort(other) == 1


def test_client_is_told_that_another_process_has_its_id(
    communicators: Communicators, proxies: Proxies, log: LogRecorder
) -> None:
    server = communicators.server(takeover_grace=GRACE)
    proxy = proxies(server.netloc)
    client = client_that_is_away(communicators, server, proxy)
    begin = time.monotonic() - server.statistics()[client.id].absent
    other = communicators.client(server.netloc, id=client.id)
    introduce(server, other)
    assert time.monotonic() - begin >= GRACE
    due = client.put("never")
    proxy.refusing = False
    told = (
        r"another process \(.*\) has taken over this client's id at 20\d\d-.* UTC, while its link was lost; give each"
    )
    with pytest.raises(Closed, match=told):
        client.get(timeout=LIMIT)
    with pytest.raises(Closed, match=told):
        due.result(LIMIT)
    assert client.close(LIMIT) == 1, "the one that was due"
    server.put("for the other", client.id).result(LIMIT)
    assert other.get(timeout=0).data == "for the other"
    assert log.wait(f"{client.id}: another process (")


def test_restarted_client_gets_its_id_at_once_after_close(communicators: Communicators) -> None:
    server = communicators.server(takeover_grace=10 * LIMIT)
    client = communicators.client(server.netloc)
    introduce(server, client)
    assert client.close(LIMIT) == 0
    communicators.client(server.netloc, id=client.id).put("again").result(LIMIT)
    assert server.get(timeout=0) == (client.id, "again")
