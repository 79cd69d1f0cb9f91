"""The strategy that an aggregator's file names, with its options: the table [strategy].

Called by fl/config.py. Knows no strategy by itself: the names are those of the classes of fl, or of anybody's own
module, and the options those of the class's constructor. docs/strategies.md has them all.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import fl
from fl.compress import as_compression
from netq.toml import File, did_you_mean

_DISCOUNTS: dict[str, Callable[..., Any]] = {"polynomial": fl.polynomial, "hinge": fl.hinge}
_NO_TEXT = {"optimizer"}  # an option that is an object


def strategy(file: File) -> fl.Strategy:
    """Return what [strategy] says; FedAvg, if it says nothing. Raises InvalidOption, in the file's words."""
    options = dict(file.table("strategy"))
    kind = _kind(file, options.pop("name", "FedAvg"))
    known = _parameters(kind)
    for key in options:
        if key not in known:
            raise file.wrong(f"strategy.{key}: {kind.__name__} has no such option; {did_you_mean(key, known)}")
    if "staleness" in options:
        options["staleness"] = _discount(file, options["staleness"])
    if "folder" in options:
        options["folder"] = file.place("strategy", "folder")
    if "compression" in options:
        _check_compression(file, options["compression"])
    try:
        return kind(**options)
    except TypeError as error:
        raise file.wrong(f"strategy: {error}; see docs/strategies.md") from None
    except ValueError as error:  # some say Class.option, others the option
        raise file.wrong(f"strategy.{str(error).removeprefix(f'{kind.__name__}.')}; see docs/strategies.md") from None


def _kind(file: File, name: Any) -> type[fl.Strategy]:
    if isinstance(name, str) and ":" in name:
        kind: Any = file.function("strategy", "name", "farm.strategies:Mine")
        file.check("strategy.name", name, _is_strategy(kind), "a subclass of fl.Strategy")
    else:
        names = [name for name in fl.__all__ if _is_strategy(getattr(fl, name))]
        if name not in names:
            hint = f'{did_you_mean(str(name), names)}; or name one of your own, as in "farm.strategies:Mine"'
            raise file.wrong(f"strategy.name: {name!r}: no such strategy; {hint}")
        kind = getattr(fl, name)
    return kind  # type: ignore[no-any-return]  # checked


def _is_strategy(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, fl.Strategy) and kind is not fl.Strategy


def _parameters(kind: type) -> list[str]:
    """Return the names of a class's options: its own, and those of its parents as long as it passes others on."""
    names: list[str] = []
    for each in kind.__mro__:
        if "__init__" in vars(each):
            parameters = list(inspect.signature(vars(each)["__init__"]).parameters.values())[1:]
            names += [p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
            if not any(p.kind is p.VAR_KEYWORD for p in parameters):
                break
    return [name for name in dict.fromkeys(names) if name not in _NO_TEXT]


def _check_compression(file: File, text: Any) -> None:
    try:
        as_compression(text)
    except ValueError as error:
        raise file.wrong(f"strategy.compression: {str(error).removeprefix('compression: ')}") from None


def _discount(file: File, text: Any) -> Any:
    found = re.fullmatch(r"(polynomial|hinge)\s*(?:\(([-+.\w\s,]*)\))?", text) if isinstance(text, str) else None
    file.check("strategy.staleness", text, found is not None, '"polynomial(0.5)" or "hinge(10, 4)"')
    assert found is not None
    try:
        return _DISCOUNTS[found[1]](*[float(number) for number in (found[2] or "").split(",") if number.strip()])
    except (ValueError, TypeError) as error:
        raise file.wrong(f"strategy.staleness: {text!r}: {error}; see fl.{found[1]}") from None
