"""What paho takes for its socket: the error that ends it is told, and is never called paho's."""

from __future__ import annotations

import socket

import pytest

from netq import SecurityOptions
from netq.mqtt.channel import Channel
from netq.pipe import over
from netq.security import certificates
from netq.security.tls import client_side


def test_a_peer_that_is_gone_while_tls_has_something_to_say_is_the_error_that_is_told(
    files: certificates.Files,
) -> None:
    near, far = socket.socketpair()
    with near:
        channel = Channel(over(near, client_side(SecurityOptions(certificate=files.authority), "127.0.0.1")))
        far.close()
        with pytest.raises(OSError):
            channel.push()  # the beginning of the handshake


def test_of_what_is_not_mqtt_no_byte_is_shown_that_did_not_come() -> None:
    near, far = socket.socketpair()
    with near, far:
        far.send(b"\xe0\x02\x8e\x00")
        with pytest.raises(ConnectionRefusedError, match=r"it said b'\\xe0\\x02\\x8e\\x00'$"):
            Channel(over(near, None)).fill()
