"""The model of the aggregator, and what a hospital does with its patients: a line from the age to the pressure."""

import os

import numpy as np

import fl

random = np.random.default_rng(sum(os.environ.get("SITE", "").encode()))
age = random.normal(55, 15, 400).clip(18, 95)
pressure = 100 + 0.5 * age + random.normal(0, 5, 400)


def initial():
    return {"line": np.zeros(2)}


def train(model, config):
    x, y = (age - 50) / 10, (pressure - 100) / 100
    slope, offset = model["line"]
    for _ in range(20):
        error = slope * x + offset - y
        slope, offset = slope - 0.2 * np.mean(error * x), offset - 0.2 * np.mean(error)
    oldest = float(age.max())  # of one patient: the policy does not let it leave
    return fl.Update({"line": np.array([slope, offset])}, len(x), {"loss": float(np.mean(error**2)), "oldest": oldest})


def columns(config):
    return {"age": age, "pressure": pressure}


def measure(model):
    slope, offset = model["line"]
    return {"slope": 10 * slope, "at_50": 100 + 100 * offset}
