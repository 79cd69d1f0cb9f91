"""Checks that an object is a Flower app, or a function that can be used as one.

Called by fl/flower/node.py, fl/flower/runner.py and edge/flower_tasks.py before they run anything. Without the check,
a ServerApp on a device would run there for each message. Pure.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import flwr.clientapp
import flwr.serverapp
from flwr.app import Context, Message

from netq.validate import expect

ClientApp = Callable[[Message, Context], Message]
ServerApp = Callable[[flwr.serverapp.Grid, Context], None]


def is_client_app(app: Any) -> bool:
    """Return whether this is a ClientApp of Flower, with the message API or a `client_fn`."""
    return isinstance(app, flwr.clientapp.ClientApp)


def check_client_app(name: str, app: Any) -> None:
    """Raise InvalidOption unless this is a ClientApp, or a function of (message, context)."""
    right = is_client_app(app) or _is_function_of_two(app)
    expect(right, name, app, "a flwr.clientapp.ClientApp, or a function of (message, context)")


def check_server_app(name: str, app: Any) -> None:
    """Raise InvalidOption unless this is a ServerApp, or a function of (grid, context)."""
    right = isinstance(app, flwr.serverapp.ServerApp) or _is_function_of_two(app)
    expect(right, name, app, "a flwr.serverapp.ServerApp, or a function of (grid, context)")


def _is_function_of_two(app: Any) -> bool:
    """Return whether this can be called with two arguments, and is neither a class nor an app of Flower."""
    if isinstance(app, (type, flwr.clientapp.ClientApp, flwr.serverapp.ServerApp)):
        return False
    try:
        inspect.signature(app).bind(None, None)
    except (TypeError, ValueError):  # not callable; other parameters; or no signature (some builtins)
        return False
    return True
