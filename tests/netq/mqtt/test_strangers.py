"""Foreign publications under the prefix: invalid ones are ignored, and others end only the link of their topic."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from netq import MqttOptions
from netq.core import Communicator
from netq.mqtt import packet
from netq.mqtt.packet import PacketKind
from netq.mqtt.topic import new_id
from netq.mqtt.window import MAX_PACKETS
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.log import LogRecorder
from tests.netq.makers import at_broker
from tests.netq.mqtt.stranger import Stranger
from tests.servers.mosquitto import Mosquitto

pytestmark = pytest.mark.slow

EMPTY = packet.header(PacketKind.ACK, 0, 0, 0)
BAD = [b"", b"x", b"\0" * 19, b"\xff" * 19, b"\x63" + b"\0" * 18, EMPTY + b"more", EMPTY[:-1]]
OPENS = [
    packet.header(PacketKind.OPEN, 0, 0, 0),
    packet.header(PacketKind.OPEN, 7, 0, 0) + packet.opening(100),
    packet.header(PacketKind.OPEN, 0, 0, 9) + packet.opening(0),
    packet.header(PacketKind.OPEN, 0, 0, 9) + b"netq\x09\0\0\0\1",
    packet.header(PacketKind.OPEN, 0, 0, 9) + b"qten\x01\0\0\0\1",
]


@pytest.fixture
def prefix() -> str:
    return f"test/{new_id()}"


@pytest.fixture
def communicators(broker: Mosquitto, prefix: str) -> Iterator[Communicators]:
    with Communicators(at_broker(broker.netloc, prefix=prefix)) as communicators:
        yield communicators


@pytest.fixture
def stranger(broker: Mosquitto, prefix: str) -> Iterator[Stranger]:
    stranger = Stranger(broker.netloc, prefix)
    yield stranger
    stranger.close()


def echoed(server: Communicator, client: Communicator) -> None:
    introduce(server, client)
    server.put("and back", client.id).result(LIMIT)
    assert client.get(timeout=LIMIT).data == "and back"


def test_retained_messages_are_ignored(communicators: Communicators, stranger: Stranger) -> None:
    topics = ["hello", f"s/{new_id()}/{new_id()}", f"s/{new_id()}/gone", f"g/{new_id()}", "nothing/of/ours"]
    for topic in topics:
        stranger.publish(topic, packet.hello(b"8 bytes.", here=True), 1, retain=True)
    echoed(*communicators.pair())
    for topic in topics:
        stranger.publish(topic, b"", 1, retain=True)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_invalid_publications_are_ignored_and_logged_once(
    communicators: Communicators, stranger: Stranger, log: LogRecorder, qos: int
) -> None:
    server, client = communicators.pair()
    mine = [f"s/{new_id()}/{new_id()}", "hello", "s/1/2", f"s/{new_id()}/GONE", f"c/{new_id()}/{new_id()}"]
    for topic in mine:
        for payload in (*BAD, *OPENS, bytes(70_000)):
            stranger.publish(topic, payload, qos)
    echoed(server, client)
    assert len(log.having("is ignored", logging.INFO)) <= 2  # one of them the server's, one the client's
    assert server.statistics()[client.id].connected


def test_ungreeted_client_has_one_link_and_no_share(communicators: Communicators, stranger: Stranger) -> None:
    server, client = communicators.pair()
    me, last = new_id(), new_id()
    for link in [*[new_id() for _ in range(100)], last]:
        stranger.publish(f"s/{me}/{link}", packet.header(PacketKind.OPEN, 0, 0, 0) + packet.opening(262_144))
    stranger.wait(PacketKind.WELCOME, "c", 102)
    server.put("x", client.id).result(LIMIT)
    assert client.get(timeout=LIMIT).data == "x"
    _, payload = stranger.wait(PacketKind.DATA, "c", stranger.count(PacketKind.DATA, "c"))
    assert packet.decode(payload).room == MAX_PACKETS  # a full share, as if it were alone
    before = stranger.count(PacketKind.RESET, "c")
    for number, link in enumerate([new_id(), last]):
        stranger.publish(f"s/{me}/{link}", packet.header(PacketKind.PROBE, 0, 0, 0))
        if not number:
            stranger.wait(PacketKind.RESET, "c", before + 1)  # there is no such link
    stranger.wait(PacketKind.ACK, "c")  # the last one is there
    echoed(server, client)


def test_many_ungreeted_ids_do_not_block_others(
    communicators: Communicators, stranger: Stranger, log: LogRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("netq.runtime.pending_links.MAX_LINKS", 4)  # with 256, publishing could take too long
    server = communicators.server(handshake_timeout=2 * LIMIT)
    client = communicators.client(server.netloc)
    echoed(server, client)
    open_packet = packet.header(PacketKind.OPEN, 0, 0, 0) + packet.opening(262_144)
    for _ in range(100):
        stranger.publish(f"s/{new_id()}/{new_id()}", open_packet)
    stranger.wait(PacketKind.WELCOME, "c", 1 + 4)
    echoed(server, client)
    echoed(server, communicators.client(server.netloc))
    assert stranger.count(PacketKind.WELCOME, "c") < 100, "some are not answered"
    assert len(log.having("the connection was closed", logging.WARNING)) == 1


def test_reset_names_both_versions(communicators: Communicators, stranger: Stranger, log: LogRecorder) -> None:
    communicators.server()
    log.wait("connected to the broker")
    stranger.publish(f"s/{new_id()}/{new_id()}", OPENS[3], 1)
    _, answer = stranger.wait(PacketKind.RESET, "c")
    assert b"version 9" in answer
    assert b"version 1" in answer


def test_reset_is_not_answered(communicators: Communicators, stranger: Stranger) -> None:
    server, client = communicators.pair()
    ways = [f"s/{new_id()}/{new_id()}" for _ in range(3)]
    for link_topic in ways:
        stranger.publish(link_topic, packet.header(PacketKind.RESET, 0, 0, 0), 1)
        stranger.publish(link_topic, packet.header(PacketKind.CLOSE, 0, 0, 0), 1)
    stranger.publish(ways[0], packet.header(PacketKind.DATA, 5, 0, 0) + b"lost", 1)
    stranger.wait(PacketKind.RESET, "c")
    echoed(server, client)
    assert stranger.count(PacketKind.RESET, "c") == 1


@pytest.mark.parametrize("to", ["s", "c"])
def test_gap_ends_the_link_but_not_the_session(
    communicators: Communicators, stranger: Stranger, log: LogRecorder, to: str
) -> None:
    server, client = communicators.pair()
    server.put("down", client.id).result(LIMIT)
    assert client.get(timeout=LIMIT).data == "down"
    topic, _ = stranger.wait(PacketKind.DATA, to)
    stranger.publish(topic, packet.header(PacketKind.DATA, 1000, 0, 8) + b"?")
    stranger.wait(PacketKind.OPEN, "s", 2)
    for number in range(100):
        client.put(number)
        server.put(number, client.id)
    assert [server.get(timeout=LIMIT).data for _ in range(100)] == list(range(100))
    assert [client.get(timeout=LIMIT).data for _ in range(100)] == list(range(100))
    assert log.wait("with number 1000 came, expected")


def test_duplicate_ends_the_link_and_is_delivered_once(communicators: Communicators, stranger: Stranger) -> None:
    server, client = communicators.pair()
    topic, first = stranger.wait(PacketKind.DATA, "s")
    stranger.publish(topic, first, 2)
    stranger.wait(PacketKind.OPEN, "s", 2)
    echoed(server, client)
    with pytest.raises(TimeoutError):
        server.get(timeout=0.1)


def test_loss_of_the_last_packet_is_detected_by_a_probe(communicators: Communicators, stranger: Stranger) -> None:
    """The server gets a PROBE for a packet that the client never sent, as after a loss."""
    server, client = communicators.pair()
    topic, _ = stranger.wait(PacketKind.DATA, "s")
    stranger.publish(topic, packet.header(PacketKind.PROBE, 50, 0, 8))
    stranger.wait(PacketKind.OPEN, "s", 2)
    echoed(server, client)


@pytest.mark.parametrize("prefix_", ["", "a+b", "a#", "a\0b", "$SYS", "/a"])
def test_invalid_prefix_is_refused(prefix_: str) -> None:
    with pytest.raises(ValueError, match=r"MqttOptions\.prefix"):
        MqttOptions(prefix=prefix_)


def test_prefix_may_have_several_levels(broker: Mosquitto) -> None:
    with Communicators(at_broker(broker.netloc, prefix=f"site 1/Fräse/{new_id()}")) as communicators:
        echoed(*communicators.pair())
