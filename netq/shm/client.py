"""The connecting side of shared memory."""

from __future__ import annotations

from netq import core
from netq.io.loop import Loop
from netq.options import CommunicatorOptions, Purpose
from netq.runtime.link import LinkListener
from netq.runtime.stream_link import Link
from netq.shm import rendezvous
from netq.shm.control import ControlSocket, offer_rings
from netq.shm.stream import RingStream


class ClientTransport:
    """A transport. Each `open` is one attempt to connect."""

    def __init__(self, listener: LinkListener, loop: Loop) -> None:
        rendezvous.check(listener.options)
        rendezvous.check_client(listener.options.netloc)
        self.netloc = listener.options.netloc
        self._listener = listener
        self._loop = loop
        self._closed = False

    def open(self) -> None:
        """Connect in the loop's next turn. That succeeds at once or fails."""
        self._loop.call(self._connect)

    def close(self) -> None:
        """Make no more attempts."""
        self._closed = True

    def _connect(self) -> None:
        if self._closed:
            return None
        try:
            control = ControlSocket(rendezvous.connect(self.netloc))
        except OSError as error:
            return self._listener.lost(None, error)
        try:
            rings = offer_rings(control)
        except ConnectionError:
            control.sock.close()
            return self._listener.lost(None, ConnectionResetError("the peer hung up"))
        except OSError as error:
            control.sock.close()
            return self._listener.lost(None, OSError(error.errno, f"no memory for the rings: {error.strerror}"))
        address = "{}:{}".format(*self.netloc)
        stream = RingStream(control, rings)
        return self._listener.attach(Link(self._listener, self._loop, stream, self._listener.connect(), address))


class Communicator(core.Communicator):
    """A client on shared memory, of a server of the same user on this machine. Raises InvalidOption."""

    def __init__(self, options: CommunicatorOptions | None = None) -> None:
        super().__init__(options, Purpose.CLIENT, ClientTransport)
