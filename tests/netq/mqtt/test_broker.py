"""A broker that is missing, restarts, or is another server: netq waits, logs it once, and loses nothing."""

from __future__ import annotations

import dataclasses
import http.server
import itertools
import logging
import socket
import struct
import threading
import types
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import netq
from netq import (
    CommunicatorOptions,
    NetworkLocation,
    Protocol,
    Purpose,
    Security,
    SecurityError,
    SecurityOptions,
    new,
)
from netq.core import Communicator
from netq.mqtt.broker import Broker
from netq.security import certificates
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.log import LogRecorder
from netq.testing.proxy import Proxy
from tests.netq.authority import Authority
from tests.netq.makers import at_broker
from tests.netq.mqtt.conftest import NewBroker
from tests.servers.mosquitto import Mosquitto

Proxies = Callable[[NetworkLocation], Proxy]
MANY = 1000
SIZE = 4096


def test_late_broker_is_found_and_logged_once(new_broker: NewBroker, log: LogRecorder) -> None:
    broker = new_broker()
    broker.kill()
    with Communicators(at_broker(broker.netloc)) as communicators:
        server = communicators.server()
        client = communicators.client(server.netloc)
        future = client.put("hello")
        log.wait("Connection refused; trying again until it answers", 2)
        broker.start()
        assert server.get(timeout=LIMIT).data == "hello"
        future.result(LIMIT)
        assert len(log.having("Connection refused")) == 2  # the server's line and the client's
        assert len(log.having("connected to the broker")) == 1


@pytest.mark.slow
def test_waiting_client_connects_at_the_hello_of_a_server(broker: Mosquitto, log: LogRecorder) -> None:
    with Communicators(at_broker(broker.netloc)) as communicators:
        client = communicators.client(broker.netloc, retry_min=300.0, retry_max=600.0)
        future = client.put("hello")
        other = communicators.client(broker.netloc)  # it connected later, and sends OPEN sooner
        log.wait("no server of")
        communicators.abort(other)
        server = communicators.server()
        assert server.get(timeout=LIMIT).data == "hello"  # not 300 s
        future.result(LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize("to_server", [True, False], ids=["to_server", "to_client"])
def test_killed_broker_loses_and_duplicates_no_message(
    new_broker: NewBroker, log: LogRecorder, to_server: bool
) -> None:
    broker = new_broker()
    with Communicators(at_broker(broker.netloc)) as communicators:
        server = communicators.server()
        client = communicators.client(server.netloc)
        introduce(server, client)
        sender, receiver = (client, server) if to_server else (server, client)
        futures = [sender.put((number, bytes(SIZE))) for number in range(MANY)]
        got = [receiver.get(timeout=LIMIT).data[0] for _ in range(MANY // 5)]
        broker.kill()
        acknowledged = sum(future.done() for future in futures)
        log.wait("trying again until it answers", 2)
        broker.start()
        got += [receiver.get(timeout=LIMIT).data[0] for _ in range(MANY - len(got))]
        assert got == list(range(MANY))
        for future in futures:
            future.result(LIMIT)
        assert acknowledged < MANY, "the broker was killed too late to prove anything"
        with pytest.raises(TimeoutError):
            receiver.get(timeout=0.2)


def test_wrong_password_is_logged_once(new_broker: NewBroker, log: LogRecorder) -> None:
    broker = new_broker(user="ada", password="right")
    with Communicators(at_broker(broker.netloc, user="ada", password="wrong")) as communicators:
        communicators.abort(communicators.client(broker.netloc))
        client = communicators.client(broker.netloc)
        line = log.wait("the broker refuses")
        assert "Not authorized" in line
        assert "user 'ada'" in line
        assert "wrong" not in line
        communicators.abort(client)
    with Communicators(at_broker(broker.netloc)) as communicators:
        communicators.server()
        log.wait("(user None)")
    with Communicators(at_broker(broker.netloc, user="ada", password="right")) as communicators:
        introduce(communicators.server(), communicators.client(broker.netloc))


def test_long_user_name_is_truncated_in_the_error(new_broker: NewBroker, log: LogRecorder) -> None:
    broker = new_broker(user="ada", password="right")
    with Communicators(at_broker(broker.netloc, user="u" * 300, password="wrong")) as communicators:
        communicators.abort(communicators.client(broker.netloc))
        client = communicators.client(broker.netloc)
        assert f"(user '{'u' * 64}')" in log.wait("the broker refuses")
        communicators.abort(client)


def test_alternating_errors_are_logged_once_each(log: LogRecorder) -> None:
    """The broker closes one connection and resets the next."""
    fickle = socket.create_server(("127.0.0.1", 0))
    with fickle, Communicators(at_broker(NetworkLocation(*fickle.getsockname()))) as communicators:
        server = communicators.server(retry_max=0.01)
        for turn in range(20):
            sock, _ = fickle.accept()
            with sock:
                if turn % 2:
                    sock.recv(4096)
                else:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        communicators.abort(server)
    lines = log.having("trying again until it answers")
    assert 2 <= len(lines) == len(set(lines)) < 5


class Quiet(http.server.BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def web() -> Iterator[NetworkLocation]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield NetworkLocation("127.0.0.1", server.server_address[1])
        server.shutdown()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("purpose", Purpose)
def test_web_server_is_reported_as_no_broker(
    web: NetworkLocation, log: LogRecorder, purpose: Purpose, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("netq.mqtt.server.secrets.token_bytes", lambda count: b"i" * count)  # no newline by chance
    with Communicators(at_broker(web)) as communicators:
        opened(communicators, purpose, web, handshake_timeout=0.3)
        assert "it does not answer as a broker" in log.wait("trying again until it answers")


@pytest.mark.parametrize("purpose", Purpose)
def test_other_first_bytes_are_reported_as_no_broker(log: LogRecorder, purpose: Purpose) -> None:
    with socket.create_server(("127.0.0.1", 0)) as talker:
        netloc = NetworkLocation(*talker.getsockname())
        with Communicators(at_broker(netloc)) as communicators:
            opened(communicators, purpose, netloc)
            with talker.accept()[0] as sock:
                sock.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
                assert "is no MQTT broker: it said b'SSH-2.0" in log.wait("trying again until it answers")


@pytest.mark.parametrize("purpose", Purpose)
def test_netq_tcp_server_is_reported_as_no_broker(log: LogRecorder, purpose: Purpose) -> None:
    options = netq.CommunicatorOptions(netloc=NetworkLocation(port=0))
    with (
        netq.new(netq.Protocol.TCP, Purpose.SERVER, options) as other,
        Communicators(at_broker(other.netloc)) as communicators,
    ):
        opened(communicators, purpose, other.netloc)
        line = log.wait("trying again until it answers")
        assert "no MQTT broker" in line or "is it a broker" in line


def test_silent_broker_times_out_and_is_retried(log: LogRecorder) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        Communicators(at_broker(NetworkLocation(*silent.getsockname()))) as communicators,
    ):
        communicators.client(NetworkLocation(*silent.getsockname()), handshake_timeout=0.2)
        for _ in range(2):
            silent.accept()[0].close()
        log.wait("trying again until it answers")


@pytest.mark.slow
def test_loop_is_idle_during_an_unanswered_tls_handshake(
    files: certificates.Files, log: LogRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, ready = itertools.count(), Broker._ready
    monkeypatch.setattr(Broker, "_ready", lambda broker, mask: next(turns) < 0 or ready(broker, mask))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        netloc = NetworkLocation(*silent.getsockname())
        with Communicators(at_broker(netloc, SecurityOptions(certificate=files.authority))) as communicators:
            communicators.client(netloc, handshake_timeout=0.3, retry_min=60.0, retry_max=60.0)
            sock, _ = silent.accept()
            with sock:
                log.wait("it does not answer as a broker")
    assert next(turns) < 10


@pytest.mark.parametrize("purpose", Purpose)
def test_failed_connect_does_not_end_the_loop(broker: Mosquitto, log: LogRecorder, purpose: Purpose) -> None:
    mqtt = netq.MqttOptions(user="ada", password="secret")
    object.__setattr__(mqtt, "password", "secret\udc80")  # which the options refuse
    retry = netq.ConnectionOptions(retry_min=0.01, retry_max=0.1)
    options = netq.CommunicatorOptions(netloc=broker.netloc, mqtt=mqtt, connection=retry)
    with netq.new(netq.Protocol.MQTT, purpose, options) as communicator:
        assert "secret" not in log.wait("no CONNECT can be made (UnicodeEncodeError); trying again")
        with pytest.raises(TimeoutError):
            communicator.get(timeout=0.2)  # it waits, and its loop with it
        communicator.close(0)


@pytest.mark.parametrize("purpose", Purpose)
def test_tls_at_one_end_only_is_logged(
    broker: Mosquitto, tls_broker: Mosquitto, files: certificates.Files, log: LogRecorder, purpose: Purpose
) -> None:
    with Communicators(at_broker(tls_broker.netloc)) as communicators:
        opened(communicators, purpose, tls_broker.netloc)
        assert "is there TLS at both ends" in log.wait("trying again until it answers")
    with Communicators(at_broker(broker.netloc, SecurityOptions(certificate=files.authority))) as communicators:
        opened(communicators, purpose, broker.netloc)
        assert "is there TLS at both ends" in log.wait("trying again until it answers", 2)


@pytest.mark.parametrize("purpose", Purpose)
def test_broker_with_untrusted_certificate_is_refused(
    tls_broker: Mosquitto, tmp_path: Path, log: LogRecorder, purpose: Purpose
) -> None:
    others = certificates.init(tmp_path / "others")
    with Communicators(at_broker(tls_broker.netloc, SecurityOptions(certificate=others.authority))) as communicators:
        opened(communicators, purpose, tls_broker.netloc)
        assert "the certificate of the server 127.0.0.1 is refused" in log.wait("trying again until it answers")


def test_statistics_report_the_tls_of_the_broker(tls_broker: Mosquitto, files: certificates.Files) -> None:
    """Debian's broker has no post-quantum key exchange, so "prefer" falls back."""
    with Communicators(at_broker(tls_broker.netloc, SecurityOptions(certificate=files.authority))) as communicators:
        server, client = communicators.pair()
        introduce(server, client)
        expected = Security("TLSv1.3", "TLS_AES_256_GCM_SHA384", "X25519", None)
        assert server.statistics()[client.id].security == expected
        assert client.statistics()[server.id].security == expected


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"post_quantum": "require"}, r"SecurityOptions\.post_quantum: 'require'; .* seal the messages"),
        ({"key": Path("key.pem")}, r"SecurityOptions\.key: key\.pem; with MQTT, TLS is the broker's"),
        ({"revoked": Path("revoked.txt")}, r"SecurityOptions\.revoked: .*revoked\.txt; .* the list to the broker"),
    ],
)
@pytest.mark.parametrize("purpose", Purpose)
def test_what_tls_to_a_broker_cannot_give_is_refused(
    files: certificates.Files,
    purpose: Purpose,
    changes: dict[str, Any],
    error: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("revoked.txt").touch()
    security = dataclasses.replace(SecurityOptions(certificate=files.authority), **changes)
    with pytest.raises(SecurityError, match=error):
        new(Protocol.MQTT, purpose, CommunicatorOptions(security=security))


def test_broker_that_wants_certificates(new_broker: NewBroker, tmp_path: Path, log: LogRecorder) -> None:
    authority = Authority(tmp_path)
    of_broker, of_peer = authority.server(), authority.client(uuid.uuid4())
    broker = new_broker(
        certificate=of_broker.certificate,
        key=of_broker.key,
        config=f"cafile {authority.path}\nrequire_certificate true",
    )
    with Communicators(at_broker(broker.netloc, of_peer)) as communicators:
        introduce(*communicators.pair())
    with Communicators(at_broker(broker.netloc, authority.trusting())) as communicators:
        opened(communicators, Purpose.CLIENT, broker.netloc)
        log.wait("trying again until it answers")  # by its alert, or by a reset that overtakes the alert


def opened(communicators: Communicators, purpose: Purpose, netloc: NetworkLocation, **options: object) -> Communicator:
    return (
        communicators.server(netloc, **options)
        if purpose is Purpose.SERVER
        else communicators.client(netloc, **options)
    )


@pytest.mark.slow
def test_packets_respect_the_reported_limit(new_broker: NewBroker) -> None:
    broker = new_broker(config="max_packet_size 5000")
    with Communicators(at_broker(broker.netloc)) as communicators:
        server, client = communicators.pair()
        data = bytes(range(256)) * 4000
        client.put(data).result(LIMIT)
        assert server.get(timeout=LIMIT).data == data
        server.put(data, client.id).result(LIMIT)
        assert client.get(timeout=LIMIT).data == data
        assert "too large" not in broker.log.lower()


@pytest.mark.parametrize("purpose", Purpose)
def test_broker_with_too_small_a_limit_is_refused(new_broker: NewBroker, log: LogRecorder, purpose: Purpose) -> None:
    broker = new_broker(config="max_packet_size 600")
    with Communicators(at_broker(broker.netloc)) as communicators:
        opened(communicators, purpose, broker.netloc)
        assert "takes packets of 600 bytes; netq needs 1024" in log.wait("trying again until it answers")


@pytest.mark.parametrize("to_server", [True, False], ids=["to_server", "to_client"])
def test_unreported_limit_is_found_and_logged_once(new_broker: NewBroker, log: LogRecorder, to_server: bool) -> None:
    broker = new_broker(config="message_size_limit 50000")
    with Communicators(at_broker(broker.netloc)) as communicators:
        server, client = communicators.pair()
        sender, receiver = (client, server) if to_server else (server, client)
        data = bytes(range(256)) * 4096
        future = sender.put(data)
        assert receiver.get(timeout=LIMIT).data == data
        future.result(LIMIT)
        assert len(log.having("do not arrive, now smaller ones", logging.WARNING)) == 1


def test_prefixes_separate_communicators_on_one_broker(broker: Mosquitto) -> None:
    with Communicators(at_broker(broker.netloc)) as one, Communicators(at_broker(broker.netloc)) as two:
        pairs = [communicators.pair() for communicators in (one, two)]
        for number, (server, _) in enumerate(pairs):
            server.put(number).result(LIMIT)
        assert [client.get(timeout=LIMIT).data for _, client in pairs] == [0, 1]
        assert all(len(server.statistics()) == 1 for server, _ in pairs)


def test_quick_losses_have_a_hint() -> None:
    """A broker with one client id for all lets each client take the connection of another, and says no reason."""
    heard: list[Exception] = []
    no_loop: Any = None
    listener: Any = types.SimpleNamespace(up=lambda size: None, down=heard.append)
    broker = Broker(no_loop, CommunicatorOptions(), listener)
    for lasted in (0.0, 0.0, 60.0, 0.0, 0.0, 0.0):
        broker._accepted(SIZE)
        broker._since -= lasted
        broker.fail(ConnectionResetError("it hung up"))
        broker.fail(ConnectionRefusedError("an attempt"))
    hints = ["use_username_as_clientid" in str(error) for error in heard]
    assert hints == [*[False] * 10, True, False]
    assert str(heard[10]).startswith("it hung up, again soon after it had accepted: ")
