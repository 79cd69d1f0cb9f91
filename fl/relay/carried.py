"""A relay's part in secure aggregation: carries the steps of its clients, and adds their vectors.

    server ──step, a question for each client──► relay ──step──► each client
    server ◄──── the answers of all ──────────── relay ◄answer── each client
    server ◄──── one vector: the sum ─────────── relay ◄vector── each client

It sees keys, sealed secrets and vectors under masks, and opens none of them. Used by fl/relay/below.py, in its thread.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fl.errors import InvalidUpdate
from fl.messages import Answered, Task
from fl.secure.participant import each_of, layout_of, valid
from fl.secure.roster import Roster
from fl.secure.summing import Summing
from fl.secure.terms import Terms
from fl.server.leaves import Leaves, parted


class Carried:
    """A session of secure aggregation as a relay knows it: who is in it, and so the form of the vectors."""

    def __init__(self, leaves: Leaves) -> None:
        self._leaves = leaves
        self._session = ""
        self._fingerprints: dict[str, bytes] = {}
        self._roster: Roster | None = None
        self._summing: Summing | None = None

    def begin(self, task: Task) -> Summing:
        """Return the sum to be of a task, whose tensors are loaded. Raises InvalidUpdate."""
        self._summing = valid(lambda: self._begun(task), "a task")
        return self._summing

    def _begun(self, task: Task) -> Summing:
        terms = Terms(**task.secure)
        if self._roster is None or terms.session != self._session:
            raise InvalidUpdate("this relay has not carried the set-up of this session: it has begun anew since")
        return Summing(terms, self._roster, layout_of(terms, task, self._roster))

    def step(self, asked: Mapping[str, Any], here: Collection[str], limit: float) -> Answered:
        """Have clients answer a step, and return their answers, or why there is none. Raises InvalidUpdate.

        here:  the clients that are connected. limit: seconds.
        """
        step, session, questions = valid(lambda: self._read(asked), "a step")
        known = {client: question for client, question in questions.items() if client in self._leaves.found}
        # In an opening it waits for none that has sent no vector: such a client may be at work for long.
        vectors = None if step not in ("agree", "open") or self._summing is None else self._summing.present
        awaited = [each for each in known if each in here and (vectors is None or each in vectors)]
        answers, failed = self._leaves.ask(
            *(step, session, known, lambda client, told: dict(told), limit),
            lambda found: all(each in found for each in awaited),
        )
        failures = {client: [failure.why.name, failure.reason] for client, failure in failed.items()}
        return Answered({"answers": answers, "failures": failures})

    def _read(self, asked: Mapping[str, Any]) -> tuple[str, str, dict[str, dict[str, Any]]]:
        questions = parted(asked)
        self._note(asked["step"], asked["session"], next(iter(questions.values())))
        return asked["step"], asked["session"], questions

    def _note(self, step: str, session: str, asked: Mapping[str, Any]) -> None:
        """Note what the steps of a set-up say of all clients of the session."""
        if step == "nonces":
            self._session, self._roster = session, None
            self._fingerprints = each_of(list(asked["clients"]), asked["fingerprints"], "fingerprints")
        if step == "boxes" and session == self._session:
            self._roster = Roster(self._fingerprints, each_of(list(self._fingerprints), asked["nonces"], "nonces"))
