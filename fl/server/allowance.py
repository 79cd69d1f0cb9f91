"""Bounds the time that a server spends on messages which it did not ask for. Pure; owned by fl/server/dispatcher.py.

Each client has an account, in seconds of the server's processor time. A message that a task or a session calls for
costs nothing. Any other message costs what its reading took, and at least a little. The account fills up slowly. A
client that has used it up is to be cut off, for a pause that is twice as long each time. So in the long run one client
takes no more than `_RATE` of the server's time, whatever it sends.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from dataclasses import dataclass

_MOST = 0.1  # seconds: what a full account has
_RATE = 0.005  # seconds by which an account grows each second
_LEAST = 0.001  # seconds that a message costs at least: 100 small ones at once
_UNREADABLE = 0.03  # seconds that one costs at least that cannot be read: four at once
_FIRST_PAUSE, _MAX_PAUSE = 1.0, 600.0  # seconds
_FORGET = 3600.0  # seconds without a cut, after which the next pause is a first one again
_REMEMBERED = 4096  # clients; those that sent such a message least recently are forgotten


@dataclass
class _Account:
    """The account of one client. Times are those of the caller's clock, in seconds."""

    at: float  # when it had `left`
    left: float = _MOST  # seconds
    until: float = 0.0  # the client is cut off until then
    pause: float = 0.0  # seconds; the last one


class Allowance:
    """The accounts of all clients. Those that have sent nothing of the kind have none."""

    def __init__(self) -> None:
        self._accounts: OrderedDict[bytes, _Account] = OrderedDict()  # by bytes: an id chooses the hash of a UUID

    def spend(self, peer: uuid.UUID, seconds: float, now: float, *, readable: bool = True) -> float:
        """Charge a client for a message. Return for how many seconds it is to be cut off now, 0 for not at all."""
        account = self._accounts.pop(peer.bytes, None) or _Account(now)
        self._accounts[peer.bytes] = account
        if len(self._accounts) > _REMEMBERED:
            self._accounts.popitem(last=False)
        if now < account.until:  # sent before it was cut off
            return 0.0
        account.left = min(_MOST, account.left + _RATE * (now - account.at))
        account.left -= max(seconds, _LEAST if readable else _UNREADABLE)
        account.at = now
        if account.left > 0:
            return 0.0
        if now - account.until > _FORGET:
            account.pause = 0.0
        account.pause = min(_MAX_PAUSE, 2 * account.pause) or _FIRST_PAUSE
        account.until = account.at = now + account.pause
        account.left = 0.0  # a message at its return is one too many, unless the pause was long
        return account.pause
