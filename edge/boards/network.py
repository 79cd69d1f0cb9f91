"""The network of a run: the router's namespace, one namespace a board, and a limited cable between each two.

See the picture in edge/boards/__init__.py. The cables have addresses of 198.18.0.0/15, which RFC 2544 reserves for
tests of networks; they exist in these namespaces only. A board reaches nothing but the server and itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from edge.boards import leftovers
from edge.boards.limits import Limits
from edge.boards.tools import CannotSimulate, run

NAMESPACES = Path("/run/netns")  # where ip keeps named namespaces
SERVER = "198.19.255.1"  # the router's address, for a server that the file names
_CABLES = ipaddress.IPv4Address("198.18.0.0")  # the first address; each cable has four
_UPLINK = "uplink"  # name of the cable's end on a board
_TABLE = "100"  # of routes: that of the server's port

_LEAST_BURST = 1_600  # bytes, one full packet of 1,514: a bucket of less would never pass one
_BURST = 0.01  # seconds of the rate that pass at once; the kernel refills every 1 to 10 ms
_QUEUE = 32 * 1024  # bytes that wait at least, 22 full packets; what comes then is lost
_LONGEST_QUEUE = 0.1  # seconds of the rate that wait

_CLONE_NEWNET = 0x40000000  # sched.h; os.setns is there from Python 3.12 on
_libc = ctypes.CDLL(None, use_errno=True)

# net.ipv4.conf: packets from and to 127.0.0.1 pass the cable, and the router forwards nothing between boards.
_KERNEL = {
    "ipv4/ip_forward": "0",
    "ipv4/conf/all/rp_filter": "0",
    "ipv4/conf/default/rp_filter": "0",
    "ipv4/conf/all/accept_local": "1",
    "ipv4/conf/all/route_localnet": "1",
    "ipv4/conf/default/route_localnet": "1",
}


class Network:
    """The namespaces of a run. `address` and `port` are the server's, as the agents use them."""

    def __init__(self, name: str, limits: Limits, address: str, port: int) -> None:
        self._name, self._limits, self._address, self._port = name, limits, address, port
        self._router = f"{name}-router"

    def make(self, stack: ExitStack) -> None:
        """Make the namespaces; `stack` removes them. Raises CannotSimulate."""
        self._make_namespace(stack, self._router)
        own = SERVER if ipaddress.ip_address(self._address).is_loopback else self._address
        run("ip", "-n", self._router, "address", "add", f"{own}/32", "dev", "lo")
        for board in range(self._limits.boards):
            self._make_namespace(stack, self.namespace(board))
            self._connect(board)

    def namespace(self, board: int) -> str:
        """Return the name of a board's namespace."""
        return f"{self._name}-{board}"

    def listen(self) -> socket.socket:
        """Return a socket that listens for all boards, in the router's namespace."""
        with _inside(self._router):
            return socket.create_server(("0.0.0.0", self._port), backlog=self._limits.boards)

    def traffic(self) -> list[tuple[int, int]]:
        """Return the bytes that each board has sent and received, with the headers of packets from Ethernet on."""
        devices = json.loads(run("ip", "-n", self._router, "-statistics", "-json", "link", "show"))
        stats = {device["ifname"]: device["stats64"] for device in devices}
        ends = [stats[_cable(board)] for board in range(self._limits.boards)]
        return [(end["rx"]["bytes"], end["tx"]["bytes"]) for end in ends]  # the router receives what a board sends

    def _make_namespace(self, stack: ExitStack, name: str) -> None:
        stack.callback(_remove, name)
        run("ip", "netns", "add", name)
        with _inside(name):
            for option, value in _KERNEL.items():
                Path("/proc/sys/net", option).write_text(value)
        run("ip", "-n", name, "link", "set", "lo", "up")

    def _connect(self, board: int) -> None:
        """Put a cable between a board and the router, and send the board's packets to the server through it."""
        name, cable = self.namespace(board), _cable(board)
        router, own = (str(_CABLES + 4 * board + end) for end in (1, 2))
        run("ip", "-n", self._router, "link", "add", cable, "type", "veth", "peer", "name", _UPLINK, "netns", name)
        self._plug_in(self._router, cable, router)
        self._plug_in(name, _UPLINK, own)
        rules = ["rule", "add", "preference"]
        run("ip", "-n", name, *rules, "10", "lookup", "local")
        run("ip", "-n", name, "rule", "delete", "preference", "0")  # it would keep 127.0.0.1 on the board
        server = ["to", self._address, "ipproto", "tcp", "dport", str(self._port)]
        run("ip", "-n", name, *rules, "5", *server, "lookup", _TABLE)
        for table in (_TABLE, "main"):
            run("ip", "-n", name, "route", "add", "default", "via", router, "src", own, "table", table)

    def _plug_in(self, namespace: str, device: str, address: str) -> None:
        """Bring one end of a cable up, and limit what it sends."""
        run("ip", "-n", namespace, "address", "add", f"{address}/30", "dev", device)
        run("ip", "-n", namespace, "link", "set", device, "addrgenmode", "none")  # or IPv6 sends packets of its own
        # Without gso_max_segs, a "packet" of 64 KiB would count one header.
        run("ip", "-n", namespace, "link", "set", device, "gso_max_segs", "1", "up")
        bytes_a_second = self._limits.rate / 8
        burst = round(max(_LEAST_BURST, bytes_a_second * _BURST))
        queue = round(max(_QUEUE, bytes_a_second * _LONGEST_QUEUE))
        limits = ["rate", f"{self._limits.rate}bit", "burst", str(burst), "limit", str(queue)]
        run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", *limits)


def sweep() -> None:
    """Remove the namespaces of runs that were killed."""
    for path in leftovers.dead(NAMESPACES):
        _remove(path.name)


def _cable(board: int) -> str:
    return f"board{board}"


def _remove(name: str) -> None:
    path = NAMESPACES / name
    if path.exists():
        try:
            run("ip", "netns", "delete", name)
        except CannotSimulate:
            if path.exists():  # else another run has removed it at this moment
                raise


@contextlib.contextmanager
def _inside(name: str) -> Iterator[None]:
    """Move this thread to a namespace within the block. Sockets that it makes there stay there."""
    with open("/proc/thread-self/ns/net") as home, (NAMESPACES / name).open() as there:
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(home.fileno())


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
