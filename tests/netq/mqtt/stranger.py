"""Somebody else at the broker, for tests: hears all there is under a prefix, and says what it likes."""

from __future__ import annotations

import threading

import paho.mqtt.client as paho

from netq import NetworkLocation
from netq.mqtt.packet import Kind
from netq.testing.fixtures import LIMIT


class Stranger:
    """A client of the broker that hears all there is under a prefix, and says what it likes."""

    def __init__(self, netloc: NetworkLocation, prefix: str) -> None:
        self.prefix = prefix
        self._heard: list[tuple[str, bytes]] = []
        self._changed = threading.Condition()
        subscribed = threading.Event()
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)  # type: ignore[attr-defined]
        self._client.on_message = self._came
        self._client.on_subscribe = lambda *_: subscribed.set()
        self._client.connect(*netloc)
        self._client.subscribe(f"{prefix}/#")
        self._client.loop_start()
        assert subscribed.wait(LIMIT)

    def say(self, topic: str, payload: bytes, qos: int = 0, *, retain: bool = False) -> None:
        self._client.publish(f"{self.prefix}/{topic}", payload, qos, retain).wait_for_publish(LIMIT)

    def wait(self, kind: Kind, to: str, count: int = 1) -> tuple[str, bytes]:
        """Wait for packets of a kind towards "s" or "c"; return the last of so many: link's topic, and payload."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._having(kind, to)) >= count, LIMIT), self._heard
            return self._having(kind, to)[count - 1]

    def wait_topic(self, ending: str, count: int = 1) -> bytes:
        """Wait for publications on a topic that ends so; return the payload of the last of so many."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._on(ending)) >= count, LIMIT), self._heard
            return self._on(ending)[count - 1]

    def count_topic(self, ending: str) -> int:
        """Return how many publications there were on a topic that ends so."""
        with self._changed:
            return len(self._on(ending))

    def count(self, kind: Kind, to: str) -> int:
        """Return how many packets of a kind there were towards "s" or "c"."""
        with self._changed:
            return len(self._having(kind, to))

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()
        del self._client  # and its sockets with it

    def _on(self, ending: str) -> list[bytes]:
        return [payload for topic, payload in self._heard if topic.endswith(ending)]

    def _having(self, kind: Kind, to: str) -> list[tuple[str, bytes]]:
        return [h for h in self._heard if h[1][:1] == bytes([kind]) and h[0].startswith(f"{to}/")]

    def _came(self, client: object, data: object, message: paho.MQTTMessage) -> None:
        with self._changed:
            self._heard.append((message.topic.removeprefix(f"{self.prefix}/"), bytes(message.payload)))
            self._changed.notify_all()
