"""The questions as data: task, sizes, peers and goals. Read by __main__.py, table.py, plot.py and page.py.

A goal bounds the ratio of netq's median to that of the best other peer in the same run; without other peers it bounds
the median itself. The plot shows the first figure of a question.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.peers import PIECES, SPINS
from benchmarks.task import Task

MIB = 1024**2
BY_SIZE, LOAD = "benchmarks-by-size", "benchmarks-load"  # pages


@dataclass(frozen=True)
class Goal:
    """A bound for `figure` of `subject`: a multiple of the best of `others`, or a value if there are no others."""

    figure: str
    subject: str
    others: tuple[str, ...] = ()
    at_least: float | None = None
    at_most: float | None = None


@dataclass(frozen=True)
class Question:
    """One table of a page."""

    name: str
    title: str
    task: Task
    figures: str  # names in table.FIGURES, with spaces between them
    peers: tuple[str, ...]  # the first is the one that the others are compared with
    goals: tuple[Goal, ...] = ()
    note: str = ""
    page: str = "benchmarks"  # of docs/reference; those without one are not part of a run of all questions

    @property
    def subject(self) -> str:
        """The peer that the others are compared with."""
        return self.peers[0]

    @property
    def quick(self) -> Task:
        """A tenth of the task, and at least two messages."""
        task = self.task
        if task.step:
            shift = 8 if task.work == "sweep" else 4
            return replace(task, seconds=task.seconds / 10, size=max(task.size >> shift, task.smallest))
        return replace(task, seconds=task.seconds / 10, count=max(task.count // 10, 2))


def _exchange(count: int = 1, size: int = 2 * MIB, together: bool = True, smallest: int = 0, step: int = 0) -> Task:
    return Task(
        "exchange", "array", size, count, smallest=smallest, step=step, expo=0.5 if step else 1, together=together
    )


_BYTES = "throughput cpu extra resident"
_AIO = ("netq aio", "netq aio uvloop")
_PROTOCOLS = ("asyncio protocols", "asyncio buffered")
_LOOPS = ("asyncio streams", *_PROTOCOLS, "asyncio sockets", "uvloop", "tornado", "curio")
_STREAMS = ("netq tcp", "raw", "raw sliced", "pyzmq", "zenoh", "multiprocessing", "gloo")
_STREAM_GOALS = (
    Goal("throughput", "netq tcp", ("raw",), at_least=0.85),
    Goal("throughput", "netq tcp", ("pyzmq",), at_least=1.3),
    Goal("cpu", "netq tcp", ("raw",), at_most=1.2),
)
_TCP_2X = (Goal("throughput", "netq tcp", ("net-queue tcp",), at_least=2.0),)
_MQTT_3X = (
    Goal("throughput", "netq mqtt", ("net-queue mqtt",), at_least=3.0),
    Goal("resident", "netq mqtt", ("net-queue mqtt",), at_most=0.1),
)
_GRPCIO = ("grpcio", "grpcio aio")
_TRANSPORTS = ("netq tcp", "netq tls", "netq mqtt", "netq grpc", "netq shm")
_SYNC = _exchange(400, together=False)
_ASYNC = _exchange(400)
_MIX = _exchange(size=2**28, smallest=2**8, step=2)
_MIXED = "Powers of four from 256 B to 256 MiB, round((256 MiB / size) ** 0.5) of each, shuffled, both ways at once."

_SWEEP = Task("sweep", "array", 256 * MIB, 1, seconds=0.08, smallest=1, step=2)
_BY_SIZE = "p50 p99 throughput messages"
_RING = Task("sweep", "array", MIB, 1, seconds=0.1, smallest=4, step=2)
_RINGS = ("netq ring socket", "netq ring socket waiting", "netq ring", "raw", "unix socket", "pipes")

QUESTIONS = (
    Question(
        "sweep-tcp",
        "TCP",
        _SWEEP,
        _BY_SIZE,
        ("netq tcp", "raw", "raw sliced", "pyzmq", "zenoh"),
        note="zenoh's shared memory is off. It takes no arrays: they are copied into bytes first.",
        page=BY_SIZE,
    ),
    Question(
        "sweep-shm",
        "Shared memory",
        _SWEEP,
        _BY_SIZE,
        ("netq shm", "netq ring socket", "pipes", "unix socket", "shared_memory", "iceoryx2"),
        note="All on one machine. pipes: two named pipes with 1 MiB each. unix socket: a stream socket, as of "
        "socketpair. shared_memory: multiprocessing.shared_memory, with two slots each way; a token in a Unix socket "
        "says that a slot is full, another that it is free. Its receiver reads the message in the slot. iceoryx2: "
        "publish-subscribe with 64 slots each way, which its receiver reads in place; an event follows each message.",
        page=BY_SIZE,
    ),
    Question(
        "tcp-2mib",
        "TCP, one way, arrays of 2 MiB",
        Task("one_way", "array", 2 * MIB, 1000, warm=50),
        _BYTES,
        _STREAMS,
        (*_STREAM_GOALS, Goal("throughput", "netq tcp", ("raw sliced",), at_least=0.85)),
    ),
    Question(
        "tcp-128mib",
        "TCP, one way, arrays of 128 MiB",
        Task("one_way", "array", 128 * MIB, 12, warm=2),
        _BYTES,
        _STREAMS,
        (*_STREAM_GOALS, Goal("throughput", "netq tcp", ("raw sliced",), at_least=0.9)),
    ),
    Question(
        "tcp-echo",
        "TCP, 100 MB there and back",
        Task("echo", "array", 100_000_000, 8, warm=1),
        _BYTES,
        ("netq tcp", *_AIO, "netq into", "netq aio into", "raw", "raw sliced", *_LOOPS, "uvloop reno"),
        (
            Goal("throughput", "netq tcp", _LOOPS, at_least=2.0),
            Goal("throughput", "netq tcp", ("raw",), at_least=0.85),
            Goal("throughput", "netq aio", ("uvloop",), at_least=1.2),
        ),
        "The whole message is there before it is sent back; the event loops' peers send its length first. "
        '"uvloop reno" is uvloop with the congestion control that netq asks for. "into" fills arrays that are there '
        "already: in threads each is received there, in an event loop it is copied.",
    ),
    Question(
        "tcp-round-trip",
        "TCP, round trip of an object of 64 bytes",
        Task("echo", "object", 64, 10_000, warm=500),
        "p50 p99 cpu_message",
        ("netq tcp", *_AIO, "raw", "pyzmq", "zenoh", "multiprocessing", *_LOOPS),
        (
            *(
                Goal(figure, "netq tcp", (other,), at_most=most)
                for figure in ("p50", "p99")
                for other, most in (("pyzmq", 1.0), ("raw", 1.3))
            ),
            *(Goal("p50", "netq aio", (other,), at_most=1.3) for other in _PROTOCOLS),
        ),
        "The event loops' peers send bytes behind their length; netq, pyzmq, zenoh and multiprocessing pickle.",
    ),
    Question(
        "tcp-64b",
        "TCP, one way, objects of 64 bytes",
        Task("one_way", "object", 64, 100_000, warm=5000),
        "messages cpu_message resident",
        ("netq tcp", "netq tcp pure", "raw", "pyzmq", "zenoh", "multiprocessing", "net-queue tcp"),
        (
            Goal("messages", "netq tcp", ("pyzmq",), at_least=1.0),
            Goal("messages", "netq tcp pure", at_least=300_000),
            Goal("messages", "netq tcp", ("net-queue tcp",), at_least=20.0),
        ),
        '"netq tcp pure" is netq without its compiled codec (NETQ_PURE=1). raw has no framing: it counts bytes.',
    ),
    *(
        Question(
            f"seed-{name}-{protocol}",
            f"net-queue's own benchmark, {title}, {'gRPC' if protocol == 'grpc' else protocol.upper()}",
            task,
            _BYTES,
            (f"netq {protocol}", *others, f"net-queue {protocol}"),
            goals,
            f"{note}{more}",
        )
        for protocol, others, goals, more in (
            ("tcp", (), _TCP_2X, ""),
            ("mqtt", (), _MQTT_3X, ""),
            ("grpc", _GRPCIO, (), " grpcio is given bytes, netq arrays."),
        )
        for name, title, task, note in (
            ("sync", "sync", _SYNC, "400 × 2 MiB each way, one direction after the other."),
            ("async", "async", _ASYNC, "400 × 2 MiB each way, both at once."),
            ("mix", "mix", _MIX, _MIXED),
        )
    ),
    Question(
        "load",
        "Open loop, 64 bytes and their echo: the highest rate with p99.9 below 5 ms",
        Task("load", "object", 64, 1),
        "rate",
        ("netq tcp", *_GRPCIO),
        (Goal("rate", "netq tcp", _GRPCIO, at_least=2.75),),
        "From the moment that a message was due. Rates are doubled, then bisected; each has two tries of a second.",
    ),
    Question(
        "grpc-2mib",
        "gRPC, one way, 2 MiB",
        Task("one_way", "array", 2 * MIB, 300, warm=10),
        _BYTES,
        ("netq grpc", *_GRPCIO),
        (Goal("throughput", "netq grpc", _GRPCIO, at_least=0.85),),
        "grpcio is given bytes, as it takes nothing else; netq arrays.",
    ),
    Question(
        "mqtt-2mib",
        "MQTT through one mosquitto, one way, 2 MiB",
        Task("one_way", "array", 2 * MIB, 200, warm=10),
        _BYTES,
        ("netq mqtt", "paho"),
        (Goal("throughput", "netq mqtt", ("paho",), at_least=0.9),),
        "paho is given bytes, as it takes no arrays; the broker is not pinned, and in no figure.",
    ),
    Question(
        "shm-ring",
        "Shared memory: the ring alone, round trip 4 → 1024 bytes",
        Task("echo", "object", 4, 50_000, warm=5000, reply=1024),
        "p50 p99 cpu_message",
        ("netq ring", "raw", "iceoryx2 polling"),
        (Goal("p50", "netq ring", ("raw",), at_most=0.1),),
        "The two sides of the ring spin, and so do those of iceoryx2; the sockets wait in the kernel.",
    ),
    Question(
        "shm-round-trip",
        "Shared memory: round trip of an object of 64 bytes",
        Task("echo", "object", 64, 10_000, warm=500),
        "p50 p99 cpu_message",
        ("netq shm", "netq tcp", "iceoryx2"),
        (Goal("p50", "netq shm", ("netq tcp",), at_most=1 / 3),),
        "iceoryx2 pickles, as netq does, and wakes its receiver by events.",
    ),
    Question(
        "shm-128mib",
        "Shared memory: one way, arrays of 128 MiB",
        Task("one_way", "array", 128 * MIB, 12, warm=2),
        _BYTES,
        ("netq shm", "raw", "raw sliced", "netq tcp", "iceoryx2"),
        (Goal("throughput", "netq shm", ("raw",), at_least=2.0),),
    ),
    Question(
        "tls-128mib",
        "TLS 1.3, one way, arrays of 128 MiB",
        Task("one_way", "array", 128 * MIB, 6, warm=1),
        _BYTES,
        ("netq tls", "raw pyOpenSSL", "netq tls of Python", "raw tls", "netq sealed", "netq tcp"),
        (
            Goal("throughput", "netq sealed", ("netq tls",), at_least=0.7),
            Goal("throughput", "netq tls", ("raw pyOpenSSL",), at_least=0.9),
            Goal("throughput", "netq tls of Python", ("raw tls",), at_least=0.9),
        ),
        "netq's TLS is pyOpenSSL's if that is installed. Each is compared with a bare socket of the same library. "
        "Sealing is on plain TCP here.",
    ),
    Question(
        "memory",
        "Extra memory for one array of 128 MiB",
        Task("one_way", "array", 128 * MIB, 1),
        "extra resident throughput",
        (*_TRANSPORTS, "raw", "pyzmq", "zenoh"),
        tuple(Goal("extra", name, at_most=1.25) for name in _TRANSPORTS),
        "The first and only one: nothing is warm, and its memory is fresh. The sender's own array is not counted.",
    ),
    Question(
        "curve",
        "Latency by rate",
        Task("curve", "object", 64, 1, seconds=0.5),
        "",
        ("netq tcp", "netq grpc", *_GRPCIO, "pyzmq aio", "zenoh", "asyncio streams"),
        page=LOAD,
    ),
    Question("ring", "The ring socket", _RING, "p50 p99 p99.9 throughput", _RINGS, page=""),
    Question(
        "ring-ping",
        "The ring socket: a PING of 4 bytes, a PONG of 1024, as in Jocket's own benchmark",
        Task("echo", "object", 4, 10_000, warm=500, reply=1024),
        "p50 p99 p99.9",
        _RINGS,
        page="",
    ),
    *(
        Question(f"ring-{what}", f"The ring socket: {what}", _RING, "p50 p99 throughput", peers, page="")
        for what, peers in (
            ("spin", tuple(f"spin {spin} µs" for spin in SPINS)),
            ("piece", tuple(f"piece {piece} KiB" for piece in PIECES)),
        )
    ),
)
