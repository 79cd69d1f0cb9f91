"""Servers and clients that lie: what a client refuses, and who is named."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from fl.envelope import Job
from fl.errors import InvalidUpdate
from fl.messages import Masked, Task, Update
from fl.secure import packets, roster, shamir
from fl.secure.pairs import BOX, TAG, Entry, Sealing, commitment
from fl.secure.participant import Participant
from fl.secure.roster import Roster
from fl.secure.summing import Summing
from fl.secure.terms import digest
from fl.server.federation import Void
from netq.errors import SecurityError
from tests.fl.secure.circle import Asked, Circle


def begun(clients: int = 5) -> tuple[Circle, Task, Summing]:
    circle = Circle(clients)
    task, summing, _ = circle.begin()
    return circle, task, summing


def reported(clients: int = 5) -> tuple[Circle, Task, Summing]:
    circle, task, summing = begun(clients)
    circle.report(task, summing)
    return circle, task, summing


def changed(asked: Task, **terms: Any) -> Task:
    return replace(asked, secure={**asked.secure, **terms})


def asking(summing: Summing, step: str, **values: Any) -> Asked:
    terms = summing.terms
    return {"step": step, "session": terms.session, "number": terms.number, **values}


# A server that lies to one client


@pytest.mark.parametrize(
    ("terms", "reason"),
    [
        ({"number": 0}, "number"),
        ({"session": "00" * 16}, "no keys for the session"),
        ({"task": "00" * 32}, "is not that of the round's terms"),
        ({"least": 2}, "the sum of 2 clients at least; this client wants 3"),
        ({"clients": ["a", "b", "c"]}, "not some of its session"),
        ({"clients": []}, "clients"),
        ({"ranges": {"w": 0.0}}, "ranges"),
        ({"ranges": {}}, "there is none for 'w'"),
        ({"most": 0}, "most"),
        ({"extra": 1}, "extra"),
        ({"clients": [[]]}, "not valid"),
        ({"number": "1"}, "number"),
        ({"ranges": 3}, "ranges"),
    ],
)
def test_terms_that_are_not_valid_are_refused(terms: Any, reason: str) -> None:
    circle, task, _ = begun()
    with pytest.raises(InvalidUpdate, match=reason):
        circle.update(circle.ids[0], changed(task, **terms))


def test_clients_in_another_order_are_refused() -> None:
    circle, task, summing = begun()
    with pytest.raises(InvalidUpdate, match="in order"):
        circle.update(circle.ids[0], changed(task, clients=[*reversed(summing.terms.clients)]))


def test_a_round_without_this_client_is_refused() -> None:
    circle, task, summing = begun()
    others = [each for each in summing.terms.clients if each != circle.ids[0]]
    with pytest.raises(InvalidUpdate, match="with this one"):
        circle.update(circle.ids[0], changed(task, clients=others))


def test_a_second_vector_for_a_round_is_refused() -> None:
    """Two vectors under the same masks would tell their difference."""
    circle, task, summing = reported()
    with pytest.raises(InvalidUpdate, match="the masked round 1 has been asked for"):
        circle.update(circle.ids[0], task)
    circle.open(summing)


@pytest.mark.parametrize(
    "other",
    [
        lambda task: replace(task, model={**task.model, "w": task.model["w"] + 1}),
        lambda task: replace(task, model={**task.model, "mask": np.zeros(2, np.bool_)}),  # a constant
        lambda task: replace(task, roles={"mask": "constant", "bn.running_mean": "averaged"}),
        lambda task: replace(task, config={"epochs": 0}),
        lambda task: replace(task, job=replace(task.job, purpose="evaluate")),
        lambda task: replace(task, job=replace(task.job, round=10**9)),  # train gets it as config["round"]
        lambda task: replace(task, job=replace(task.job, run=2)),
        lambda task: replace(task, deltas=True),
        lambda task: replace(task, compression={"dtype": "int8"}),
    ],
)
def test_another_task_with_its_own_hash_gives_no_sum(other: Any) -> None:
    """Such a client's masks do not vanish in the sum, and its packets cannot be opened: nothing of it is learnt."""
    circle = Circle(5)
    circle.model["mask"] = np.ones(2, np.bool_)
    task, summing, _ = circle.begin(roles={"mask": "constant"})
    victim = circle.ids[0]
    circle.report(task, summing, without=[victim])
    wrong = other(task)
    with pytest.raises(InvalidUpdate, match="is not that of the round's terms"):
        circle.update(victim, wrong)

    def opened() -> None:
        summing.add(victim, circle.update(victim, changed(wrong, task=digest(wrong))))
        circle.open(summing)

    with pytest.raises(InvalidUpdate):
        opened()


def test_the_hash_of_a_task_has_each_field_that_is_for_all_clients() -> None:
    """A new field of Task fails here, until it is in one of the two tables: can training, or the envelope, see it?"""
    task = Task(Job(1, 2, "train"), {"w": np.zeros(3)}, {"rate": 0.1})
    for_all: dict[str, Any] = {
        "job": Job(1, 3, "train"),
        "model": {"w": np.ones(3)},
        "config": {"rate": 0.2},
        "deltas": True,
        "compression": {"dtype": "int8"},
        "counted": 1,
        "roles": {"w": "averaged"},
        "folding": {"weighted": True},
        "excluded": ["a"],
    }
    by_client: dict[str, Any] = {"unasked": 1, "answered": 1, "deadline": 1.0, "secure": {"number": 1}}
    assert {*for_all, *by_client} == {each.name for each in fields(Task)}
    for name, value in for_all.items():
        assert digest(replace(task, **{name: value})) != digest(task), name
    for name, value in by_client.items():
        assert digest(replace(task, **{name: value})) == digest(task), name


@pytest.mark.parametrize("clients", [5, 10])
def test_two_sets_of_survivors_cannot_both_be_opened(clients: int) -> None:
    """The server tells half of the keepers that one client is absent, and has what both halves answer."""
    circle, _, summing = reported(clients)
    keepers, victim = summing.roster.committee, circle.ids[0]
    views = {
        True: {"present": summing.present, "absent": []},
        False: {"present": [each for each in summing.present if each != victim], "absent": [victim]},
    }
    said = {at % 2 == 0: keepers[at % 2 :: 2] for at in range(2)}
    vouchers: dict[str, dict[str, bytes]] = {}
    for view, group in said.items():
        for keeper in group:
            told = circle.people[keeper].step(asking(summing, "agree", **views[view]))["vouchers"]
            others = [each for each in keepers if each != keeper]
            vouchers[keeper] = {other: told[16 * at :][:16] for at, other in enumerate(others)}
    for keeper in keepers:
        given = {other: vouchers[other][keeper] for other in vouchers if other != keeper}
        told = circle.people[keeper].step(asking(summing, "open", vouchers=given, packets=summing.packets_for(keeper)))
        assert told["shares"] == b""
        assert sorted(told["doubted"]) == sorted(said[keeper not in said[True]])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda present: (present, present[:1]), "are not the round's clients"),
        (lambda present: (present[1:], []), "are not the round's clients"),
        (lambda present: ([*present, "another"], []), "are not the round's clients"),
        (lambda present: (present[:3], present[3:]), "a sum of 3 clients; expected 4 at least"),
    ],
)
def test_a_set_of_survivors_that_is_none_is_refused(change: Any, reason: str) -> None:
    circle, _, summing = reported()
    present, absent = change(summing.present)
    with pytest.raises(InvalidUpdate, match=reason):
        circle.people[circle.ids[0]].step(asking(summing, "agree", present=present, absent=absent))


def test_a_keeper_vouches_once() -> None:
    circle, _, summing = reported()
    question = asking(summing, "agree", present=summing.present, absent=[])
    circle.people[circle.ids[0]].step(question)
    with pytest.raises(InvalidUpdate, match="does so once"):
        circle.people[circle.ids[0]].step(question)


def test_a_keeper_gives_shares_once_and_none_of_a_round_before() -> None:
    circle, _, summing = reported()
    circle.open(summing)
    keeper = circle.ids[0]
    with pytest.raises(InvalidUpdate, match="no shares of that round"):
        circle.people[keeper].step(asking(summing, "open", vouchers={}, packets=[]))
    _, later, _ = circle.begin()
    with pytest.raises(InvalidUpdate, match="no shares of that round"):
        circle.people[keeper].step(asking(later, "agree", present=[], absent=[]))


def test_shares_without_vouchers_are_refused() -> None:
    circle, _, summing = reported()
    person = circle.people[circle.ids[0]]
    person.step(asking(summing, "agree", present=summing.present, absent=[]))
    told = person.step(asking(summing, "open", vouchers={}, packets=summing.packets_for(circle.ids[0])))
    assert told == {"shares": b"", "refused": [], "doubted": []}


@pytest.mark.parametrize("step", ["", "steal", None])
def test_a_step_that_does_not_exist_is_refused(step: Any) -> None:
    circle, _, summing = begun()
    with pytest.raises(InvalidUpdate, match="expected one of keys, nonces, boxes"):
        circle.people[circle.ids[0]].step({"step": step, "session": summing.terms.session})


@pytest.mark.parametrize("step", ["nonces", "tags", "check", "boxes"])
def test_steps_of_a_set_up_come_in_order_and_once(step: str) -> None:
    circle = Circle(5)
    steps = ("nonces", "boxes", "tags", "check")
    asks = {each: [other for other in steps if other != each] for each in steps}
    refused: list[str] = []

    def asked(client: str, asked: Asked) -> Asked:
        if asked["step"] in asks and client == circle.ids[0]:
            for other in asks[asked["step"]]:
                with pytest.raises(InvalidUpdate, match="expected the step"):
                    circle.people[client].step({**asked, "step": other})
                refused.append(other)
        return asked

    circle.asks = asked
    circle.begin()
    assert sorted(refused) == sorted(3 * steps)
    with pytest.raises(InvalidUpdate, match="the set-up of this session is over"):
        circle.people[circle.ids[0]].step({"step": step, "session": circle.masks._session})


@pytest.mark.parametrize("step", ["nonces", "boxes", "tags", "check", "agree", "open"])
@pytest.mark.parametrize("values", [{}, {"boxes": 3, "tags": None, "others": 1, "clients": 2, "fingerprints": b""}])
def test_steps_with_other_values_are_refused(step: str, values: Any) -> None:
    circle = Circle(5)
    person = circle.people[circle.ids[0]]
    person.step({"step": "keys", "session": "one"})
    with pytest.raises(InvalidUpdate):
        person.step({"step": step, "session": "one", **values})


class OneClient:
    """The client "a" in the set-up of a session with three others, which the test plays, as the server does."""

    def __init__(self, prove: Any = None) -> None:
        self.client = Participant("a", lambda entry, session: entry, prove, 3)
        told = self.client.step({"step": "keys", "session": "one"})
        self.nonces = {each: bytes([at]) * 32 for at, each in enumerate("bcd")}
        self.entries = {"a": Entry("a", told["key"], told["commitment"])}
        for each, nonce in self.nonces.items():
            self.entries[each] = Entry(each, Sealing("one", each).key, commitment("one", each, nonce))

    def list(self) -> dict[str, Any]:
        """Ask it for its nonce, with the list of all."""
        prints = b"".join(each.fingerprint for each in self.entries.values())
        commitments = b"".join(each.commitment for each in self.entries.values())
        listed = {"clients": [*self.entries], "fingerprints": prints, "commitments": commitments}
        told = self.client.step({"step": "nonces", "session": "one", **listed})
        self.nonces = {"a": told["nonce"], **self.nonces}
        self.prints = {name: each.fingerprint for name, each in self.entries.items()}
        return told

    def seal(self) -> dict[str, Any]:
        """Ask it for its boxes, with the nonces and the keys of all."""
        others = [list(self.entries[each]) for each in Roster(self.prints, self.nonces).peers("a")]
        nonces = b"".join(self.nonces.values())
        return self.client.step({"step": "boxes", "session": "one", "nonces": nonces, "others": others})


def test_a_session_of_few_clients_is_refused() -> None:
    one = OneClient()
    del one.entries["b"], one.entries["c"]
    with pytest.raises(InvalidUpdate, match="a session of 2 clients; this client wants 3"):
        one.list()


@pytest.mark.parametrize("change", [{"key": bytes(1216)}, {"commitment": bytes(32)}])
def test_a_session_with_another_key_of_this_client_is_refused(change: Any) -> None:
    one = OneClient()
    one.entries["a"] = one.entries["a"]._replace(**change)
    with pytest.raises(InvalidUpdate, match="another key or commitment of this client than those that it has made"):
        one.list()


@pytest.mark.parametrize(
    "change", [{"key": Sealing("one", "c").key}, {"commitment": commitment("one", "c", bytes(32))}]
)
def test_a_key_that_is_chosen_after_the_nonces_is_refused(change: Any) -> None:
    """Else a client in league with the server could try keys, until the order is what it wants."""
    one = OneClient()
    one.list()
    one.entries["c"] = one.entries["c"]._replace(**change)
    with pytest.raises(InvalidUpdate, match="the key or commitment of client c is not that of the session's list"):
        one.seal()


def test_a_nonce_that_is_chosen_after_the_others_is_refused() -> None:
    one = OneClient()
    one.list()
    one.nonces["c"] = bytes(32)
    with pytest.raises(InvalidUpdate, match="the nonce of client c is not the one that it has committed to"):
        one.seal()


def test_the_commitment_of_another_client_binds_to_nothing() -> None:
    assert commitment("one", "a", bytes(32)) != commitment("one", "b", bytes(32))
    assert commitment("one", "a", bytes(32)) != commitment("two", "a", bytes(32))


def test_a_client_reveals_its_nonce_once() -> None:
    one = OneClient()
    one.list()
    with pytest.raises(InvalidUpdate, match="expected the step 'boxes'"):
        one.list()


def test_a_client_that_has_refused_its_peers_takes_part_in_no_round() -> None:
    """A server could go on with the set-up, as if nothing had been refused."""

    def proves_none(entry: Entry, session: str) -> None:
        raise SecurityError("no certificate")

    one = OneClient(proves_none)
    one.list()
    assert sorted(one.seal()["refused"]) == ["b", "c", "d"]
    one.client.step({"step": "tags", "session": "one", "boxes": bytes(3 * BOX)})
    with pytest.raises(InvalidUpdate, match="has refused 3 of its 3 peers"):
        one.client.step({"step": "check", "session": "one", "tags": bytes(3 * TAG)})
    assert one.client._ready is None


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each client has two neighbours on each side, as in a session of thousands 38."""
    monkeypatch.setattr(roster, "reach", lambda clients: 2)


@pytest.mark.usefixtures("ring")
def test_a_round_without_the_neighbours_of_a_client_is_refused() -> None:
    circle, task, summing = begun(20)
    order = summing.roster.order
    victim, without = order[5], order[6:8]
    asked = [each for each in order if each not in without]
    assert len(asked) >= 0.9 * len(order)
    with pytest.raises(InvalidUpdate, match="leaves out too many, or the neighbours of one"):
        circle.update(victim, changed(task, clients=asked))
    with pytest.raises(InvalidUpdate, match="leaves out too many"):
        circle.update(order[15], changed(task, clients=asked))  # nor does one that has all of its own


@pytest.mark.usefixtures("ring")
def test_a_sum_without_the_neighbours_of_a_client_is_refused() -> None:
    """Its shares would take all masks off its vector."""
    circle, _, summing = reported(20)
    order = summing.roster.order
    absent = order[6:8]
    present = [each for each in order if each not in absent]
    for keeper in order:
        with pytest.raises(InvalidUpdate, match="without too many neighbours of a client"):
            circle.people[keeper].step(asking(summing, "agree", present=present, absent=absent))


def test_a_sum_of_fewer_clients_than_keepers_that_open_it_is_refused() -> None:
    """Else those that are in league with the server could be all but one of it."""
    circle, _, summing = reported(10)
    question = asking(summing, "agree", present=summing.present[:6], absent=summing.present[6:])
    with pytest.raises(InvalidUpdate, match="a sum of 6 clients; expected 7 at least"):
        circle.people[circle.ids[0]].step(question)


def test_a_vector_is_made_once() -> None:
    circle, task, _ = begun()
    masking = circle.people[circle.ids[0]].begin(task)
    update = Update(dict(circle.model), 1)
    masking.mask(update)
    with pytest.raises(InvalidUpdate, match="a vector is made once"):
        masking.mask(update)


def test_a_model_beyond_all_bounds_makes_the_round_void() -> None:
    circle = Circle(3)
    circle.model = {"w": np.full(2, 1e300)}
    with pytest.raises(Void, match="cannot sum this model"):
        circle.begin()


# Clients that lie in the set-up


STRANGE = [None, 3, "text", 10**9, [], [3], {"a": 1}, b"", b"1", np.zeros(3)]


@pytest.mark.parametrize(
    ("step", "name"),
    [
        ("keys", "key"),
        ("keys", "chain"),
        ("keys", "signature"),
        ("keys", "commitment"),
        ("nonces", "nonce"),
        ("boxes", "boxes"),
        ("boxes", "refused"),
        ("tags", "tags"),
        ("tags", "refused"),
        ("check", "refused"),
    ],
)
@pytest.mark.parametrize("value", STRANGE, ids=repr)
def test_strange_answers_in_the_set_up_cost_their_client_only(step: str, name: str, value: Any) -> None:
    circle = Circle(4)
    liar = circle.ids[2]
    circle.answers = lambda client, asked, told: {**told, name: value} if client == liar and asked == step else told
    task, summing, failures = circle.begin()
    assert set(failures) <= {liar}
    circle.report(task, summing)
    circle.open(summing)
    assert circle.masks.liars == {}


@pytest.mark.parametrize("step", ["vouchers", "shares", "refused", "doubted"])
@pytest.mark.parametrize("value", STRANGE, ids=repr)
def test_strange_answers_in_the_opening_cost_their_client_only(step: str, value: Any) -> None:
    circle, _, summing = reported(7)
    liar = summing.roster.committee[2]
    circle.answers = lambda client, asked, told: {**told, step: value} if client == liar and step in told else told
    circle.open(summing)
    assert np.array_equal(summing._words.memory, circle.plain(summing).memory)
    assert circle.masks.liars == {}


def test_a_key_that_fails_at_its_peers_is_found_by_the_server() -> None:
    circle = Circle(4)
    liar = circle.ids[2]

    def answers(client: str, step: str, told: dict[str, Any]) -> dict[str, Any]:
        return {**told, "key": told["key"][:-32] + bytes(32)} if client == liar and step == "keys" else told

    circle.answers = answers
    _, _, failures = circle.begin()
    assert list(failures) == [liar]


@pytest.mark.parametrize("nonce", [bytes(32), b"", None])
def test_a_client_that_reveals_another_nonce_is_left_out_and_named(nonce: Any) -> None:
    circle = Circle(5)
    liar = circle.ids[1]
    circle.answers = lambda client, step, told: {"nonce": nonce} if client == liar and step == "nonces" else told
    task, summing, failures = circle.begin()
    assert list(failures) == [liar]
    assert "its nonce is not the one that it has committed to" in failures[liar]
    circle.report(task, summing)
    circle.open(summing)


@pytest.mark.parametrize("clients", [3, 4, 10])
def test_a_client_that_seals_garbage_for_all_is_left_out(clients: int) -> None:
    circle = Circle(clients)
    liar = circle.ids[1]

    def answers(client: str, step: str, told: dict[str, Any]) -> dict[str, Any]:
        return {**told, "boxes": bytes(len(told["boxes"]))} if client == liar and step == "boxes" else told

    circle.answers = answers
    if clients == 3:  # the two others may be in league, and have made it up
        with pytest.raises(Void, match="0 clients can take part"):
            circle.begin()
        assert circle.masks.liars == {}
    else:
        assert list(circle.begin()[2]) == [liar]
        assert list(circle.masks.liars) == [liar]


def test_a_client_that_seals_garbage_for_one_after_the_other_is_found() -> None:
    circle = Circle(6)
    liar, honest = circle.ids[0], circle.ids[1:]
    tried: list[str] = []

    def answers(client: str, step: str, told: dict[str, Any]) -> dict[str, Any]:
        if client == liar and step == "boxes":
            peers = circle.people[liar]._set_up
            assert peers is not None
            order = peers.roster.peers(liar)
            victim = next(each for each in honest if each not in tried)
            at = order.index(victim)
            tried.append(victim)
            return {**told, "boxes": told["boxes"][: 1168 * at] + bytes(1168) + told["boxes"][1168 * (at + 1) :]}
        return told

    circle.answers = answers
    _, _, failures = circle.begin()
    assert sorted(failures) == sorted([liar, tried[0]])
    assert all("either may lie" in why for why in failures.values())
    _, _, failures = circle.begin()
    assert list(failures) == [liar]
    assert list(circle.masks.liars) == [liar]


# In the opening


@pytest.mark.parametrize("clients", [3, 4])
def test_garbage_in_place_of_vouchers_names_its_client_unless_the_two_others_may_lie(clients: int) -> None:
    circle, _, summing = reported(clients)
    liar = circle.ids[1]
    circle.answers = lambda client, step, told: (
        {"vouchers": bytes(len(told["vouchers"]))} if client == liar and step == "agree" else told
    )
    if clients == 3:
        with pytest.raises(InvalidUpdate, match="needs 3 of 3 clients"):
            circle.open(summing)
        assert circle.masks.liars == {}
    else:
        circle.open(summing)
        assert list(circle.masks.liars) == [liar]


def test_packets_that_half_of_the_keepers_cannot_open_name_the_client_that_dealt_them() -> None:
    circle, task, summing = begun(10)
    liar = circle.ids[4]
    circle.report(task, summing, without=[liar])
    sent = circle.update(liar, task)
    half = len(sent.packets) // 2
    summing.add(liar, replace(sent, packets=bytes(half) + sent.packets[half:]))
    with pytest.raises(InvalidUpdate, match="needs 7 of 10 clients"):
        circle.open(summing)
    assert list(circle.masks.liars) == [liar]


# Clients that lie in the set-up, by their tags


def test_a_client_whose_boxes_are_wrong_is_left_out() -> None:
    circle = Circle(5)
    liar = circle.ids[2]

    def answers(client: str, step: str, told: dict[str, Any]) -> dict[str, Any]:
        if client == liar and step == "tags":
            return {**told, "tags": bytes(each ^ 1 for each in told["tags"])}
        return told

    circle.answers = answers
    task, summing, failures = circle.begin()
    assert failures == {liar: "what it has shared with 4 others is not what these have"}
    circle.report(task, summing)
    circle.open(summing)


def test_a_client_that_accuses_the_others_is_left_out() -> None:
    circle = Circle(5)
    liar = circle.ids[2]
    circle.answers = lambda client, step, told: {"refused": circle.ids} if client == liar and step == "check" else told
    task, summing, failures = circle.begin()
    assert list(failures) == [liar]
    assert failures[liar] == "what it has shared with 4 others is not what these have"
    circle.report(task, summing)
    circle.open(summing)


@pytest.mark.parametrize("told", [{}, {"key": b"", "chain": [], "signature": b""}, {"key": 1, "chain": 2}])
def test_a_client_whose_answer_is_not_valid_is_left_out(told: Any) -> None:
    circle = Circle(5)
    liar = circle.ids[1]
    circle.answers = lambda client, step, right: told if client == liar and step == "keys" else right
    _, _, failures = circle.begin()
    assert list(failures) == [liar]
    assert "its answer to the step 'keys' is not valid" in failures[liar]


# Clients that lie in a round


def test_a_wrong_share_is_found_and_its_keeper_named() -> None:
    circle, _, summing = reported()
    liar = circle.ids[3]

    def answers(client: str, step: str, told: dict[str, Any]) -> dict[str, Any]:
        if client == liar and step == "open":
            return {**told, "shares": bytes(shamir.SHARE) + told["shares"][shamir.SHARE :]}
        return told

    circle.answers = answers
    circle.open(summing)
    assert np.array_equal(summing._words.memory, circle.plain(summing).memory)
    assert summing.doubts == {(summing.present[0], liar)}
    assert circle.masks.liars == {}  # either may have lied


@pytest.mark.parametrize(
    "lie",
    [
        lambda sent: replace(sent, packets=bytes(len(sent.packets))),  # that cannot be opened
        lambda sent: replace(sent, shares=bytes(len(sent.shares))),  # commitments to other shares
        lambda sent: replace(sent, secrets=bytes(len(sent.secrets))),  # to other secrets
    ],
)
def test_a_client_that_deals_wrong_shares_is_named_and_the_next_round_goes_on_without_it(lie: Any) -> None:
    circle, task, summing = begun()
    liar = circle.ids[1]
    for client in circle.ids:
        sent = circle.update(client, task)
        summing.add(client, lie(sent) if client == liar else sent)
    with pytest.raises(InvalidUpdate):
        circle.open(summing)
    assert list(circle.masks.liars) == [liar]
    circle.ids.remove(liar)
    task, summing, _ = circle.begin()
    circle.report(task, summing)
    circle.open(summing)


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (lambda sent: replace(sent, vector=sent.vector[:-8]), "a vector of"),
        (lambda sent: replace(sent, number=2), "a vector of the masked round 2; expected 1"),
        (lambda sent: replace(sent, session=""), "a vector of the masked round 1 of another session; expected 1"),
        (lambda sent: replace(sent, packets=b""), "its packets and hashes have"),
        (lambda sent: replace(sent, shares=sent.shares[:-1]), "its packets and hashes have"),
        (lambda sent: replace(sent, secrets=sent.secrets + b"0"), "its packets and hashes have"),
    ],
)
def test_a_vector_of_another_form_is_refused_and_the_others_are_summed(lie: Any, reason: str) -> None:
    circle, task, summing = begun()
    liar = circle.ids[1]
    with pytest.raises(InvalidUpdate, match=reason):
        summing.add(liar, lie(circle.update(liar, task)))
    circle.report(task, summing, without=[liar])
    circle.open(summing)
    assert np.array_equal(summing._words.memory, circle.plain(summing).memory)


def test_a_vector_with_other_numbers_gives_no_sum() -> None:
    circle, task, summing = begun()
    for client in circle.ids:
        sent = circle.update(client, task)
        if client == circle.ids[1]:
            sent.vector[3] ^= 1
        summing.add(client, sent)
    with pytest.raises(InvalidUpdate, match="nothing says which client"):
        circle.open(summing)


@pytest.mark.parametrize("told", [{"shares": b"", "refused": []}, {"shares": b"1", "refused": ["x"]}, {"shares": 3}])
def test_an_answer_with_other_shares_is_refused(told: Any) -> None:
    circle, _, summing = reported(10)
    liar = summing.roster.committee[0]
    circle.answers = lambda client, step, right: told if client == liar and step == "open" else right
    circle.open(summing)
    assert np.array_equal(summing._words.memory, circle.plain(summing).memory)


def test_packets_of_other_keepers_say_nothing() -> None:
    """A packet is sealed for its keeper, and for its round."""
    circle, task, summing = begun()
    sent: Masked = circle.update(circle.ids[0], task)
    circle.update(circle.ids[1], task)
    dealt = packets.Dealt(sent.packets, sent.shares, sent.secrets)
    opening = circle.people[circle.ids[1]]._opening
    assert opening is not None
    key = opening._packets[circle.ids[0]]
    at = summing.roster.committee.index(circle.ids[1])
    found = [packets.opened(dealt.packet(each, 5), key, opening.terms.hash) for each in range(5)]
    assert [each is not None for each in found] == [each == at for each in range(5)]
