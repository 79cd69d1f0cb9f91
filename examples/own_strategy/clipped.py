"""A strategy of your own: FedAvg with updates clipped to a norm, so that no client can move the model far.

Clipping is the first half of Sun et al., 2019 (arXiv:1911.07963), section 4; the second half, noise, is left out.
"""

import math
from dataclasses import replace

import numpy as np

import fl


class ClippedAvg(fl.FedAvg):
    """FedAvg that scales an update down where it is longer than `radius` (Euclidean norm of the change)."""

    def __init__(self, radius=1.0, **options):
        super().__init__(**options)
        self.radius = radius

    def fold(self, model, update, *, client, staleness=0):
        change = {name: np.asarray(update.model[name]) - array for name, array in model.items()}
        norm = math.sqrt(sum(float(np.vdot(part, part)) for part in change.values()))
        scale = min(1.0, self.radius / norm) if norm else 1.0
        clipped = {name: array + scale * change[name] for name, array in model.items()}
        super().fold(model, replace(update, model=clipped), client=client, staleness=staleness)
