"""Faults of a network: packet loss, a black hole, outages, a low rate, and resets.

The cases "a connection is reset", "half-open", "loss in one direction only", "link 2 s there, 2 s away", "1, 5, 20 % of
packets lost" and "1 Mbit/s" of docs/explanation/reliability.md.
"""

from __future__ import annotations

import pickle
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import pytest

from netq.core import Communicator
from netq.runtime.delivery import Delivery
from netq.testing.fixtures import LIMIT
from netq.testing.log import LogRecorder
from tests.faults.conftest import FULL, Figure
from tests.faults.hosts import Cable, Host

if TYPE_CHECKING:
    from tests.faults.net.conftest import OnBoth, Site

pytestmark = pytest.mark.slow

MIB = 1024**2
LONG = 110.0  # seconds for steps that take some 20
BEATS: dict[str, Any] = {"heartbeat": 0.5, "misses": 3, "handshake_timeout": 2.0}
IN_TIME = 0.5 * 3 + 1.0  # seconds in which silence must be noticed
BREAK = 2.0  # seconds of each outage, and between outages
HOLES: dict[str, Callable[[Cable], None]] = {
    "12 half-open": lambda cable: cable.drop(),
    "13 the server hears nothing": lambda cable: cable.server.drop_input(),
    "13 the client hears nothing": lambda cable: cable.client.drop_input(),
}


def content(size: int) -> bytearray:
    return bytearray(random.Random(size).randbytes(size))


def where(server: Communicator) -> str:
    return "{}:{}".format(*server.netloc)


def noticed(
    log: LogRecorder, server: Communicator, client: Communicator, fault: Callable[[], object]
) -> tuple[float, float]:
    """Make a fault; return the seconds until the server and the client have noticed the loss of the link."""

    def after(text: str, count: int) -> float:
        log.wait(text, count)
        return time.monotonic() - start

    log.wait(f"{where(server)}: connected")
    with ThreadPoolExecutor() as pool:
        start = time.monotonic()
        theirs = pool.submit(after, f"{client.id}: lost (", 1)
        ours = pool.submit(after, f"{where(server)}: ", 2)
        fault()
        return theirs.result(), ours.result()


def exchange(server: Communicator, client: Communicator, name: str) -> list[Delivery]:
    return [client.put((name, number)) for number in range(10)] + [
        server.put((name, number), client.id) for number in range(10)
    ]


def check_exchanged(server: Communicator, client: Communicator, *names: str) -> None:
    """Check that the messages that `exchange` put under these names arrived once, in order, and no others."""
    expected = [(name, number) for name in names for number in range(10)]
    for end in (server, client):
        assert [end.get(timeout=LIMIT).data for _ in expected] == expected
        with pytest.raises(TimeoutError):
            end.get(timeout=0)


@pytest.mark.parametrize("case", HOLES)
def test_both_ends_notice_silence_and_resume_after_it(
    on_both: OnBoth, log: LogRecorder, figure: Figure, case: str
) -> None:
    def scenario(site: Site) -> None:
        server, client = site.pair(**BEATS)
        exchange(server, client, "before")
        seconds = noticed(log, server, client, lambda: (HOLES[case](site.cable), exchange(server, client, "within")))
        figure(case, "{}: server {:.2f} s, client {:.2f} s, limit {} s".format(site.kind, *seconds, IN_TIME))
        assert max(seconds) < IN_TIME
        site.cable.heal()
        for future in exchange(server, client, "after"):
            future.result(LIMIT)
        check_exchanged(server, client, "before", "within", "after")

    on_both(scenario)


def test_message_arrives_over_repeated_outages(on_both: OnBoth, log: LogRecorder, figure: Figure) -> None:
    data = content(10 * MIB)

    def play(case: str, site: Site, down: Callable[[], None], up: Callable[[], None]) -> None:
        server, client = site.pair(**BEATS)
        site.cable.rate(15_000)
        before, start = site.cable.client.bytes_sent, time.monotonic()
        future = client.put(pickle.PickleBuffer(data))
        while not wait([future], BREAK).done:
            assert time.monotonic() - start < LONG
            down()
            wait([future], BREAK)
            up()
        assert server.get(timeout=LIMIT).data == data
        seconds, ratio = time.monotonic() - start, (site.cable.client.bytes_sent - before) / len(data)
        losses = len(log.having(f"{client.id}: lost"))
        figure(case, f"{site.kind}: {losses} links lost in {seconds:.0f} s, on the wire {ratio:.3f} x, limit 2 x")
        assert losses >= 2, "too quick a network: nothing was tried"
        assert ratio <= 2.0
        with pytest.raises(TimeoutError):
            server.get(timeout=0)

    def dropping(site: Site) -> None:
        play("14 all is dropped", site, site.cable.drop, site.cable.heal)

    def unplugged(site: Site) -> None:
        host = site.cable.client
        play("14 the plug is pulled", site, lambda: host.link("down"), lambda: host.link("up"))

    on_both(dropping, unplugged)


LOSSES = [(1, 64, 1024), (5, 32, 1024), (20, 4, 64)] if FULL else [(1, 16, 1024), (5, 8, 1024), (20, 4, 64)]


@pytest.mark.parametrize(("percent", "count", "kib"), LOSSES)
def test_messages_arrive_once_and_in_order_over_packet_loss(
    on_both: OnBoth, figure: Figure, percent: int, count: int, kib: int
) -> None:
    """Large messages each way, and a hundred small ones with each.

    At 20 %, Linux's congestion control (BBR or Reno) sometimes falls to 20 kB/s and stays there: the messages are small
    enough to arrive within the limit all the same.
    """
    large = content(kib * 1024)
    messages = [item for _ in range(count) for item in (*range(50), large, *range(50))]

    def scenario(site: Site) -> None:
        site.cable.drop(percent)
        server, client = site.pair()
        start = time.monotonic()
        futures = [put for item in messages for put in (client.put(item), server.put(item, client.id))]
        for end in (server, client):
            for item in messages:
                assert end.get(timeout=LONG).data == item
        for future in futures:
            future.result(LIMIT)
        seconds, ratio = time.monotonic() - start, site.cable.client.bytes_sent / (count * len(large))
        text = f"{site.kind}: {count} x {kib} KiB each way in {seconds:.1f} s, on the wire {ratio:.3f} x"
        figure(f"15 {percent:2} % of packets lost", text)
        for end in (server, client):
            with pytest.raises(TimeoutError):
                end.get(timeout=0)
        site.cable.heal()

    on_both(scenario)


def test_heartbeats_pass_a_large_message_on_a_slow_network(on_both: OnBoth, log: LogRecorder, figure: Figure) -> None:
    """The message takes many times as long as a link may be silent."""
    data, times = (content(2 * MIB), 10) if FULL else (content(3 * MIB // 4), 3)

    def scenario(site: Site) -> None:
        server, client = site.pair(**BEATS)
        site.cable.rate(1000)
        before, start = site.cable.client.bytes_sent, time.monotonic()
        future = client.put(pickle.PickleBuffer(data))
        beats: set[float] = set()
        while not wait([future], BEATS["heartbeat"] / 2).done:
            assert time.monotonic() - start < LONG
            at_server, at_client = server.statistics()[client.id], client.statistics()[server.id]
            assert at_server.connected
            assert at_client.connected
            beats |= set() if at_server.round_trip is None else {at_server.round_trip}
        seconds, ratio = time.monotonic() - start, (site.cable.client.bytes_sent - before) / len(data)
        assert server.get(timeout=0).data == data
        text = f"{len(beats)} heartbeats, the slowest {max(beats, default=0):.2f} s, on the wire {ratio:.3f} x"
        figure(f"17 1 Mbit/s, {len(data) / MIB:g} MiB", f"{site.kind}: {seconds:.0f} s, {text}")
        assert seconds > times * BEATS["heartbeat"] * BEATS["misses"], "too quick a network: nothing was tried"
        assert len(beats) > 1, "no heartbeat has passed the message"
        assert not log.having(f"{client.id}: lost")
        assert log.having(f"{where(server)}: connected") == [f"{where(server)}: connected"]
        assert not log.having("trying again")

    on_both(scenario)


@pytest.mark.parametrize("side", ["server", "client"])
def test_reset_connection_is_noticed_at_once_and_replaced(
    on_both: OnBoth, log: LogRecorder, figure: Figure, side: str
) -> None:
    def scenario(site: Site) -> None:
        server, client = site.pair()
        host: Host = getattr(site.cable, side)
        exchange(server, client, "before")
        seconds = noticed(log, server, client, host.reset_connections)
        figure(f"ss -K at the {side}", "{}: server {:.3f} s, client {:.3f} s, limit 1 s".format(site.kind, *seconds))
        assert max(seconds) < 1.0
        exchange(server, client, "after")
        check_exchanged(server, client, "before", "after")

    on_both(scenario)
