"""Encoding and decoding of Flower's records: round trips, copies, and invalid values."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
import zipfile
from typing import Any

import flwr.app
import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common import ndarrays_to_parameters
from flwr.compat.common.recorddict_compat import arrayrecord_to_parameters, parameters_to_arrayrecord
from hypothesis import given
from hypothesis import strategies as some
from hypothesis.extra import numpy as arrays_of
from numpy.typing import NDArray

import fl.flower
from fl.flower.messages import MESSAGES
from fl.flower.record_codec import decode, encode
from netq.errors import Unreadable
from netq.utils.stream import Stream

WHOLE = some.integers(-(2**63), 2**64 - 1)
FLOATS = some.floats(allow_nan=False)
METRICS = some.dictionaries(some.text(), WHOLE | FLOATS | some.lists(WHOLE) | some.lists(FLOATS))
VALUES = (some.booleans(), WHOLE, FLOATS, some.text(), some.binary())
CONFIGS = some.dictionaries(some.text(), some.one_of(*VALUES, *(some.lists(value) for value in VALUES)))
DTYPES = some.one_of(
    arrays_of.boolean_dtypes(),
    arrays_of.integer_dtypes(endianness="?"),
    arrays_of.unsigned_integer_dtypes(endianness="?"),
    arrays_of.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
    arrays_of.complex_number_dtypes(endianness="?", sizes=(64, 128)),
    arrays_of.unicode_string_dtypes(max_len=5),
    arrays_of.datetime64_dtypes(),
)
ARRAYS = arrays_of.arrays(DTYPES, arrays_of.array_shapes(min_dims=0, min_side=0, max_side=4))


def travelled(records: RecordDict, *, copy: bool = False) -> RecordDict:
    """As a peer gets them: out of one block of memory."""
    block = bytearray(bytes(MESSAGES.dump(encode(records))))
    return decode(MESSAGES.load(Stream([block])), copy=copy)


def the(array: flwr.app.Array, *, copy: bool = False) -> Any:
    return travelled(RecordDict({"r": ArrayRecord({"a": array})}), copy=copy)["r"]["a"]


def npy(array: NDArray[Any], version: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version)
    return file.getvalue()


def refusal(plain: Any) -> str:
    with pytest.raises(Unreadable) as caught:
        decode(lists(plain), copy=False)
    return str(caught.value)


def lists(plain: Any) -> Any:
    """As values arrive: a tuple has become a list."""
    return [lists(each) for each in plain] if isinstance(plain, (list, tuple)) else plain


@given(metrics=METRICS, config=CONFIGS, name=some.text())
def test_metrics_and_config_round_trip(metrics: Any, config: Any, name: str) -> None:
    records = RecordDict({name: MetricRecord(metrics), f"{name}'": ConfigRecord(config)})
    found = travelled(records)
    assert found == records
    assert [type(record) for record in found.values()] == [MetricRecord, ConfigRecord]
    assert all(type(found[f"{name}'"][key]) is type(value) for key, value in config.items())


@given(array=ARRAYS, fortran=some.booleans())
def test_an_array_round_trips(array: NDArray[Any], fortran: bool) -> None:
    sent = flwr.app.Array(np.asfortranarray(array) if fortran else array)
    found = the(sent)
    np.testing.assert_array_equal(found.numpy(), sent.numpy())
    assert (found.dtype, found.shape, found.stype) == (sent.dtype, sent.shape, sent.stype)
    assert found.numpy().dtype == sent.numpy().dtype


def test_the_order_of_records_and_arrays_is_kept() -> None:
    records = RecordDict({name: ArrayRecord([np.zeros(1)] * 12) for name in "zaq"})
    assert [list(record) for record in travelled(records).values()] == [[str(n) for n in range(12)]] * 3
    assert list(travelled(records)) == list("zaq")


def test_encoding_does_not_copy_arrays() -> None:
    array = flwr.app.Array(np.arange(1000.0))
    plain = encode(RecordDict({"r": ArrayRecord({"a": array})}))
    sent = plain[0][2][0][1]
    assert np.shares_memory(sent, np.frombuffer(plain[0][2][0][1].base, np.uint8))
    mine = np.arange(10.0)
    assert encode(RecordDict({"r": fl.flower.arrays({"a": mine})}))[0][2][0][1] is mine


def test_a_decoded_array_is_a_writable_view_of_the_message() -> None:
    block = np.frombuffer(
        bytearray(bytes(MESSAGES.dump(encode(RecordDict({"r": ArrayRecord([np.ones(9)])}))))), np.uint8
    )
    record: Any = decode(MESSAGES.load(Stream([memoryview(block.data)])), copy=False)["r"]
    assert np.shares_memory(record["0"].numpy(), block)
    torch.from_numpy(record["0"].numpy()).add_(1)  # a warning is an error here
    assert record["0"].numpy().tolist() == [2] * 9


def test_copy_returns_a_new_array_each_time() -> None:
    array = the(flwr.app.Array(np.ones(3)), copy=True)
    array.numpy()[...] = 7
    assert array.numpy().tolist() == [1, 1, 1]


def test_the_array_class_works_in_flower() -> None:
    ndarray = np.arange(6, dtype=np.int16).reshape(2, 3)
    ours, theirs = fl.flower.Array(ndarray), flwr.app.Array(ndarray)
    assert isinstance(ours, flwr.app.Array)
    for twin in (ours, copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert twin == theirs
        assert theirs == twin
    assert ours != flwr.app.Array(ndarray + 1)
    assert ours != "an array"
    assert ours.data == theirs.data
    assert ours.object_id == theirs.object_id  # so to its object store they are one
    assert not np.shares_memory(ours.numpy(), ndarray)
    assert fl.flower.Array(ndarray, copy=False).numpy() is ndarray
    assert ArrayRecord({"a": ours}) == ArrayRecord({"a": theirs})
    with pytest.raises(AttributeError):
        ours.banana  # noqa: B018


def test_torch_tensors_become_arrays_of_the_same_memory() -> None:
    tensor = torch.nn.Parameter(torch.ones(2, 2))
    record = fl.flower.arrays({"w": tensor})
    tensor.data[...] = 5
    assert record["w"].numpy().tolist() == [[5, 5], [5, 5]]


def test_arrays_that_share_memory_arrive_separate() -> None:
    tied = np.ones(4)
    records = RecordDict({"r": fl.flower.arrays({"a": tied, "b": tied}), "s": fl.flower.arrays({"a": tied[:0]})})
    found: Any = travelled(records)["r"]
    found["a"].numpy()[...] = 2
    assert found["b"].numpy().tolist() == [1] * 4


@pytest.mark.parametrize("array", [np.ones(2, np.longdouble), np.zeros(2, [("x", "f4"), ("y", "i4")])])
def test_an_uncommon_dtype_travels_as_npy(array: NDArray[Any]) -> None:
    for sent in (flwr.app.Array(array), fl.flower.Array(array)):
        np.testing.assert_array_equal(the(sent).numpy(), array)


def test_npy_files_of_every_version_are_read() -> None:
    array = np.arange(3.0)
    for version in ((1, 0), (2, 0), (3, 0)):
        sent = flwr.app.Array("float64", (3,), "numpy.ndarray", npy(array, version))
        assert the(sent).numpy().tolist() == [0, 1, 2]


def test_npy_files_are_read_without_the_parser_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    def mismatch(_: str) -> None:  # what Python 3.11.7 raises at times when two threads parse at once
        raise SystemError("AST constructor recursion depth mismatch (before=57, after=53)")

    monkeypatch.setattr("ast.literal_eval", mismatch)
    with pytest.raises(SystemError):
        flwr.app.Array(np.zeros(2)).numpy()
    for array in (np.array(1.5), np.arange(6.0).reshape(2, 3), np.asfortranarray(np.ones((3, 4), ">i2"))):
        for version in ((1, 0), (2, 0)):
            sent = flwr.app.Array(str(array.dtype), array.shape, "numpy.ndarray", npy(array, version))
            np.testing.assert_array_equal(the(sent).numpy(), array)
    damaged = npy(np.zeros(2)).replace(b"v\x00{", b"w\x00{", 1)
    with pytest.raises(Unreadable):  # only numpy tells what is wrong
        the(flwr.app.Array("float64", (2,), "numpy.ndarray", damaged)).numpy()


def test_another_serialisation_is_unchanged() -> None:
    sent = flwr.app.Array("mine", (7, 8), "gzip", b"\x00\x01\xff")
    assert the(sent) == sent
    assert the(flwr.app.Array("", (), "gzip", b"")).data == b""


@pytest.mark.parametrize("ndarrays", [[np.ones((2, 3), np.float32), np.array(4)], []])
def test_legacy_parameters_survive(ndarrays: list[NDArray[Any]]) -> None:
    sent = ndarrays_to_parameters(ndarrays)
    if not ndarrays:
        sent.tensor_type = "numpy.ndarray"
    record = parameters_to_arrayrecord(sent, keep_input=True)
    found = travelled(RecordDict({"fitins.parameters": record}))["fitins.parameters"]
    assert isinstance(found, ArrayRecord)
    parameters = arrayrecord_to_parameters(found, keep_input=True)
    assert (parameters.tensors, parameters.tensor_type) == (sent.tensors, sent.tensor_type)


def test_numpy_scalars_become_plain_numbers() -> None:
    values: dict[str, Any] = {"loss": np.float64(0.5), "losses": [np.float64(1)]}
    found: Any = travelled(RecordDict({"m": MetricRecord(values)}))["m"]
    assert [type(found["loss"]), type(found["losses"][0])] == [float, float]


class Surprise:
    """Of no type that may travel."""


ONE, ZIP = np.ones(3), io.BytesIO()
with zipfile.ZipFile(ZIP, "w") as archive:
    archive.writestr("a.npy", npy(ONE))


def raw(data: bytes, dtype: Any = "float64", shape: Any = (3,), stype: Any = "numpy.ndarray") -> tuple[Any, ...]:
    return dtype, shape, stype, np.frombuffer(data, np.uint8)


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        (None, "the records: expected a list of lists of 3"),
        ({}, "the records: expected a list of lists of 3"),
        ([()], "the records: expected a list of lists of 3"),
        ([(1, "arrays", [])], "the record 1: expected a name that comes once"),
        ([("a", "arrays", []), ("a", "config", [])], "the record 'a': expected a name that comes once"),
        ([("a", "banana", [])], "the kind of the record 'a': expected one of arrays, metrics, config"),
        ([("a", ["arrays"], [])], "the kind of the record 'a': expected one of"),
        ([("a", "metrics", None)], "the record 'a': expected a list of lists of 2"),
        ([("a", "metrics", [("x",)])], "the record 'a': expected a list of lists of 2"),
        ([("a", "metrics", [(b"x", 1)])], "a key of the record 'a': expected a name that comes once"),
        ([("a", "metrics", [("x", 1), ("x", 1)])], "a key of the record 'a': expected a name that comes once"),
        ([("a", "metrics", [("x", True)])], "the record 'a', 'x': expected one of int, float"),
        ([("a", "metrics", [("x", "1")])], "the record 'a', 'x': expected one of int, float"),
        ([("a", "metrics", [("x", np.float64(1))])], "the record 'a', 'x': expected one of int, float"),
        ([("a", "metrics", [("x", [1, 1.0])])], "the record 'a', 'x': expected a list of one of int, float"),
        ([("a", "metrics", [("x", [[1]])])], "the record 'a', 'x': expected a list of one of int, float"),
        ([("a", "metrics", [("x", 2**64)])], "the record 'a', 'x': expected whole numbers of 64 bits"),
        ([("a", "config", [("x", [-(2**63) - 1])])], "the record 'a', 'x': expected whole numbers of 64 bits"),
        ([("a", "config", [("x", None)])], "the record 'a', 'x': expected one of bool, int, float, str, bytes"),
        ([("a", "config", [("x", {})])], "the record 'a', 'x': expected one of bool, int, float, str, bytes"),
        ([("a", "config", [("x", Surprise())])], "the record 'a', 'x': expected one of bool"),
        ([("a", "arrays", [("x", 1)])], "the record 'a', 'x': expected an array, or dtype, shape, stype and data"),
        ([("a", "arrays", [("x", [1.0])])], "the record 'a', 'x': expected an array, or dtype"),
        ([("a", "arrays", [("x", ONE), ("y", ONE)])], "the record 'a', 'y': expected memory of its own"),
        ([("a", "arrays", [("x", ONE)]), ("b", "arrays", [("y", ONE[:2])])], "the record 'b', 'y': expected memory of"),
        ([("a", "arrays", [("x", raw(b"", 1))])], "the record 'a', 'x': expected names of its dtype and its stype"),
        ([("a", "arrays", [("x", raw(b"", stype=None))])], "the record 'a', 'x': expected names of its dtype"),
        ([("a", "arrays", [("x", raw(b"", shape=3))])], "the record 'a', 'x': expected a shape of whole numbers"),
        ([("a", "arrays", [("x", raw(b"", shape=(3.0,)))])], "the record 'a', 'x': expected a shape of whole numbers"),
        ([("a", "arrays", [("x", ("f", (), "s", b"1"))])], "the record 'a', 'x': expected its data as bytes"),
        ([("a", "arrays", [("x", ("f", (), "s", ONE))])], "the record 'a', 'x': expected its data as bytes"),
        ([("a", "arrays", [("x", raw(b""))])], "the record 'a', 'x': expected an npy file without Python objects"),
        ([("a", "arrays", [("x", raw(b"\x93NUMPY"))])], "the record 'a', 'x': expected an npy file without"),
        ([("a", "arrays", [("x", raw(npy(ONE)[:-1]))])], "the record 'a', 'x': expected an npy file without"),
        ([("a", "arrays", [("x", raw(pickle.dumps(ONE)))])], "the record 'a', 'x': expected an npy file without"),
        ([("a", "arrays", [("x", raw(npy(np.array([{}]))))])], "the record 'a', 'x': expected an npy file without"),
        ([("a", "arrays", [("x", raw(ZIP.getvalue()))])], "the record 'a', 'x': expected an npy file without"),
    ],
)
def test_an_invalid_record_is_an_error_with_its_place(plain: Any, message: str) -> None:
    assert refusal(plain).startswith(message)


@given(
    some.recursive(
        some.none() | some.booleans() | some.integers() | some.floats() | some.text() | some.binary(),
        lambda inner: some.lists(inner) | some.tuples(inner, inner, inner) | some.tuples(inner, inner),
    )
)
def test_random_values_are_records_or_unreadable(plain: Any) -> None:
    with contextlib.suppress(Unreadable):
        assert isinstance(decode(lists(plain), copy=False), RecordDict)
