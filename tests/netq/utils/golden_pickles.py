"""Messages of arrays as versions of Python and numpy make them, and whether others load them.

    python -m tests.netq.utils.golden_pickles write FILE     the messages of this version, as JSON
    python -m tests.netq.utils.golden_pickles check FILE...  load the messages of other versions

Run by hand with each pair of versions; the tests load golden_pickles.json, which holds the messages of two.
"""

from __future__ import annotations

import base64
import datetime
import json
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from netq.utils.stream import PickleSerializer, Stream

ALLOW = PickleSerializer.allow_by_name("numpy", "builtins")


class Layout(NamedTuple):
    """An array, and whether a PickleSerializer with an allow-list takes it."""

    value: Any
    is_data: bool = True


class Sub(np.ndarray[Any, Any]):
    """A subclass."""


def layouts() -> dict[str, Layout]:
    base = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    record = np.dtype([("a", "<i4"), ("b", "<f8", (2,)), ("c", "S3")])
    aligned = np.dtype([("a", "i1"), ("b", "<i8")], align=True)
    read_only = base.copy()
    read_only.flags.writeable = False
    dtypes = ["?", "i1", ">i2", "<u4", "f2", ">f8", "c8", "c16", "S5", "U4", "M8[ns]", "<m8[25s]", "M8"]
    arrays: dict[str, Any] = {
        "C": base,
        "Fortran": np.asfortranarray(base),
        "permuted": base.transpose(2, 0, 1),
        "moved": np.moveaxis(base, 0, 1),
        "swapped": base.swapaxes(0, 1),
        "strided": base[:, ::2, 1::2],
        "negative": base[::-1, :, ::-1],
        "broadcast": np.broadcast_to(np.arange(4), (3, 4)),
        "no dimension": np.array(2.5),
        "broadcast, permuted": np.broadcast_to(np.arange(4), (3, 4)).T,
        "empty": np.zeros((3, 0, 2)),
        "empty, Fortran": np.zeros((3, 0, 2), order="F").T,
        "size 1": np.ones((1, 3, 1)).transpose(2, 1, 0),
        "read-only": read_only,
        "many dimensions": np.arange(64).reshape([2, 1] * 6).transpose(*range(5, 12), *range(5)),
        "slice of permuted": base.transpose(2, 0, 1)[1:3],
        **{f"dtype {dtype}": np.zeros((2, 3), dtype) for dtype in dtypes},
        "no bytes": np.zeros(3, "S0"),
    }
    scalars: list[Any] = [
        np.float32(1.5),
        np.int64(-3),
        np.bool_(True),
        np.str_("ab"),
        np.bytes_(b"ab"),
        np.datetime64("2020-01-01"),
    ]
    others = {
        "objects": np.array([None, "x", [1]], dtype=object),
        "structure": np.array([(1, (2, 3), b"xyz")], record),
        "aligned structure": np.zeros(3, aligned)[::2],
        "structure of objects": np.array([(1, "x")], [("a", "i4"), ("b", "O")]),
        "a subclass": base.view(Sub).transpose(2, 0, 1),
        "matrix": np.array([[1, 2]]).view(np.matrix),
        "masked": np.ma.array([1, 2, 3], mask=[True, False, False]),
        "records": np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
        "a record": np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")])[0],
        "dtype of a structure": record,
        "dtype of records": np.dtype((np.record, record)),
        "structure in a structure": np.zeros(2, [("outer", aligned, (2,)), ("gap", "V3")]),
        "titles": np.zeros(2, [(("the title", "a"), "i4")]),
        "selected fields": np.zeros(2, record)[["a", "c"]],
        "void": np.zeros(3, "V5"),
        "dtype of objects": np.dtype("O"),
        "long double": np.zeros(3, np.longdouble),
        "path": pathlib.PurePosixPath("/a/b"),
        "concrete path": pathlib.Path("/a/b"),
        "date": datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
    }
    return {
        **{name: Layout(value) for name, value in arrays.items()},
        **{f"scalar {value.dtype}": Layout(value) for value in scalars},
        **{f"dtype object {name}": Layout(np.dtype(name)) for name in ("f4", ">i8", "U3", "M8[s]")},
        **{name: Layout(value, False) for name, value in others.items()},
    }


def equal(one: Any, two: Any) -> bool:
    """Whether two values have the same type, dtype, shape and content."""
    if type(one) is not type(two):
        return False
    if not isinstance(one, (np.ndarray, np.generic)):
        return bool(one == two)
    if (one.dtype, one.shape) != (two.dtype, two.shape):
        return False
    return repr(one.tolist()) == repr(two.tolist())


def readers() -> Iterator[tuple[str, bool, Callable[[Stream], Any]]]:
    """Yield each way to load: its name, whether it takes data only, and the function."""
    yield "pickle", False, PickleSerializer().load
    yield "allow", True, PickleSerializer(ALLOW).load
    yield "pickle, into", False, into(PickleSerializer())
    yield "allow, into", True, into(PickleSerializer(ALLOW))


def into(serializer: PickleSerializer) -> Callable[[Stream], Any]:
    def load(stream: Stream) -> Any:
        count = int.from_bytes(stream.read(16)[8:], "little")
        sizes = [int.from_bytes(stream.read(8), "little") for _ in range(count)]
        stream.seek(0)
        return serializer.load_into(stream, [memoryview(bytearray(size)) for size in sizes])

    return load


def faults(messages: dict[str, str]) -> list[str]:
    """Return what is wrong with these messages, in base64, each by the name of its layout."""
    wrong = []
    for name, layout in layouts().items():
        for reader, data_only, load in readers():
            if data_only and not layout.is_data:
                continue
            try:
                found = load(Stream([bytearray(base64.b64decode(messages[name]))]))
            except Exception as error:  # whatever a version raises
                wrong.append(f"{name}, {reader}: {error!r}")
                continue
            if not equal(found, layout.value):
                wrong.append(f"{name}, {reader}: {found!r} is not {layout.value!r}")
    return wrong


def messages() -> dict[str, str]:
    dump = PickleSerializer().dump
    return {name: base64.b64encode(bytes(dump(layout.value))).decode() for name, layout in layouts().items()}


def main(action: str, *files: str) -> None:
    here = f"Python {sys.version.split()[0]}, numpy {np.__version__}"
    if action == "write":
        pathlib.Path(files[0]).write_text(json.dumps({"version": here, "messages": messages()}))
        return
    for file in files:
        made = json.loads(pathlib.Path(file).read_text())
        wrong = faults(made["messages"])
        print(f"{made['version']} to {here}: {len(made['messages'])} messages, {len(wrong)} faults", *wrong, sep="\n  ")


if __name__ == "__main__":
    from tests.netq.utils import golden_pickles  # Sub is pickled as that of this module

    golden_pickles.main(*sys.argv[1:])
