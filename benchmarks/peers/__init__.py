"""The compared peers: a module for each, whose coroutine `open(place)` returns a Wire (benchmarks/works.py).

PEERS lists them by name. Each peer is used in the fastest way that its own documents recommend; its module links to
them. Only the measured processes import the modules, so a peer that is not installed gets a row with the reason.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass

from benchmarks import broker

SPINS = ("0", "10", "20", "50", "100")  # microseconds for which a ring socket spins: the question ring-spin
PIECES = ("16", "32", "64", "128", "256")  # KiB that it copies at once: the question ring-piece
PYTHON_313 = "NETQ_BENCH_PYTHON313"  # an environment variable: the interpreter that has net-queue


@dataclass(frozen=True)
class Peer:
    """A peer's module, and what it needs: pairs of import name and package, a broker, certificates."""

    name: str
    module: str
    needs: tuple[tuple[str, str], ...] = ()
    variant: str = ""
    broker: bool = False
    tls: bool = False
    python_313: bool = False
    environment: tuple[tuple[str, str], ...] = ()  # for its processes, in addition to this one's
    loop: str = ""  # the module whose `run` has its event loop; without one its calls block
    kind: str = ""  # of messages, if it takes no others: see Task
    broken: str = ""  # why its current version cannot be measured

    def python(self) -> str:
        """Return the interpreter for its processes."""
        return (_python_313() or sys.executable) if self.python_313 else sys.executable

    def why_not(self) -> str:
        """Return why it cannot be measured here; an empty string if it can."""
        if self.broken:
            return self.broken
        if self.python_313 and _python_313() is None:
            return f"no python3.13 with net-queue and numpy; ${PYTHON_313} may name one"
        missing = [] if self.python_313 else [package for name, package in self.needs if not _is_here(name)]
        if missing:
            return f"pip install {' '.join(missing)}"
        if self.broker and broker.program() is None:
            return "apt install mosquitto"
        return ""

    def version(self) -> str:
        """Return its package's version; an empty string if it is part of Python or of netq."""
        if self.python_313:
            return _version_313()
        return ", ".join(f"{package} {importlib.metadata.version(package)}" for _, package in self.needs)


@functools.cache
def _is_here(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


@functools.cache
def _python_313() -> str | None:
    for name in (os.environ.get(PYTHON_313), shutil.which("python3.13")):
        if name and _ask(name, "import net_queue, numpy") is not None:
            return name
    return None


@functools.cache
def _version_313() -> str:
    code = (
        "import importlib.metadata as m, platform as p; print(m.version('net-queue'), 'on Python', p.python_version())"
    )
    return f"net-queue {(_ask(_python_313() or '', code) or '').strip()}"


def _ask(python: str, code: str) -> str | None:
    try:
        return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return None


_TLS = (("cryptography", "cryptography"),)
_OPENSSL = (("OpenSSL", "pyOpenSSL"), ("service_identity", "service-identity"), *_TLS)
_GRPC = (("grpc", "grpcio"),)
_ICEORYX2 = (("iceoryx2", "iceoryx2"),)
_PAHO = (("paho", "paho-mqtt"),)
_UVLOOP = (("uvloop", "uvloop"),)
_ZMQ = (("zmq", "pyzmq"),)
_NO_GRPC = (
    "net-queue 2.6.4 has its gRPC module in a folder `gprc`, where its own `new` does not find it; "
    "imported from there, its client receives nothing while it does not send"
)

PEERS = {
    peer.name: peer
    for peer in (
        Peer("netq tcp", "netq_", variant="tcp"),
        Peer("netq tcp pure", "netq_", variant="tcp", environment=(("NETQ_PURE", "1"),)),
        Peer("netq tls", "netq_", _OPENSSL, variant="tls", tls=True),
        Peer("netq tls of Python", "netq_", _TLS, variant="tls-of-python", tls=True),
        Peer("netq sealed", "netq_", _OPENSSL, variant="sealed", tls=True),
        Peer("netq mqtt", "netq_", _PAHO, variant="mqtt", broker=True),
        Peer("netq grpc", "netq_", _GRPC, variant="grpc"),
        Peer("netq shm", "netq_", variant="shm"),
        Peer("netq aio", "netq_", variant="aio", loop="asyncio"),
        Peer("netq aio uvloop", "netq_", _UVLOOP, variant="aio", loop="uvloop"),
        Peer("netq into", "netq_", variant="into"),
        Peer("netq aio into", "netq_", variant="aio-into", loop="asyncio"),
        Peer("netq ring", "ring"),
        Peer("netq ring socket", "ring_socket"),
        Peer("netq ring socket waiting", "ring_socket", variant="0"),
        *(Peer(f"spin {spin} µs", "ring_socket", variant=spin) for spin in SPINS),
        *(Peer(f"piece {piece} KiB", "ring_socket", variant=f"50 {piece}") for piece in PIECES),
        Peer("raw", "raw"),
        Peer("raw sliced", "raw", variant="sliced"),
        Peer("raw tls", "rawtls", _TLS, tls=True),
        Peer("raw pyOpenSSL", "rawtls", _OPENSSL, variant="openssl", tls=True),
        Peer("pyzmq", "pyzmq", _ZMQ),
        Peer("pyzmq aio", "pyzmq", _ZMQ, variant="aio", loop="asyncio"),
        Peer("zenoh", "zenoh_", (("zenoh", "eclipse-zenoh"),)),
        Peer("pipes", "pipe"),
        Peer("unix socket", "raw", variant="unix"),
        Peer("shared_memory", "shared_memory"),
        Peer("iceoryx2", "iceoryx2_", _ICEORYX2),
        Peer("iceoryx2 polling", "iceoryx2_", _ICEORYX2, variant="polling"),
        Peer("multiprocessing", "multiprocessing_connection"),
        Peer("asyncio streams", "asyncio_streams", loop="asyncio"),
        Peer("asyncio protocols", "asyncio_protocols", loop="asyncio"),
        Peer("asyncio buffered", "asyncio_protocols", variant="buffered", loop="asyncio"),
        Peer("asyncio sockets", "asyncio_sockets", loop="asyncio"),
        Peer("uvloop", "asyncio_protocols", _UVLOOP, variant="buffered", loop="uvloop"),
        Peer("uvloop reno", "asyncio_protocols", _UVLOOP, variant="reno", loop="uvloop"),
        Peer("tornado", "tornado_", (("tornado", "tornado"),), loop="asyncio"),
        Peer("curio", "curio_", (("curio", "curio"),), loop="curio"),
        Peer("grpcio", "grpcio_", _GRPC, kind="object"),
        Peer("grpcio aio", "grpcio_aio", _GRPC, loop="asyncio", kind="object"),
        Peer("paho", "paho_", _PAHO, broker=True, kind="object"),
        Peer("gloo", "gloo", (("torch", "torch"),)),
        Peer("net-queue tcp", "netqueue", variant="tcp", python_313=True),
        Peer("net-queue mqtt", "netqueue", _PAHO, variant="mqtt", broker=True, python_313=True),
        Peer("net-queue grpc", "netqueue", _GRPC, variant="grpc", python_313=True, broken=_NO_GRPC),
    )
}
