"""What netq says, in the words of the command line: its options for those of the API, addresses for ids.

Used by command.py, for errors and for what netq logs. The table knows the names that a bench's options can come to.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from typing import Self

from netq.options import NetworkLocation, Protocol

NAME = "netq bench"
_TLS = "SecurityOptions.certificate"  # the option that has this word depends on the side
_WORDS = {  # replaced in this order: what is part of another comes after it
    "set SecurityOptions(certificate=...)": "give --tls CA.pem",
    "SecurityOptions.key": "--key",
    "SecurityOptions": "TLS (a server's --key and --certificate, a client's --tls)",
    "; see MqttOptions.packet_size": "",
    "MqttOptions.user and password": "--user and --password",
    "MqttOptions.": "--",
    "CommunicatorOptions.netloc": "--netloc",
    "CommunicatorOptions.security": "TLS",
    "CommunicatorOptions": "options",
    "ConnectionOptions.transport_size": "--transport-size",
    "ConnectionOptions.put_merge: False;": "--no-put-merge:",
    "by itself; expected True": "by itself; expected --put-merge",
    "netq.security.certificates needs": "--secure needs",
    "; close(timeout=...) waits no longer than that": "",
    "(netloc)": "(--netloc)",
    " (session_timeout)": "",
    " (linger)": "",
    "its message_size": "its --max-message",
    "; message_size is": "; --max-message is",
    "netq.Protocol.": "Protocol.",
    **{f"Protocol.{protocol.name}": protocol.value for protocol in Protocol},
}
_ERRNO = re.compile(r"\[Errno \d+\] ")
_ID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")

Translate = Callable[[str], str]


def place(netloc: NetworkLocation) -> str:
    """Return where it is, as --netloc takes it."""
    host, port = netloc
    if host.startswith("/"):
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def of_client(netloc: NetworkLocation | None) -> Translate:
    """Return what translates a client's lines, whose server is there; None: somewhere on this machine."""
    peer = "the server" if netloc is None else f"the server at {place(netloc)}"
    return lambda text: _plain(text, peer, "--tls", netloc)


def of_server(netloc: NetworkLocation, *, mqtt: bool) -> Translate:
    """Return what translates the lines of a server that listens there, or of one at the broker there."""
    return lambda text: _plain(text, "a client", "--tls" if mqtt else "--certificate", netloc)


def say(text: str) -> None:
    """Print a line on stderr."""
    sys.stderr.write(f"{NAME}: {text}\n")  # in one piece: other processes write there too


class Trouble(logging.Handler):
    """What netq warns of within a with statement: `last`, and said at once if `is_told`."""

    def __init__(self, translate: Translate, *, is_told: bool) -> None:
        super().__init__(logging.WARNING)
        self.last = ""
        self.is_told = is_told
        self._translate = translate

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it, and tell it."""
        self.last = self._translate(record.getMessage())
        if self.is_told:
            say(self.last)

    def __enter__(self) -> Self:
        logging.getLogger("netq").addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        logging.getLogger("netq").removeHandler(self)


def _plain(text: str, peer: str, certificate: str, netloc: NetworkLocation | None) -> str:
    text = " ".join(text.split())
    if netloc is not None:
        text = text.replace("{}:{}".format(*netloc), place(netloc))
    for name, word in {_TLS: certificate, **_WORDS}.items():
        text = text.replace(name, word)
    return _ID.sub(peer, _ERRNO.sub("", text))
