from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import threading
import tracemalloc
import uuid
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fl.tensors.serialization import dump, load, serialization
from fl.tensors.storage import STORAGE, Storage
from netq.errors import SerializationError, Unreadable
from netq.protocol.memory import Memory
from netq.utils.serializer import Serializer
from netq.utils.stream import PickleSerializer, Stream

NUMPY = ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", ">i4", ">f4", ">c16")
FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
TORCH = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    *[name for name in FLOAT8 if hasattr(torch, name)],
)

options = serialization()


def received(stream: Stream) -> Stream:
    """Return the stream as the receiver has it: in one block of message memory."""
    memory = Memory().take(stream.nbytes)
    memory[:] = bytes(stream)
    return Stream([memory])


def moved(obj: Any) -> Any:
    return options.load(received(options.dump(obj)))


def address(array: Any) -> int:
    return int(array.data_ptr()) if isinstance(array, torch.Tensor) else int(array.__array_interface__["data"][0])


def start(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def numbers(shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    return (np.arange(np.prod(shape, dtype=int)) % 100).reshape(shape).astype(dtype)


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array


LAYOUTS: dict[str, Callable[[str], NDArray[Any]]] = {
    "0-d": lambda dtype: np.array(1, dtype),
    "empty": lambda dtype: np.empty((3, 0, 2), dtype),
    "contiguous": lambda dtype: numbers((3, 4, 5), dtype),
    "size one": lambda dtype: numbers((1, 4, 1), dtype),
    "fortran": lambda dtype: np.asfortranarray(numbers((3, 1, 5), dtype)),
    "transposed": lambda dtype: numbers((3, 4, 5), dtype).transpose(1, 2, 0),
    "sliced": lambda dtype: numbers((6, 8), dtype)[1::2, 2:7],
    "negative": lambda dtype: numbers((4, 5), dtype)[::-1],
    "broadcast": lambda dtype: np.broadcast_to(numbers((5,), dtype), (3, 5)),
    "field": lambda dtype: np.zeros(7, [("pad", "u1"), ("value", dtype)])["value"],
    "read-only": lambda dtype: read_only(numbers((3, 4), dtype)),
}
UNCOPIED = ("0-d", "contiguous", "size one", "fortran", "transposed", "read-only")


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_numpy_round_trip(layout: str, dtype: str) -> None:
    array = LAYOUTS[layout](dtype)
    before = array.tobytes()
    there = moved({"w": array})["w"]
    assert type(there) is np.ndarray
    assert (there.dtype, there.shape, there.tobytes()) == (array.dtype, array.shape, before)
    assert there.flags.writeable
    there[...] = 0
    assert array.tobytes() == before
    if layout in UNCOPIED:
        assert there.strides == array.strides


@pytest.mark.parametrize("dtype", ["?", "f2", "f4", "c16", ">f8"])
@pytest.mark.parametrize("layout", UNCOPIED)
def test_numpy_is_sent_without_copy(layout: str, dtype: str) -> None:
    array = LAYOUTS[layout](dtype)
    stream = options.dump([array])
    assert address(array) in [start(buffer) for buffer in stream.buffers if not buffer.readonly]
    if layout == "read-only":
        assert not array.flags.writeable


@given(st.data())
def test_any_view_of_an_array_arrives_equal(data: st.DataObject) -> None:
    array = numbers((3, 4, 5), "i2").transpose(data.draw(st.permutations(range(3))))
    for axis in range(3):
        step = data.draw(st.sampled_from([1, 1, 1, 2, -1]))
        part = slice(data.draw(st.integers(0, 2)), None, step) if step > 0 else slice(None, None, step)
        array = array[(slice(None),) * axis + (part,)]
    there = moved(array)
    assert np.array_equal(there, array)
    assert there.flags.writeable


def test_arrays_arrive_as_aligned_views_of_the_message() -> None:
    arrays = [numbers((n,), "f4") for n in (1, 7, 100, 3000)] + [torch.arange(5)]
    stream = received(options.dump(arrays))
    low = start(stream.buffers[0])
    for array in options.load(stream):
        assert low <= address(array) < low + stream.nbytes
        assert address(array) % 64 == 0


def test_tensors_and_arrays_go_into_memory_that_is_there() -> None:
    options = serialization()
    sent: dict[str, Any] = {"w": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3), "b": np.arange(3.0)[::-1].copy()}
    weights, bias = torch.zeros(2, 3, dtype=torch.bfloat16), np.zeros(3)
    into = [weights.view(torch.int16).numpy(), bias]
    loaded = Serializer(options.dump, options.load).loader(into)(Stream([bytes(options.dump(sent))]))
    assert torch.equal(loaded["w"], sent["w"])
    assert torch.equal(weights, sent["w"])
    assert loaded["w"].data_ptr() == weights.data_ptr()
    assert bias.tolist() == [2, 1, 0]


def test_neither_sender_nor_receiver_copies() -> None:
    array = np.ones(4 * 2**20, "u1")
    tracemalloc.start()
    try:
        stream = options.dump({"w": array, "t": array.reshape(2048, 2048).T})
        assert tracemalloc.get_traced_memory()[1] < 100_000
        there = received(stream)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        arrays = options.load(there)
        assert tracemalloc.get_traced_memory()[1] - before < 100_000
    finally:
        tracemalloc.stop()
    assert arrays["t"].flags.f_contiguous


def test_stream_keeps_a_temporary_array_alive() -> None:
    array = numbers((1000,), "i4")
    alive = weakref.ref(array)
    stream = options.dump([array])
    del array
    assert alive() is not None
    assert options.load(received(stream))[0][999] == 99
    del stream
    assert alive() is None


def test_only_the_array_keeps_the_message_alive() -> None:
    memory = Memory()
    stream = options.dump([numbers((300_000,), "u1"), numbers((10,), "f4")])
    block = memory.take(stream.nbytes)
    block[:] = bytes(stream)
    gc.disable()
    try:
        large, small = options.load(Stream([block]))
        del block, large
        assert memory.idle == 0
        assert small[9] == 9
        del small
        assert memory.idle > 0  # no reference cycle keeps it until a garbage collection
    finally:
        gc.enable()


def test_storage_is_freed_after_its_dump() -> None:
    array = numbers((100,), "f8")
    first = options.dump([array])
    array[:] = 7
    second = options.dump([array])
    assert options.load(received(second))[0][0] == 7
    assert first.nbytes == second.nbytes


@pytest.mark.parametrize("dtype", [code for code in NUMPY if ">" not in code])
def test_scalars(dtype: str) -> None:
    scalar = np.dtype(dtype).type(1)
    there = moved({"loss": scalar})["loss"]
    assert type(there) is type(scalar)
    assert there == scalar


def test_longlong_scalar_keeps_its_type() -> None:
    assert moved(np.longlong(-5)) == -5


@pytest.mark.parametrize(
    "obj",
    [
        np.array([None]),
        np.zeros(2, "f4,i2"),
        np.zeros(2, "M8[s]"),
        np.zeros(2, "U3"),
        np.zeros(2, "g"),
        np.ma.masked_array([1.0]),
        np.str_("x"),
        np.datetime64(0, "s"),
        "text",
        1.5,
        [np.zeros(2)],
        torch.zeros(2).to_sparse(),
        torch.zeros(2, device="meta"),
        torch.float32,
        torch.nn.Parameter,
    ],
    ids=lambda obj: type(obj).__name__,
)
def test_other_objects_are_left_to_pickle(obj: Any) -> None:
    assert dump(obj) is None


@pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors", "ignore:.*quantized tensor", "ignore:ComplexHalf"
)
def test_unusual_tensors_are_left_to_pickle() -> None:
    assert dump(torch.nested.as_nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.strided)) is None
    assert dump(torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8)) is None
    assert dump(torch._efficientzerotensor(3)) is None
    assert dump(torch.zeros(2, dtype=torch.complex32)) is None


def test_subclasses_are_left_to_pickle() -> None:
    class Array(np.ndarray[Any, Any]):
        pass

    class Number(np.float64):
        pass

    class Tensor(torch.Tensor):
        pass

    assert dump(np.zeros(2).view(Array)) is None
    assert dump(Number(1)) is None
    assert dump(torch.zeros(2).as_subclass(Tensor)) is None


def test_storage_and_scalars_are_the_only_allowed_globals() -> None:
    names: set[str] = set()

    def note(name: str) -> bool:
        names.add(name)
        return True

    spy = PickleSerializer(note, dump, load)
    spy.load(received(spy.dump([np.zeros(2), np.float32(1), torch.zeros(2), torch.nn.Parameter(torch.zeros(2))])))
    assert names == {STORAGE, "numpy.generic"}
    with pytest.raises(SerializationError, match=r"a fractions\.Fraction, which `load`"):
        serialization().dump(__import__("fractions").Fraction(1, 2))
    also = serialization("collections.OrderedDict")
    state = torch.nn.Linear(2, 3).state_dict()
    assert list(also.load(received(also.dump(state)))) == ["weight", "bias"]


# torch

TORCH_LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "0-d": lambda tensor: tensor.flatten()[3],
    "empty": lambda tensor: tensor[:, :0],
    "contiguous": lambda tensor: tensor,
    "transposed": lambda tensor: tensor.permute(2, 0, 1),
    "size one": lambda tensor: tensor.unsqueeze(1).transpose(0, 1),
    "offset": lambda tensor: tensor[1:],
    "sliced": lambda tensor: tensor[:, 1:3],
    "broadcast": lambda tensor: tensor[:1].expand(3, 4, 5),
}
TORCH_UNCOPIED = ("0-d", "contiguous", "transposed", "size one", "offset")


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    return torch.equal(one.detach().flatten().view(torch.uint8), other.detach().flatten().view(torch.uint8))


def tensor_of(dtype: str) -> torch.Tensor:
    values = torch.arange(60).reshape(3, 4, 5)
    return (values % 2 == 0) if dtype == "bool" else values.float().to(getattr(torch, dtype))


@pytest.mark.parametrize("dtype", TORCH)
@pytest.mark.parametrize("layout", TORCH_LAYOUTS)
def test_torch_round_trip(layout: str, dtype: str) -> None:
    tensor = TORCH_LAYOUTS[layout](tensor_of(dtype))
    stream = options.dump([tensor])
    [there] = options.load(received(stream))
    assert type(there) is torch.Tensor
    assert same_bits(there, tensor)
    assert there._base is None
    if layout in TORCH_UNCOPIED:
        assert there.stride() == tensor.stride()
        assert address(tensor) in [start(buffer) for buffer in stream.buffers if not buffer.readonly]


@pytest.mark.parametrize("kind", [torch.Tensor, torch.nn.Parameter])
@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_requires_grad(kind: type, requires_grad: bool, dtype: torch.dtype) -> None:
    tensor = torch.ones(2, 3, dtype=dtype)
    tensor = torch.nn.Parameter(tensor, requires_grad) if kind is torch.nn.Parameter else tensor
    there: Any = moved(tensor.requires_grad_(requires_grad))
    assert (type(there), there.is_leaf) == (kind, True)
    assert there.requires_grad is requires_grad
    with torch.no_grad():
        there += 1  # in place, as an optimiser
    assert torch.equal(there, torch.full((2, 3), 2, dtype=dtype))


def test_tensor_with_history_arrives_as_a_leaf() -> None:
    there = moved(torch.ones(2, requires_grad=True) * 3)
    assert there.is_leaf
    assert there.tolist() == [3, 3]


def test_conjugate_and_negative_views() -> None:
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    assert torch.equal(moved(tensor.conj()), torch.tensor([1 - 2j, 3 + 4j]))
    assert torch.equal(moved(tensor.conj().imag), torch.tensor([-2.0, 4.0]))


def test_state_dict_loads_into_another_module() -> None:
    def make() -> torch.nn.Module:
        module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).bfloat16()
        for parameter in module.parameters():
            if parameter.ndim == 4:
                parameter.data = parameter.data.to(memory_format=torch.channels_last)
        return module

    here, there = make(), make()
    there.load_state_dict(moved(dict(here.state_dict())))
    for name, tensor in here.state_dict().items():
        assert same_bits(tensor, there.state_dict()[name]), name


@pytest.mark.parametrize("make", [np.zeros, torch.zeros])
def test_tied_weights_are_sent_once_and_arrive_tied(make: Callable[..., Any]) -> None:
    weight = make((100, 50))
    once = options.dump([weight]).nbytes
    stream = options.dump([weight, weight.reshape(50, 100), weight.T, weight])
    assert stream.nbytes < once + 500
    one, reshaped, transposed, again = options.load(received(stream))
    one[0, 7] = 5
    assert reshaped[0, 7] == 5
    assert transposed[7, 0] == 5
    assert one is again


def test_tied_parameters_arrive_as_one_parameter() -> None:
    parameter = torch.nn.Parameter(torch.zeros(10))
    here = moved({"embed": parameter, "head": parameter, "plain": parameter.detach()})
    assert here["embed"] is here["head"]
    assert here["plain"].untyped_storage().data_ptr() == here["embed"].untyped_storage().data_ptr()
    assert here["plain"].is_set_to(here["embed"])


def test_numpy_and_torch_views_of_one_memory_arrive_tied() -> None:
    tensor = torch.zeros(1000)
    stream = options.dump([tensor, tensor.numpy()])
    assert stream.nbytes < 5000
    there, array = options.load(received(stream))
    array[3] = 1
    assert there[3] == 1


def test_slice_of_another_tensor_is_not_tied() -> None:
    base = np.arange(10, dtype="f4")
    whole, part, every_other = moved([base, base[:5], base[::2]])
    assert whole.tolist() == base.tolist()
    assert part.tolist() == base[:5].tolist()
    assert every_other.tolist() == base[::2].tolist()


def test_temporaries_at_one_address_are_not_tied() -> None:
    class Making:
        def __init__(self, value: int) -> None:
            self.value = value

        def __reduce__(self) -> tuple[type[list[Any]], tuple[list[Any]]]:
            return list, ([np.full(1000, self.value), torch.full((1000,), self.value)],)

    serializer = PickleSerializer(None, dump, load)
    for value, (array, tensor) in enumerate(serializer.load(received(serializer.dump([Making(n) for n in range(20)])))):
        assert array.tolist() == [value] * 1000
        assert tensor.tolist() == [value] * 1000


def test_threads_may_dump_the_same_model() -> None:
    weight = np.zeros(1000)
    sizes: list[int] = []

    def dump_often() -> None:
        sizes.extend([options.dump([weight, weight.reshape(10, 100)]).nbytes for _ in range(200)])

    threads = [threading.Thread(target=dump_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(sizes) == 800
    assert set(sizes) == {options.dump([weight, weight.reshape(10, 100)]).nbytes}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_tensors_arrive_on_the_cpu() -> None:
    parameter = torch.nn.Parameter(torch.arange(6.0, device="cuda").reshape(2, 3))
    stream = options.dump([parameter, parameter.T, parameter[:, ::2]])
    assert stream.nbytes < options.dump([parameter, parameter.T + 0]).nbytes + 200
    there, transposed, sliced = options.load(received(stream))
    assert {tensor.device.type for tensor in (there, transposed, sliced)} == {"cpu"}
    assert there.tolist() == parameter.tolist()
    assert sliced.tolist() == parameter[:, ::2].tolist()
    assert transposed.data_ptr() == there.data_ptr()


# Without torch

WITHOUT_TORCH = """
import sys
import numpy as np
from fl.tensors.serialization import serialization
from netq.errors import Unreadable
from netq.utils.stream import Stream

options = serialization()
here = np.arange(6, dtype="f4").reshape(2, 3).T
there = options.load(Stream([bytearray(bytes(options.dump([here, np.float16(2)])))]))
assert np.array_equal(there[0], here)
tensors, strange = [Stream([bytearray(bytes.fromhex(line))]) for line in sys.stdin]
for array in options.load(tensors):
    print(type(array).__name__, array.dtype, array.shape, array.strides, array.tolist())
try:
    options.load(strange)
except Unreadable as error:
    print(error)
assert "torch" not in sys.modules
"""


@pytest.mark.slow
def test_tensors_arrive_as_arrays_without_torch() -> None:
    tensors = [torch.arange(4.0).reshape(2, 2).T, torch.nn.Parameter(torch.ones(1)), torch.tensor(True)]
    lines = [bytes(options.dump(obj)).hex() for obj in (tensors, torch.zeros(1, dtype=torch.bfloat16))]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], input="\n".join(lines), capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "ndarray float32 (2, 2) (4, 8) [[0.0, 2.0], [1.0, 3.0]]",
        "ndarray float32 (1,) (4,) [1.0]",
        "ndarray bool () () True",
        "a torch.bfloat16 tensor came, and numpy has no such dtype; import torch first, then get it",
    ]


# Hostile peers

FOUR = (2, 2)


def storage(size: int = 16) -> Storage:
    return Storage(bytearray(size))


HOSTILE: dict[str, Any] = {
    "None": None,
    "text": "numpy",
    "a list": ["numpy", storage(), "<f4", FOUR, None, False],
    "too few": ("numpy", storage(), "<f4", FOUR, None),
    "too many": ("numpy", storage(), "<f4", FOUR, None, False, 1),
    "unknown kind": ("pandas", storage(), "<f4", FOUR, None, False),
    "kind of no text": (5, storage(), "<f4", FOUR, None, False),
    "unhashable kind": ([], storage(), "<f4", FOUR, None, False),
    "no storage": ("numpy", bytearray(16), "<f4", FOUR, None, False),
    "storage class": ("numpy", Storage, "<f4", FOUR, None, False),
    "object dtype": ("numpy", storage(), "|O", FOUR, None, False),
    "object dtype, short": ("numpy", storage(), "O", FOUR, None, False),
    "structured dtype": ("numpy", storage(), "f4,f4", FOUR, None, False),
    "torch's name for numpy": ("numpy", storage(), "float32", FOUR, None, False),
    "numpy's name for torch": ("torch", storage(), "<f4", FOUR, None, False),
    "an attribute of torch": ("torch", storage(), "load", FOUR, None, False),
    "a quantised dtype": ("torch", storage(), "qint32", FOUR, None, False),
    "dtype of no text": ("numpy", storage(), np.dtype("f4"), FOUR, None, False),
    "unhashable dtype": ("torch", storage(), [], FOUR, None, False),
    "shape of lists": ("numpy", storage(), "<f4", [2, 2], None, False),
    "shape None": ("numpy", storage(), "<f4", None, None, False),
    "negative size": ("numpy", storage(), "<f4", (-2, -2), None, False),
    "float size": ("numpy", storage(), "<f4", (2.0, 2), None, False),
    "bool size": ("numpy", storage(4), "<f4", (True,), None, False),
    "numpy size": ("numpy", storage(), "<f4", (np.int64(4),), None, False),
    "giant size": ("numpy", storage(), "<f4", (10**5000,), None, False),
    "huge size": ("numpy", storage(), "<f4", (2**62,), None, False),
    "product that wraps": ("torch", storage(), "float32", (2**62, 2**62, 4), None, False),
    "huge empty": ("numpy", storage(0), "<f4", (0, 2**62, 2**62), None, False),
    "huge empty, torch": ("torch", storage(0), "float32", (2**62, 2**62, 0), None, False),
    "65 dimensions": ("numpy", storage(4), "<f4", (1,) * 65, None, False),
    "more than there is": ("numpy", storage(), "<f4", (5,), None, False),
    "less than there is": ("torch", storage(), "float32", (3,), None, False),
    "0-d of too little": ("numpy", storage(3), "<f4", (), None, False),
    "strides of a list": ("numpy", storage(), "<f4", FOUR, [2, 1], False),
    "negative strides": ("numpy", storage(), "<f4", FOUR, (2, -1), False),
    "giant strides": ("torch", storage(), "float32", FOUR, (2, 10**5000), False),
    "strides out of bounds": ("torch", storage(), "float32", FOUR, (2**40, 1), False),
    "strides just out of bounds": ("numpy", storage(), "<f4", FOUR, (3, 1), False),
    "overlap": ("numpy", storage(), "<f4", FOUR, (1, 1), False),
    "broadcast": ("torch", storage(), "float32", FOUR, (0, 1), False),
    "too few strides": ("torch", storage(), "float32", FOUR, (1,), False),
    "too many strides": ("numpy", storage(), "<f4", FOUR, (2, 1, 1), False),
    "stride of size 1 out of range": ("torch", storage(), "float32", (4, 1), (1, 2**61), False),
    "requires_grad of a number": ("torch", storage(), "float32", FOUR, None, 1),
    "requires_grad of integers": ("torch", storage(), "int32", FOUR, None, True),
    "a parameter of integers": ("parameter", storage(), "int32", FOUR, None, True),
    "a bool of 7": ("numpy", Storage(bytearray(b"\0\1\7")), "|b1", (3,), None, False),
    "a bool of 7, torch": ("torch", Storage(bytearray(b"\0\1\7")), "bool", (3,), None, False),
    "read-only memory": ("numpy", Storage(bytes(16)), "<f4", FOUR, None, False),
    "read-only memory, torch": ("torch", Storage(bytes(16)), "float32", FOUR, None, False),
}


@pytest.mark.parametrize("pid", HOSTILE.values(), ids=HOSTILE)
def test_hostile_identifiers_are_unreadable(pid: Any) -> None:
    with pytest.raises(Unreadable, match=r"expected|cannot be made"):
        load(pid)


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.binary(max_size=9)
    | st.sampled_from(["<f4", "?", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)
sizes = st.lists(st.integers(-1, 4) | st.sampled_from([2**31, 2**62, 2**63]), max_size=4).map(tuple)


@given(
    st.tuples(
        st.sampled_from(["numpy", "torch", "parameter"]) | anything,
        st.integers(0, 32).map(storage) | anything,
        st.sampled_from(["<f4", "|b1", "|u1", ">c8", "float32", "bfloat16", "uint8", "bool"]) | anything,
        sizes | anything,
        st.none() | sizes | anything,
        st.booleans() | anything,
    )
)
def test_any_identifier_is_a_view_or_unreadable(pid: Any) -> None:
    try:
        tensor = load(pid)
    except Unreadable:
        return
    assert isinstance(tensor, (np.ndarray, torch.Tensor))
    assert tensor.nbytes == pid[1].memory.nbytes
    tensor.tolist()


def test_valid_dimensions_are_accepted() -> None:
    assert load(("numpy", storage(4), "<f4", (1,) * 64, None, False)).ndim == 64
    assert load(("torch", storage(), "float32", FOUR, (1, 2), True)).requires_grad


class Call:
    """Pickles as a call of Storage with these arguments, and then a state."""

    def __init__(self, *args: Any, state: Any = None) -> None:
        self.reduced = (Storage, args) if state is None else (Storage, args, state)

    def __reduce__(self) -> Any:
        return self.reduced


@pytest.mark.parametrize(
    "call",
    [
        Call(),
        Call(5),
        Call(1, 2),
        Call(bytearray(4), state={"memory": 1}),
        Call(bytearray(4), state=(None, {"found": {}})),
        [np.zeros(3), Call("text")],
    ],
)
def test_storage_refuses_other_arguments(call: Any) -> None:
    with pytest.raises(Unreadable):
        moved(call)


def test_truncated_message_is_unreadable() -> None:
    whole = bytes(options.dump({"w": np.arange(40.0), "v": torch.ones(3), "loss": np.float32(1)}))
    for size in range(len(whole)):
        with pytest.raises(Unreadable):
            options.load(Stream([bytearray(whole[:size])]))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.eye(2).to_sparse(), r"a torch\.Tensor"),
        (np.zeros(2, [("a", "i4")]), r"a numpy\.ndarray of dtype \[\('a', '<i4'\)\]"),
        (np.zeros(2, "M8[s]"), r"a numpy\.ndarray, which"),
        (np.longdouble(1), r"a numpy\.longdouble of dtype"),
        (uuid.UUID(int=0), r"a uuid\.UUID, which"),
    ],
    ids=["sparse", "structure", "dates", "long double", "a class"],
)
def test_put_refuses_what_load_would(value: object, text: str) -> None:
    with pytest.raises(SerializationError, match=text):
        serialization().dump({"w": np.zeros(2), "other": [value]})
