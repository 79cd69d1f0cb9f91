"""Nine honest clients and one that sends nonsense: FedAvg and ClippedAvg on the same data."""

import numpy as np
from clipped import ClippedAvg

import fl

target = np.array([1, -2, 3], np.float32)


def honest(model, config):
    rng = np.random.default_rng([config["partition"], config["round"]])
    x = rng.normal(size=(100, 3)).astype(np.float32)
    weights = model["weights"]
    for _ in range(5):
        weights = weights - 0.1 * x.T @ (x @ weights - x @ target) / len(x)
    return fl.Update({"weights": weights}, num_examples=len(x))


def faulty(model, config):
    return fl.Update({"weights": model["weights"] + 1000}, num_examples=100)


if __name__ == "__main__":
    for strategy in (fl.FedAvg(), ClippedAvg(radius=1.0)):
        result = fl.simulate({"weights": np.zeros(3, np.float32)}, [honest] * 9 + [faulty], 20, strategy=strategy)
        distance = np.linalg.norm(result.model["weights"] - target)
        print(f"{type(strategy).__name__}: {distance:.1f} from the target")
