"""The proximal term, for torch and numpy, and the control variate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fl
from fl.tensors.model import copied

START: dict[str, Any] = {"w": np.array([[1.0, 2.0], [3.0, 4.0]]), "b": np.array([5.0])}
NOW: dict[str, Any] = {"w": np.array([[2.0, 2.0], [3.0, 2.0]]), "b": np.array([8.0])}


def test_proximal_term_is_half_mu_times_squared_distance() -> None:
    assert fl.proximal_term(NOW, START, 0.5) == pytest.approx(0.25 * (1 + 4 + 9))
    assert fl.proximal_term({"b": NOW["b"]}, START, 2.0) == pytest.approx(9)  # of the trained parameters only


def test_proximal_gradient_matches_torch() -> None:
    parameters = {name: torch.tensor(array, requires_grad=True) for name, array in NOW.items()}
    start = {name: torch.tensor(array) for name, array in START.items()}
    term = fl.proximal_term(parameters, start, 0.7)
    assert term.item() == pytest.approx(fl.proximal_term(NOW, START, 0.7))
    term.backward()
    for name, gradient in fl.proximal_gradient(NOW, START, 0.7).items():
        np.testing.assert_allclose(np.asarray(parameters[name].grad), gradient)


def test_proximal_term_pulls_a_torch_module_back() -> None:
    module = torch.nn.Linear(3, 2)
    start = copied(dict(module.named_parameters()))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.25)
    fl.proximal_term(dict(module.named_parameters()), start, 2.0).backward()
    optimizer.step()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(parameter - start[name], torch.full_like(parameter, 0.5))


def test_copied_model_has_its_own_memory() -> None:
    model: dict[str, Any] = {"n": np.ones(2), "t": torch.ones(2, requires_grad=True)}
    copy = copied(model)
    model["n"][:] = 7
    model["t"].data[:] = 7
    assert copy["n"].tolist() == copy["t"].tolist() == [1, 1]
    assert not copy["t"].requires_grad


def test_control_variate_accumulates_over_rounds() -> None:
    control, server = fl.ControlVariate({}), {"w": torch.full((2,), 0.5)}
    total = torch.zeros(2)
    for _ in range(3):
        model = {"w": torch.zeros(2), "n": torch.tensor(1)}
        control.begin(model, {"control": server})
        model["w"] -= 1.0  # two steps of 0.25, with a mean gradient of 2
        change = control.finish(model, steps=2, learning_rate=0.25)
        assert set(change) == {"w"}
        total += change["w"]
        torch.testing.assert_close(control.correction("w"), server["w"] - total)
    torch.testing.assert_close(total, 3 * (torch.full((2,), 2.0) - 0.5))


def test_control_variate_without_scaffold_is_refused() -> None:
    with pytest.raises(KeyError, match=r"the server's strategy is not fl\.Scaffold"):
        fl.ControlVariate({}).begin(START, {"round": 1})
