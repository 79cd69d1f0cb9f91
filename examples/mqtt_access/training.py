"""The training function of a device. Its data never leave it."""

import numpy as np

import fl

x = np.random.default_rng().uniform(-1, 1, 200).astype(np.float32)
y = 2 * x + 1


def train(model, config):
    slope, offset = model["line"]
    for _ in range(20):
        error = slope * x + offset - y
        slope, offset = slope - 0.5 * np.mean(error * x), offset - 0.5 * np.mean(error)
    return fl.Update({"line": np.array([slope, offset], np.float32)}, num_examples=len(x))
