"""Names of dtypes and limits of shapes that messages, means and compression share. Constants only."""

from __future__ import annotations

TORCH_ONLY = ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
# the largest values of those whose means are computed in a wider one, and could be larger
LARGEST = {"float16": 65504.0, "float8_e4m3fn": 448.0, "float8_e4m3fnuz": 240.0}
LARGEST |= dict.fromkeys(("float8_e5m2", "float8_e5m2fnuz"), 57344.0)
# of tensors that travel as differences; others travel as they are
DELTA_DTYPES = ("float16", "bfloat16", "float32", "float64")
MAX_DIMS = 64  # dimensions of a numpy array
