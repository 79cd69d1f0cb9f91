"""Writes a model to a file: .npz, which `np.load` reads, or .safetensors, which safetensors reads; by the suffix.

Called by fl/__main__.py and fl/callbacks/best.py: `check` before the first round, so that a model that cannot be saved
is refused before it is trained; `save` later. Tensors may be on any device, in any memory layout, and share memory.

`np.savez` is not used: a tensor with the name of one of its parameters ("file") breaks it. `safetensors.numpy` and
`safetensors.torch` are not used: the one writes a transposed array with wrong values, the other refuses shared memory.
"""

from __future__ import annotations

import errno
import os
import stat
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

from fl.tensors.blocks import bits_of
from fl.tensors.dtypes import TORCH_ONLY
from fl.tensors.spec import Model, spec_of, specs_of
from netq.errors import InvalidOption
from netq.utils.files import replacing
from netq.validate import expect
from netq.version import DISTRIBUTION

_NPZ, _SAFETENSORS = ".npz", ".safetensors"
_NPZ_DTYPES = frozenset(np.dtype(code).name for code in "?bhilqBHILQefdFD")
_MAX_NAME = 60_000  # bytes; the limit of a zip file is 65535, extra fields included
_METADATA = "__metadata__"  # the one name that safetensors keeps for itself


def check_name(path: Path, whose: str) -> None:
    """Raise InvalidOption for a suffix that names no format, or if its library is missing. `whose`: in the error."""
    known = path.suffix in (_NPZ, _SAFETENSORS)
    expect(known, whose, str(path), f"a name that ends in {_NPZ} or {_SAFETENSORS}")
    if path.suffix == _SAFETENSORS:
        try:
            _safetensors()
        except ImportError:
            needs = f"needs safetensors: pip install '{DISTRIBUTION}[safetensors]'"
            raise InvalidOption(f"{whose}: {str(path)!r}; {needs}") from None


def check(path: Path, model: Model, whose: str) -> None:
    """Raise InvalidOption for a model that `save` cannot write there, or that cannot be read again.

    Does not read the values. `whose`: its name in the error.
    """
    is_npz = path.suffix == _NPZ
    for name, spec in specs_of(model).items():
        if not (_is_npz_name(name) if is_npz else _is_safetensors_name(name)):
            form = "a printable text that does not end in .npy" if is_npz else f"a text other than {_METADATA}"
            raise InvalidOption(f"{whose}: {name!r:.200}: no name that {path.suffix} can have; expected {form}")
        if not (spec.dtype in _NPZ_DTYPES if is_npz else _is_safetensors_dtype(spec.dtype)):
            hint = f"; {_SAFETENSORS} has {spec.dtype}" if spec.dtype in TORCH_ONLY else ""
            expected = f"expected a dtype that {path.suffix} has, as float32 is one{hint}"
            raise InvalidOption(f"{whose}: {name!r} is {spec}; {expected}")


def save(path: Path, model: Model) -> None:
    """Replace the file by a whole one, or leave it as it is. Follows a link. Raises OSError."""
    path = path.resolve()
    # less the umask: the model is for other programs, too
    with replacing(path, 0o666) as file:
        if path.suffix == _NPZ:
            _write_npz(file, model)
        else:
            _write_safetensors(path.with_name(f"{path.name}.new"), file, model)


def _write_npz(file: BinaryIO, model: Model) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        for name, tensor in model.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                npy.write_array(member, bits_of(tensor), allow_pickle=False)


def _write_safetensors(new: Path, file: BinaryIO, model: Model) -> None:
    """Write the file of the name `new`, which is open as `file`.

    The library writes to a name only, by a file of its own: that takes the place of `file`, and gets its permissions.
    It reads the tensors from their memory.
    """
    library = _safetensors()
    arrays = {name: np.asarray(bits_of(tensor), order="C") for name, tensor in model.items()}
    specs = {
        name: library.TensorSpec(
            dtype=spec_of(name, tensor).dtype,
            shape=arrays[name].shape,
            data_ptr=arrays[name].ctypes.data,
            data_len=arrays[name].nbytes,
        )
        for name, tensor in model.items()
    }
    try:
        library.serialize_file(specs, new)
    except library.SafetensorError as error:  # the model has been checked: it is the disk
        raise OSError(errno.EIO, str(error)) from error
    new.chmod(stat.S_IMODE(os.fstat(file.fileno()).st_mode))
    with new.open("rb") as written:
        os.fsync(written.fileno())


def _is_npz_name(name: object) -> bool:
    """Return whether a member of a zip file can have this name and `np.load` finds it: that reads "w.npy" as "w"."""
    if not isinstance(name, str) or not name.isprintable() or name.endswith(".npy"):
        return False
    return len(name.encode()) <= _MAX_NAME  # a printable text has no lone surrogates, so it can be encoded


def _is_safetensors_name(name: object) -> bool:
    return isinstance(name, str) and name != _METADATA and name.encode("utf-8", "replace").decode() == name


def _is_safetensors_dtype(dtype: str) -> bool:
    library = _safetensors()
    try:
        library.TensorSpec(dtype=dtype, shape=[0], data_ptr=0, data_len=0)
    except library.SafetensorError:
        return False
    return True


def _safetensors() -> Any:
    import safetensors  # an extra

    return safetensors
