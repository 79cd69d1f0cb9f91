"""The errors of fl. Imports only netq's errors, so that every module of fl may raise them."""

from __future__ import annotations

from netq.errors import NetqError


class InvalidUpdate(NetqError, ValueError):
    """An update does not fit the model. It was not folded, and has changed nothing."""


class CheckpointError(NetqError):
    """A checkpoint cannot be written or read. The text names the file and what is wrong with it."""


class TooFewUpdates(NetqError):
    """A strategy's `finish` has fewer updates than the strategy needs. The round does not count.

    The updates are valid; an invalid one raises InvalidUpdate.
    """


class FederationStalled(NetqError):
    """Too many rounds in a row did not count. The text names the round, and what the last attempt failed of."""


class PrivacyBudgetSpent(NetqError):
    """One more round would exceed the largest epsilon (fl.DifferentialPrivacy): there is none."""


class UpdateStoreError(NetqError, OSError):
    """An update cannot be written to a strategy's folder, or read from it. Has the system's errno."""


class RelayError(NetqError):
    """A relay cannot go on: it folds otherwise than its server, or may not be one. The text says what to do."""


class SimulationError(NetqError):
    """A client's function raised an error, or a client's process ended. The simulation is over.

    The text has the traceback of the function, or says how the process ended.
    """
