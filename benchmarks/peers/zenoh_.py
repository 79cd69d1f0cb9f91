"""Zenoh over TCP, between two peers without a router: a publisher and a subscriber on each side.

https://github.com/eclipse-zenoh/zenoh-python/tree/main/examples, z_pub_thr.py, z_ping.py and z_bytes.py: `put` with
CongestionControl.BLOCK, which waits where the default drops, and `recv` from the default channel. A payload is ZBytes,
which copies the bytes that it is made of, and does not take arrays: an array is copied into bytes first. `to_bytes`
copies what was received. Objects are pickled. A session that closes may drop messages that are not sent yet, so `close`
waits for the other side.

https://github.com/eclipse-zenoh/zenoh/blob/main/DEFAULT_CONFIG.json5: scouting and shared memory are off, endpoints are
explicit, and the receive buffer has the size that is advised for large messages. All else is the default.
"""

from __future__ import annotations

import json
import pickle
from typing import Any

import zenoh

from benchmarks.task import Place

RECEIVED = 16 * 1024**2  # bytes of a link's receive buffer: the example that the configuration gives for large messages


async def open(place: Place) -> Wire:
    session = zenoh.open(_config(place))
    if place.is_server:
        place.ready()
    return (Arrays if place.kind == "array" else Wire)(session, is_server=place.is_server)


def _config(place: Place) -> zenoh.Config:
    mine, other = ("listen", "connect") if place.is_server else ("connect", "listen")
    values = {
        "mode": "peer",
        "scouting/multicast/enabled": False,
        "scouting/gossip/enabled": False,
        "transport/shared_memory/enabled": False,  # else it takes messages of 3 KiB and more out of TCP
        "transport/link/rx/buffer_size": RECEIVED,
        f"{mine}/endpoints": [f"tcp/{place.host}:{place.port}"],
        f"{other}/endpoints": [],
    }
    config = zenoh.Config()
    for key, value in values.items():
        config.insert_json5(key, json.dumps(value))
    return config


class Wire:
    """Sends objects."""

    def __init__(self, session: Any, *, is_server: bool) -> None:
        ours, theirs = ("down", "up") if is_server else ("up", "down")
        self._session = session
        self._subscriber = session.declare_subscriber(f"benchmarks/{theirs}")
        self._publisher = session.declare_publisher(
            f"benchmarks/{ours}",
            congestion_control=zenoh.CongestionControl.BLOCK,
            reliability=zenoh.Reliability.RELIABLE,
        )
        self._matching = self._publisher.declare_matching_listener()
        self._wait_until(is_matching=True)  # what is put earlier is lost

    async def send(self, message: Any) -> None:
        self._publisher.put(pickle.dumps(message))

    async def receive(self, size: int) -> Any:
        return pickle.loads(self._subscriber.recv().payload.to_bytes())

    async def close(self) -> None:
        """Wait until the other side undeclares its subscriber: it has received everything then."""
        self._subscriber.undeclare()
        self._wait_until(is_matching=False)
        self._session.close()

    def _wait_until(self, *, is_matching: bool) -> None:
        while self._matching.recv().matching != is_matching:
            pass


class Arrays(Wire):
    """Sends the bytes of arrays, and bytes."""

    async def send(self, message: Any) -> None:
        self._publisher.put(message if isinstance(message, bytes) else message.tobytes())

    async def receive(self, size: int) -> Any:
        return self._subscriber.recv().payload.to_bytes()
