"""Asks the clients of a server for statistics of their data, and sums what they give, under masks if there are any.

Called by fl/server/server.py, in its thread. fl/column_statistics.py has what is asked, and what the numbers say.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection
from typing import Any

import numpy as np

from fl.column_statistics import Query, StatisticsReport
from fl.errors import InvalidUpdate
from fl.messages import Answered, Masked, Task
from fl.report import ClientFailure, FailureKind
from fl.secure.summing import Summing
from fl.server.federation import Void
from fl.server.gather import gather
from fl.server.masked import Masks
from fl.server.member import Member
from fl.server.members import Members
from fl.subtotal import Subtotal

log = logging.getLogger("netq.fl")

_WHAT = "the question for statistics"


class Survey:
    """One question for statistics.

    task:   has the query as its config.
    needed: of how many clients a sum under masks must be.
    """

    def __init__(self, members: Members, masks: Masks | None, query: Query, task: Task, needed: int) -> None:
        self._members = members
        self._masks = masks
        self._query = query
        self._task = task
        self._needed = needed
        self._total = np.zeros(query.numbers, np.int64)
        self._summing: Summing | None = None
        self._withheld: dict[str, dict[str, str]] = {}
        self._present: list[str] = []
        self._failures: dict[str, ClientFailure] = {}

    def ask(self, clients: Collection[Member], limit: float, least: int) -> StatisticsReport:
        """Ask clients, and return what they say together.

        limit: seconds for an answer. least: the fewest values of a column, and in a cell, that are shown.
        """
        for member in clients:
            if member.task is not None:
                self._failures[str(member.id)] = ClientFailure(FailureKind.LATE, "it still does another task")
        asked = {str(each.id): each for each in clients if each.task is None}
        try:
            if self._masks is not None:
                asked = self._begin(self._masks, asked)
            read = self._add if self._masks is None else self._add_masked
            _, failed = gather(self._members, self._task, asked, limit, _WHAT, read, own={})
            self._failures |= failed
            if self._masks is not None and self._summing is not None:
                total = self._masks.open(self._summing, {})
                self._present = self._summing.present
                self._total = self._query.checked(total, len(self._present))
        except (Void, InvalidUpdate) as error:
            void = ClientFailure(FailureKind.VOID, f"there is no sum under masks: {error}")
            self._failures |= {client: void for client in asked if client not in self._failures}
            self._present, self._total = [], np.zeros_like(self._total)
        return self._report(least)

    def _begin(self, masks: Masks, asked: dict[str, Member]) -> dict[str, Member]:
        """Have clients share masks. Return those that do, or relays of some. Raises Void."""
        self._task, self._summing, failed = masks.begin(self._task, [*asked.values()], self._needed, 1, None)
        self._failures |= failed
        return {str(member.id): member for member in masks.leaves.carriers(self._summing.terms.clients)}

    def _add(self, client: str, content: Any) -> None:
        """Add what a client gives. Raises InvalidUpdate, with nothing changed, for numbers that no client can have."""
        if not isinstance(content, Answered):
            raise InvalidUpdate(f"a {type(content).__name__}; expected an Answered")
        vector = self._query.checked(content.values.get("vector"), 1)
        withheld = self._query.withheld(content.values.get("withheld"))
        self._total = self._query.checked(self._total + vector, len(self._present) + 1)
        self._present.append(client)
        if withheld:
            self._withheld[client] = withheld

    def _add_masked(self, client: str, content: Any) -> None:
        assert self._masks is not None
        assert self._summing is not None
        if not isinstance(content, Masked | Subtotal):
            raise InvalidUpdate(f"a {type(content).__name__}; expected a Masked")
        if isinstance(content, Subtotal):
            self._failures |= {str(each): failure for each, failure in content.failures.items()}
        self._masks.leaves.add(self._summing, client, content)

    def _report(self, least: int) -> StatisticsReport:
        ids = {client: uuid.UUID(client) for client in [*self._present, *self._failures]}
        for client, failure in self._failures.items():
            log.warning("%s: no statistics: %s", self._members.of(ids[client]), failure)
        return StatisticsReport(
            *self._query.results(self._total, least),
            clients=tuple(ids[client] for client in self._present),
            withheld={ids[client]: reasons for client, reasons in self._withheld.items()},
            failures={ids[client]: failure for client, failure in self._failures.items()},
        )
