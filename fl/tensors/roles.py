"""What the tensors of a model are: weights that training changes, statistics, constants, or private to a client.

    trained    a weight: the strategy's arithmetic, packed changes
    averaged   a statistic, such as BatchNorm's: always the mean by number of examples, sent as it is
    unit       a vector of length 1, such as those of spectral norm: its mean, brought to length 1 again
    constant   equal at all clients; the server's value stays, and clients send it back only if they have changed it
    local      stays at its client, which keeps it from round to round: the server neither stores nor sends it

`assign` finds the role of each tensor: the user's patterns first, then what the model says (`State`), then what names
and values tell. Pure. Called by fl/server/server.py; fl/trainer.py gets the roles with each task.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from fl.errors import InvalidUpdate
from fl.tensors.blocks import Scratch, bits_of, is_finite, source_of
from fl.tensors.spec import Model, spec_of, specs_of
from netq.errors import InvalidOption
from netq.text import did_you_mean
from netq.validate import expect

Role: TypeAlias = Literal["trained", "averaged", "unit", "constant", "local"]
Roles: TypeAlias = Mapping[str, Role]
ROLES: tuple[Role, ...] = get_args(Role)
SENT: tuple[Role, ...] = ("trained", "averaged", "unit")  # with each update
IN_MODEL: tuple[Role, ...] = (*SENT, "constant")  # of the server

_NAMED = 50  # tensors up to which an error names all, or the nearest
_SEPARATORS = re.compile(r"[./]")  # between the modules in a tensor's name, of torch, and of Keras and Flax
# Statistics of normalisation layers: BatchNorm's of torch, and of Keras ("moving_variance:0").
_STATISTIC = re.compile(r"(running|moving)_\w+(:0)?")
# Where torch observes ranges for a quantisation, which are infinite before the first batch; and Flax's statistics.
_OF_STATISTICS = re.compile(r"activation_post_process(_\d+)?|weight_fake_quant|batch_stats")
# Spectral norm of torch keeps two vectors for the tensor of the second name: "_u" and "_v" of a parametrization, or of
# a hook. A weight norm's "weight_v" has no such tensor beside it, and is trained.
_SPECTRAL = (
    (re.compile(r"(?P<of>.*\bparametrizations\.\w+\.)\d+\._[uv]"), "original"),
    (re.compile(r"(?P<of>.*)_[uv]"), "_orig"),
)


class State(dict[str, Any]):
    """A model with the roles that its tensors have by themselves. `fl.state` makes it. is_restored: of a checkpoint."""

    is_restored = False

    def __init__(self, tensors: Mapping[str, Any], roles: Roles) -> None:
        super().__init__(tensors)
        self.roles = dict(roles)


def state(module: Any) -> State:
    """Return the state_dict of a torch module, and the roles of its tensors: parameters are trained, buffers averaged.

    The vectors of spectral norm are of the role unit. The tensors are those of the module, not copies.
    """
    tensors = module.state_dict()
    roles: dict[str, Role] = {name: "unit" if _is_spectral(name, tensors) else "averaged" for name in tensors}
    for name, _ in module.named_parameters(remove_duplicate=False):
        if name in tensors:  # a module's own state_dict may leave out what is frozen
            roles[name] = "trained"
    return State(tensors, roles)


def assign(model: Model, given: Mapping[str, str] | None) -> dict[str, Role]:
    """Return the role of each tensor of a model, and of the local ones that a `State` knows and does not have.

    given: roles by name, or by pattern (* and ?, as in "head.*"). A name outweighs the patterns that match it.

    Raises InvalidOption for a name that is no text, an entry that matches no tensor, patterns that disagree, and a role
    that a tensor cannot have; InvalidUpdate for a dtype that has no mean.
    """
    for name in model:
        expect(isinstance(name, str), "the name of a tensor", name, 'a text, as in "layer.weight"')
    specs = specs_of(model)
    known: Roles = getattr(model, "roles", {})
    roles: dict[str, Role] = {name: known.get(name) or _default(name, tensor, model) for name, tensor in model.items()}
    roles = {**known, **roles}
    roles |= _given(roles, given or {})
    for name, role in roles.items():
        if name not in model and role != "local":
            raise InvalidOption(f"roles: {name!r} cannot be {role}: it was local, and there is no value of it")
        if role in ("trained", "unit") and specs[name].is_exact:
            raise InvalidOption(
                f"roles: {name!r} is {specs[name]}, so not {role}; expected averaged, constant or local"
            )
    return roles


def are_roles(value: object) -> bool:
    """Return whether a value of a peer or a file is a dict of roles by name."""
    if not isinstance(value, dict):
        return False
    return all(type(name) is str and type(role) is str and role in ROLES for name, role in value.items())


def summary(roles: Roles) -> str:
    """Return how many tensors have each role, with the names of the first that are not trained."""
    found: dict[str, list[str]] = {}
    for name, role in roles.items():
        found.setdefault(role, []).append(name)
    return ", ".join(
        f"{len(found[role])} {role}" + ("" if role == "trained" else f" ({reprlib.repr(found[role])[1:-1]})")
        for role in ROLES
        if role in found
    )


def of_role(model: Mapping[str, Any], roles: Roles, *wanted: Role) -> dict[str, Any]:
    """Return the tensors of a model that have one of these roles. Without an entry a tensor is trained."""
    return {name: tensor for name, tensor in model.items() if roles.get(name, "trained") in wanted}


def matching(whose: str, patterns: Iterable[str], names: Collection[str]) -> set[str]:
    """Return the names that one of the patterns matches (* and ?, as in "head.*").

    Raises InvalidOption, which begins with `whose`, for a pattern that matches none.
    """
    found = set[str]()
    for pattern in patterns:
        plain = pattern.replace("[", "[[]")  # fnmatch has sets of characters, too; names have brackets: "layers[0]"
        matched = {name for name in names if fnmatchcase(name, plain)}
        if not matched:
            raise InvalidOption(f"{whose}: no tensor is named {pattern!r}; {_hint(pattern, names)}")
        found |= matched
    return found


def check_values(model: Model, roles: Roles) -> None:
    """Raise InvalidUpdate for a first model with values that its roles do not allow.

    NaN never, and infinity only in what is averaged or constant. The values of local tensors are not used.
    """
    scratch = Scratch()
    for name, tensor in model.items():
        source = source_of(name, tensor)
        if roles[name] == "local" or is_finite(source, scratch):
            continue
        if roles[name] not in ("averaged", "constant"):
            raise InvalidUpdate(
                f"{name!r} holds NaN or infinity; expected finite values. Infinity may be in a tensor that is averaged "
                f'or constant, as in roles={{{name!r}: "constant"}}'
            )
        if any(np.isnan(block).any() for block in source.blocks(scratch)):
            raise InvalidUpdate(f"{name!r} holds NaN; expected numbers, or infinity, as it is {roles[name]}")


def equal(name: str, one: Any, other: Any) -> bool:
    """Return whether two tensors have the same shape, dtype and values."""
    if spec_of(name, one)[:2] != spec_of(name, other)[:2]:
        return False
    return bool(np.array_equal(bits_of(one), bits_of(other)))


def _default(name: str, tensor: Any, model: Mapping[str, Any]) -> Role:
    if spec_of(name, tensor).is_exact:
        return "averaged"
    modules = _SEPARATORS.split(name)
    if _STATISTIC.fullmatch(modules[-1]) or any(map(_OF_STATISTICS.fullmatch, modules)):
        return "averaged"
    if _is_spectral(name, model):
        return "unit"
    # no training makes infinity of a weight: it is a mask
    return "trained" if is_finite(source_of(name, tensor), Scratch()) else "constant"


def _is_spectral(name: str, model: Mapping[str, Any]) -> bool:
    return any((match := pattern.fullmatch(name)) and match["of"] + of in model for pattern, of in _SPECTRAL)


def _given(names: Collection[str], given: Mapping[str, str]) -> dict[str, Role]:
    """Return the roles that entries give to names."""
    expect(isinstance(given, Mapping), "roles", given, 'a dict of roles by name or pattern, as in {"head.*": "local"}')
    by_pattern, by_name = dict[str, tuple[str, Role]](), dict[str, Role]()
    for pattern, role in given.items():
        expect(isinstance(pattern, str), "roles", pattern, "the name of a tensor, or a pattern with * and ?")
        if role not in ROLES:
            raise InvalidOption(f"roles: {pattern!r}: {role!r:.100}; expected one of {', '.join(ROLES)}")
        if pattern in names:
            by_name[pattern] = role
            continue
        for name in sorted(matching("roles", [pattern], names) - given.keys()):
            other, before = by_pattern.setdefault(name, (pattern, role))
            if before != role:
                raise InvalidOption(
                    f"roles: {name!r} is {before} by {other!r} and {role} by {pattern!r}; expected patterns "
                    f"that agree, or an entry {name!r}, which outweighs them"
                )
    return {**{name: role for name, (_, role) in by_pattern.items()}, **by_name}


def _hint(pattern: str, names: Collection[str]) -> str:
    return did_you_mean(pattern, names) if len(names) <= _NAMED else f"it has {reprlib.repr(sorted(names))[1:-1]}"
