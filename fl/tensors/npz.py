"""Writes a model to an .npz file, which `np.load` reads. Tensors may be on any device.

Called by fl/__main__.py: `check` before the first round, so that a model that cannot be saved is refused before it is
trained; `save` at the end. `np.savez` is not used: a tensor with the name of one of its parameters ("file") breaks it.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fl.tensors.spec import Model, specs_of
from netq.utils.files import replacing

_DTYPES = frozenset(np.dtype(code).name for code in "?bhilqBHILQefdFD")
_MAX_NAME = 60_000  # bytes; the limit of a zip file is 65535, extra fields included


def check(model: Model) -> None:
    """Raise ValueError for a model that `save` cannot write or `np.load` cannot read. Does not read the values."""
    for name, spec in specs_of(model).items():
        if not _is_name(name):
            raise ValueError(
                f"{name!r:.200}: no name that .npz can have; expected a printable text that does not end in .npy"
            )
        if spec.dtype not in _DTYPES:
            raise ValueError(f"{name!r} is {spec}; expected a dtype that .npz has, as float32 is one")


def save(path: Path, model: Model) -> None:
    """Replace the file by a whole one, or leave it as it is. Follows a link. Raises OSError."""
    # less the umask: the model is for other programs, too
    with replacing(path.resolve(), 0o666) as file, zipfile.ZipFile(file, "w") as archive:
        for name, tensor in model.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                npy.write_array(member, _array(tensor), allow_pickle=False)


def _is_name(name: object) -> bool:
    """Return whether a member of a zip file can have this name and `np.load` finds it: that reads "w.npy" as "w"."""
    if not isinstance(name, str) or not name.isprintable() or name.endswith(".npy"):
        return False
    return len(name.encode()) <= _MAX_NAME  # a printable text has no lone surrogates, so it can be encoded


def _array(tensor: Any) -> NDArray[Any]:
    if isinstance(tensor, (np.ndarray, np.generic)):
        return np.asarray(tensor)
    array: NDArray[Any] = tensor.detach().cpu().resolve_conj().resolve_neg().numpy()
    return array
