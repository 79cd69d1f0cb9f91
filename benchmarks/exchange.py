"""Publications to many subscribers: an exchange of netq beside a proxy of pyzmq (XSUB and XPUB).

    python -m benchmarks.exchange [--subscribers 100] [--turns 5]

Three processes: a publisher, the exchange or the proxy, and one with all subscribers. The exchange is pinned to the
first core, the others to the second. A turn measures both, from the first publication until each subscriber has the
last one. Nothing is dropped: the queues of both have room for all. Prints medians over the turns, of thousands
of copies a second, and of the processor's time of the exchange for each copy; and the copies that crossed the network
for each publication: bytes on the loopback device, divided by those of the data.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from benchmarks.child import BYTES, local
from netq.bench.output import markdown
from netq.bench.resources import pin

SIZES = {100: 2000, 100_000: 50}  # bytes of a publication, and how many
_ROOM = 1_000_000  # messages that may wait for one subscriber
_START = 2.0  # seconds in which zmq's subscriptions reach the publisher


class Turn(NamedTuple):
    """What one run has measured."""

    seconds: float
    busy: float  # processor seconds of the exchange
    sent: int  # bytes on the loopback device


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser("benchmarks.exchange", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--subscribers", type=int, default=100)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    rows = [["bytes", "", "thousand copies/s", "exchange, µs/copy", "copies on the wire"]]
    for size, count in SIZES.items():
        turns: dict[str, list[Turn]] = {name: [] for name in _PEERS}
        for _ in range(options.turns):
            for name in _PEERS:
                turns[name].append(_turn(name, size, count, options.subscribers))
        copies = count * options.subscribers
        for name, found in turns.items():
            rate = statistics.median(copies / turn.seconds for turn in found)
            busy = statistics.median(turn.busy / copies for turn in found)
            wire = statistics.median(turn.sent / count / size for turn in found)
            rows.append([f"{size:,}", name, f"{rate / 1e3:.1f}", f"{busy * 1e6:.1f}", f"{wire:.1f}"])
    print("\n".join(markdown(rows)))


def _turn(name: str, size: int, count: int, subscribers: int) -> Turn:
    peer = _PEERS[name]
    context = multiprocessing.get_context("spawn")
    (ours_e, theirs_e), (ours_s, theirs_s), (ours_p, theirs_p) = (context.Pipe() for _ in range(3))
    exchange = context.Process(target=peer.exchange, args=(theirs_e,))
    exchange.start()
    address = ours_e.recv()
    receiver = context.Process(target=peer.subscribe, args=(theirs_s, address, subscribers, count))
    receiver.start()
    ours_s.recv()
    sender = context.Process(target=peer.publish, args=(theirs_p, address, size, count))
    sender.start()
    ours_p.recv()
    ours_e.send("busy")
    busy, sent, begin = ours_e.recv(), _sent(), time.monotonic()
    ours_p.send("go")
    ours_s.recv()
    turn_seconds, sent = time.monotonic() - begin, _sent() - sent
    ours_e.send("busy")
    busy = ours_e.recv() - busy
    for end, process in ((ours_p, sender), (ours_s, receiver), (ours_e, exchange)):
        end.send("end")
        process.join(30)
    return Turn(turn_seconds, busy, sent)


def _sent() -> int:
    return int(Path("/sys/class/net/lo/statistics/tx_bytes").read_text())


def _answer(pipe: Connection) -> None:
    """Tell the processor's time of this process, until the end."""
    while pipe.recv() == "busy":
        pipe.send(time.process_time())


# netq


def _netq_exchange(pipe: Connection) -> None:
    from netq.exchange import Exchange

    pin(0)
    with Exchange(local(0, BYTES, queue_size=_ROOM)) as exchange:
        pipe.send(exchange.netloc.port)
        _answer(pipe)


def _netq_subscribe(pipe: Connection, port: int, subscribers: int, count: int) -> None:
    from netq.exchange import Client

    pin(1)
    clients = [Client(local(port, BYTES, queue_size=_ROOM), inbox=_ROOM) for _ in range(subscribers)]
    for client in clients:
        client.subscribe("bench/#").result(60)
    pipe.send("ready")
    for _ in range(count):  # in turn, so that each message is freed when it has come, as in zmq's loop
        for client in clients:
            client.get()
    pipe.send("done")
    pipe.recv()
    for client in clients:
        client.close(5)


def _netq_publish(pipe: Connection, port: int, size: int, count: int) -> None:
    from netq.exchange import Client

    pin(1)
    data = os.urandom(size)
    with Client(local(port, BYTES, queue_size=_ROOM)) as client:
        client.publish("other", data).result(60)
        pipe.send("ready")
        pipe.recv()
        for future in [client.publish("bench/x", data) for _ in range(count)]:
            future.result(60)
        pipe.recv()


# pyzmq


def _zmq_exchange(pipe: Connection) -> None:
    import zmq

    pin(0)
    context = zmq.Context()
    sockets = context.socket(zmq.XSUB), context.socket(zmq.XPUB)
    for socket in sockets:
        socket.set_hwm(0)
    pipe.send([socket.bind_to_random_port("tcp://127.0.0.1") for socket in sockets])
    threading.Thread(target=zmq.proxy, args=sockets, daemon=True).start()
    _answer(pipe)
    os._exit(0)  # the proxy does not end


def _zmq_subscribe(pipe: Connection, ports: list[int], subscribers: int, count: int) -> None:
    import zmq

    pin(1)
    context, poller = zmq.Context(), zmq.Poller()
    left = {}
    for _ in range(subscribers):
        socket = context.socket(zmq.SUB)
        socket.set_hwm(0)
        socket.connect(f"tcp://127.0.0.1:{ports[1]}")
        socket.subscribe(b"bench/")
        poller.register(socket, zmq.POLLIN)
        left[socket] = count
    time.sleep(_START)
    pipe.send("ready")
    while left:
        for socket, _ in poller.poll():
            try:
                while True:
                    socket.recv_multipart(zmq.NOBLOCK, copy=False)
                    left[socket] -= 1
            except zmq.Again:
                pass
            if not left[socket]:
                poller.unregister(socket)
                del left[socket]
    pipe.send("done")
    pipe.recv()
    os._exit(0)


def _zmq_publish(pipe: Connection, ports: list[int], size: int, count: int) -> None:
    import zmq

    pin(1)
    data = os.urandom(size)
    socket = zmq.Context().socket(zmq.PUB)
    socket.set_hwm(0)
    socket.connect(f"tcp://127.0.0.1:{ports[0]}")
    time.sleep(_START)
    pipe.send("ready")
    pipe.recv()
    for _ in range(count):
        socket.send_multipart([b"bench/x", data], copy=False)
    pipe.recv()
    os._exit(0)


class _Peer(NamedTuple):
    exchange: Callable[..., None]
    subscribe: Callable[..., None]
    publish: Callable[..., None]


_PEERS = {
    "netq": _Peer(_netq_exchange, _netq_subscribe, _netq_publish),
    "pyzmq": _Peer(_zmq_exchange, _zmq_subscribe, _zmq_publish),
}


if __name__ == "__main__":
    main()
