"""What a client's train function may use, where a strategy wants more of it than to train.

For numpy arrays and torch tensors alike. Nothing here is known to the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fl.tensors.model import copied, squared_distance
from fl.tensors.spec import Model, zeros_like


def proximal_term(parameters: Mapping[str, Any], start: Mapping[str, Any], mu: float) -> Any:
    """Return mu / 2 times the squared distance of the parameters from the round's model, to be added to the loss.

    FedProx: Li et al., 2020, equation 2. `parameters`: those that are trained, by the names of the model (for a torch
    module, dict(module.named_parameters())). Of torch tensors it is a tensor with a gradient; of arrays a number, and
    `proximal_gradient` is what is to be added to their gradients.
    """
    if any(hasattr(tensor, "requires_grad") for tensor in parameters.values()):
        return mu / 2 * sum((tensor - start[name].detach()).square().sum() for name, tensor in parameters.items())
    return mu / 2 * squared_distance(parameters, {name: start[name] for name in parameters})


def proximal_gradient(parameters: Mapping[str, Any], start: Mapping[str, Any], mu: float) -> dict[str, Any]:
    """Return the gradient of `proximal_term`: mu times the difference from the round's model; of whole numbers none."""
    return {name: mu * (parameters[name] - start[name]) for name in zeros_like(parameters)}


class ControlVariate:
    """A client's half of SCAFFOLD: what its data pull that the others' do not (Karimireddy et al., 2020, option II).

    Made once, and kept from round to round:

        control.begin(model, config)          # before training changes the model
        gradient += control.correction(name)  # in each local step, for each trained tensor
        return fl.Update(model, n, extra=control.finish(model, steps, learning_rate))
    """

    def __init__(self) -> None:
        self._own: dict[str, Any] = {}
        self._start: dict[str, Any] = {}
        self._server: Mapping[str, Any] = {}

    def begin(self, model: Model, config: Mapping[str, Any]) -> None:
        """Remember the round's model and the server's variate."""
        if "control" not in config:
            raise KeyError("config has no 'control': the server's strategy is not fl.Scaffold")
        self._server = config["control"]
        self._start = copied({name: model[name] for name in self._server})
        self._own = self._own or zeros_like(self._start)

    def correction(self, name: str) -> Any:
        """Return what is to be added to a tensor's gradient: the server's variate minus this client's."""
        return self._server[name] - self._own[name]

    def finish(self, model: Model, steps: int, learning_rate: float) -> dict[str, Any]:
        """Return the change of this client's variate, for Update.extra; `steps` of `learning_rate` led to `model`."""
        share = 1 / (steps * learning_rate)
        trained = copied({name: model[name] for name in self._start})  # without what torch knows of how they came about
        change = {name: share * (start - trained[name]) - self._server[name] for name, start in self._start.items()}
        self._own = {name: own + change[name] for name, own in self._own.items()}
        self._start = {}
        return change
