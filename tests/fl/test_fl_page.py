"""docs/reference/fl.md lists what fl has. strategies.md, which has its own test, lists the strategies."""

from __future__ import annotations

import builtins
import dataclasses
import enum
import inspect
import pkgutil
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fl
import netq
from fl.config.strategy import STRATEGIES
from netq.errors import NetqError
from netq.utils.stream import Stream
from tests.pages import Page

FL = Page("docs/reference/fl.md")
PAGE = FL.text


def parameters(function: Callable[..., Any]) -> dict[str, Any]:
    """The arguments of a function or class by name, with their defaults; without `self`, *those and **those."""
    found = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in found if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}


def shown(default: Any) -> str:
    if default is inspect.Parameter.empty:
        return "needed"
    text = (
        f"netq.{type(default).__name__}.{default.name}"
        if isinstance(default, enum.Enum)
        else repr(default).replace("'", '"')
    )
    return f"`{text}`"


def call(name: str, options: dict[str, Any]) -> str:
    """A call with all arguments, as in "Prometheus(port=9100)"."""
    words = [each if "needed" in shown(value) else f"{each}={shown(value)[1:-1]}" for each, value in options.items()]
    return f"{name}({', '.join(words)})"


def table(section: str, *head: str) -> dict[str, str]:
    """The second column by the name in the first, of the table of a section whose head begins with these cells."""
    return {row[0].split("`")[1]: row[1] for row in FL.section(section).rows(*head)}


def test_every_public_name_is_on_the_page() -> None:
    others = [name for name in fl.__all__ if name not in STRATEGIES]  # they are on a page of their own
    assert [name for name in others if not re.search(rf"\b{name}\b", PAGE)] == []


def test_completion_lists_the_public_names() -> None:
    assert dir(fl) == sorted(fl.__all__)


def test_every_name_on_the_page_exists() -> None:
    for name in re.findall(r"`(fl\.[\w.]+)", PAGE):
        pkgutil.resolve_name(name)


@pytest.mark.parametrize(
    ("section", "head", "function"),
    [
        ("The server", "argument", fl.Server),
        ("The server", "field", fl.Patience),
        ("The server", "field of `SecureAggregation`", fl.SecureAggregation),
        ("The server", "field of `SecurePolicy`", fl.SecurePolicy),
        ("The server", "field of `DifferentialPrivacy`", fl.DifferentialPrivacy),
        ("The client", "argument", fl.Client),
        ("Relays", "argument", fl.Relay),
        ("Strategies", "option", fl.Strategy.__init__),
        ("A federation on one machine", "argument", fl.simulate),
    ],
)
def test_every_argument_is_listed_with_its_default(section: str, head: str, function: Callable[..., Any]) -> None:
    expected = {name: shown(default) for name, default in parameters(function).items() if name != "self"}
    if function is fl.simulate:
        assert f"`fl.simulate({call('', dict(list(parameters(function).items())[:3]))[1:-1]}, …)`" in PAGE
        expected = dict(list(expected.items())[3:])
    assert table(section, head) == expected


@pytest.mark.parametrize(
    "name",
    [
        "Compression",
        "ControlVariate",
        "JsonLines",
        "MLflow",
        "Measured",
        "Progress",
        "Prometheus",
        "TensorBoard",
        "WeightedMean",
        "hinge",
        "polynomial",
        "proximal_gradient",
        "proximal_term",
    ],
)
def test_calls_on_the_page_have_the_right_arguments(name: str) -> None:
    assert f"`{call(name, parameters(getattr(fl, name)))}`" in PAGE


def test_methods_are_listed_with_their_defaults() -> None:
    assert f"`{call('run', own(fl.Client.run))}`" in PAGE
    assert "`fl.Server.resume(path, options=None, **settings)`" in PAGE
    assert list(inspect.signature(fl.Server.resume).parameters) == ["path", "options", "settings"]
    row = PAGE.split("| `WeightedMean(like)` |")[1].splitlines()[0]
    for name in re.findall(r"`(\w+)", row):
        assert hasattr(fl.WeightedMean({}), name), name
    for name in ("begin", "correction", "finish"):
        assert f"`{call(name, own(getattr(fl.ControlVariate, name)))}`" in PAGE
    for name in ("round_begins", "client_is", "round_ends"):
        assert f"`{call(name, own(getattr(fl.Callback, name)))}`" in PAGE


def own(method: Callable[..., Any]) -> dict[str, Any]:
    return {name: default for name, default in parameters(method).items() if name != "self"}


def test_every_public_member_of_the_server_is_listed() -> None:
    methods = [name for name, value in vars(fl.Server).items() if inspect.isfunction(value) and name[0] != "_"]
    properties = [name for name, value in vars(fl.Server).items() if isinstance(value, property)]
    expected = {call(name, own(getattr(fl.Server, name))) for name in methods} | {*properties, "model", "number"}
    assert set(table("The server", "of a server")) == expected


@pytest.mark.parametrize("kind", [fl.Update, fl.Report, fl.Skip, fl.Sum])
def test_update_and_report_are_listed_with_their_fields(kind: Any) -> None:
    fields = {
        each.name: each.default if each.default_factory is dataclasses.MISSING else each.default_factory()
        for each in dataclasses.fields(kind)
    }
    needed = {name: inspect.Parameter.empty for name, value in fields.items() if value is dataclasses.MISSING}
    assert f"`{call(kind.__name__, {**fields, **needed})}`" in PAGE


def test_fields_of_reports_failures_and_states_are_listed() -> None:
    names = [row[0] for row in FL.section("The result of a round").rows("of a `RoundReport`")]
    assert re.findall(r"`(\w+)`", "".join(names)) == [each.name for each in dataclasses.fields(fl.RoundReport)]
    assert f"`{call('ClientFailure', parameters(fl.ClientFailure))}`" in PAGE
    assert [state.name for state in fl.ClientState if state.name not in FL.section("Callbacks").text] == []


def test_every_failure_kind_is_listed_with_its_text() -> None:
    rows = table("The result of a round", "`FailureKind`", "kept an update out")
    assert list(rows) == [why.name for why in fl.FailureKind]
    for why in fl.FailureKind:
        assert rows[why.name].startswith(why.value)


def test_every_error_is_listed_with_its_base_class() -> None:
    rows = re.findall(r"^\| ([A-Z]\w+)(?: \((\w+)\))? \|", FL.section("Errors").text, re.MULTILINE)
    ours = {name: base for name, base in rows if hasattr(fl, name)}
    errors = {
        name for name in fl.__all__ if isinstance(kind := getattr(fl, name), type) and issubclass(kind, NetqError)
    }
    assert set(ours) == errors
    assert len(ours) == 8
    for name, base in ours.items():
        assert issubclass(getattr(fl, name), NetqError)
        assert not base or issubclass(getattr(fl, name), getattr(builtins, base))


@pytest.mark.parametrize(
    "value", [None, True, 1, 2**100, 1.5, "a", b"a", bytearray(b"a"), (1,), [1], {"a": 1}, {1}, frozenset({1})]
)
def test_plain_values_of_the_page_round_trip(value: Any) -> None:
    assert f" {type(value).__name__}".removesuffix("Type").lower() in FL.section("What may be sent").text.lower()
    assert passed(value) == value


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint64", "float16", "float32", "float64", "complex64", "complex128"]
)
def test_arrays_and_scalars_of_the_page_round_trip(dtype: str) -> None:
    np.testing.assert_array_equal(passed(np.ones(3, dtype)), np.ones(3, dtype))
    assert passed(np.ones(3, dtype)[0]) == 1


class Own(dict[str, int]):
    pass


@pytest.mark.parametrize(
    "value", [1j, Own(a=1), fl.FailureKind.LOST, np.array(["a"]), np.array([None]), np.zeros(2, "M8[s]")]
)
def test_values_the_page_excludes_are_refused(value: Any) -> None:
    with pytest.raises(netq.SerializationError):
        passed(value)


def passed(value: Any) -> Any:
    """What comes of a value that is sent."""
    options = fl.serialization()
    return options.load(Stream([bytearray(bytes(options.dump(value)))]))
