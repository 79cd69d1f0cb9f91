"""Every error that fl raises of its own. Imports netq's errors only, so that every module may raise them."""

from __future__ import annotations

from netq.errors import NetqError


class InvalidUpdate(NetqError, ValueError):
    """An update does not fit the model. It was not folded; nothing has changed by it."""


class CheckpointError(NetqError):
    """There is no checkpoint that can be gone on from; the text names the file, and what is wrong with it."""


class TooFewUpdates(NetqError):
    """Fewer updates came than the strategy needs for what it promises; no client is to blame (see InvalidUpdate).

    Raised by `finish`: the round does not count.
    """


class UpdateStoreError(NetqError, OSError):
    """The folder of a spool does not take an update, or does not give it back. Has the system's errno."""


class SimulationError(NetqError):
    """A client's function raised an error, and this has its traceback; or a client's process ended, and this says how.

    The simulation is over.
    """
