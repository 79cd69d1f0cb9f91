"""iceoryx2: messages in shared memory by publish-subscribe, and events that wake the receiver.

https://github.com/eclipse-iceoryx/iceoryx2/tree/main/examples/python/publish_subscribe_dynamic_data: the sender loans a
slice of shared memory, writes the message there, which is the only copy, and sends it. The receiver reads it there, and
releases it when the next message is asked for. event_based_communication, beside it: the sender notifies after each
message, and the receiver sleeps until then. The variant "polling" has no events: its receiver spins, as that of
https://github.com/eclipse-iceoryx/iceoryx2/tree/main/benchmarks/publish-subscribe does. Objects are pickled.

Without safe overflow a sender waits while SLOTS messages are unread. Slots have the largest size; the memory of those
that were never written is not allocated. Every name begins with that of the stage's folder: measure.py removes what a
killed process leaves behind.
"""

from __future__ import annotations

import ctypes
import pickle
from typing import Any

import iceoryx2 as iox2

from benchmarks.task import Place

SLOTS = 64  # unread messages: one way, 64 bytes were 1.5 times as fast as with 2, the default (sweep-shm)
ROOM = 64 * 1024  # bytes of a slot beyond a message: for the control messages of a task, and for what pickle adds


async def open(place: Place) -> Wire:
    iox2.set_log_level(iox2.LogLevel.Error)
    node = iox2.NodeBuilder.new().config(_config(place)).create(iox2.ServiceType.Ipc)
    up, down = (_services(node, f"{place.port}-{way}") for way in ("up", "down"))
    (sends, notifies), (receives, listens) = (down, up) if place.is_server else (up, down)
    kind = Polling if place.variant == "polling" else Wire if place.kind == "array" else Objects
    wire = kind(
        listens.listener_builder().create(),
        receives.subscriber_builder().create(),
        sends.publisher_builder().initial_max_slice_len(place.size + ROOM).create(),
        notifies.notifier_builder().create(),
    )
    if place.is_server:
        place.ready()
    while not sends.dynamic_config.number_of_subscribers:
        node.wait(iox2.Duration.from_millis(1))
    return wire


def _config(place: Place) -> Any:
    config = iox2.config.default()
    config.global_cfg.root_path = iox2.Path.new(str(place.folder))
    config.global_cfg.prefix = iox2.FileName.new(f"{place.folder.name}_")
    return config


def _services(node: Any, name: str) -> tuple[Any, Any]:
    """Return the services of one direction: of its messages, and of its events."""
    messages = node.service_builder(iox2.ServiceName.new(name)).publish_subscribe(iox2.Slice[ctypes.c_uint8])
    messages = messages.enable_safe_overflow(False).subscriber_max_buffer_size(SLOTS)
    return messages.open_or_create(), node.service_builder(iox2.ServiceName.new(name)).event().open_or_create()


class Wire:
    """Sends bytes and arrays."""

    def __init__(self, listener: Any, subscriber: Any, publisher: Any, notifier: Any) -> None:
        self._listener, self._subscriber = listener, subscriber
        self._publisher, self._notifier = publisher, notifier
        self._sample: Any = None  # that was returned last

    async def send(self, message: Any) -> None:
        self._publish(message)
        self._notifier.notify()

    async def receive(self, size: int) -> Any:
        self._release()
        while (sample := self._subscriber.receive()) is None:
            self._listener.blocking_wait()
        self._sample = sample
        return sample.payload().as_memory_view()

    async def close(self) -> None:
        self._release()
        for port in (self._publisher, self._notifier, self._subscriber, self._listener):
            port.delete()

    def _publish(self, message: Any) -> None:
        slot = self._publisher.loan_slice_uninit(len(message))
        data = message if isinstance(message, bytes) else (ctypes.c_char * 0).from_buffer(message)
        ctypes.memmove(slot.payload_ptr, data, len(message))
        slot.assume_init().send()

    def _release(self) -> None:
        if self._sample is not None:
            self._sample.delete()
            self._sample = None


class Objects(Wire):
    async def send(self, message: Any) -> None:
        await super().send(pickle.dumps(message))

    async def receive(self, size: int) -> Any:
        return pickle.loads(await super().receive(size))


class Polling(Wire):
    async def send(self, message: Any) -> None:
        self._publish(message)

    async def receive(self, size: int) -> Any:
        self._release()
        receive = self._subscriber.receive
        while (sample := receive()) is None:
            pass
        self._sample = sample
        return sample.payload().as_memory_view()
