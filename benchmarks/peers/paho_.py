"""MQTT by paho-mqtt, through the same broker as netq's: one publication for each message, with QoS 0, as netq does.

https://eclipse.dev/paho/files/paho.mqtt.python/html/client.html: `loop_start`, and `wait_for_publish`, which bounds
the messages that wait here (IN_FLIGHT).
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from benchmarks.task import Place

IN_FLIGHT = 16


async def open(place: Place) -> Wire:
    if not place.is_server:
        wire = Wire(place, send="up", receive="down")
        await wire.send(b"here")
        return wire
    wire = Wire(place, send="down", receive="up")
    place.ready()
    await wire.receive(0)
    return wire


class Wire:
    def __init__(self, place: Place, send: str, receive: str) -> None:
        self._topic = f"benchmarks/{send}"
        self._waiting: deque[Any] = deque()
        self._in: queue.SimpleQueue[bytes | bytearray] = queue.SimpleQueue()
        subscribed = threading.Event()
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
        self._client.on_message = lambda client, data, message: self._in.put(message.payload)
        self._client.on_subscribe = lambda *_: subscribed.set()
        self._client.connect(place.host, place.port)
        self._client.loop_start()
        self._client.subscribe(f"benchmarks/{receive}")
        subscribed.wait()

    async def send(self, message: bytes) -> None:
        self._waiting.append(self._client.publish(self._topic, message))
        if len(self._waiting) > IN_FLIGHT:
            self._waiting.popleft().wait_for_publish()

    async def receive(self, size: int) -> bytes | bytearray:
        return self._in.get()

    async def close(self) -> None:
        for info in self._waiting:
            info.wait_for_publish()
        self._client.disconnect()
        self._client.loop_stop()
