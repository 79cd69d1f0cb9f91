"""What a message may hold when `allow` is given: it arrives as pickle itself would load it, or is refused."""

from __future__ import annotations

import collections
import copy
import datetime
import decimal
import fractions
import ipaddress
import math
import pickle
import random
import sys
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from netq.errors import NotAllowed, Unreadable
from netq.utils import data_pickle
from netq.utils.data_pickle import MAX_DEPTH, MAX_KEY_SIZE, MAX_NUMBERS, MAX_SAME_HASH, MAX_SIZE
from netq.utils.stream import PickleSerializer
from tests.attacks import classes
from tests.attacks.pickles import PRIME
from tests.fuzz import pickles
from tests.netq.utils.test_large import received

data = pickles.SERIALIZER
trusting = PickleSerializer()


def moved(value: Any) -> Any:
    return data.load(received(trusting.dump(value)))


def test_an_address_is_charged_as_the_values_that_take_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_pickle, "MAX_WORK", 1000)
    addresses = [ipaddress.IPv6Interface((number, 64)) for number in range(50)]
    assert moved(addresses[:45]) == addresses[:45]
    with pytest.raises(Unreadable, match="1000 values in keys and in the arguments of constructors"):
        moved(addresses)


def test_opcodes_of_a_file_of_ones_own_are_not_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_pickle, "MAX_OPCODES", 1000)
    monkeypatch.setattr(data_pickle, "MAX_MEMO", 100)
    own = PickleSerializer(PickleSerializer.allow_by_name("uuid.UUID"), bounded=False)
    for value, bound in (([[] for _ in range(200)], "100 values that it may use"), ([1] * 2000, "1000 opcodes")):
        with pytest.raises(Unreadable, match=f"more than {bound}"):
            moved(value)
        assert own.load(received(trusting.dump(value))) == value
        assert pickle.loads(pickle.dumps(own)).load(received(trusting.dump(value))) == value


NOTED = ValueError("x", 5)
NOTED.add_note("a hint")

VALUES: list[Any] = [
    *(None, True, False, 0, -1, 255, 256, 65536, -(2**31), 2**31, 10**30, -(10**30), 10**4000, 1.5, -0.0, math.inf),
    *("", "text", "é€😀", "\ud800", "x" * 300, "x" * 70_000, b"", b"x" * 300, b"x" * 70_000, bytearray(b"x" * 70_000)),
    *((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [], [1], list(range(2500)), {}, {"a": 1}, {1: 2, b"b": 3, None: 4}),
    *({(1, "a"): 1, (2, "b"): 2}, {str(n): n for n in range(2500)}, {n: n for n in range(2500)}),
    *(set(), {1, 2}, set(range(2500)), frozenset(), frozenset({"a", ("b", 1)}), {frozenset({1}): 1}),
    *(
        1 + 2j,
        range(1, 10, 2),
        slice(1, None, 2),
    ),
    *(uuid.UUID(int=5), decimal.Decimal("1.50"), fractions.Fraction(1, 3)),
    *(datetime.date(2024, 2, 29), datetime.time(23, 59, 59, 999999, fold=1), datetime.timedelta(-1, 5, 7)),
    datetime.datetime(2024, 2, 29, 12, 30, 15, 123456, datetime.timezone(datetime.timedelta(hours=1), "here"), fold=1),
    *(datetime.datetime(1, 1, 1), datetime.time(1, tzinfo=datetime.UTC)),
    *(ipaddress.ip_address("10.0.0.1"), ipaddress.ip_network("fe80::/64")),
    *(collections.OrderedDict(b=1, a=2), collections.deque([1, 2, 3], 2), collections.deque([[]])),
    *(collections.defaultdict(list, {"a": [1]}), collections.Counter("abca")),
    *(classes.Config(0.5, ["a"]), classes.Key(5), classes.Point(1, 2), classes.Slotted(3), {classes.Key(5): 1}),
    *(classes.Named("a", 2), classes.Colour.BLUE, {classes.Colour.RED: classes.Rights.READ | classes.Rights.WRITE}),
    *(classes.Reduced(5), classes.Restored(5), [classes.Point(1), classes.Point(1)]),
    *(np.float32(1.5), np.bool_(True), np.complex128(1j), np.int64(-5)),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_value_arrives_as_pickle_loads_it(value: Any) -> None:
    there, expected = moved(value), pickle.loads(pickle.dumps(value, 5))
    assert type(there) is type(expected)
    assert there == expected
    assert repr(there) == repr(expected)


@pytest.mark.parametrize(
    "error", [NOTED, OSError(2, "x", "file"), classes.Failed(5), ExceptionGroup("all", [KeyError(1)])]
)
def test_exception_arrives_with_attributes_and_notes(error: Exception) -> None:
    there = moved(error)
    assert type(there) is type(error)
    assert (repr(there), vars(there)) == (repr(error), vars(error))


def test_restored_state_of_a_deep_copy_is_the_same() -> None:
    value = [classes.Config(0.5), collections.OrderedDict(a=[1]), (1, {"x": {1, 2}})]
    assert moved(copy.deepcopy(value)) == value


# Sharing


def test_shared_containers_arrive_shared() -> None:
    shared = {"rates": [0.1, 0.2]}
    one, other, inner = moved([shared, (shared,), shared["rates"]])
    assert one is other[0]
    assert one["rates"] is inner


def test_many_references_to_one_container() -> None:
    shared = ["config", {"a": 1}]
    there = moved([(n, shared) for n in range(20_000)])
    assert all(row[1] is there[0][1] for row in there)


def test_shared_instances_arrive_shared() -> None:
    point = classes.Point(1, 2)
    one, other = moved((point, [point]))
    assert one is other[0]


def test_sharing_is_limited_by_what_a_walk_visits() -> None:
    value: Any = [0] * 100
    for _ in range(14):
        value = [value, value]
    assert moved(value) == value
    for _ in range(math.ceil(math.log2(MAX_SIZE / 100 / 2**14))):
        value = [value, value]
    with pytest.raises(Unreadable, match=f"{MAX_SIZE} values"):
        moved(value)


@pytest.mark.parametrize("hold", [lambda value: value.append(value), lambda value: value.append((value,))])
def test_cycle_is_refused(hold: Callable[[Any], None]) -> None:
    value: list[Any] = []
    hold(value)
    with pytest.raises(Unreadable, match="has one that contains itself"):
        moved(value)


def test_dataclass_that_contains_itself_is_refused() -> None:
    config = classes.Config(0.5)
    config.names.append(config)  # type: ignore[arg-type]
    with pytest.raises(Unreadable, match="an object that contains itself"):
        moved(config)


# Limits


@pytest.mark.parametrize("wrap", [lambda value: [value], lambda value: (value,), lambda value: {"k": value}])
def test_depth_is_limited(wrap: Callable[[Any], Any]) -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH):
        value = wrap(value)
    assert moved(value) == value
    with pytest.raises(Unreadable, match=f"more than {MAX_DEPTH} containers in one another"):
        moved(wrap(value))


@pytest.mark.slow
def test_a_million_numbers_load() -> None:
    values = list(range(10**6))
    assert moved(values) == values
    with pytest.raises(Unreadable, match="send many numbers as an array"):
        moved(list(range(1_100_000)))


def test_many_records_load() -> None:
    records = [{"name": f"client {n}", "rate": n / 7, "at": (n, n + 1)} for n in range(30_000)]
    assert moved(records) == records


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [classes.Key, classes.Point, classes.Slotted, classes.Reduced, classes.Restored, lambda n: {"n": n}, lambda n: [n]],
)
def test_many_instances_load(make: Callable[[int], Any]) -> None:
    values = [make(n) for n in range(36_000)]  # more than any message may have containers
    assert moved(values) == values


@pytest.mark.slow
def test_many_references_load() -> None:
    shared = [classes.Colour.RED, classes.Point(1), uuid.UUID(int=1), {"a": 1}, ("x",)]
    values = shared * 30_000
    assert moved(values) == values


def test_keys_of_equal_hash_are_limited() -> None:
    keys = {n * PRIME: n for n in range(MAX_SAME_HASH + 1)}
    assert moved(keys) == keys
    assert moved(set(keys)) == set(keys)
    keys[(MAX_SAME_HASH + 1) * PRIME] = 0
    for value in (keys, set(keys), frozenset(keys), {(key,): 1 for key in keys}):
        with pytest.raises(Unreadable, match="keys of equal hash"):
            moved(value)


@pytest.mark.parametrize("kind", [dict.fromkeys, set, frozenset])
def test_numbers_in_a_dict_or_set_are_limited(kind: Callable[[range], Any]) -> None:
    assert moved(kind(range(MAX_NUMBERS))) == kind(range(MAX_NUMBERS))
    with pytest.raises(Unreadable, match="more than 10000 numbers or other keys that are not texts"):
        moved(kind(range(MAX_NUMBERS + 1)))


def test_numbers_in_all_dicts_of_a_message_are_limited() -> None:
    some = [dict.fromkeys(range(MAX_NUMBERS // 10)) for _ in range(101)]
    assert moved(some[:100]) == some[:100]
    with pytest.raises(Unreadable, match="or in all together; expected texts as keys, or two arrays"):
        moved(some)


def test_texts_in_a_dict_or_set_are_not_limited() -> None:
    texts = dict.fromkeys(map(str, range(3 * MAX_NUMBERS)))
    assert moved([texts, set(texts)]) == [texts, set(texts)]


def test_many_dicts_with_the_same_numbers_as_keys() -> None:
    records = [{-1: n, -2: n, 0.5: n} for n in range(900)]
    assert moved(records) == records


def test_large_key_is_refused() -> None:
    with pytest.raises(Unreadable, match=f"a key of more than {MAX_KEY_SIZE} values"):
        moved({tuple(range(MAX_KEY_SIZE + 1)): 1})


# Classes


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (classes.Plain(5), "cannot be made from data safely; make it a dataclass"),
        (classes.Text("x"), "cannot be made from data safely"),
        (classes.function, "is a function; expected a class of data"),
        (classes.Config, "as a value; expected data"),
        (len, "is a builtin_function_or_method; expected a class"),
    ],
)
def test_what_is_no_data_is_refused_with_a_reason(value: Any, why: str) -> None:
    with pytest.raises(NotAllowed, match=why):
        moved(value)


def test_field_that_the_constructor_sets_needs_a_reduce() -> None:
    with pytest.raises(Unreadable, match="sets count of a Counted, whose constructor has no such argument; define"):
        moved(classes.Counted([1, 2]))


def test_constructor_refuses_what_it_always_refuses() -> None:
    config = classes.Config(0.5)
    config.rate = 7
    with pytest.raises(Unreadable, match=r"ValueError\('rate: 7; expected a number between 0 and 1'\)"):
        moved(config)


def test_inherited_setstate_needs_its_class_to_be_allowed() -> None:
    module = classes.__name__
    message = received(trusting.dump(classes.Inherited(5)))
    assert type(data.load(message)) is classes.Inherited
    only = PickleSerializer(PickleSerializer.allow_by_name(f"{module}.Inherited"))
    with pytest.raises(NotAllowed, match="cannot be made from data safely"):
        only.load(message)


@pytest.mark.parametrize("value", [classes.Reduced(5), classes.Restored(5)])
def test_other_class_is_named_itself_or_by_a_function(value: Any) -> None:
    message = received(trusting.dump(value))
    with pytest.raises(NotAllowed, match="allow the class by its own name"):
        PickleSerializer(PickleSerializer.allow_by_name(classes.__name__)).load(message)
    for allow in (PickleSerializer.allow_by_name(f"{classes.__name__}.{type(value).__name__}"), lambda name: True):
        assert PickleSerializer(allow).load(message) == value


def test_class_of_attrs_is_made_by_its_constructor(monkeypatch: pytest.MonkeyPatch) -> None:
    attrs = pytest.importorskip("attrs")
    fields = {"_rate": attrs.field(validator=attrs.validators.lt(1)), "names": attrs.field(factory=list)}
    for slots in (True, False):
        made = attrs.make_class("Made", fields, slots=slots)
        made.__module__ = classes.__name__
        monkeypatch.setattr(classes, "Made", made, raising=False)
        good = made(0.5, ["a"])
        assert moved(good) == good
        object.__setattr__(good, "_rate", 7)
        with pytest.raises(Unreadable, match="'_rate' must be < 1"):
            moved(good)


def test_exception_with_another_attribute_is_refused() -> None:
    error = classes.Failed(5)
    error.code = 6
    with pytest.raises(Unreadable, match="an attribute of a Failed that its constructor does not set so"):
        moved(error)


def test_module_that_is_not_imported_is_not_imported() -> None:
    anything = PickleSerializer(lambda name: True)
    assert "this" not in sys.modules
    with pytest.raises(Unreadable, match=r"names this\.zen, whose module is not imported here; import it first"):
        anything.load(pickles.pickled(pickle.dumps(None, 5)[:2] + b"\x8c\x04this\x8c\x03zen\x93."))
    assert "this" not in sys.modules


@pytest.mark.parametrize("factory", [int, list, dict, str, None])
def test_factory_of_a_defaultdict(factory: Any) -> None:
    assert moved(collections.defaultdict(factory, a=1)).default_factory is factory


def test_other_factory_is_refused() -> None:
    with pytest.raises(Unreadable):
        moved(collections.defaultdict(classes.Key))  # type: ignore[arg-type]


# Compared with pickle's own


leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.uuids()
    | st.dates()
    | st.datetimes()
    | st.timedeltas()
    | st.decimals(allow_nan=False)
    | st.fractions()
    | st.complex_numbers(allow_nan=False)
    | st.builds(classes.Key, st.integers())
    | st.sampled_from(classes.Colour)
)
keys = st.text() | st.integers() | st.binary() | st.tuples(st.text(), st.integers()) | st.uuids()
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(keys, inner)
        | st.tuples(inner, inner)
        | st.sets(keys)
        | st.builds(classes.Named, st.text(), inner)
        | st.lists(inner).map(collections.deque)
    ),
    max_leaves=20,
)


@settings(max_examples=60)
@given(values)
def test_any_value_loads_as_by_pickle(value: Any) -> None:
    assert moved(value) == pickle.loads(pickle.dumps(value, 5)) == value


SAMPLES = [pickle.dumps(value, 5) for value in VALUES if len(pickle.dumps(value, 5)) < 500]


@settings(max_examples=150)
@given(st.sampled_from(SAMPLES), st.data())
def test_damaged_pickle_loads_as_by_pickle_or_is_refused(content: bytes, draw: st.DataObject) -> None:
    damaged = bytearray(content)
    for _ in range(draw.draw(st.integers(1, 3))):
        at = draw.draw(st.integers(2, len(damaged) - 1))
        damaged[at] = draw.draw(st.sampled_from(list(OPCODES)) | st.integers(0, 255))
    pickles.run(bytes(damaged))


OPCODES = (
    b"(.01NQKMJGUX]}ael)tusbqrhj\x80\x81\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8e\x8f\x90\x91\x92\x93\x94\x95\x96\x97\x98"
)
pieces = st.sampled_from(
    [
        *(bytes([opcode]) for opcode in OPCODES),
        *(b"K\x01", b"h\x00", b"h\x01", b"h\x02", b"\x8c\x01a", b"C\x01b", b"]\x94", b"}\x94", b")\x94"),
        *(b"\x8c\x15tests.attacks.classes\x94", b"\x8c\x03Key\x93\x94"),
        *(b"\x8c\x15tests.attacks.classes\x8c\x03Key\x93", b"\x8c\x15tests.attacks.classes\x8c\x06Colour\x93"),
        *(
            b")\x81",
            b"}\x8c\x06numberK\x01s",
            b"b",
            b"\x85R",
            b"\x8c\x03red",
            b"\x8c\x0bcollections\x8c\x05deque\x93)R",
        ),
    ]
)


@settings(max_examples=250)
@given(st.lists(pieces, max_size=25).map(b"".join))
@example(b"]\x94h\x00a.")
def test_random_opcodes_load_as_by_pickle_or_are_refused(opcodes: bytes) -> None:
    pickles.run(b"\x80\x05" + opcodes + b".")


@pytest.mark.slow
def test_flipped_bits_load_as_by_pickle_or_are_refused() -> None:
    chance, loaded = random.Random(1), 0
    for content in SAMPLES:
        for _ in range(300):
            damaged = bytearray(content)
            at = chance.randrange(16, 8 * len(damaged)) if len(damaged) > 2 else 0
            damaged[at // 8] ^= 1 << at % 8
            loaded += pickles.run(bytes(damaged))
    assert loaded > 100
