"""A client's part in secure aggregation: sets a session up, masks its updates, and helps to open sums.

Used by a client in its thread. Answers what the server asks (fl/server/masked.py); sends nothing by itself. All that is
secret lives in memory, for one session: a client that is started again has another one. So it never sends two vectors
under the same masks, whatever is restored on its disk.

    set-up    keys ► nonces ► boxes ► tags ► check    once for the clients of a session
    round     the task, with its terms                one vector a client
    opening   agree ► open                            by the committee; clients that are lost need not come back
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from fl.checks import expect
from fl.column_statistics import Query
from fl.compression.packed import Packed
from fl.errors import InvalidUpdate
from fl.messages import Answered, Content, Masked, Skip, Task, Update
from fl.secure import packets
from fl.secure.certified import Prove, Sign
from fl.secure.counts import Counts
from fl.secure.layout import Layout
from fl.secure.noised import NoisedLayout
from fl.secure.pairs import BOX, NONCE, TAG, Entry, Ratchet, Sealing, commitment, derive, tag
from fl.secure.roster import Roster
from fl.secure.terms import Terms, digest
from fl.secure.words import Words
from fl.tensors.model import copied
from fl.tensors.roles import SENT, of_role
from fl.tensors.spec import Model, specs_of
from netq.errors import SecurityError
from netq.text import describe
from netq.utils.secret import is_same_secret

log = logging.getLogger("netq.fl")

T = TypeVar("T")


class Participant:
    """One client.

    client: its id.
    sign:   adds to an entry of a session what proves that it is this client's.
    prove:  raises SecurityError unless an entry of a session is its client's. None: the server is trusted to pass keys
            on as they are.
    least:  of how many clients a sum must be at least, whatever the server says.
    noise:  the least noise multiplier of a sum. 0: a sum may have none.
    """

    def __init__(self, client: str, sign: Sign, prove: Prove | None, least: int, noise: float = 0.0) -> None:
        self._client = client
        self._sign = sign
        self._prove = prove
        self._least = least
        self._noise = noise
        self._session = ""
        self._set_up: _SetUp | None = None
        self._ready: tuple[Roster, Ratchet] | None = None
        self._opening: _Opening | None = None

    def step(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Answer one step of a set-up, or of an opening. Raises InvalidUpdate, SecurityError."""
        steps: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "keys": self._begin,
            "nonces": lambda asked: self._set_up_at("nonces").reveal(asked, self._least),
            "boxes": lambda asked: self._set_up_at("boxes").seal(asked, self._prove),
            "tags": lambda asked: self._set_up_at("tags").open(asked),
            "check": self._check,
            "agree": lambda asked: self._in_opening(asked).agree(asked),
            "open": self._open,
        }
        name = asked.get("step")
        if not isinstance(name, str) or name not in steps:
            raise InvalidUpdate(f"step: {name!r:.40}; expected one of {', '.join(steps)}")
        if name != "keys" and str(asked.get("session")) != self._session:
            raise InvalidUpdate(
                "this client has no keys for that session of secure aggregation: it has begun anew since"
            )
        return valid(lambda: steps[name](asked), f"the step {name!r}")

    def begin(self, task: Task) -> Masking:
        """Check the terms of a task, and advance the keys to its round. Raises InvalidUpdate."""
        return valid(lambda: self._checked(task), "a task")

    def _checked(self, task: Task) -> Masking:
        terms = Terms(**task.secure)
        if self._ready is None or terms.session != self._session:
            raise InvalidUpdate("this client has no keys for the session of this round: it has begun anew since")
        roster, ratchet = self._ready
        if list(terms.clients) != roster.picked(terms.clients) or self._client not in terms.clients:
            raise InvalidUpdate("the clients of the round are not some of its session, in order, with this one")
        if terms.least < self._least:
            raise InvalidUpdate(
                f"the sum of {terms.least} clients at least; this client wants {self._least}: expected a server's "
                "secure.min_clients of as many, or fewer in the policy of this client"
            )
        noise = 0.0 if terms.clipping is None else terms.clipping.multiplier
        if noise < self._noise:
            raise InvalidUpdate(
                f"a sum with a noise multiplier of {noise:g}; this client wants {self._noise:g} or more"
            )
        if not roster.serves(terms.clients):
            raise InvalidUpdate(
                f"the round asks {len(terms.clients)} clients of a session of {len(roster.order)}, and leaves out too "
                "many, or the neighbours of one"
            )
        if terms.task != digest(task):
            raise InvalidUpdate("the task that came is not that of the round's terms")
        keys = ratchet.at(terms.number)
        packet_for_itself = os.urandom(32)
        self._opening = None
        if terms.recovers and self._client in roster.committee:
            self._opening = _Opening(roster, terms, self._client, self._least, keys, packet_for_itself)
        return Masking(task, terms, roster, self._client, keys, packet_for_itself)

    def _begin(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        self._session, self._ready, self._opening = str(asked["session"]), None, None
        self._set_up = _SetUp(Sealing(self._session, self._client))
        entry = self._sign(self._set_up.entry, self._session)
        return {
            "key": entry.key,
            "commitment": entry.commitment,
            "chain": list(entry.chain),
            "signature": entry.signature,
        }

    def _check(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        set_up = self._set_up_at("check")
        wrong, self._set_up = set_up.check(asked), None
        if not wrong:
            self._ready = set_up.roster, Ratchet(set_up.keys)
        return {"refused": wrong}

    def _open(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        opening, self._opening = self._in_opening(asked), None  # once
        return opening.open(asked)

    def _set_up_at(self, step: str) -> _SetUp:
        """Return the set-up, whose next step this must be."""
        if self._set_up is None:
            raise InvalidUpdate("the set-up of this session is over")
        if step != self._set_up.next:
            raise InvalidUpdate(f"the step {step!r} of a set-up; expected the step {self._set_up.next!r}")
        return self._set_up

    def _in_opening(self, asked: Mapping[str, Any]) -> _Opening:
        if self._opening is None or asked["number"] != self._opening.terms.number:
            raise InvalidUpdate("this client has no shares of that round: it has given them, or asks for none any more")
        return self._opening


class _SetUp:
    """The set-up of a session.

    next:   the step that it waits for. entry: this client's own. roster: from the step "boxes" on.
    keys:   of the pairs, before they are checked.
    """

    roster: Roster

    def __init__(self, sealing: Sealing) -> None:
        self.sealing = sealing
        self.next = "nonces"
        self.keys: dict[str, bytes] = {}
        self._nonce = os.urandom(NONCE)
        bound = commitment(sealing.session, sealing.client, self._nonce)
        self.entry = Entry(sealing.client, sealing.key, bound)
        self._fingerprints: dict[str, bytes] = {}
        self._commitments: dict[str, bytes] = {}  # of all, before it has revealed its nonce

    def reveal(self, asked: Mapping[str, Any], least: int) -> dict[str, Any]:
        """Return this client's nonce, once the keys and the nonces of all clients are bound."""
        clients = list(asked["clients"])
        if len(set(clients)) < max(least, len(clients)):
            raise InvalidUpdate(
                f"a session of {len(set(clients))} clients; this client wants {least} at least, each once: wait for "
                "more clients (the server's wait), or let its policy want fewer"
            )
        self._fingerprints = each_of(clients, asked["fingerprints"], "fingerprints")
        self._commitments = each_of(clients, asked["commitments"], "commitments")
        own, client = self.entry, self.entry.client
        if (self._fingerprints.get(client), self._commitments.get(client)) != (own.fingerprint, own.commitment):
            raise InvalidUpdate(
                "the session's list has another key or commitment of this client than those that it has made"
            )
        self.next = "boxes"
        return {"nonce": self._nonce}

    def seal(self, asked: Mapping[str, Any], prove: Prove | None) -> dict[str, Any]:
        """Return a sealed secret for each peer."""
        nonces = each_of(list(self._fingerprints), asked["nonces"], "nonces")
        for client, nonce in nonces.items():
            if commitment(self.sealing.session, client, nonce) != self._commitments[client]:
                raise InvalidUpdate(f"the nonce of client {client} is not the one that it has committed to")
        self.roster = roster = Roster(self._fingerprints, nonces)
        entries, boxes, refused = [Entry(*each) for each in asked["others"]], list[bytes](), list[str]()
        if [each.client for each in entries] != roster.peers(self.sealing.client):
            raise InvalidUpdate("the keys that came are not those of this client's peers, in the session's order")
        for entry in entries:
            listed = self._fingerprints[entry.client], self._commitments[entry.client]
            if (entry.fingerprint, entry.commitment) != listed:
                raise InvalidUpdate(f"the key or commitment of client {entry.client} is not that of the session's list")
            try:
                entry.check(tries=False)
                if prove is not None:
                    prove(entry, self.sealing.session)
                boxes += self.sealing.boxes([entry], roster.hash)
            except (InvalidUpdate, SecurityError) as error:
                log.warning("secure aggregation: %s", error)
                refused.append(entry.client)
        self.next = "tags"
        return {"refused": refused, "boxes": b"".join(boxes)}

    def open(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Make the keys of the pairs, and return a tag for each peer."""
        boxes = self._by_peer(asked["boxes"], BOX)
        self.keys = self.sealing.open(boxes)
        self.next = "check"
        refused = [each for each in boxes if each not in self.keys]
        return {"refused": refused, "tags": b"".join(self._tag(key, self.sealing.client) for key in self.keys.values())}

    def check(self, asked: Mapping[str, Any]) -> list[str]:
        """Return the peers that have another key of the pair. Raises InvalidUpdate if it has refused some."""
        tags = self._by_peer(asked["tags"], TAG)
        if missing := [each for each in tags if each not in self.keys]:
            raise InvalidUpdate(
                f"this client has refused {len(missing)} of its {len(tags)} peers, as {missing[0]}; expected a set-up "
                "without them"
            )
        return [each for each, key in self.keys.items() if not is_same_secret(self._tag(key, each), tags[each])]

    def _tag(self, key: bytes, client: str) -> bytes:
        return tag(key, b"check", client.encode())

    def _by_peer(self, joined: bytes, size: int) -> dict[str, bytes]:
        peers = self.roster.peers(self.sealing.client)
        if type(joined) is not bytes or len(joined) != size * len(peers):
            raise InvalidUpdate(f"what has come is not {size} bytes of each of {len(peers)} peers")
        return {each: joined[size * at :][:size] for at, each in enumerate(peers)}


class _Opening:
    """What a keeper has of a round until its sum is open: keys for the packets that come to it, and for vouchers."""

    def __init__(
        self, roster: Roster, terms: Terms, client: str, least: int, keys: Mapping[str, bytes], own: bytes
    ) -> None:
        self.terms = terms
        self._roster = roster
        self._client = client
        self._least = max(least, terms.least)
        self._packets = {each: packet_key(keys[each], terms, each, client) for each in terms.clients if each != client}
        self._packets[client] = own
        keepers = [each for each in roster.committee if each != client]
        self._vouchers = {each: derive(keys[each], b"voucher", terms.hash) for each in keepers}
        self._present: list[str] = []
        self._absent: list[str] = []

    def agree(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Vouch to the other keepers for the clients whose vectors are in the sum. Once."""
        if self._present:
            raise InvalidUpdate("this client has vouched for a set of clients in this round already, and does so once")
        present, absent = list(asked["present"]), list(asked["absent"])
        if sorted([*present, *absent]) != sorted(self.terms.clients):
            raise InvalidUpdate("those that are present and those that are absent are not the round's clients")
        least = max(self._least, self._roster.least)
        if len(present) < least:
            raise InvalidUpdate(f"a sum of {len(present)} clients; expected {least} at least")
        if not self._roster.opens(present):
            raise InvalidUpdate("a sum without too many neighbours of a client: nothing would hide its update")
        self._present, self._absent = present, absent
        about = self._about
        return {"vouchers": b"".join(tag(key, about, self._client.encode()) for key in self._vouchers.values())}

    def open(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return this keeper's shares: of the mask of each vector in the sum, and of those shared with absent ones.

        Only if enough keepers, this one too, have vouched for the same clients; and whose vouchers say otherwise.
        """
        agreed, doubted = self._compared(asked["vouchers"])
        if not self._present or 1 + len(agreed) < self._roster.threshold:
            return {"shares": b"", "refused": [], "doubted": doubted}
        found, refused = list[bytes](), list[str]()
        for client, packet in zip(self._present, asked["packets"], strict=True):
            wanted = wanted_of(self._roster, self.terms, client, self._absent)
            shares = packets.opened(packet, self._packets[client], self.terms.hash)
            if shares is None or len(shares) <= wanted[-1]:
                refused.append(client)
            else:
                found += [shares[at] for at in wanted]
        return {"shares": b"".join(found), "refused": refused, "doubted": doubted}

    def _compared(self, vouchers: Mapping[str, bytes]) -> tuple[list[str], list[str]]:
        """Return the keepers that have vouched for the same clients, and those that have not."""
        right = {each: tag(key, self._about, each.encode()) for each, key in self._vouchers.items() if each in vouchers}
        same = [each for each in right if type(vouchers[each]) is bytes and is_same_secret(right[each], vouchers[each])]
        return same, [each for each in right if each not in same]

    @property
    def _about(self) -> bytes:
        text = " ".join([*sorted(self._present), "/", *sorted(self._absent)])
        return hashlib.sha256(self.terms.hash + text.encode()).digest()


class Masking:
    """The masks of one client in one round. Made before training, which may change the model in place.

    start: a copy of the tensors of which an update is sent.
    """

    def __init__(
        self, task: Task, terms: Terms, roster: Roster, client: str, keys: Mapping[str, bytes], own: bytes
    ) -> None:
        self._terms = terms
        self._threshold = roster.threshold
        self._is_first = {each: client < each for each in keys}  # of the pair
        self._masks = {each: derive(keys[each], b"mask", terms.hash) for each in masked_with(roster, terms, client)}
        self._packets = {
            each: own if each == client else packet_key(keys[each], terms, client, each)
            for each in roster.committee
            if terms.recovers
        }
        self.start = copied(sent_of(task))
        self._layout = layout_of(terms, task, roster)

    def mask(self, content: Content | Answered) -> Masked | Skip:
        """Return what is sent of an update, a report or statistics; a Skip stays one. Call it once.

        Raises InvalidUpdate.
        """
        if isinstance(content, Skip):
            return content
        if not self._masks:
            raise InvalidUpdate("there are no masks (any more): a vector is made once")
        words = self._words(content)
        plus = [key for each, key in self._masks.items() if self._is_first[each]]
        minus = [key for each, key in self._masks.items() if not self._is_first[each]]
        dealt = packets.Dealt(b"", b"", b"")
        if self._packets:
            own = os.urandom(32)
            plus.append(own)
            secrets = [own, *self._masks.values()]
            dealt = packets.deal(secrets, self._packets, self._threshold, self._terms.hash)
        self._masks = self._packets = {}
        words.mask(plus, minus)
        return Masked(self._terms.session, self._terms.number, words.memory, *dealt)

    def _words(self, content: Content | Answered) -> Words:
        if isinstance(self._layout, Counts):
            return self._layout.encode(content.values.get("vector") if isinstance(content, Answered) else None)
        if isinstance(content, Answered | Skip):
            raise InvalidUpdate(f"a {type(content).__name__}; expected an update or a report")
        model = content.model if isinstance(content, Update) else {}
        if isinstance(content, Update) and content.extra:
            raise InvalidUpdate(f"extra: {', '.join(content.extra)}; expected none: masks cover the model only")
        if any(isinstance(each, Packed) for each in model.values()):
            raise InvalidUpdate("this client has a compression of its own, and a vector under masks cannot be packed")
        return self._layout.encode(self.start, model, content.num_examples, content.metrics)


def valid(answer: Callable[[], T], what: str) -> T:
    """Return an answer. Raises InvalidUpdate in place of what values of a server raise, which may be anything."""
    try:
        return answer()
    except (InvalidUpdate, SecurityError):
        raise
    except Exception as error:
        raise InvalidUpdate(f"{what} of secure aggregation is not valid: {describe(error)}") from error


def each_of(clients: Sequence[str], joined: bytes, what: str) -> dict[str, bytes]:
    """Return 32 bytes for each of the clients. Raises InvalidUpdate."""
    if type(joined) is not bytes or len(joined) != NONCE * len(clients):
        raise InvalidUpdate(f"{what}: expected {NONCE} bytes for each of {len(clients)} clients")
    return {each: joined[NONCE * at :][:NONCE] for at, each in enumerate(clients)}


def packet_key(key: bytes, terms: Terms, sender: str, receiver: str) -> bytes:
    """Return what seals the packet of one client of a pair for the other."""
    return derive(key, b"packet", terms.hash, sender.encode(), receiver.encode())


def sent_of(task: Task) -> Model:
    """Return those tensors of a task's model of which an update is sent."""
    return of_role(task.model, task.roles, *SENT) if task.job.purpose == "train" else {}


def layout_of(terms: Terms, task: Task, roster: Roster) -> Layout | NoisedLayout | Counts:
    """Return the layout of the vectors that answer a task. Raises InvalidUpdate."""
    specs = specs_of(sent_of(task))
    if task.job.purpose == "statistics":
        expect(not terms.noise, "noise", terms.noise, "none: statistics have no noise")
        return Counts(Query.of(task.config).numbers)
    if terms.clipping is not None:
        present = max(terms.least, roster.least) if terms.recovers else len(terms.clients)
        return NoisedLayout(specs, terms.clipping, len(terms.clients), present - roster.assumed_liars)
    missing = [name for name, spec in specs.items() if not spec.is_exact and name not in terms.ranges]
    if missing:
        raise InvalidUpdate(f"ranges: there is none for {missing[0]!r}")
    return Layout(specs, terms.ranges, terms.metrics, len(terms.clients), terms.most)


def masked_with(roster: Roster, terms: Terms, client: str) -> list[str]:
    """Return the clients of a round with which one shares masks. Its secrets are in this order, behind its own."""
    asked = frozenset(terms.clients)
    return [each for each in roster.neighbours(client) if each in asked]


def wanted_of(roster: Roster, terms: Terms, client: str, absent: Iterable[str]) -> list[int]:
    """Return which secrets of a client open its vector: that of its own mask, and those shared with absent clients."""
    gone = frozenset(absent)
    return [0, *(1 + at for at, each in enumerate(masked_with(roster, terms, client)) if each in gone)]
