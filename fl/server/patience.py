"""How long a server waits: for answers, for lost clients, and for a round that counts."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import islice

from fl.errors import FederationStalled
from fl.properties import title
from fl.report import ClientFailure, FailureKind, RoundReport
from fl.schedules import Schedule
from fl.server.waiting import pause_after
from netq.validate import expect, flag, is_number, whole

log = logging.getLogger("netq.fl")

_NAMED = 3  # clients that an error names
_OF_PROGRAMS = (FailureKind.INVALID, FailureKind.FAILED, FailureKind.ERROR, FailureKind.VOID)  # and of no link
_ALIKE = 6  # attempts of the first round, if all fail alike: 31 s of pauses, in which further devices have connected


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a server waits. Raises InvalidOption.

    deadline:     seconds; a client that has not answered by then is late, and the round closes. Or a function of the
                  number of the round (fl.schedules).
    grace:        seconds; a client without a connection for longer is lost, and the round does not wait for it.
    close_early:  True: a round that has enough updates closes without clients that have never answered, and without
                  those that take a second longer than three times their last answer. The same for evaluations. A new
                  client counts from its second task on.
    suspend_after: tasks without a good answer, among a client's last eight times as many, after which it is suspended:
                  rounds do not wait for it until it has given some good answers.
    void_rounds:  attempts in a row that do not count, after which `rounds` raises FederationStalled. 6 at most for the
                  first round, if all clients fail for the same reason each time.
    void_pause:   seconds before the second attempt of a round; twice as many before each further one, 60 at most.
    """

    deadline: float | Schedule = 600.0
    grace: float = 10.0
    close_early: bool = False
    suspend_after: int = 3
    void_rounds: int = 10
    void_pause: float = 1.0

    def __post_init__(self) -> None:
        self.deadline_of(1)
        expect(is_number(self.grace, 0), "Patience.grace", self.grace, "seconds, 0 or more")
        flag("Patience.close_early", self.close_early)
        whole("Patience.suspend_after", self.suspend_after, 1)
        whole("Patience.void_rounds", self.void_rounds, 1)
        expect(is_number(self.void_pause, 0), "Patience.void_pause", self.void_pause, "seconds, 0 or more")

    def deadline_of(self, number: int) -> float:
        """Return the deadline of a round. Raises InvalidOption unless it is a number above 0."""
        seconds = self.deadline(number) if callable(self.deadline) else self.deadline
        name = f"Patience.deadline of round {number}" if callable(self.deadline) else "Patience.deadline"
        expect(is_number(seconds, 0) and seconds > 0, name, seconds, "seconds, more than 0")
        return seconds


class Attempts:
    """Counts the attempts since the last round that counted: `void` of them."""

    def __init__(self, patience: Patience) -> None:
        self.void = 0
        self._patience = patience
        self._alike: set[ClientFailure] = set()  # the failure of all clients in each of them, if there is one

    def pause(self, report: RoundReport, *, is_first: bool) -> float:
        """Return the seconds before the next attempt of a round. Raises FederationStalled if there were too many.

        Logs the failure of all clients, if they have the same.

        is_first: whether no round has counted.
        """
        alike = set(report.failures.values())
        if len(alike) != 1 or not all(failure.why in _OF_PROGRAMS for failure in alike):
            alike = set()
        elif self.void <= 1:
            text = "round %d: all clients fail for one reason; if that is a mistake in a program, no pause mends it: %s"
            log.warning(text, report.number, *alike)
        self._alike = alike if self.void <= 1 else self._alike & alike
        limit, why = self._patience.void_rounds, "void_rounds"
        if self._alike and is_first and limit > _ALIKE:
            limit, why = _ALIKE, "each time for the same reason"
        if self.void >= limit:
            each = {**report.failures, **report.skipped}
            reasons = "; ".join(
                f"{title(peer, report.names.get(peer, ''))}: {reason}" for peer, reason in islice(each.items(), _NAMED)
            )
            skipped = f" and {len(report.skipped)} skipped" if report.skipped else ""
            reasons = reasons or "the log says why, as of a strategy that selects no client"
            raise FederationStalled(
                f"round {report.number} did not count {self.void} times in a row ({why}); in the last attempt "
                f"{len(report.failures)} clients failed{skipped}: {reasons}"
            )
        seconds = pause_after(self.void, self._patience.void_pause)
        log.info("round %d is run again in %g s (attempt %d)", report.number, seconds, self.void + 1)
        return seconds
