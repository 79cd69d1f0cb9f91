"""Rounds under secure aggregation: carries between the clients what they say to each other, and opens their sum.

Used by fl/server/server.py, in its thread, and by fl/flower/masked_rounds.py. fl/secure has what is computed, on both
sides, and fl/server/leaves.py where the clients are: here, or behind relays.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, TypeVar

from fl.errors import InvalidUpdate
from fl.messages import Masked, Report, Task, Update
from fl.privacy.bounded import Clipping
from fl.properties import title
from fl.report import ClientFailure, FailureKind
from fl.secure.certified import Prove
from fl.secure.doubts import Doubts
from fl.secure.layout import LARGEST, Summed
from fl.secure.options import SecureAggregation
from fl.secure.pairs import BOX, NONCE, TAG, Entry, commitment
from fl.secure.participant import layout_of, sent_of
from fl.secure.roster import Roster
from fl.secure.summing import Summing
from fl.secure.terms import Terms, digest, ranges
from fl.server.federation import Void
from fl.server.gather import Asked
from fl.server.leaves import Leaf, Leaves
from fl.server.member import Member
from fl.server.round import Round
from fl.subtotal import Subtotal
from fl.tensors.spec import Model

log = logging.getLogger("netq.fl")

T = TypeVar("T")
_CLIPPED = 0.001  # the share of the elements from which on a warning says so
_STEPS = 2**16  # for a range of 16 times the largest element: a step is 2**-12 of it


class Masks:
    """Secure aggregation at one server, in one session at a time: clients whose pairs share secrets.

    prove: raises SecurityError unless an entry of a session is its client's. None: the server does not know.
    leaves: the clients of the round.
    liars: clients that have dealt or given what is wrong, and how that shows. Its user takes them out.
    """

    def __init__(self, options: SecureAggregation, members: Asked, prove: Prove | None = None) -> None:
        self.options = options
        self.leaves = Leaves(members)
        self._members = members
        self._session = ""
        self._roster: Roster | None = None
        self._since = 0.0  # when the session began, by time.monotonic()
        self._number = 0  # of the last masked round in the session
        self._prove = prove
        self._doubts = Doubts()
        self._rounds = 0  # that have begun
        self._warned_coarse = self._warned_unknown = False
        self._clients: Collection[str] = ()  # of the round, those that cannot take part, too
        self.liars: dict[str, str] = {}

    def begin(
        self, task: Task, clients: Collection[Member], needed: int, most: int, clipping: Clipping | None
    ) -> tuple[Task, Summing, Mapping[str, ClientFailure]]:
        """Return the task with its terms, the sum to be, and by id the clients that cannot take part. Raises Void.

        clients: that are connected, relays in place of theirs.
        needed: clients that the round needs. most: the largest weight of one. clipping: with noise in the sum, if any.
        """
        unfound = self.leaves.find(clients, task.job.purpose, self.options.step, task.excluded)
        self._clients = by_id = self.leaves.found
        self._rounds += 1
        roster, failures = self._with_session(by_id, unfound)
        self._number += 1
        ids = roster.picked([each for each in by_id if each not in failures])
        self._check_count(ids, failures)
        try:
            terms = Terms(
                session=self._session,
                number=self._number,
                clients=ids,
                task=digest(task),
                ranges={} if clipping else ranges(sent_of(task), task.roles, self.options.clip),
                metrics=self.options.metrics,
                most=1 if clipping else most,
                least=min(len(ids), max(self.options.min_clients, needed)),
                recovers=self.options.recovers,
                noise=asdict(clipping) if clipping else {},
            )
            layout = layout_of(terms, task, roster)
        except InvalidUpdate as error:
            raise Void(f"secure aggregation cannot sum this model: {error}") from None
        return replace(task, secure=asdict(terms)), Summing(terms, roster, layout), failures

    def open(self, summing: Summing, start: Model) -> Any:
        """Have the sum opened by those who keep shares of its masks, and return what it says. Raises InvalidUpdate.

        That is a Summed; for statistics the sum of the vectors.
        """
        try:
            if summing.terms.recovers:
                self._collect(summing)
            elif summing.absent:
                lost = ", ".join(summing.absent)
                raise InvalidUpdate(f"{lost} sent no vector, and with recovers=False a sum without cannot be opened")
            summed = summing.opened(start)
            if isinstance(summed, Summed):
                self._warn_if_coarse(summing, summed.examples)
            return summed
        finally:
            self.liars |= summing.liars
            self._note(summing.doubts, summing.roster)

    def warn_if_clipped(self, what: str, summed: Summed) -> None:
        """Warn if much of the changes was cut off. what: the round, for the log."""
        if (summed.clipped or 0.0) > _CLIPPED:
            text = "%s: %.1f %% of the changes were larger than SecureAggregation.clip allows, and were cut off"
            log.warning(text, what, 100 * (summed.clipped or 0.0))

    def warn_if_unknown(self, found: Collection[str]) -> None:
        """Warn, once, if a round that counted has not all metrics that are summed."""
        unknown = [name for name in self.options.metrics if name not in found]
        if unknown and not self._warned_unknown:
            self._warned_unknown = True
            text = "masks: no client has the metrics %s; expected names that train or evaluate returns, of floats"
            log.warning(text, ", ".join(map(repr, unknown)))

    def _warn_if_coarse(self, summing: Summing, examples: int) -> None:
        """Warn, once, if so little is left of the changes of a client of mean weight that rounding may drown them."""
        left = summing.mean_steps(examples)
        if left >= _STEPS or self._warned_coarse:
            return
        self._warned_coarse = True
        text = (
            "masks: a client has %.0f examples on average, and may have %d: its changes are rounded to %.0f steps on "
            'each side, and small ones are lost; set max_examples to what clients have, or to "equal"'
        )
        log.warning(text, examples / len(summing.present), summing.terms.most, left)

    def _collect(self, summing: Summing) -> None:
        """Collect the shares that open a sum. Raises InvalidUpdate if there are too few."""
        roster, threshold = summing.roster, summing.roster.threshold
        asked = {"number": summing.terms.number}
        keepers = [each for each in roster.committee if self._is_free(each)]
        about = {**asked, "present": summing.present, "absent": summing.absent}
        others = {each: [other for other in roster.committee if other != each] for each in keepers}
        vouchers, failed = self._ask(
            "agree",
            dict.fromkeys(keepers, about),
            lambda keeper, told: _split(told["vouchers"], TAG, others[keeper]),
            lambda found: len(found) >= threshold,
        )
        questions = {
            keeper: {
                **asked,
                "vouchers": {other: vouchers[other][keeper] for other in vouchers if other != keeper},
                "packets": summing.packets_for(keeper),
            }
            for keeper in vouchers
        }
        if len(vouchers) >= threshold:
            _, failed = self._ask("open", questions, summing.take, lambda _: summing.is_open)
        if not summing.is_open:
            reasons = Counter(str(failure) for failure in failed.values())
            why = "".join(f"; of {count}: {reason}" for reason, count in reasons.most_common(1))
            keepers_are = f"{threshold} of {len(roster.committee)} clients"
            raise InvalidUpdate(f"the sum needs {keepers_are} to open it, and had fewer{why}")

    def _is_free(self, client: str) -> bool:
        """Return whether a client can answer now: it, or its relay, is there, and does no task."""
        leaf = self.leaves.found.get(client)
        return leaf is not None and leaf.member.task is None and self._members.is_present(leaf.member)

    # Set-up

    def _with_session(
        self, clients: Mapping[str, Leaf], unfound: Mapping[str, ClientFailure]
    ) -> tuple[Roster, dict[str, ClientFailure]]:
        """Return the session of these clients, if need be a new one, and which of them are not in it. Raises Void.

        unfound: further clients that are not in it, as those that have no part in this round.
        """
        text = "left out in its turn, {} is in the other: one of them has shared another secret, either may lie"
        apart = self._doubts.left_out(clients, self._rounds)
        failures = {each: ClientFailure(FailureKind.VOID, text.format(other)) for each, other in apart.items()}
        failures |= unfound
        there = {each: leaf for each, leaf in clients.items() if each not in failures}
        if self._roster is not None and self._serves(self._roster, there):
            return self._roster, failures
        while True:
            left = [each for each in clients if each not in failures]
            self._check_count(left, failures)
            self._session, self._roster, self._number = os.urandom(16).hex(), None, 0
            self._since = time.monotonic()
            found = self._set_up(left)
            if isinstance(found, Roster):
                self._roster = found
                return found, failures
            failures |= found

    def _serves(self, roster: Roster, clients: Mapping[str, Leaf]) -> bool:
        """Return whether a session has secrets for these clients. One that has connected anew may have lost them."""
        known = all(each in roster and leaf.since <= self._since for each, leaf in clients.items())
        return known and roster.serves(clients)

    def _check_count(self, clients: Sequence[str], failures: Mapping[str, ClientFailure]) -> None:
        least = self.options.min_clients
        if len(clients) < least:
            reasons = Counter(str(failure) for failure in failures.values())
            why = "".join(f"; of {count}: {reason}" for reason, count in reasons.most_common(1))
            raise Void(f"{len(clients)} clients can take part in secure aggregation; expected {least} at least{why}")

    def _set_up(self, clients: Sequence[str]) -> Roster | dict[str, ClientFailure]:
        """Have these clients share secrets. Return them as the roster, or those of them that have failed."""
        keys, failed = self._ask("keys", {each: {} for each in clients}, self._entry)
        if failed:
            return failed
        ids = sorted(keys)
        listed = {
            "clients": ids,
            "fingerprints": b"".join(keys[each].fingerprint for each in ids),
            "commitments": b"".join(keys[each].commitment for each in ids),
        }
        nonces, failed = self._ask("nonces", dict.fromkeys(ids, listed), partial(self._nonce, keys))
        if failed:
            return failed
        roster = Roster({each: keys[each].fingerprint for each in ids}, nonces)
        peers = {each: roster.peers(each) for each in ids}
        revealed = b"".join(nonces[each] for each in ids)
        asked = {each: {"nonces": revealed, "others": [list(keys[peer]) for peer in peers[each]]} for each in ids}
        for step, size in (("boxes", BOX), ("tags", TAG)):
            found, failed = self._ask(step, asked, partial(_parts, name=step, size=size, peers=peers))
            if failed or (failed := self._doubted(found, roster)):
                return failed
            parts = {each: values for each, (values, _) in found.items()}
            asked = {each: {step: b"".join(parts[peer][each] for peer in peers[each])} for each in ids}
        found, failed = self._ask("check", asked, partial(_parts, name="", size=0, peers=peers))
        return failed or self._doubted(found, roster) or roster

    def _entry(self, client: str, told: Mapping[str, Any]) -> Entry:
        entry = Entry(client, *(told[name] for name in ("key", "commitment", "chain", "signature")))
        entry.check(tries=True)
        if self._prove is not None:
            self._prove(entry, self._session)
        return entry

    def _nonce(self, keys: Mapping[str, Entry], client: str, told: Mapping[str, Any]) -> bytes:
        nonce = told["nonce"]
        right = type(nonce) is bytes and len(nonce) == NONCE
        if not right or commitment(self._session, client, nonce) != keys[client].commitment:
            raise InvalidUpdate("its nonce is not the one that it has committed to")
        return bytes(nonce)

    def _doubted(self, found: Mapping[str, tuple[Any, Collection[str]]], roster: Roster) -> dict[str, ClientFailure]:
        """Return the clients that cannot share a session: liars, and both of two of which either may be one."""
        doubts = {(each, other) for each, (_, refused) in found.items() for other in refused}
        liars = {each: why for each, why in self._note(doubts, roster).items() if each in roster}
        doubts = {pair for pair in doubts if not liars.keys() & set(pair)}
        self._doubts.ended(doubts)
        text = "one of this client and {} has shared another secret than the other: either may lie"
        failures = {}
        for each, other in doubts:
            failures[each] = ClientFailure(FailureKind.VOID, text.format(other))
            failures[other] = ClientFailure(FailureKind.VOID, text.format(each))
        return failures | {each: ClientFailure(FailureKind.INVALID, why) for each, why in liars.items()}

    def _note(self, doubts: Collection[tuple[str, str]], roster: Roster) -> dict[str, str]:
        """Note pairs of clients of which one lies. Return those that do, as more others say than may lie themselves."""
        liars = self._doubts.note(doubts, self._clients, roster.tolerated_liars)
        self.liars |= liars
        return liars

    def _ask(
        self,
        step: str,
        asked: Mapping[str, Mapping[str, Any]],
        read: Callable[[str, Mapping[str, Any]], T],
        is_enough: Callable[[Mapping[str, T]], bool] | None = None,
    ) -> tuple[dict[str, T], dict[str, ClientFailure]]:
        """Ask clients a step. Return what `read` makes of each answer, and which clients have given none.

        is_enough: whether the other answers are not needed; they have a short while to come.
        """
        return self.leaves.ask(step, self._session, asked, read, self.options.step, is_enough)


class SummedRound(Round[Any]):
    """A round whose answers are vectors under masks, of which the sum is taken. summing: None before it asks."""

    def __init__(self, leaves: Leaves, summing: Summing | None, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._leaves = leaves
        self.summing = summing

    def add(self, member: uuid.UUID, content: Masked | Subtotal) -> None:
        """Add a client's vector to the sum, or the sum of a relay. Raises InvalidUpdate."""
        assert self.summing is not None
        self._leaves.add(self.summing, str(member), content)

    def _refusal(self, member: Member, content: Update | Report | Subtotal | Masked) -> ClientFailure | None:
        """Refuse the sum of a relay that has clients of others first: else these would be in two sums, and left out."""
        try:
            self._leaves.check(str(member.id), content)
        except InvalidUpdate as error:
            return ClientFailure(FailureKind.INVALID, str(error))
        return super()._refusal(member, content)


class MaskedRound(SummedRound):
    """A round whose sum is opened here.

    clipping: of the updates, with noise in their sum; None: there is none.
    """

    def __init__(self, masks: Masks, clipping: Clipping | None, *arguments: Any) -> None:
        super().__init__(masks.leaves, None, *arguments)
        self._masks = masks
        self._clipping = clipping

    def _ask(self, task: Task, clients: Collection[Member]) -> None:
        try:
            most = self._strategy.examples(LARGEST)
            task, self.summing, failures = self._masks.begin(task, clients, self.rule.needed, most, self._clipping)
        except Void as void:
            failures = {str(each.id): ClientFailure(FailureKind.VOID, str(void)) for each in clients}
        asked = [] if self.summing is None else self._leaves.carriers(self.summing.terms.clients)
        none = ClientFailure(FailureKind.VOID, "none of its clients takes part in this round")
        for member in dict.fromkeys(clients).keys() - set(asked):
            self.answers.ask(member.id, is_regular=member in self._regular)
            self._fail(member, failures.get(str(member.id), none))
        own, found = {str(each.id) for each in clients}, self._leaves.found
        for client, failure in failures.items():
            if client not in own and self.answers.fail(uuid.UUID(client), failure):  # it is behind a relay
                name = found[client].name if client in found else ""
                log.warning("%s: left out: %s", title(uuid.UUID(client), name), failure)
        super()._ask(task, asked)

    def open(self, start: Model) -> Summed:
        """Return what the sum says. Raises InvalidUpdate."""
        assert self.summing is not None
        summed: Summed = self._masks.open(self.summing, start)
        return summed


def _parts(
    client: str, told: Mapping[str, Any], name: str, size: int, peers: Mapping[str, Sequence[str]]
) -> tuple[dict[str, bytes], Collection[str]]:
    """Return what a client says to each peer, nothing if it refuses some; and those that it refuses."""
    refused = [each for each in told["refused"] if each in peers[client]]
    return ({} if refused or not name else _split(told[name], size, peers[client])), refused


def _split(joined: object, size: int, names: Sequence[str]) -> dict[str, bytes]:
    """Return equal parts by name."""
    if type(joined) is not bytes or len(joined) != size * len(names):
        raise InvalidUpdate(f"what has come is not {size} bytes for each of {len(names)} clients")
    return {name: joined[size * at :][:size] for at, name in enumerate(names)}
