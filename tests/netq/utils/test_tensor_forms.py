"""Tensors of torch in netq's own form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from netq.errors import SerializationError
from tests.netq.utils.test_forms import data, moved, trusting
from tests.netq.utils.test_large import received

torch = pytest.importorskip("torch")

TENSORS = {
    "contiguous": torch.arange(6.0).reshape(2, 3),
    "transposed": torch.arange(6).reshape(2, 3).T,
    "strided": torch.arange(12, dtype=torch.int16).reshape(3, 4)[:, ::2],
    "expanded": torch.ones(1, 3).expand(4, 3),
    "no dimension": torch.tensor(2.5),
    "empty": torch.zeros(3, 0),
    "bool": torch.tensor([True, False]),
    "bfloat16": torch.ones(3, dtype=torch.bfloat16),
    "float8": torch.ones(3).to(torch.float8_e4m3fn),
    "complex": torch.ones(3, dtype=torch.complex64).conj(),
    "gradient": torch.ones(3, requires_grad=True),
    "parameter": torch.nn.Parameter(torch.ones(2, 3)),
    "frozen": torch.nn.Parameter(torch.ones(2, 3), requires_grad=False),
    "sparse": torch.eye(3).to_sparse(),
    "one of a column": torch.ones(1, 4)[:, 0],
    "one of a conjugate": torch.tensor([1 + 2j]).conj().imag,
    "channels last": torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS)
def test_tensor_arrives(tensor: Any) -> None:
    there = moved([tensor])[0]
    assert type(there) is type(tensor)
    assert (there.dtype, there.shape, there.requires_grad) == (tensor.dtype, tensor.shape, tensor.requires_grad)
    if tensor.layout is torch.strided and tensor.dtype is not torch.float8_e4m3fn:
        assert torch.equal(there, tensor)
    else:
        assert repr(there) == repr(tensor)


def test_tensors_are_sent_from_their_own_memory_and_into_that_of_the_receiver() -> None:
    value, target = torch.ones(1000, 300).T, torch.zeros(300_000)
    sent = trusting.dump({"w": value})
    assert np.shares_memory(np.frombuffer(sent.buffers[-1], "f4"), value.numpy())
    into: Any = target.numpy()
    there = trusting.load_into(received(sent), [memoryview(into).cast("B")])["w"]
    assert torch.equal(there, value)
    assert there.data_ptr() == target.data_ptr()


@pytest.mark.parametrize("tensor", [torch.zeros(2), torch.eye(2).to_sparse()])
def test_put_with_an_allow_list_refuses_a_tensor(tensor: Any) -> None:
    with pytest.raises(SerializationError, match=r"a torch\.Tensor, which .load. of this"):
        data.dump([tensor])
