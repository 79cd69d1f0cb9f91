"""Two hosts on this machine, for tests of what a network does: network namespaces, joined by a virtual cable.

A `Cable` makes both with `ip`, and removes them at its end. A namespace belongs to a thread: what is made
`with host.inside()`, a communicator with its loop, lives on that host, although it is in this process. Faults are made
with nft, tc and ss, on one host's side each. Needs root; `missing` says what is not there. Nothing here knows netq.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

TOOLS = ("ip", "nft", "tc", "ss", "ethtool")
NAMED = Path("/run/netns")  # where ip keeps what it has named
DEVICE = "cable"  # its end on each host
CLONE_NEWNET = 0x40000000  # sched.h
OFFLOADS = ("tso", "gso", "gro")  # with which one drop would take a packet of 64 KiB

_libc = ctypes.CDLL(None, use_errno=True)
_numbers = itertools.count()


class Host:
    """One namespace, with one end of a cable."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        run("ip", "netns", "add", name)

    def plug_in(self) -> None:
        """Bring the end of the cable up, and make room for rules on what comes in."""
        self.run("ip", "address", "add", f"{self.address}/24", "dev", DEVICE)
        self.run("ethtool", "-K", DEVICE, *itertools.chain.from_iterable((name, "off") for name in OFFLOADS))
        self.run("nft", "add table ip faults; add chain ip faults input { type filter hook input priority 0; }")
        self.run("ip", "link", "set", DEVICE, "addrgenmode", "none")  # or IPv6 would speak of itself, and be counted
        self.link("up")

    def remove(self) -> None:
        run("ip", "netns", "delete", self.name)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Let this thread, and the threads that it starts, be on this host meanwhile."""
        with open("/proc/thread-self/ns/net") as home, (NAMED / self.name).open() as there:
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(home.fileno())

    def drop_input(self, percent: int = 100) -> None:
        """Lose so many of the packets that come here: by chance, or all."""
        self.run("nft", f"flush chain ip faults input; add rule ip faults input {_lottery(percent)} drop")

    def heal(self) -> None:
        """Lose none any more."""
        self.run("nft", "flush chain ip faults input")

    def link(self, state: str) -> None:
        """Pull the plug ("down"), or put it in again ("up")."""
        self.run("ip", "link", "set", DEVICE, state)

    def reset_connections(self) -> None:
        """End each TCP connection from this side: it fails here, and a reset tells the other end."""
        self.run("ss", "--kill", "--tcp", "state", "established")

    def rate(self, kbit: int) -> None:
        """Let no more than so many kbit/s leave; what waits longer than 50 ms is lost."""
        self.run(*f"tc qdisc replace dev {DEVICE} root tbf rate {kbit}kbit burst 16kb latency 50ms".split())

    @property
    def bytes_sent(self) -> int:
        """What has left, with all headers."""
        (device,) = json.loads(self.run("ip", "-statistics", "-json", "link", "show", "dev", DEVICE))
        return int(device["stats64"]["tx"]["bytes"])

    def run(self, *command: str) -> str:
        """Run a tool on this host."""
        return run("ip", "netns", "exec", self.name, *command)


class Cable:
    """Joins two hosts, 10.77.number.1 and .2, for as long as its with statement lasts."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:  # whatever fails on the way: what is there already goes
            self.client, self.server = self.ends = [self._host(stack, end) for end in (1, 2)]
            names = ("netns", self.client.name, "type", "veth", "peer", "name", DEVICE, "netns", self.server.name)
            run("ip", "link", "add", DEVICE, *names)
            for host in self.ends:
                host.plug_in()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def drop(self, percent: int = 100) -> None:
        """Lose packets in both directions; all of them are a black hole."""
        for host in self.ends:
            host.drop_input(percent)

    def heal(self) -> None:
        """Lose none any more."""
        for host in self.ends:
            host.heal()

    def rate(self, kbit: int) -> None:
        """Limit both directions."""
        for host in self.ends:
            host.rate(kbit)

    def _host(self, stack: ExitStack, end: int) -> Host:
        host = Host(f"{_prefix(os.getpid())}{next(_numbers)}", f"10.77.{self._number}.{end}")
        stack.callback(host.remove)
        return host


def run(*command: str) -> str:
    """Run a tool here and return what it says; raises RuntimeError with its own words if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if done.returncode or done.stderr:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def missing() -> str:
    """Say what is not there that hosts need; nothing, if all is."""
    if os.geteuid():
        return "root is needed for network namespaces"
    if absent := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"not installed: {', '.join(absent)} (make tools)"
    try:
        with Cable(0):
            return ""
    except RuntimeError as error:  # a container, say, whose root may not
        return str(error)


def left(pid: int) -> list[str]:
    """Return the namespaces that are there of the hosts of a process."""
    return [path.name for path in NAMED.glob(f"{_prefix(pid)}*")]


def sweep() -> None:
    """Remove the hosts of processes that have died before they could."""
    for path in NAMED.glob("netq-*-*"):
        pid = path.name.split("-")[1]
        if not Path(f"/proc/{pid}").exists():
            run("ip", "netns", "delete", path.name)


def _prefix(pid: int) -> str:
    return f"netq-{pid}-"


def _lottery(percent: int) -> str:
    return "" if percent == 100 else f"numgen random mod 100 < {percent}"


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, CLONE_NEWNET):  # os.setns is there from Python 3.12 on
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
