"""A row of pfl-research: python -m benchmarks.simulation.pfl_side CLIENTS ROUNDS. Needs pfl and torch.

As its tutorials: a torch module with `loss` and `metrics`, PyTorchModel, FederatedAveraging, SimulatedBackend, in one
process. https://apple.github.io/pfl-research/
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel

from benchmarks.federation.work import Clock, report
from benchmarks.simulation import work

_IMAGES, _ANSWERS = torch.from_numpy(work.IMAGES), torch.from_numpy(work.ANSWERS)


class Regression(torch.nn.Module):
    """The softmax regression of the other rows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(work.FEATURES, work.LABELS)
        torch.nn.init.zeros_(self.linear.weight)
        torch.nn.init.zeros_(self.linear.bias)

    def forward(self, images: Any) -> Any:
        """Return the scores."""
        return self.linear(images)

    def loss(self, images: Any, answers: Any, eval: bool = False) -> Any:
        """Return the loss, of which pfl takes the gradient."""
        return torch.nn.functional.cross_entropy(self(images), answers)

    def metrics(self, images: Any, answers: Any, eval: bool = True) -> Any:
        """Return what pfl reports of an evaluation; none is made."""
        return {"loss": Weighted(0.0, len(answers))}


class _Ends(TrainingProcessCallback):
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def after_central_iteration(self, metrics: Metrics, model: Any, *, central_iteration: int) -> tuple[bool, Metrics]:
        self._clock.round_ends()
        return False, Metrics()


def _data(client: int) -> Dataset:
    mine = work.indices(client)
    return Dataset((_IMAGES[mine], _ANSWERS[mine]), user_id=str(client))


def main(clients: int, rounds: int) -> None:
    """Run the rounds."""
    torch.set_num_threads(1)
    module, clock, numbers = Regression(), Clock(), itertools.cycle(range(clients))
    data = FederatedDataset(_data, lambda: next(numbers))
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(rounds, evaluation_frequency=rounds + 1, train_cohort_size=clients, val_cohort_size=0),
        SimulatedBackend(data, data),
        model,
        NNTrainHyperParams(local_batch_size=work.EXAMPLES, local_num_epochs=1, local_learning_rate=work.RATE),
        NNEvalHyperParams(local_batch_size=work.EXAMPLES),
        callbacks=[_Ends(clock)],
    )
    weights, bias = module.linear.weight.detach().numpy().T, module.linear.bias.detach().numpy()
    report(clock.figures(work.accuracy(weights, bias)))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
