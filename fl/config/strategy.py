"""The strategy that an aggregator's file names, with its options: the table [strategy].

Called by fl/config/server.py. Knows no strategy by itself: the names are those of the classes of
fl, or of anybody's own module, and the options those of the class's constructor. docs/reference/strategies.md
lists all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fl
from fl.compression.compressor import as_compression
from fl.schedules import from_table, resolved
from fl.server.validation import check_config
from fl.strategies.base import as_discount, option_like, options_of
from netq.text import did_you_mean
from netq.toml_file import File

_NO_TEXT = {"optimizer"}  # an option that is an object


def strategy(file: File) -> fl.Strategy:
    """Return what [strategy] says; FedAvg, if it says nothing. Raises InvalidOption, in the file's words."""
    options = dict(file.table("strategy"))
    kind = _kind(file, options.pop("name", "FedAvg"))
    known = [name for name in options_of(kind) if name not in _NO_TEXT]
    for key in options:
        if key not in known:
            raise file.wrong(f"strategy.{key}: {kind.__name__} has no such option; {option_like(key, known)}")
    readers: dict[str, Callable[[], Any]] = {
        "seed": lambda: file.whole("strategy", "seed", "a whole number"),
        "config": lambda: _config(file),
        "staleness": lambda: _discount(file),
        "folder": lambda: file.folder("strategy", "folder"),
        "compression": lambda: _compression(file),
    }
    options |= {key: read() for key, read in readers.items() if key in options}
    try:
        return kind(**options)
    except TypeError as error:
        raise file.wrong(f"strategy: {error}; see docs/reference/strategies.md") from None
    except ValueError as error:  # some say Class.option, others the option
        option = str(error).removeprefix(f"{kind.__name__}.")
        raise file.wrong(f"strategy.{option}; see docs/reference/strategies.md") from None


def _kind(file: File, name: Any) -> type[fl.Strategy]:
    if isinstance(name, str) and ":" in name:
        kind: Any = file.function("strategy", "name", "farm.strategies:Mine")
        file.check("strategy.name", name, _is_strategy(kind), "a subclass of fl.Strategy")
    elif not isinstance(name, str) or name not in STRATEGIES:
        hint = f'{did_you_mean(str(name), STRATEGIES)}; or name one of your own, as in "farm.strategies:Mine"'
        raise file.wrong(f"strategy.name: {name!r}: no such strategy; {hint}")
    else:
        kind = STRATEGIES[name]
    return kind  # type: ignore[no-any-return]  # checked


def _is_strategy(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, fl.Strategy) and kind is not fl.Strategy


# the strategies of fl by name: a new one needs its line in fl/__init__.py only
STRATEGIES: dict[str, type[fl.Strategy]] = {
    name: getattr(fl, name) for name in fl.__all__ if _is_strategy(getattr(fl, name))
}


def _compression(file: File) -> fl.Compression:
    value = file.table("strategy")["compression"]
    try:
        return as_compression(value)
    except ValueError as error:
        raise file.wrong(f"strategy.compression: {str(error).removeprefix('compression: ')}") from None
    except ImportError as error:
        raise file.wrong(f"strategy.compression: {value!r}; {error}") from None


def _config(file: File) -> dict[str, Any]:
    config = file.table("strategy")["config"]
    file.check("strategy.config", config, isinstance(config, dict), "a table, as in { epochs = 2 }")
    found = dict(config)
    for name, value in found.items():
        if isinstance(value, dict) and "schedule" in value:
            with file.named(f"strategy.config.{name}: "):
                found[name] = from_table(value)
    with file.named():
        check_config(resolved(found, 1), "strategy.config")
    return found


def _discount(file: File) -> Any:
    value = file.table("strategy")["staleness"]
    expected = '{ name = "polynomial", exponent = 0.5 }, "polynomial(0.5)" or "hinge(10, 4)"'
    file.check("strategy.staleness", value, isinstance(value, str | dict), expected)
    with file.named("strategy."):
        return as_discount(value)
