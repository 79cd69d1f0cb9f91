"""Topics and filters, compared with regular expressions."""

from __future__ import annotations

import re
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netq.exchange.envelope import Refusal, Rejected
from netq.exchange.topics import LONGEST, Subscriptions, check_name, covers

A, B, C = (uuid.UUID(int=number) for number in (1, 2, 3))

levels = st.sampled_from(["a", "b", "", "ä"])
topics = st.lists(levels, min_size=1, max_size=4).map("/".join).filter(bool)
filters = st.tuples(st.lists(levels | st.just("+"), max_size=4), st.booleans()).map(
    lambda parts: "/".join([*parts[0], *["#"] * parts[1]])
)


def expression(filter: str) -> re.Pattern[str]:
    if filter == "#":
        return re.compile(".*")
    tail = "(/.*)?" if filter.endswith("/#") else ""
    body = "/".join("[^/]*" if level == "+" else re.escape(level) for level in filter.removesuffix("/#").split("/"))
    return re.compile(body + tail)


@given(filters.filter(bool), topics)
def test_filter_selects_what_its_expression_does(filter: str, topic: str) -> None:
    assert covers(filter, topic) == bool(expression(filter).fullmatch(topic))


@given(filters.filter(bool), filters.filter(bool), st.lists(topics, min_size=1))
def test_wider_filter_selects_all_that_a_narrower_one_does(wide: str, narrow: str, some: list[str]) -> None:
    if covers(wide, narrow):
        assert all(covers(wide, topic) for topic in some if covers(narrow, topic))
    examples = [narrow.replace("+", "x").replace("#", rest) for rest in ("y", "y/z")]
    if not all(covers(wide, topic) for topic in examples):
        assert not covers(wide, narrow)


@given(st.lists(st.tuples(st.sampled_from([A, B, C]), filters.filter(bool), st.booleans())), st.lists(topics))
def test_subscribers_are_those_whose_filters_select(
    changes: list[tuple[uuid.UUID, str, bool]], asked: list[str]
) -> None:
    subscriptions, expected = Subscriptions(), set[tuple[uuid.UUID, str]]()
    for client, filter, is_added in changes:
        (subscriptions.add if is_added else subscriptions.remove)(client, filter)
        (expected.add if is_added else expected.discard)((client, filter))
        for topic in asked:
            found = subscriptions.of(topic)
            assert len(found) == len(set(found))
            assert set(found) == {client for client, filter in expected if covers(filter, topic)}
    for client in (A, B, C):
        assert len(subscriptions.filters_of(client)) == sum(each == client for each, _ in expected)
        subscriptions.remove_client(client)
    assert (subscriptions._clients, subscriptions._shapes) == ({}, {})


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", f"0 bytes; expected 1 to {LONGEST}"),
        ("ä" * 513, f"1026 bytes; expected 1 to {LONGEST}"),
        ("a/#", "expected no + and no #: they are for filters"),
        ("a/+/b", "expected no + and no #: they are for filters"),
        ("a\0", "expected no null character"),
        ("/" * 64, "65 levels; expected 64 at most"),
        ("\ud800", "expected a text without lone surrogates"),
        (7, "a int; expected a text"),
    ],
)
def test_wrong_topic_is_named(name: str, why: str) -> None:
    with pytest.raises(Rejected) as raised:
        check_name(name)
    assert (raised.value.code, str(raised.value)) == (Refusal.WRONG, why)


@pytest.mark.parametrize("name", ["a/b c/ä", "/"])
def test_right_topics(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize("name", ["a/#/b", "a#", "+a", "a/b+", "##", "a/##"])
def test_wrong_filter_is_named(name: str) -> None:
    with pytest.raises(Rejected, match=r"^expected [+] and # as whole levels, and # only at the end$"):
        check_name(name, is_filter=True)


@pytest.mark.parametrize("name", ["#", "+", "a/+/#", "+/+", "a"])
def test_right_filters(name: str) -> None:
    check_name(name, is_filter=True)


def test_dollar_topics_are_hidden_from_wildcards() -> None:
    subscriptions = Subscriptions()
    for client, filter in ((A, "#"), (A, "+/x"), (B, "$SYS/#"), (B, "$SYS/+")):
        subscriptions.add(client, filter)
    assert subscriptions.of("$SYS/x") == (B,)
    assert subscriptions.of("a/x") == (A,)
    assert not covers("#", "$SYS/x")
    assert not covers("+/x", "$SYS/x")
    assert covers("$SYS/#", "$SYS/+")


def test_places_of_wildcards_are_bounded() -> None:
    subscriptions = Subscriptions(shapes=100)
    filters = ["/".join(["a"] * number + ["+"]) for number in range(64)]
    taken, why = 0, ""
    for client in (A, B, C):
        try:
            while True:
                subscriptions.add(client, filters[taken])
                taken += 1
        except Rejected as rejection:
            why = str(rejection)
    assert taken == 18
    assert why == (
        "all filters have 18 of 100 combinations of places of +, 6 of them by this client, which may bring in one in "
        "16 of those that are left; put + at the same places as others do"
    )
    for filter in ("x/+", "a/b/c/d/e/f/g", "#", "a/#"):  # of a shape that is in use, and without +
        subscriptions.add(C, filter)
        subscriptions.remove(C, filter)
    subscriptions.add(B, filters[0])
    subscriptions.remove_client(A)
    assert subscriptions._owned == {A: 1, B: 6, C: 6}
    for client in (B, C):
        subscriptions.remove_client(client)
    assert (subscriptions._owned, subscriptions._clients, subscriptions._shapes) == ({}, {}, {})
    assert subscriptions.total == 0


def test_remembered_subscribers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netq.exchange.topics._CACHED", 5)
    subscriptions = Subscriptions()
    subscriptions.add(A, "#")
    for number in range(10):
        assert subscriptions.of(f"a/{number}") == (A,)
        assert subscriptions._cached == sum(1 + len(clients) for clients in subscriptions._cache.values()) <= 5
