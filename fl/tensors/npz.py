"""A model as an .npz file, which `np.load` reads: whatever its names are, and from whichever device its tensors come.

Called by fl/__main__.py: `check` before the first round, so that nothing is found wrong after the last one; then
`save`. `np.savez` would not do: it takes some names for its own arguments.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fl.tensors.spec import Model, specs_of

_DTYPES = frozenset(np.dtype(code).name for code in "?bhilqBHILQefdFD")
_LONGEST = 60_000  # bytes of a name; a zip file has 65535 for it


def check(model: Model) -> None:
    """Raise ValueError for a model that `save` cannot write, or `np.load` could not read; its values are not read."""
    for name, spec in specs_of(model).items():
        if not _is_name(name):
            raise ValueError(
                f"{name!r:.200}: no name that .npz can have; expected a printable text that does not end in .npy"
            )
        if spec.dtype not in _DTYPES:
            raise ValueError(f"{name!r} is {spec}; expected a dtype that .npz has, as float32 is one")


def save(path: Path, model: Model) -> None:
    """Write a file that is whole, or is not there: beside it first, to the disk, and renamed. A link is followed.

    Raises OSError.
    """
    path = path.resolve()
    new = path.with_name(f"{path.name}.new")
    with new.open("wb") as file:
        with zipfile.ZipFile(file, "w") as archive:
            for name, tensor in model.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    npy.write_array(member, _array(tensor), allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _is_name(name: object) -> bool:
    """Whether a file in a zip file can have it, and `np.load` finds it there: that takes "w.npy" for "w"."""
    return isinstance(name, str) and name.isprintable() and not name.endswith(".npy") and len(name.encode()) <= _LONGEST


def _array(tensor: Any) -> NDArray[Any]:
    if isinstance(tensor, (np.ndarray, np.generic)):
        return np.asarray(tensor)
    array: NDArray[Any] = tensor.detach().cpu().resolve_conj().resolve_neg().numpy()
    return array
