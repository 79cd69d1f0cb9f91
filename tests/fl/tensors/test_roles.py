"""Tests of fl/tensors/roles.py."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.ao import quantization
from torch.nn.utils import parametrizations, parametrize

import fl
from fl.tensors.roles import Roles, assign, check_values, summary
from netq.errors import InvalidOption

W = np.ones(2, np.float32)
INFINITE = np.array([0, -np.inf], np.float32)


def roles(*names: str, given: dict[str, str] | None = None) -> Roles:
    return assign(dict.fromkeys(names, W), given)


@pytest.mark.parametrize(
    ("name", "role"),
    [
        *(("bn.running_mean", "averaged"), ("running_var", "averaged"), ("model/bn/moving_variance:0", "averaged")),
        ("layers.0.activation_post_process.scale", "averaged"),
        ("activation_post_process_3.activation_post_process.min_val", "averaged"),
        ("conv.weight_fake_quant.activation_post_process.max_val", "averaged"),
        *(
            ("batch_stats/BatchNorm_0/var", "averaged"),
            ("batch_stats.bn.mean", "averaged"),
            ("params/bn/var", "trained"),
        ),
        *(("weight", "trained"), ("scale", "trained"), ("rnn.weight_u", "trained"), ("running.weight", "trained")),
    ],
)
def test_roles_follow_from_names(name: str, role: str) -> None:
    assert roles(name) == {name: role}


def test_roles_follow_from_dtypes_and_values() -> None:
    model = {"n": np.zeros(2, int), "b": np.zeros(2, bool), "mask": INFINITE, "w": W}
    assert assign(model, None) == {"n": "averaged", "b": "averaged", "mask": "constant", "w": "trained"}


def test_vectors_of_spectral_norm_are_units() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        old = nn.utils.spectral_norm(nn.Linear(3, 2))
    new = parametrizations.spectral_norm(nn.Conv1d(2, 2, 3))
    for module, names in (
        (old, {"weight_u", "weight_v"}),
        (new, {"parametrizations.weight.0._u", "parametrizations.weight.0._v"}),
    ):
        for model in (dict(module.state_dict()), fl.state(module)):
            found = assign(model, None)
            assert {name for name, role in found.items() if role == "unit"} == names
            assert {role for name, role in found.items() if name not in names} == {"trained"}


def test_a_weight_norm_has_weights_only() -> None:
    module = parametrizations.weight_norm(nn.Linear(3, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        old = nn.utils.weight_norm(nn.Linear(3, 2))
    assert set(assign(dict(module.state_dict()), None).values()) == {"trained"}
    assert set(assign(dict(old.state_dict()), None).values()) == {"trained"}
    assert parametrize.is_parametrized(module)


def test_state_reads_the_roles_from_the_module() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("codes", torch.ones(3))
            self.running_temperature = nn.Parameter(torch.ones(1))
            self.bn = nn.BatchNorm1d(2)
            self.tied = self.bn.weight

    found = fl.state(Own())
    assert found.roles == {
        "running_temperature": "trained",
        "tied": "trained",
        "bn.weight": "trained",
        "bn.bias": "trained",
        "codes": "averaged",
        "bn.running_mean": "averaged",
        "bn.running_var": "averaged",
        "bn.num_batches_tracked": "averaged",
    }
    assert assign(found, None) == found.roles
    assert assign(found, {"codes": "local"})["codes"] == "local"
    assert isinstance(found, dict)
    assert fl.Update(found, 1).model.keys() == found.keys()


class WithoutBackbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = nn.Linear(2, 2), nn.Linear(2, 1)

    def state_dict(self, *args: Any, **settings: Any) -> Any:
        found = super().state_dict(*args, **settings)
        return {name: tensor for name, tensor in found.items() if not name.startswith("backbone.")}


def test_parameters_that_a_module_leaves_out_have_no_role() -> None:
    assert assign(fl.state(WithoutBackbone()), None) == {"head.weight": "trained", "head.bias": "trained"}


def test_a_module_that_observes_ranges_can_be_a_model() -> None:
    net = nn.Sequential(quantization.QuantStub(), nn.Linear(2, 2))
    net.qconfig = quantization.default_qat_qconfig  # type: ignore[assignment]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantization.prepare_qat(net.train(), inplace=True)  # type: ignore[no-untyped-call]
    for model in (dict(net.state_dict()), fl.state(net)):
        found = assign(model, None)
        check_values(model, found)
        assert {name for name, role in found.items() if role == "trained"} == {"1.weight", "1.bias"}


def test_patterns_give_roles_and_names_outweigh_them() -> None:
    found = roles("head.w", "head.b", "body.w", given={"head.*": "local", "head.b": "averaged"})
    assert found == {"head.w": "local", "head.b": "averaged", "body.w": "trained"}
    assert roles("a.b", given={"a.*": "local", "*.b": "local"}) == {"a.b": "local"}
    assert roles("w[0]", "w[1]", given={"w[0]": "local"}) == {"w[0]": "local", "w[1]": "trained"}
    assert roles("w[0].b", "w0.b", given={"w[0].*": "local"}) == {"w[0].b": "local", "w0.b": "trained"}


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidOption, match=r"the name of a tensor: \('params', 'w'\); expected a text, as in"):
        assign({("params", "w"): W}, None)  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"haed.*": "local"}, r"roles: no tensor is named 'haed\.\*'; did you mean head\.w\?"),
        ({"head.*": "private"}, r"roles: 'head\.\*': 'private'; expected one of trained, averaged, unit, constant"),
        ({"head.*": "local", "*.w": "averaged"}, r"'head\.w' is local by 'head\.\*' and averaged by '\*\.w'; expected"),
        ({"steps": "trained"}, r"'steps' is int64 of shape \(2,\), so not trained; expected averaged, constant or"),
        ({3: "local"}, "roles: 3; expected the name of a tensor"),
        (["head.*"], r"roles: \['head\.\*'\]; expected a dict of roles by name or pattern"),
    ],
)
def test_bad_roles_are_refused(given: Any, error: str) -> None:
    with pytest.raises(InvalidOption, match=error):
        assign({"head.w": W, "body.w": W, "steps": np.zeros(2, int)}, given)


def test_an_unknown_name_in_a_large_model_is_refused_in_a_line() -> None:
    with pytest.raises(InvalidOption, match=r"no tensor is named 'x'; it has 'layers\.0\.w', 'layers\.1\.w'") as error:
        roles(*(f"layers.{number}.w" for number in range(1000)), given={"x": "local"})
    assert len(str(error.value)) < 200


@pytest.mark.parametrize(
    ("given", "value", "error"),
    [
        ({"w": "trained"}, np.inf, r"'w' holds NaN or infinity; .*as in roles=\{'w': \"constant\"\}"),
        ({"w": "local"}, np.inf, None),
        ({"w": "averaged"}, np.inf, None),
        ({"w": "averaged"}, np.nan, "'w' holds NaN; expected numbers, or infinity, as it is averaged"),
        ({}, np.nan, "'w' holds NaN; expected numbers, or infinity, as it is constant"),
    ],
)
def test_values_fit_their_roles(given: dict[str, str], value: float, error: str | None) -> None:
    model = {"w": np.array([1, value], np.float32)}
    found = assign(model, given)
    if error is None:
        check_values(model, found)
    else:
        with pytest.raises(fl.InvalidUpdate, match=error):
            check_values(model, found)


def test_the_summary_names_what_is_not_trained() -> None:
    found = roles(*"abcdefgh", given={"?": "local", "h": "trained"})
    assert summary(found) == "1 trained, 7 local ('a', 'b', 'c', 'd', 'e', 'f', ...)"
