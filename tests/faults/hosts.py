"""Two hosts on this machine, for tests of network faults: network namespaces, joined by a virtual cable.

A `Cable` makes both hosts with `ip`, and removes them at its end. A namespace belongs to a thread: a communicator that
is made `with host.inside()` has its loop on that host, although it is in this process. Faults are made with nft, tc and
ss, each on one host. Needs root; `missing` names what else is missing. This module does not use netq.
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
NAMED = Path("/run/netns")  # where ip keeps named namespaces
DEVICE = "cable"  # name of the cable's end on each host
CLONE_NEWNET = 0x40000000  # sched.h
OFFLOADS = ("tso", "gso", "gro")  # with these, one drop would lose a packet of 64 KiB

_libc = ctypes.CDLL(None, use_errno=True)
_numbers = itertools.count()


class Host:
    """One namespace, with one end of a cable."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        run("ip", "netns", "add", name)

    def plug_in(self) -> None:
        """Bring the end of the cable up, and create the table for rules on incoming packets."""
        self.run("ip", "address", "add", f"{self.address}/24", "dev", DEVICE)
        self.run("ethtool", "-K", DEVICE, *itertools.chain.from_iterable((name, "off") for name in OFFLOADS))
        self.run("nft", "add table ip faults; add chain ip faults input { type filter hook input priority 0; }")
        self.run("ip", "link", "set", DEVICE, "addrgenmode", "none")  # or IPv6 sends packets of its own
        self.link("up")

    def remove(self) -> None:
        run("ip", "netns", "delete", self.name)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Move this thread, and the threads that it starts, to this host within the block."""
        with open("/proc/thread-self/ns/net") as home, (NAMED / self.name).open() as there:
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(home.fileno())

    def drop_input(self, percent: int = 100) -> None:
        """Lose a share of the incoming packets at random, or all of them."""
        self.run("nft", f"flush chain ip faults input; add rule ip faults input {_lottery(percent)} drop")

    def heal(self) -> None:
        """Lose no more packets."""
        self.run("nft", "flush chain ip faults input")

    def link(self, state: str) -> None:
        """Unplug ("down") or plug in ("up") the cable."""
        self.run("ip", "link", "set", DEVICE, state)

    def reset_connections(self) -> None:
        """Reset each TCP connection from this side; the other end gets the reset."""
        self.run("ss", "--kill", "--tcp", "state", "established")

    def rate(self, kbit: int) -> None:
        """Limit outgoing packets to a rate in kbit/s; packets that wait longer than 50 ms are lost."""
        self.run(*f"tc qdisc replace dev {DEVICE} root tbf rate {kbit}kbit burst 16kb latency 50ms".split())

    @property
    def bytes_sent(self) -> int:
        """Return the outgoing bytes, with all headers."""
        (device,) = json.loads(self.run("ip", "-statistics", "-json", "link", "show", "dev", DEVICE))
        return int(device["stats64"]["tx"]["bytes"])

    def run(self, *command: str) -> str:
        """Run a tool on this host."""
        return run("ip", "netns", "exec", self.name, *command)


class Cable:
    """Joins two hosts, 10.77.number.1 and .2, within a with statement."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:  # after an error, everything that was made is removed
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
        """Lose packets in both directions; all packets: a black hole."""
        for host in self.ends:
            host.drop_input(percent)

    def heal(self) -> None:
        """Lose no more packets."""
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
    """Run a tool and return its output; raises RuntimeError with its stderr."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if done.returncode or done.stderr:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def missing() -> str:
    """Name what hosts need and this machine does not have; "" if nothing."""
    if os.geteuid():
        return "root is needed for network namespaces"
    if absent := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"not installed: {', '.join(absent)} (make tools)"
    try:
        with Cable(0):
            return ""
    except RuntimeError as error:  # for example, root of a container without the rights
        return str(error)


def left(pid: int) -> list[str]:
    """Return the namespaces of a process's hosts that exist."""
    return [path.name for path in NAMED.glob(f"{_prefix(pid)}*")]


def sweep() -> None:
    """Remove the hosts of processes that died before they could."""
    for path in NAMED.glob("netq-*-*"):
        pid = path.name.split("-")[1]
        if not Path(f"/proc/{pid}").exists():
            try:
                run("ip", "netns", "delete", path.name)
            except RuntimeError:
                if path.exists():  # else another process of the same run was faster
                    raise


def _prefix(pid: int) -> str:
    return f"netq-{pid}-"


def _lottery(percent: int) -> str:
    return "" if percent == 100 else f"numgen random mod 100 < {percent}"


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, CLONE_NEWNET):  # os.setns is there from Python 3.12 on
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
