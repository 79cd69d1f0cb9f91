"""A foreign client of the broker, for tests: receives everything under a prefix, and publishes at will."""

from __future__ import annotations

import threading

import paho.mqtt.client as paho

from netq import NetworkLocation
from netq.mqtt.packet import PacketKind
from netq.testing.fixtures import LIMIT


class Stranger:
    """A client of the broker that receives everything under a prefix, and publishes at will."""

    def __init__(self, netloc: NetworkLocation, prefix: str) -> None:
        self.prefix = prefix
        self._received: list[tuple[str, bytes]] = []
        self._changed = threading.Condition()
        subscribed = threading.Event()
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)  # type: ignore[attr-defined]
        self._client.on_message = self._on_message
        self._client.on_subscribe = lambda *_: subscribed.set()
        self._client.connect(*netloc)
        self._client.subscribe(f"{prefix}/#")
        self._client.loop_start()
        assert subscribed.wait(LIMIT)

    def publish(self, topic: str, payload: bytes, qos: int = 0, *, retain: bool = False) -> None:
        self._client.publish(f"{self.prefix}/{topic}", payload, qos, retain).wait_for_publish(LIMIT)

    def wait(self, kind: PacketKind, to: str, count: int = 1) -> tuple[str, bytes]:
        """Wait for `count` packets of a kind to "s" or "c"; return the topic and the payload of the last."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._matching(kind, to)) >= count, LIMIT), self._received
            return self._matching(kind, to)[count - 1]

    def wait_topic(self, ending: str, count: int = 1) -> bytes:
        """Wait for `count` publications on topics with this ending; return the payload of the last."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._with_ending(ending)) >= count, LIMIT), self._received
            return self._with_ending(ending)[count - 1]

    def count_topic(self, ending: str) -> int:
        """Return the number of publications on topics with this ending."""
        with self._changed:
            return len(self._with_ending(ending))

    def count(self, kind: PacketKind, to: str) -> int:
        """Return the number of packets of a kind to "s" or "c"."""
        with self._changed:
            return len(self._matching(kind, to))

    def everything(self) -> bytes:
        """Return all payloads and topics, joined."""
        with self._changed:
            return b"\n".join(topic.encode() + b"\n" + payload for topic, payload in self._received)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()
        del self._client  # and its sockets with it

    def _with_ending(self, ending: str) -> list[bytes]:
        return [payload for topic, payload in self._received if topic.endswith(ending)]

    def _matching(self, kind: PacketKind, to: str) -> list[tuple[str, bytes]]:
        return [h for h in self._received if h[1][:1] == bytes([kind]) and h[0].startswith(f"{to}/")]

    def _on_message(self, client: object, data: object, message: paho.MQTTMessage) -> None:
        with self._changed:
            self._received.append((message.topic.removeprefix(f"{self.prefix}/"), bytes(message.payload)))
            self._changed.notify_all()
