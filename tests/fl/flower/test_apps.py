"""Objects that are accepted as an app, and those that are refused before anything is opened."""

from __future__ import annotations

import functools
from typing import Any

import flwr.client
import flwr.server
import numpy as np
import pytest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

import fl.flower
import netq
from fl.flower.apps import check_server_app, is_client_app
from tests.fl.flower import apps, test_legacy

NEITHER: list[Any] = [5, None, "client_app:app", lambda context: None, np.zeros(2), netq.CommunicatorOptions]


def client(message: Message, context: Context) -> Message:
    raise NotImplementedError


class Bound:
    def client(self, message: Message, context: Context) -> Message:
        raise NotImplementedError


@pytest.mark.parametrize(
    "app",
    [apps.app, test_legacy.client_app, flwr.client.ClientApp(), client, Bound().client, functools.partial(client)],
)
def test_a_node_accepts_a_client_app_or_a_function(app: Any) -> None:
    fl.flower.Node(app)


@pytest.mark.parametrize("app", [*NEITHER, ServerApp(), ClientApp, test_legacy.client_fn])
def test_a_node_refuses_other_objects(app: Any) -> None:
    expected = r"^Node\.client_app: .*; expected a flwr\.clientapp\.ClientApp, or a function of \(message, context\)$"
    with pytest.raises(netq.InvalidOption, match=expected):
        fl.flower.Node(app)


@pytest.mark.parametrize("app", [ServerApp(), flwr.server.ServerApp(), lambda grid, context: None])
def test_run_accepts_a_server_app_or_a_function(app: Any) -> None:
    check_server_app("run.server_app", app)


@pytest.mark.parametrize("app", [*NEITHER, apps.app, ServerApp])
def test_run_refuses_other_objects(app: Any) -> None:
    expected = r"^run\.server_app: .*; expected a flwr\.serverapp\.ServerApp, or a function of \(grid, context\)$"
    with pytest.raises(netq.InvalidOption, match=expected):
        fl.flower.run(app, min_nodes=2)


def test_a_device_accepts_only_a_client_app() -> None:
    assert is_client_app(apps.app)
    assert is_client_app(test_legacy.client_app)
    assert not is_client_app(client)
