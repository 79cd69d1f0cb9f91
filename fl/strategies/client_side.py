"""The client's part of FedProx and SCAFFOLD, for use in a train function.

Works with numpy arrays and torch tensors. Runs on clients only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fl.tensors.model import copied, squared_distance
from fl.tensors.spec import Model, zeros_like


def proximal_term(parameters: Mapping[str, Any], start: Mapping[str, Any], mu: float) -> Any:
    """Return mu / 2 times the squared distance of the parameters from the round's model. Add it to the loss.

    parameters: the trained parameters, by their names in the model; for a torch module,
                dict(module.named_parameters()).

    For torch tensors the result is a tensor with a gradient. For arrays it is a number; add `proximal_gradient` to the
    gradients of the loss. FedProx: Li et al., 2020, equation 2.
    """
    if any(hasattr(tensor, "requires_grad") for tensor in parameters.values()):
        return mu / 2 * sum((tensor - start[name].detach()).square().sum() for name, tensor in parameters.items())
    return mu / 2 * squared_distance(parameters, {name: start[name] for name in parameters})


def proximal_gradient(parameters: Mapping[str, Any], start: Mapping[str, Any], mu: float) -> dict[str, Any]:
    """Return the gradient of `proximal_term`: mu times the difference from the round's model. Integers have none."""
    return {name: mu * (parameters[name] - start[name]) for name in zeros_like(parameters)}


class ControlVariate:
    """The control variate of a SCAFFOLD client: the drift of its gradients (Karimireddy et al., 2020, option II).

    It keeps its variate in the client's state, which lasts from round to round:

        control = fl.ControlVariate(config["state"])
        control.begin(model, config)          # before training changes the model
        gradient += control.correction(name)  # in each local step, for each trained tensor
        return fl.Update(model, n, extra=control.finish(model, steps, learning_rate))

    state: a dict that lasts, where the variate is stored as "control".
    """

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state
        self._start: dict[str, Any] = {}
        self._server: Mapping[str, Any] = {}

    def begin(self, model: Model, config: Mapping[str, Any]) -> None:
        """Store the round's model and the server's variate. Call it before training changes the model."""
        if "control" not in config:
            raise KeyError("config has no 'control': the server's strategy is not fl.Scaffold")
        self._server = config["control"]
        self._start = copied({name: model[name] for name in self._server})
        if self._state.get("control", {}).keys() != self._start.keys():  # the first round, or another model
            self._state["control"] = zeros_like(self._start)

    def correction(self, name: str) -> Any:
        """Return the correction of a tensor's gradient: the server's variate minus this client's. Add it."""
        return self._server[name] - self._state["control"][name]

    def finish(self, model: Model, steps: int, learning_rate: float) -> dict[str, Any]:
        """Return the change of this client's variate for Update.extra, after `steps` steps of `learning_rate`."""
        share = 1 / (steps * learning_rate)
        trained = copied({name: model[name] for name in self._start})  # without torch's autograd history
        change = {name: share * (start - trained[name]) - self._server[name] for name, start in self._start.items()}
        self._state["control"] = {name: own + change[name] for name, own in self._state["control"].items()}
        self._start = {}
        return change
