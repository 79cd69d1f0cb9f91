"""Arrays, tensors and paths in netq's own form: each layout, each way to load it, and messages of other versions."""

from __future__ import annotations

import array
import base64
import collections
import datetime
import json
import pathlib
import pickle
import sys
import typing
import uuid
from typing import Any

import numpy as np
import pytest

from netq.errors import SerializationError, Unreadable
from netq.utils import forms
from netq.utils.stream import PickleSerializer
from tests.netq.utils.golden_pickles import ALLOW, equal, faults, layouts, messages
from tests.netq.utils.test_large import received

GOLDEN = json.loads(pathlib.Path(__file__).with_name("golden_pickles.json").read_text())
MADE = {"this version": messages(), **{made["version"]: made["messages"] for made in GOLDEN}}
trusting, data = PickleSerializer(), PickleSerializer(ALLOW)


def moved(value: Any) -> Any:
    return trusting.load(received(trusting.dump(value)))


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_layouts_arrive_in_every_way_from_each_version(made: dict[str, str]) -> None:
    assert made.keys() == layouts().keys()
    assert faults(made) == []


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_messages_do_not_name_what_moves_in_numpy_and_pathlib(made: dict[str, str]) -> None:
    whole = b"".join([base64.b64decode(message) for message in made.values()])
    for name in (b"numpy._core", b"numpy.core", b"numpy.rec", b"_frombuffer", b"pathlib._local"):
        assert name not in whole


@pytest.mark.parametrize("name", [name for name, layout in layouts().items() if layout.is_data])
def test_dump_with_an_allow_list_takes_what_load_takes(name: str) -> None:
    value = layouts()[name].value
    assert equal(data.load(received(data.dump(value))), value)


@pytest.mark.parametrize("order", ["C", "F"])
def test_dense_arrays_are_sent_from_their_own_memory(order: Any) -> None:
    value = np.ones((300, 200, 100), "f4", order=order).transpose(1, 0, 2)
    sent = trusting.dump([value, (1, {"again": value})])
    assert np.shares_memory(np.frombuffer(sent.buffers[-1], "f4"), value)
    assert sent.nbytes < value.nbytes + 1000


@pytest.mark.parametrize("serializer", [trusting, data], ids=["trusting", "data"])
def test_array_arrives_read_only_if_it_was(serializer: PickleSerializer) -> None:
    value = np.arange(3)
    for writable in (True, False):
        value.flags.writeable = writable
        assert serializer.load(received(serializer.dump(value))).flags.writeable == writable


def test_sharing_and_cycles_arrive() -> None:
    shared, cycle = np.arange(3), np.empty(2, object)
    cycle[0] = cycle
    one, two, round = moved([shared, shared, cycle])
    assert one is two
    assert round[0] is round


@pytest.mark.parametrize("value", [array.array("d", [1.5, 2.5]), array.array("i", [1, 2]), array.array("B")])
def test_array_of_the_standard_library_arrives(value: Any) -> None:
    there = moved([value])[0]
    assert type(there) is type(value)
    assert (there, there.typecode) == (value, value.typecode)
    there.append(there.pop() if there else 1)


GRID: Any = np.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize("value", [memoryview(b"abc"), memoryview(GRID), memoryview(bytearray())])
def test_memoryview_arrives(value: Any) -> None:
    there = moved([value])[0]
    assert (there.format, there.shape, there.readonly) == (value.format, value.shape, value.readonly)
    assert there == value


@pytest.mark.parametrize("dtype", [">i4", "f2", "c8", "U2", "i4,f8"])
def test_memoryview_of_what_python_cannot_make_is_refused(dtype: str) -> None:
    with pytest.raises(TypeError, match="memoryview"):
        trusting.dump([memoryview(np.zeros(3, dtype))])  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_long_text_arrives(width: int) -> None:
    letter = ("a", "é", "\ud800", "\U0001f600")[width - 1]
    for size in (2**18 - 1, 2**18, 2**18 + 1, 2**20 + 7):
        assert data.load(received(data.dump("x" + letter * (size // width)))) == "x" + letter * (size // width)


def test_paths_of_python_313_load() -> None:
    path = pathlib.Path("/a/b")
    assert forms.path("PosixPath", *path.parts) == path


REFUSED = {
    "objects": (np.zeros(2, "O"), r"a numpy\.ndarray of dtype object"),
    "a structure": (np.zeros(2, [("a", "i4")]), r"a numpy\.ndarray of dtype \[\('a', '<i4'\)\]"),
    "long double": (np.zeros(2, "g"), r"a numpy\.ndarray of dtype float128"),
    "a scalar": (np.longdouble(2), r"a numpy\.longdouble of dtype float128"),
    "masked": (np.ma.array([1, 2]), r"a numpy\.ma\.MaskedArray.*would refuse"),
    "a matrix": (np.zeros((1, 2)).view(np.matrix), r"a numpy\.matrix.*would refuse"),
    "a structure's dtype": (np.dtype([("a", "i4")]), r"would refuse"),
    "a path": (pathlib.PurePosixPath("a"), r"a pathlib\..*PurePosixPath.*would refuse"),
    "an array": (array.array("d", [1.0]), r"a array\.array.*would refuse"),
    "a function": (sys.exit, r"a sys\.exit, which `load`"),
    "a value by its name": (
        ...,
        r"a builtins\.ellipsis, which `load` .* names Ellipsis, which is a ellipsis; expected",
    ),
    "NotImplemented": (NotImplemented, r"names NotImplemented"),
    "a function of arrays": (np.add, r"a numpy\.ufunc, which `load` .* names add"),
    "a type variable": (typing.AnyStr, r"a typing\.TypeVar, which `load` .* names AnyStr"),
}


@pytest.mark.parametrize(("value", "text"), REFUSED.values(), ids=REFUSED)
def test_put_refuses_what_the_same_serialiser_would_not_load(value: Any, text: str) -> None:
    with pytest.raises(SerializationError, match=text):
        data.dump({"a": [1, value]})
    trusting.dump({"a": [1, value]})
    data.dump({"a": [1, np.zeros(3)]})


@pytest.mark.parametrize("size", [1024, 1025, 100_000, 999_999])
def test_long_scalars_of_numpy_arrive(size: int) -> None:
    for value in (np.str_("é" * size), np.bytes_(b"x" * size)):
        arrived = data.load(received(data.dump([value])))[0]
        assert (type(arrived), arrived) == (type(value), value)
    with pytest.raises(SerializationError, match=r"a numpy\.str_ of dtype <U1000000"):
        data.dump(np.str_("x" * 1_000_000))


@pytest.mark.parametrize("serializer", [trusting, data], ids=["trusting", "data"])
def test_empty_scalars_of_numpy_arrive(serializer: PickleSerializer) -> None:
    for value in (np.str_(""), np.bytes_(b"")):
        arrived = serializer.load(received(serializer.dump([value])))[0]
        assert (type(arrived), arrived) == (type(value), value)


def test_put_refuses_a_class_as_a_value() -> None:
    serializer = PickleSerializer(lambda name: True)
    key = uuid.UUID(int=1)
    for value in (uuid.UUID, {"kind": uuid.UUID}, [key, uuid.UUID, datetime.date], [datetime.date, key]):
        with pytest.raises(SerializationError, match=r"a \w+\.\w+, which `load` .* the class .* as a value"):
            serializer.dump(value)
    honest: list[Any] = [
        key,
        [uuid.UUID(int=2)],
        datetime.date(2000, 1, 1),
        collections.defaultdict[int, Any](list, {1: key}),
        int,
    ]
    assert serializer.load(received(serializer.dump(honest))) == honest


class Forged:
    """Pickled as a call of a function, with any arguments."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


def forged_array(dtype: Any = "<f4", shape: Any = (2, 3), axes: Any = None, memory: Any = None) -> Forged:
    return Forged(forms.array, pickle.PickleBuffer(bytearray(24)) if memory is None else memory, dtype, shape, axes)


FORGED = {
    "objects": (forged_array("|O"), r"the dtype '\|O'"),
    "long double": (forged_array("<f16", (1,)), "the dtype '<f16'"),
    "no dtype": (forged_array(None), "the dtype of the type NoneType"),
    "a structure's text": (forged_array("i4,i4", (3,)), "the dtype 'i4,i4'"),
    "a unit without end": (forged_array("<M8[" + "9" * 500 + "s]", (3,)), "the dtype"),
    "a unit of none": (forged_array("<M8[0s]", (3,)), "the dtype"),
    "a unit that is none": (forged_array("<M8[xy]", (3,)), "cannot be loaded"),
    "too few bytes": (forged_array(shape=(7,)), "no valid arguments"),
    "too many bytes": (forged_array(shape=(5,)), "no valid arguments"),
    "a negative size": (forged_array(shape=(-2, -3)), "no valid arguments"),
    "a huge size": (forged_array(shape=(2**63, 0)), "no valid arguments"),
    "a list as shape": (forged_array(shape=[2, 3]), "no valid arguments"),
    "many dimensions": (forged_array(shape=(1,) * 65), "no valid arguments"),
    "an axis twice": (forged_array(axes=(0, 0)), "no valid arguments"),
    "a negative axis": (forged_array(axes=(-1, 0)), "no valid arguments"),
    "an axis too few": (forged_array(axes=(0,)), "no valid arguments"),
    "an axis that is a text": (forged_array(axes=(0, "1")), "no valid arguments"),
    "an axis that is a bool": (forged_array(axes=(False, True)), "no valid arguments"),
    "memory in band": (forged_array(memory=bytes(24)), "no valid arguments"),
    "memory that is a list": (forged_array(memory=[0] * 24), "no valid arguments"),
    "bools": (forged_array("|b1", (24,), memory=pickle.PickleBuffer(bytearray(b"\2" * 24))), "neither 0 nor 1"),
    "a bool": (Forged(forms.scalar, "|b1", b"\2"), "neither 0 nor 1"),
    "a scalar of objects": (Forged(forms.scalar, "|O", bytes(8)), r"the dtype '\|O'"),
    "a scalar of fewer bytes": (Forged(forms.scalar, "|S5000", bytes(4999)), "no valid arguments"),
    "another function": (Forged(forms.moved, "frombuffer"), "would be|refuses|is a function"),
    "a dtype of objects": (Forged(np.dtype, "|O"), r"the dtype '\|O'"),
    "a dtype of more": (Forged(np.dtype, "<f4", True), "no valid arguments"),
}


@pytest.mark.parametrize(("value", "text"), FORGED.values(), ids=FORGED)
def test_forged_arguments_are_refused(value: Forged, text: str) -> None:
    for allow in (ALLOW, lambda name: True):
        with pytest.raises(Unreadable, match=text):
            PickleSerializer(allow).load(received(trusting.dump([value])))


def test_message_for_a_receiver_without_numpy_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    message = received(trusting.dump(np.zeros(3)))
    monkeypatch.delitem(sys.modules, "numpy")
    with pytest.raises(Unreadable, match="an array of numpy, which is not imported here"):
        data.load(message)
