"""A second server of one prefix takes it over: the first says so, waits until it is gone, and does not fight. And
nothing but the answer to its question makes a server wait.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator

import pytest

from netq import NetworkLocation
from netq.mqtt import packet
from netq.mqtt.topic import new_id, server_id
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.log import LogRecorder
from netq.testing.proxy import Proxy
from tests.netq.makers import at_broker
from tests.netq.mqtt.stranger import Stranger
from tests.servers.mosquitto import Mosquitto

pytestmark = pytest.mark.slow

CONNACK, SUBACK, REPLACED = b"\x20\x03\0\0\0", b"\x90\x04%b\0\0", b"\xe0\x02\x8e\0"


def test_newer_server_serves_the_clients_until_it_ends(broker: Mosquitto, log: LogRecorder) -> None:
    with Communicators(at_broker(broker.netloc)) as communicators:
        first = communicators.server()
        clients = [communicators.client(first.netloc) for _ in range(3)]
        introduce(first, *clients)
        second = communicators.server(retry_max=0.1)
        log.wait("another server of")
        introduce(second, *clients)
        introduce(second, *clients)
        assert len(log.having("has taken over; this one waits until that is gone")) == 1
        assert len(log.having("serving")) == 2  # each once: no flapping
        assert all(not figures.connected for figures in first.statistics().values())
        second.put("mine").result(LIMIT)
        assert [client.get(timeout=LIMIT).data for client in clients] == ["mine"] * 3
        communicators.abort(second)
        log.wait("connected to the broker, serving", 3)
        futures = [client.put("again") for client in clients]
        assert [first.get(timeout=LIMIT).data for _ in clients] == ["again"] * 3
        for future in futures:
            future.result(LIMIT)
        assert len(log.having("has taken over")) == 1


@pytest.fixture
def stranger(broker: Mosquitto) -> Iterator[Stranger]:
    stranger = Stranger(broker.netloc, f"test/{new_id()}")
    yield stranger
    stranger.close()


def test_hello_without_our_nonce_does_not_end_a_server(
    broker: Mosquitto, stranger: Stranger, proxies: Callable[[NetworkLocation], Proxy], log: LogRecorder
) -> None:
    proxy = proxies(broker.netloc)
    with Communicators(at_broker(broker.netloc, prefix=stranger.prefix)) as communicators:
        server = communicators.server(proxy.netloc)
        client = communicators.client(broker.netloc)
        introduce(server, client)
        proxy.cut()
        nonce = stranger.wait_topic("/who")
        for answers in (b"", bytes(8)):
            stranger.publish("hello", packet.hello(b"12345678", here=True) + answers)
        log.wait("connected to the broker, serving", 2)
        introduce(server, client)
        assert len(nonce) == packet.NONCE_SIZE
        assert not log.having("has taken over")


def test_a_server_that_hears_a_later_question_only_has_taken_over(
    broker: Mosquitto,
    stranger: Stranger,
    proxies: Callable[[NetworkLocation], Proxy],
    log: LogRecorder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The new server subscribes after it has connected, and so after the previous one has been cut off."""
    monkeypatch.setattr("netq.mqtt.server._ANSWER_TIME", LIMIT)
    monkeypatch.setattr("netq.mqtt.server._REPEATS", 300)
    proxy = proxies(broker.netloc)
    with Communicators(at_broker(broker.netloc, prefix=stranger.prefix)) as communicators:
        communicators.server(proxy.netloc)
        log.wait("connected to the broker, serving")
        proxy.cut()
        nonce = stranger.wait_topic("/who", 2)
        stranger.publish("hello", packet.hello(b"12345678", here=True) + nonce)
        log.wait("has taken over")
        assert len(log.having("serving")) == 1


def test_few_hellos_answer_many_questions(broker: Mosquitto, stranger: Stranger) -> None:
    with Communicators(at_broker(broker.netloc, prefix=stranger.prefix)) as communicators:
        introduce(*communicators.pair())
        stranger.wait_topic("hello")
        start = time.monotonic()
        for number in range(300):
            stranger.publish(f"s/{new_id()}/who", number.to_bytes(8, "big"))
        first = packet.read_hello(stranger.wait_topic("hello", 2))
        stranger.publish(f"s/{new_id()}/who", b"one more")
        second = packet.read_hello(stranger.wait_topic("hello", 3))
        assert first.answers[0] == bytes(8)
        assert second.answers
        assert stranger.count_topic("hello") <= 3 + 10 * (time.monotonic() - start)


@pytest.fixture
def talker() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def test_replaced_server_asks_for_another_server(talker: socket.socket) -> None:
    """MQTT 5 has a reason code for a takeover, which few brokers send. The other server may be gone already."""
    netloc = NetworkLocation(*talker.getsockname())
    prefix = f"test/{new_id()}"
    with talker, Communicators(at_broker(netloc, prefix=prefix)) as communicators:
        communicators.server(netloc)
        with talker.accept()[0] as sock:
            assert server_id(prefix).encode() in sock.recv(4096)
            sock.sendall(CONNACK)
            message = sock.recv(4096)[2:4]
            sock.sendall(SUBACK % message + REPLACED)
        talker.settimeout(LIMIT)
        with talker.accept()[0] as sock:
            asked = sock.recv(4096)
            assert b"MQTT" in asked
            assert server_id(prefix).encode() not in asked


@pytest.mark.parametrize("purpose", ["server", "client"])
def test_unanswered_subscription_is_retried(talker: socket.socket, log: LogRecorder, purpose: str) -> None:
    netloc = NetworkLocation(*talker.getsockname())
    with talker, Communicators(at_broker(netloc)) as communicators:
        getattr(communicators, purpose)(netloc, handshake_timeout=0.2)
        with talker.accept()[0] as sock:
            sock.recv(4096)
            sock.sendall(CONNACK)
            log.wait("it does not answer a subscription; trying again until it answers")
        talker.settimeout(LIMIT)
        talker.accept()[0].close()
