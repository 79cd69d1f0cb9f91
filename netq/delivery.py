"""What `put` returns: the future of a message, and of its way to each peer.

A message to one peer is one Delivery. A message to several is one that has a Delivery for each in `futures`,
and is done when all of them are.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future

from netq.bell import Bell

log = logging.getLogger("netq")


class Delivery(Future[None]):
    """Done when the peer holds the message: then the data may be changed again.

    `result()` raises Closed, QueueFull or MessageTooLarge if it never will be. With several peers it waits
    for all, and raises the error of the first of `futures` that has one.

    What a user asks it is answered without the lock of Future, which a loop needs to settle it: the loop must not wait
    for a thread that a signal handler has interrupted, and that waits for the loop.
    """

    def __init__(self, peer: uuid.UUID | None, futures: Sequence[Delivery] = ()) -> None:
        super().__init__()
        self.peer = peer
        self.withdraw: Callable[[], object] | None = None  # what the communicator does when this is cancelled
        self._futures = tuple(futures)
        self._bell = Bell()
        self._whole: tuple[Delivery, Iterator[int]] | None = None  # what this is a part of, and who counts the parts

    @property
    def futures(self) -> tuple[Delivery, ...]:
        """One for each peer; for a message to one peer, this."""
        return self._futures or (self,)

    def cancel(self) -> bool:
        """Take the message back; True if the peer (if all of them) will never see it.

        Possible until the last of its bytes has left. Its memory is free again at once.
        """
        if self._futures:
            cancelled = [future.cancel() for future in self._futures]  # each, whatever became of the others
            return all(cancelled)
        if not super().cancel():
            return False
        self._bell.ring()
        withdraw, self.withdraw = self.withdraw, None  # the loop may settle it, and another thread cancel it, meanwhile
        if withdraw is not None:
            withdraw()
        return True

    def done(self) -> bool:
        """Whether it is known how it ended."""
        return self._state not in ("PENDING", "RUNNING")

    def cancelled(self) -> bool:
        """Whether it was taken back."""
        return self._state in ("CANCELLED", "CANCELLED_AND_NOTIFIED")

    def running(self) -> bool:
        """Whether it can no longer be taken back, and is not done."""
        return self._state == "RUNNING"

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait until it is done; return what `result` would raise, if so. Raises CancelledError, TimeoutError."""
        if not self._bell.wait(self.done, timeout):
            raise TimeoutError
        if self.cancelled():
            raise CancelledError
        return self._exception

    def result(self, timeout: float | None = None) -> None:
        """Wait until it is done; raise its error, if it has one. Raises CancelledError, TimeoutError."""
        error = self.exception(timeout)
        if error is not None:
            try:
                raise error
            finally:
                del error, self  # the traceback holds this frame: no cycle

    def settle(self, error: Exception | None = None) -> None:
        """Be done. Only the communicator calls this, once, unless it was cancelled."""
        self.withdraw = None  # it holds the message, and its memory
        try:
            if error is None:
                self.set_result(None)
            else:
                self.set_exception(error)
        except Exception:
            raise
        except BaseException:  # out of a callback, which is the user's: not even sys.exit may end the loop
            log.exception("a callback of a delivery failed")
        self._bell.ring()


def gather(futures: Sequence[Delivery]) -> Delivery:
    """Return the one future of several; of none, it is done."""
    if len(futures) == 1:
        return futures[0]
    whole = Delivery(None, futures)
    if not futures:
        whole.settle()
    numbers = iter(range(len(futures) - 1, -1, -1))  # next() is atomic: just one thread gets the 0
    for future in futures:
        future._whole = whole, numbers
        future.add_done_callback(_part_done)
    return whole


def _part_done(part: Future[None]) -> None:
    assert isinstance(part, Delivery)
    assert part._whole is not None
    whole, numbers = part._whole
    part._whole = None
    if next(numbers) == 0:
        _conclude(whole)


def _conclude(whole: Delivery) -> None:
    if all(future.cancelled() for future in whole.futures):
        Future.cancel(whole)
        whole.set_running_or_notify_cancel()
        whole._bell.ring()
        return
    errors = [error for future in whole.futures if not future.cancelled() and (error := future.exception())]
    whole.settle(errors[0] if errors else None)  # type: ignore[arg-type]
