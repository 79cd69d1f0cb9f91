"""What `put` returns: the future of a message, and of its way to each peer.

A message to one peer is one Delivery. A message to several is one that has a Delivery for each in `futures`,
and is done when all of them are.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future


class Delivery(Future[None]):
    """Done when the peer holds the message: then the data may be changed again.

    `result()` raises Closed, QueueFull or MessageTooLarge if it never will be. With several peers it waits
    for all, and raises the error of the first of `futures` that has one.
    """

    def __init__(self, peer: uuid.UUID | None, futures: Sequence[Delivery] = ()) -> None:
        super().__init__()
        self.peer = peer
        self.futures: tuple[Delivery, ...] = tuple(futures) or (self,)
        self.withdraw: Callable[[], object] | None = None  # what the communicator does when this is cancelled

    def cancel(self) -> bool:
        """Take the message back; True if the peer (if all of them) will never see it.

        Possible until the last of its bytes has left. Its memory is free again at once.
        """
        if self.futures != (self,):
            cancelled = [future.cancel() for future in self.futures]  # each, whatever became of the others
            return all(cancelled)
        if not super().cancel():
            return False
        if self.withdraw is not None:
            self.withdraw()
        return True


def gather(futures: Sequence[Delivery]) -> Delivery:
    """Return the one future of several; of none, it is done."""
    if len(futures) == 1:
        return futures[0]
    whole = Delivery(None, futures)
    if not futures:
        whole.set_result(None)
    count = itertools.count(1)  # next() is atomic: just one thread sees the last number

    def done(_: Future[None]) -> None:
        if next(count) == len(futures):
            _settle(whole, futures)

    for future in futures:
        future.add_done_callback(done)
    return whole


def _settle(whole: Delivery, futures: Sequence[Delivery]) -> None:
    if all(future.cancelled() for future in futures):
        Future.cancel(whole)
        whole.set_running_or_notify_cancel()
        return
    errors = [error for future in futures if not future.cancelled() and (error := future.exception())]
    if errors:
        whole.set_exception(errors[0])
    else:
        whole.set_result(None)
