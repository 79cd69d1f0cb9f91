"""The model of the aggregator, and the training of a device: a line through points of its own."""

import numpy as np

import fl


def initial():
    return {"line": np.zeros(2, np.float32)}


def measure(model):
    slope, offset = model["line"]
    return {"slope": slope, "offset": offset}


def train(model, config):
    x = np.random.default_rng(config["seed"]).uniform(-1, 1, 200).astype(np.float32)
    y = 2 * x + 1
    slope, offset = model["line"]
    for _ in range(20):
        error = slope * x + offset - y
        slope, offset = slope - 0.5 * np.mean(error * x), offset - 0.5 * np.mean(error)
    return fl.Update({"line": np.array([slope, offset], np.float32)}, num_examples=len(x))
