"""The addresses of shared memory: an abstract Unix socket for a port, or a socket file for a path.

Called by the transports. Never waits: it resolves no names other than those of this machine.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import random
import secrets
import socket
import stat
import struct
import sys
from pathlib import Path

from netq.errors import AddressError, InvalidOption
from netq.io import connect as tcp
from netq.options import CommunicatorOptions, NetworkLocation, check_put_merge
from netq.text import printable

_BACKLOG = 1024
_DYNAMIC_PORTS = range(49152, 65536)  # for port 0: the dynamic ports of RFC 6335
_MAX_PATH = 107  # bytes of a socket's path (unix(7))
_IN_USE = "a server listens there"
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class ListeningSocket:
    """A listening socket, and its file if it has one."""

    def __init__(self, sock: socket.socket, netloc: NetworkLocation, file: tuple[int, int] | None = None) -> None:
        self.sock = sock
        self.netloc = netloc
        self._inode = file  # device and inode

    def close(self) -> None:
        """Stop listening; remove the file, unless another server has replaced it."""
        with contextlib.suppress(OSError):
            if self._inode is not None and _inode(self.netloc.host) == self._inode:
                os.unlink(self.netloc.host)
        self.sock.close()


def check(options: CommunicatorOptions) -> None:
    """Raise InvalidOption if this system does not support shared memory, or shared memory an option."""
    check_system("Protocol.SHM", "Protocol.TCP")
    tcp.check_no_proxy(options, "shared memory does not leave this machine")
    if options.security is not None:
        raise InvalidOption(
            "CommunicatorOptions.security: shared memory takes none: nothing leaves this machine, and the kernel says "
            "who the peer is (only processes of one user are connected); expected None"
        )
    if options.seal is not None:
        raise InvalidOption(
            "CommunicatorOptions.seal: shared memory takes none: nothing between the two processes could read or "
            "change a message; expected None"
        )
    check_put_merge(options, "shared memory")


def check_system(what: str, instead: str) -> None:
    """Raise InvalidOption if this system lacks what shared memory is made of."""
    is_linux = sys.platform.startswith("linux") and hasattr(os, "memfd_create") and hasattr(os, "eventfd")
    if not is_linux or sys.maxsize < 2**32:
        raise InvalidOption(f"{what}: shared memory needs Linux and a 64-bit Python; use {instead} here")


def is_local(host: str) -> bool:
    """Return whether a host's name or address belongs to this machine."""
    if host.startswith("/") or host in ("localhost", socket.gethostname()):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified or _is_bindable(address)


def listen(netloc: NetworkLocation, option: str = "netloc") -> ListeningSocket:
    """Listen; raises AddressError, which names the option."""
    if not is_local(netloc.host):
        raise AddressError(f"cannot listen at {netloc.host}:{netloc.port} ({option}): {_not_local(netloc.host)}")
    try:
        return _listen_at_path(netloc) if netloc.host.startswith("/") else _listen_at_port(netloc)
    except OSError as error:
        where = printable(netloc.host) if netloc.host.startswith("/") else f"{netloc.host}:{netloc.port}"
        advice = "choose another path" if netloc.host.startswith("/") else "choose another port, or 0 for a free one"
        why = error.strerror or str(error)
        raise AddressError(f"cannot listen at {where} ({option}): {why}; {advice}") from error


def connect(netloc: NetworkLocation) -> socket.socket:
    """Connect to a server of the same user; raises OSError. A Unix socket connects at once or fails."""
    sock = _new_socket()
    try:
        sock.connect(_socket_name(netloc))
        check_user(sock)
    except BlockingIOError as error:
        sock.close()
        raise ConnectionRefusedError(errno.ECONNREFUSED, "too many wait at its door") from error
    except OSError:
        sock.close()
        raise
    return sock


def check_client(netloc: NetworkLocation, option: str = "CommunicatorOptions.netloc") -> None:
    """Raise InvalidOption, which names the option, if no server can have this address."""
    check_local(netloc, option)
    if netloc.host.startswith("/"):
        try:
            _check_path(netloc.host)
        except OSError as error:
            raise InvalidOption(f"{option}: {printable(netloc.host)}: {error.strerror}") from error
    else:
        tcp.check(netloc)


def check_local(netloc: NetworkLocation, option: str) -> None:
    """Raise InvalidOption, which names the option, if this is the address of another machine."""
    if not is_local(netloc.host):
        raise InvalidOption(f"{option}: {_not_local(netloc.host)}")


def check_user(sock: socket.socket) -> None:
    """Raise PermissionError if the peer is a process of another user, also of root."""
    pid, uid = peer(sock)
    if uid != os.geteuid():
        raise PermissionError(
            errno.EPERM,
            f"process {pid} is of user {uid}, this one of {os.geteuid()}; shared memory joins one user's own",
        )
    if uid == _overflow() and not _sees_all_users():
        raise PermissionError(
            errno.EPERM,
            f"process {pid} may be of any user: {uid} is what this user namespace shows for all that it does not map",
        )


def peer(sock: socket.socket) -> tuple[int, int]:
    """Return the peer's process id, for log lines, and its user id."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(data)
    return pid, uid


def _overflow() -> int:
    try:
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except OSError:
        return 65534


def _sees_all_users() -> bool:
    """Return whether each user has an own id here. It is False in a user namespace that maps only some users."""
    try:
        return Path("/proc/self/uid_map").read_text().split() == ["0", "0", str(2**32 - 1)]
    except OSError:
        return Path("/proc/self").exists()  # a system that has no user namespaces


def _not_local(host: str) -> str:
    return (
        f"{host!r} is not this machine, and shared memory does not leave it; expected localhost, an address or the "
        f"name of this machine ({socket.gethostname()}), or the path of a socket; use Protocol.TCP for other machines"
    )


def _socket_name(netloc: NetworkLocation) -> str:
    return netloc.host if netloc.host.startswith("/") else f"\0netq:{netloc.port}"


def _new_socket() -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.setblocking(False)
    return sock


def _listen_at_port(netloc: NetworkLocation) -> ListeningSocket:
    for port in [netloc.port] if netloc.port else random.sample(_DYNAMIC_PORTS, len(_DYNAMIC_PORTS)):
        found = NetworkLocation(netloc.host, port)
        sock = _new_socket()
        try:
            sock.bind(_socket_name(found))
            sock.listen(_BACKLOG)
            return ListeningSocket(sock, found)
        except OSError as error:
            sock.close()
            if netloc.port or error.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, "no port is free")


def _listen_at_path(netloc: NetworkLocation) -> ListeningSocket:
    """Listen under a temporary name, then link the socket to the path.

    A socket at the path listens from the beginning. So if a connection there is refused, its server is dead.
    """
    path = netloc.host
    _check_path(path)
    own = _sibling(path)
    if len(os.fsencode(own)) > _MAX_PATH:
        most = _MAX_PATH - len(os.path.basename(own)) - 1
        raise OSError(errno.ENAMETOOLONG, f"the path of its folder is too long, which may have {most} bytes")
    sock = _new_socket()
    try:
        # bind creates the file, but connections are refused until listen; at the path itself, a second server could see
        # that state and take this one for dead. link fails if the path exists, so two servers cannot both have it.
        sock.bind(own)
        try:
            os.chmod(own, 0o600)
            sock.listen(_BACKLOG)
            _link(own, path)
        finally:
            os.unlink(own)
        return ListeningSocket(sock, netloc, _inode(path))
    except BaseException:
        sock.close()
        raise


def _check_path(path: str) -> None:
    """Raise OSError if a socket cannot have this path."""
    try:
        size = len(os.fsencode(path))
    except UnicodeEncodeError as error:
        raise OSError(errno.EINVAL, "the path cannot be written in the encoding of file names") from error
    if "\0" in path:
        raise OSError(errno.EINVAL, "a path cannot contain NUL")
    if size > _MAX_PATH:
        raise OSError(errno.ENAMETOOLONG, f"the path is too long for a socket, which takes {_MAX_PATH} bytes")


def _link(own: str, path: str) -> None:
    try:
        os.link(own, path)
    except FileExistsError:
        _remove_stale(path)
        try:
            os.link(own, path)
        except FileExistsError as error:  # another server was faster
            raise FileExistsError(errno.EADDRINUSE, _IN_USE) from error


def _remove_stale(path: str) -> None:
    """Remove the socket of a dead server; raises FileExistsError if a server listens there, or it is no socket.

    The socket is renamed before it is removed, so that this never removes the socket of a server that started between
    the check and the removal.
    """
    renamed = _sibling(path)
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise FileExistsError(errno.EEXIST, "a file that is no socket is there")
        if _is_alive(path):
            raise FileExistsError(errno.EADDRINUSE, _IN_USE)
        os.rename(path, renamed)
    except FileNotFoundError:  # another server has removed it
        return
    try:
        if _is_alive(renamed):  # a server replaced it after the check: put it back
            os.link(renamed, path)
            raise FileExistsError(errno.EADDRINUSE, _IN_USE)
    finally:
        os.unlink(renamed)


def _sibling(path: str) -> str:
    """Return a random name in the same directory."""
    return f"{os.path.dirname(path).rstrip('/')}/.{secrets.token_hex(4)}"


def _is_alive(path: str) -> bool:
    with _new_socket() as sock:
        try:
            sock.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:  # its queue is full, it is of another type, or this user may not connect
            return True
        return True


def _inode(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def _is_bindable(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Return whether an address belongs to this machine alone.

    Such an address can be bound, and it is no multicast address and no broadcast address: to connect to the latter is
    forbidden.
    """
    if address.is_multicast:
        return False
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind((str(address), 0))
            sock.connect(sock.getsockname())  # sends nothing
    except OSError:
        return False
    return True
